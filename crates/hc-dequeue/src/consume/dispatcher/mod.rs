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
//! - `reserve`: the items that are taken ahead of handlers.
//! - `callers`: the callers that wait for items.
//! - `returns`: the items to give back.
//! - `schedules`: enqueues items of schedules that are due.
//! - `batches`: ends batches that are complete.
//! - `upkeep`: heartbeats, dead sessions, and held items without a delivery.

mod batches;
mod callers;
pub(super) mod check;
mod hand_out;
mod pace;
mod reserve;
mod returns;
mod schedules;
mod steps;
mod take;
mod upkeep;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::ItemId;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::{self, Runner, Store};
use tokio::sync::{mpsc, oneshot};

use self::callers::Callers;
use self::pace::Pacer;
use self::returns::PendingReturns;
use self::schedules::FireTimer;
use self::take::{Begun, LastTake};
use self::upkeep::Upkeep;
use crate::batches::timer::BatchTimer;
use crate::consume::held_item::command::Command;
use crate::consume::held_item::shared::Shared;
use crate::consume::holdings::Holdings;
use crate::consume::metrics::Metrics;
use crate::consume::policy::reserve::Size;
use crate::consume::policy::{Event, Facts, Policy, Step, Timer};
use crate::consume::shared_task::{SharedTask, let_others_run};
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::settings::Settings;
use crate::lanes::LaneMemory;
use crate::options::DispatcherOptions;
use crate::protocol::front::Fronts;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When};
use crate::protocol::request::Woken;
use crate::queue::handle::UntypedQueue;
use crate::session::{Alarm, Alarms, Member, SessionId};

/// The largest number of turns of the scheduler for which the dispatcher waits for consumers that were just served to
/// ask again.
const MAX_GATHERING_TURNS: u32 = 32;

/// How long the dispatcher waits after a transaction that failed for good.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A watch that is set.
type Watch = BoxFuture<'static, keyspace::Result<Woken>>;

/// A session that is ending: it takes no more items, and ends when no delivery is outstanding.
struct Closing {
    /// When it ends in any case.
    until: Duration,
    done: Vec<oneshot::Sender<Result<usize>>>,
}

pub(crate) struct Dispatcher {
    queue: UntypedQueue,
    /// The kinds that the session takes, as it stores them.
    kinds: Option<Vec<u8>>,
    /// The settings that were stored at the last heartbeat.
    settings: Arc<Settings>,
    runner: Runner<Store>,
    options: DispatcherOptions,
    fronts: Arc<Fronts>,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    sender: mpsc::WeakUnboundedSender<Command>,
    member: Member,
    callers: Callers,
    returns: PendingReturns,
    policy: Policy<ItemId>,
    /// The timers of the policy, and the watch that it sleeps on.
    alarms: Alarms<Timer, Woken>,
    /// Fires when items that the session holds were cancelled.
    cancels: Alarms<Infallible, ()>,
    pacer: Pacer,
    /// A take that began while the last one committed. The next step uses it, if that step is a take.
    ahead: Option<Begun>,
    last_take: LastTake,
    upkeep: Upkeep,
    fire_timer: FireTimer,
    batch_timer: BatchTimer,
    /// The size of the reserve.
    reserve: Size,
    closing: Option<Closing>,
}

