//! The dispatcher: one task for each consumer, which performs all requests, grants, commits and heartbeats of a
//! session.
//!
//! It drives the [policy](crate::consume::policy): it performs one step at a time and reports the result, so that every
//! decision is based on committed state. There is one exception: the next take may read the queue while the last one
//! commits. All transactions go through a [`Runner`], so that their outcomes are known. The dispatcher combines the
//! demands of all local consumers: one transaction serves them together.
//!
//! - `steps`: the transactions of the [registry](crate::protocol).
//! - `check`: how a session checks its request.
//! - `take`: the fast path.
//! - `pace`: measurements of how busy the queue is and how long a transaction takes.
//! - `hand_out`: distributes items to consumers.
//! - `deliveries`: outstanding deliveries and their deadlines.
//! - `schedules`: enqueues items of schedules that are due.
//! - `upkeep`: heartbeats, dead sessions, and held items without a delivery.

mod check;
mod deliveries;
mod hand_out;
mod pace;
mod schedules;
mod steps;
mod take;
mod upkeep;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::codec::{self, Codec};
use microqueue::keyspace::env::BoxFuture;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{self, Database, Runner};
use tokio::sync::{mpsc, oneshot};

use self::deliveries::Deliveries;
use self::pace::Pacer;
use self::schedules::FireTimer;
use self::take::{Begun, LastTake};
use self::upkeep::Upkeep;
use crate::consume::command::{Command, Reply, Want};
use crate::consume::delivery::{Delivery, Shared};
use crate::consume::metrics::Metrics;
use crate::consume::policy::{Event, Facts, Policy, Returns, Step, Timer, Wants};
use crate::consume::shared_task::{SharedTask, let_others_run};
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::settings::Settings;
use crate::options::ConsumerOptions;
use crate::protocol::front::Fronts;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When};
use crate::protocol::request::Woken;
use crate::protocol::{Decode, Demand, MAX_FULFILLMENT_ITEMS};
use crate::queue::handle::Queue;
use crate::session::{Alarm, Alarms, Member, SessionId};

/// For how many turns of the scheduler the dispatcher waits for consumers that were just served to ask again.
const GATHERING_TURNS: u32 = 32;

/// How long the dispatcher waits after a transaction that failed for good.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A watch that is set.
type Watch = BoxFuture<keyspace::Result<Woken>>;

/// A session that is ending: it takes no more items, and ends when no delivery is outstanding.
struct Closing {
    /// When it ends in any case.
    until: Duration,
    done: Vec<oneshot::Sender<Result<usize>>>,
}