impl Dispatcher {
    /// Opens a session.
    pub(crate) async fn open(
        queue: UntypedQueue,
        runner: Runner<Store>,
        options: DispatcherOptions,
        sender: mpsc::WeakUnboundedSender<Command>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Result<Self> {
        let kinds = queue.kinds.to_row();
        let keys = match kinds.as_deref() {
            None => queue.keys.clone(),
            row => Arc::new(queue.keys.of_kinds(row)),
        };
        let shared = Shared {
            keys,
            runner: runner.idempotent(),
            env: runner.environment().clone(),
            settings: queue.settings.clone(),
            handling: queue.handling.clone(),
            time_limit: options.time_limit,
            backoff: options.backoff,
            shuts_down: AtomicBool::new(false),
            let_go_of_member: AtomicBool::new(false),
            undecodable: AtomicU64::new(0),
            dispatcher: SharedTask::new(),
            holdings: Holdings::default(),
            metrics: Metrics::new(&queue.keys.queue),
        };
        let settings = queue.settings.get();
        let interval = options.poll_interval;
        let lanes = LaneMemory::of_session(queue.kinds.clone(), interval, runner.environment());
        let alarms = Alarms::new(runner.environment().clone());
        let cancels = Alarms::new(runner.environment().clone());
        let mut dispatcher = Self {
            member: Member::new(queue.keys.sessions.clone(), &runner, settings.lease),
            shared: Arc::new(shared),
            fronts: Arc::new(Fronts::new(interval, lanes)),
            settings,
            queue,
            kinds,
            runner,
            options,
            commands,
            sender,
            callers: Callers::new(),
            returns: PendingReturns::new(),
            policy: Policy::new(),
            alarms,
            cancels,
            pacer: Pacer::default(),
            ahead: None,
            last_take: LastTake::default(),
            upkeep: Upkeep::default(),
            fire_timer: FireTimer::default(),
            batch_timer: BatchTimer::default(),
            reserve: Size::default(),
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
            self.review_reserve();
            let now = self.now();
            let holdings = &self.shared.holdings;
            let ends = |closing: &mut Closing| closing.until <= now || holdings.is_idle();
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
        if now >= self.batch_timer.ends() {
            self.shared.dispatcher.next_step().await;
            self.finish_batches().await;
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
        Facts {
            wants: self.callers.fact(self.now()),
            reserve: self.reserve_fact(),
            returns: self.returns.fact(),
            reclaims: self.upkeep.reclaims(),
            pace: self.pacer.pace(),
        }
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
            self.shared.metrics.patience_expiries.increment(1);
            tracing::warn!(queue = %self.keys().name, "the first request waits too long");
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
        for _ in 0..MAX_GATHERING_TURNS {
            if self.callers.len() >= served {
                break;
            }
            let_others_run().await;
            self.accept_all();
        }
        self.pacer.asks_again = self.callers.len() >= served;
    }

    fn accept(&mut self, command: Command) {
        match command {
            Command::Want(want) if self.closing.is_some() => want.fail(self.shut_down()),
            Command::Want(want) => self.accept_want(want),
            Command::GiveBack { item, done } => {
                self.forget(&item.id, item.delivery);
                self.returns.push(item, done);
            }
            Command::Wake => {}
            Command::EndReserve => self.drain(),
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
        self.shared.holdings.close();
        self.drain();
        let error = self.shut_down();
        self.callers.fail(&error);
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
        if self.shared.let_go_of_member.swap(false, Ordering::Relaxed) {
            self.batch_timer.note_member(now);
        }
        self.callers.expire(now);
        for (id, out) in self.shared.holdings.take_over(now) {
            out.lose();
            self.shared.metrics.lost.increment(1);
            if out.take_back() {
                self.return_unused(id, out.delivery);
                continue;
            }
            let how = GiveBack::Failed(When::Later(out.life.backoff));
            let reason = match out.repeats() {
                Some(repeats) => format!("its time limit has passed: {repeats}"),
                None => "its time limit has passed".to_owned(),
            };
            self.return_later(id, out.delivery, how, Some(&reason));
        }
    }

    /// Forgets a delivery that is over.
    fn forget(&self, id: &ItemId, delivery: u64) {
        // The dispatcher itself is awake.
        let _ = self.shared.holdings.forget(id, delivery, self.now());
    }

    fn return_later(&mut self, id: ItemId, delivery: u64, how: GiveBack, reason: Option<&str>) {
        let item = Return {
            id,
            delivery,
            how,
            reason: reason.map(Into::into),
        };
        self.returns.push(item, None);
    }

    /// Records the results of the [next returns](PendingReturns::next), and answers their callers.
    fn returned(&mut self, given: &[GivenBack]) {
        let session = self.session();
        self.returns.finish(given, &self.shared.keys, session);
    }

    /// Returns the error to all waiting callers, and waits before the next step.
    async fn fail(&mut self, error: &Error) {
        tracing::warn!(queue = %self.keys().name, error = %chain(error), "dispatcher failed");
        self.callers.fail(error);
        self.returns.fail(error);
        self.runner.environment().sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// Waits until there may be something to do.
    async fn rest(&mut self) {
        let now = self.now();
        let end = [
            self.callers.next_deadline(now),
            self.reserve_ends(),
            self.fire_timer.ends(),
            self.batch_timer.ends(),
        ]
        .into_iter()
        .chain(self.ahead.iter().map(|ahead| ahead.until))
        .chain(self.closing.iter().map(|closing| closing.until))
        .fold(self.member.next_tick(), Duration::min);
        let end = self.shared.holdings.sleep(end);
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
}