pub(crate) struct Dispatcher<T, D: Database, C> {
    queue: Queue<T, C>,
    /// The settings that were stored at the last heartbeat.
    settings: Arc<Settings>,
    runner: Runner<D>,
    options: ConsumerOptions,
    decode: Arc<Decode<T>>,
    fronts: Arc<Fronts>,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command<T, Delivery<T>>>,
    sender: mpsc::WeakUnboundedSender<Command<T, Delivery<T>>>,
    member: Member<D>,
    wants: VecDeque<Want<T, Delivery<T>>>,
    deliveries: Deliveries,
    returns: Vec<(Return, Option<oneshot::Sender<Result<()>>>)>,
    policy: Policy<ItemId>,
    /// The timers of the policy, and the watch that it sleeps on.
    alarms: Alarms<Timer, Woken>,
    /// Fires when items that the session holds were cancelled.
    cancels: Alarms<Infallible, ()>,
    pacer: Pacer,
    /// A take that began while the last one committed. The next step uses it, if that step is a take.
    ahead: Option<Begun<T>>,
    last_take: LastTake,
    upkeep: Upkeep,
    fire_timer: FireTimer,
    metrics: Metrics,
    closing: Option<Closing>,
}

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Opens a session.
    pub(crate) async fn open(
        queue: Queue<T, C>,
        runner: Runner<D>,
        options: ConsumerOptions,
        sender: mpsc::WeakUnboundedSender<Command<T, Delivery<T>>>,
        commands: mpsc::UnboundedReceiver<Command<T, Delivery<T>>>,
    ) -> Result<Self> {
        let shared = Shared {
            keys: queue.keys.clone(),
            settings: queue.settings.clone(),
            time_limit: options.time_limit,
            backoff: options.backoff,
            shuts_down: AtomicBool::new(false),
            dispatcher: SharedTask::new(),
        };
        let settings = queue.settings.get();
        let metrics = Metrics::new(queue.subspace());
        let codec = queue.codec.clone();
        let alarms = Alarms::new(runner.environment().clone());
        let cancels = Alarms::new(runner.environment().clone());
        let mut dispatcher = Self {
            member: Member::new(queue.keys.sessions.clone(), runner.clone(), settings.lease),
            shared: Arc::new(shared),
            decode: Arc::new(move |bytes| codec::decode(&codec, bytes).map(Guarded::new)),
            fronts: Arc::new(Fronts::new(options.poll_interval)),
            settings,
            queue,
            runner,
            options,
            commands,
            sender,
            wants: VecDeque::new(),
            deliveries: Deliveries::new(),
            returns: Vec::new(),
            policy: Policy::new(),
            alarms,
            cancels,
            pacer: Pacer::default(),
            ahead: None,
            last_take: LastTake::default(),
            upkeep: Upkeep::default(),
            fire_timer: FireTimer::default(),
            metrics,
            closing: None,
        };
        let opened = dispatcher.open_session().await?;
        dispatcher.report(opened);
        dispatcher.find_dead().await?;
        Ok(dispatcher)
    }

    pub(crate) fn session(&self) -> SessionId {
        self.member.id()
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Runs until the consumer is shut down.
    pub(crate) async fn run(mut self) {
        loop {
            self.accept_all();
            self.gather().await;
            self.expire();
            let now = self.now();
            let deliveries = &self.deliveries;
            let ends = |closing: &mut Closing| closing.until <= now || deliveries.is_empty();
            if let Some(closing) = self.closing.take_if(ends) {
                return self.close(closing.done).await;
            }
            if let Err(error) = self.advance().await {
                self.fail(&error).await;
            }
        }
    }

    /// Performs the next step that is due, or waits for an event.
    async fn advance(&mut self) -> Result<()> {
        let now = self.now();
        self.ahead.take_if(|ahead| ahead.until <= now);
        if now >= self.member.next_tick() {
            // Another step follows even if the next tick is already due, as it is on a slow store.
            self.ahead = None;
            self.shared.dispatcher.next_step().await;
            self.tick().await?;
        }
        if now >= self.fire_timer.ends() {
            self.shared.dispatcher.next_step().await;
            self.fire().await;
        }
        match self.policy.next(self.facts()) {
            Step::Rest => {
                self.rest().await;
                Ok(())
            }
            step => {
                self.shared.dispatcher.next_step().await;
                self.perform(step).await
            }
        }
    }

    /// Returns the facts for the policy's decision.
    fn facts(&self) -> Facts {
        let returns_to_queue = |(item, _): &(Return, _)| !item.how.ends();
        Facts {
            wants: if self.wants.is_empty() {
                Wants::Nothing
            } else if self.is_overdue() {
                Wants::ItemsNow
            } else {
                Wants::Items
            },
            returns: if self.returns.is_empty() {
                Returns::Nothing
            } else if self.returns.iter().any(returns_to_queue) {
                Returns::ToQueue
            } else {
                Returns::Completed
            },
            reclaims: self.upkeep.reclaims(),
            pace: self.pacer.pace(),
        }
    }

    /// Returns whether the time of a caller is over.
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.now();
        self.wants.iter().any(|want| want.until <= now)
    }

    /// Reports an event to the policy, and starts the timers that it returns.
    fn report(&mut self, event: Event<ItemId>) {
        let was_leading = self.policy.leads();
        for (timer, delay) in self.policy.on(event, self.pacer.pace()) {
            let delay = self.measure(delay);
            self.alarms.start(timer, delay);
        }
        if !self.policy.is_asleep() {
            self.alarms.unwatch();
            self.alarms.stop(Timer::Poll);
        }
        if matches!(
            event,
            Event::Waits {
                precedence: Some(_),
                ..
            }
        ) && self.policy.leads()
            && !was_leading
        {
            self.metrics.patience_expiries.increment(1);
            tracing::warn!(queue = %self.keys().queue, "the first request waits too long");
        }
    }

    fn accept_all(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.accept(command);
        }
    }

    /// Waits briefly for consumers that were just served to ask again, as they usually do, so that the next
    /// transaction serves all of them.
    ///
    /// A single consumer is not waited for, because each turn of the scheduler may wake a thread. Whether it asks again
    /// matters only if other sessions take items, too.
    async fn gather(&mut self) {
        let Some(served) = self.pacer.takes_served() else {
            return;
        };
        if served == 1 && !self.pacer.pace().is_contended {
            return;
        }
        for _ in 0..GATHERING_TURNS {
            if self.wants.len() >= served {
                break;
            }
            let_others_run().await;
            self.accept_all();
        }
        self.pacer.asks_again = self.wants.len() >= served;
    }

    fn accept(&mut self, command: Command<T, Delivery<T>>) {
        match command {
            Command::Want(want) if self.closing.is_some() => want.fail(self.shut_down()),
            Command::Want(want) => self.wants.push_back(want),
            Command::GiveBack { item, done } => {
                self.deliveries.forget(&item.id, item.delivery);
                self.returns.push((item, done));
            }
            Command::Forget { id, delivery } => self.deliveries.forget(&id, delivery),
            Command::ShutDown { grace, done } => self.begin_to_close(grace, done),
        }
    }

    fn begin_to_close(&mut self, grace: Duration, done: Option<oneshot::Sender<Result<usize>>>) {
        let until = self.now().saturating_add(grace);
        let closing = self.closing.get_or_insert_with(|| Closing {
            until,
            done: Vec::new(),
        });
        closing.until = closing.until.min(until);
        closing.done.extend(done);
        for want in std::mem::take(&mut self.wants) {
            want.fail(self.shut_down());
        }
    }

    fn shut_down(&self) -> Error {
        Error::ShutDown {
            queue: self.keys().queue.clone(),
        }
    }

    /// Forgets callers that have gone, answers callers whose time is over and for whom there was no item, and takes
    /// back items whose deliveries have passed their time limit.
    fn expire(&mut self) {
        let now = self.now();
        for want in std::mem::take(&mut self.wants) {
            if want.is_gone() {
                continue;
            }
            if want.found_none && want.until <= now {
                want.answer_none();
            } else {
                self.wants.push_back(want);
            }
        }
        for (id, out) in self.deliveries.take_over(now) {
            out.lose();
            self.metrics.lost.increment(1);
            self.return_later(
                id,
                out.delivery,
                GiveBack::Failed(When::Later(self.options.backoff)),
                Some("its time limit has passed"),
            );
        }
    }

    fn return_later(&mut self, id: ItemId, delivery: u64, how: GiveBack, reason: Option<&str>) {
        let item = Return {
            id,
            delivery,
            how,
            reason: reason.map(Into::into),
        };
        self.returns.push((item, None));
    }

    /// Returns the items that the next transaction gives back. Transactions that take items also give items back: a
    /// caller that completes one item and wants the next one then needs only one commit.
    pub(super) fn next_returns(&self) -> Vec<Return> {
        let next = self.returns.iter().take(MAX_FULFILLMENT_ITEMS);
        next.map(|(item, _)| item.clone()).collect()
    }

    /// Records the results of the [next returns](Self::next_returns), and answers their callers.
    pub(super) fn returned(&mut self, given: &[GivenBack]) {
        let keys = self.shared.keys.clone();
        for ((returned, done), given) in self.returns.drain(..given.len()).zip(given) {
            let item = ItemRef::new(&keys, returned.id);
            let outcome = match given {
                GivenBack::Accepted => Ok(()),
                // For the caller, an acknowledgement failed; any other way to give up the item has succeeded.
                GivenBack::Cancelled if returned.how.ends() => Err(Error::Cancelled { item }),
                GivenBack::Cancelled => Ok(()),
                GivenBack::Lost => {
                    tracing::debug!(%item, "a delivery had been resolved or lost before");
                    Err(Error::DeliveryLost { item })
                }
                GivenBack::Unreadable => {
                    let key = returned
                        .id
                        .key_in(self.shared.keys.held(self.member.id()).subspace());
                    let error = keyspace::Error::corrupt(&key, "expected the record of an item");
                    tracing::error!(%item, %error, "an item that this session holds does not decode");
                    Err(error.into())
                }
            };
            if let Some(done) = done {
                // The caller may have gone.
                let _ = done.send(outcome);
            }
        }
    }

    /// Returns the error to all waiting callers, and waits before the next step.
    async fn fail(&mut self, error: &Error) {
        tracing::warn!(queue = %self.keys().queue, error = %chain(error), "dispatcher failed");
        for want in std::mem::take(&mut self.wants) {
            want.fail(error.clone());
        }
        // Items to be given back are tried again, which has no effect if they were already given back.
        for (_, done) in &mut self.returns {
            if let Some(done) = done.take() {
                let _ = done.send(Err(error.clone()));
            }
        }
        self.runner.environment().sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// Waits until there may be something to do.
    async fn rest(&mut self) {
        let now = self.now();
        let waiting = self.wants.iter().map(|want| want.until);
        let end = waiting
            .filter(|until| now < *until)
            .chain([self.deliveries.earliest(), self.fire_timer.ends()])
            .chain(self.ahead.iter().map(|ahead| ahead.until))
            .chain(self.closing.iter().map(|closing| closing.until))
            .fold(self.member.next_tick(), Duration::min);
        let event = tokio::select! {
            biased;
            command = self.commands.recv() => {
                return match command {
                    Some(command) => self.accept(command),
                    None => self.begin_to_close(Duration::ZERO, None),
                };
            }
            alarm = self.alarms.next(end) => match alarm {
                Some(Alarm::Woken(woken)) => Event::Woken(woken),
                Some(Alarm::Elapsed(timer)) => Event::Elapsed(timer),
                None => return,
            },
            Some(_) = self.cancels.next(Duration::MAX) => {
                let found = self.find_cancelled().await;
                return self.note(found);
            }
        };
        self.report(event);
    }

    fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    fn now(&self) -> Duration {
        self.runner.environment().now()
    }

    /// Returns the demands of the consumers in their order, up to the limit of one transaction.
    fn demand(&self) -> Vec<Demand> {
        let mut left = MAX_FULFILLMENT_ITEMS;
        let mut demand = Vec::new();
        for want in &self.wants {
            let wanted = want.wanted.min(left);
            left -= wanted;
            if wanted == 0 {
                break;
            }
            demand.push(Demand {
                wanted,
                pop: matches!(want.reply, Reply::Pop(_)),
            });
        }
        demand
    }
}
