//! The dispatcher: one task for each consumer, which owns every request, grant, commit and heartbeat
//! of a session.
//!
//! It does one thing at a time: whatever it decides is decided by what it has seen commit. Only the
//! next take may look what there is while the last one commits. Its transactions go through a
//! [`Runner`], so that it always learns what became of them. The wishes of all local consumers are
//! combined: one transaction serves them together.
//!
//! - `deliveries`: what is out, and until when.
//! - `serve`: on the way from a wish to items, one step of the [registry](crate::registry).
//! - `inquiry`: what a session asks about its request.
//! - `take`: the shortest way, by one of them alone.
//! - `hand_out`: from items to those who want them.
//! - `upkeep`: heartbeats, the dead, and what is held without anybody who knows of it.

mod deliveries;
mod hand_out;
mod inquiry;
mod serve;
mod take;
mod upkeep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::env::BoxFuture;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::{self, Database, Runner};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::deliveries::Deliveries;
use self::serve::decode;
use self::take::{Begun, LastTake};
use crate::command::{Command, Reply, Want};
use crate::delivery::{Delivery, Shared};
use crate::error::{Error, Result};
use crate::give_back::{GiveBack, Return, give_back};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::options::ConsumerOptions;
use crate::queue::HighContentionQueue;
use crate::registry::request::Woken;
use crate::registry::{Decode, Demand, ITEMS_PER_FULFILMENT};
use crate::session::{Member, SessionId};

/// For how many turns of the scheduler those who were just served may ask again.
const GATHERING_TURNS: u32 = 32;

/// How many takes go by the registry without trying the fast path, after one that met somebody there.
const STAGED_TAKES: u32 = 64;

/// How long the dispatcher waits after a transaction that failed for good.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The session's one request.
#[derive(Debug, Clone, Copy)]
struct Requested {
    id: ItemId,
    /// Not before then does the session look for the answer.
    look_at: Duration,
    /// Not before then does the session fulfill, though it be the first: while others take items,
    /// too, one of them leads as a rule, and answers this request with its next step.
    lead_at: Duration,
    patience: Option<Patience>,
    /// What has told that there may be something new; `None` if nothing has for long.
    woken: Option<Woken>,
}

impl Requested {
    fn new(id: ItemId, lead_at: Duration) -> Self {
        Self {
            id,
            look_at: Duration::ZERO,
            lead_at,
            patience: None,
            woken: Some(Woken::Changed),
        }
    }
}

/// How long somebody else may be the first while there are items.
#[derive(Debug, Clone, Copy)]
struct Patience {
    first: ItemId,
    until: Duration,
}

/// A watch that is armed. The lock is never contended, nor taken: it makes the dispatcher `Sync`, so
/// that its futures are `Send`.
type Watch = Mutex<BoxFuture<keyspace::Result<Woken>>>;

/// A session that is to end: it takes nothing more, and ends when no delivery is out.
struct Closing {
    /// When it ends in any case.
    until: Duration,
    done: Vec<oneshot::Sender<Result<()>>>,
}

/// For whom a session that leads takes items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// For whoever has a request, and then for itself.
    Everybody,
    /// For nobody: somebody else leads, too, or the session ends. Whoever comes to be the first is told.
    HandOver,
}

/// What the dispatcher waits for beside its commands and its timers.
struct Sleep {
    /// `None` once it has failed.
    watch: Option<Watch>,
    /// When to look again, whatever the watch says.
    until: Duration,
    /// What it is woken by then.
    then: Option<Woken>,
}

pub(crate) struct Dispatcher<T, D: Database, C> {
    queue: HighContentionQueue<T, C>,
    runner: Runner<D>,
    options: ConsumerOptions,
    decode: Arc<Decode<T>>,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command<T, Delivery<T>>>,
    sender: mpsc::WeakUnboundedSender<Command<T, Delivery<T>>>,
    member: Member<D>,
    wants: VecDeque<Want<T, Delivery<T>>>,
    deliveries: Deliveries,
    /// How many wants the last step has answered.
    served: usize,
    returns: Vec<(Return, Option<oneshot::Sender<Result<()>>>)>,
    request: Option<Requested>,
    /// Whether there may be a pair, or somebody who does not know that it is the first: who leads
    /// leaves only after a fulfilment that changed nothing.
    leads: Option<Lead>,
    /// A take that was begun while the last one was committed. It is for the next step, if that is one.
    ahead: Option<Begun<T>>,
    last_take: LastTake,
    /// How many takes to come do not try the fast path.
    staged: u32,
    /// Whether those who were served last have asked again at once.
    asks_again: bool,
    /// `None`: awake.
    sleep: Option<Sleep>,
    metrics: Metrics,
    /// Up to which key dedupe ids have been looked at for those whose time is over.
    deduped: Option<Vec<u8>>,
    /// Up to which key what is held has been compared with the deliveries.
    compared: Option<Vec<u8>>,
    /// Sessions that are dead and not yet buried.
    dead: Vec<SessionId>,
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
        queue: HighContentionQueue<T, C>,
        runner: Runner<D>,
        options: ConsumerOptions,
        sender: mpsc::WeakUnboundedSender<Command<T, Delivery<T>>>,
        commands: mpsc::UnboundedReceiver<Command<T, Delivery<T>>>,
    ) -> Result<Self> {
        let shared = Shared {
            keys: queue.keys.clone(),
            settings: queue.settings.clone(),
            time_limit: options.time_limit,
            shuts_down: AtomicBool::new(false),
        };
        let metrics = Metrics::new(&queue.subspace().to_string());
        let codec = queue.codec.clone();
        let mut dispatcher = Self {
            member: Member::new(
                queue.keys.sessions.clone(),
                runner.clone(),
                queue.settings.lease,
            ),
            shared: Arc::new(shared),
            decode: Arc::new(move |bytes| decode(&codec, bytes)),
            queue,
            runner,
            options,
            commands,
            sender,
            wants: VecDeque::new(),
            deliveries: Deliveries::new(),
            served: 0,
            returns: Vec::new(),
            request: None,
            leads: None,
            ahead: None,
            last_take: LastTake::default(),
            staged: 0,
            asks_again: false,
            sleep: None,
            metrics,
            deduped: None,
            compared: None,
            dead: Vec::new(),
            closing: None,
        };
        dispatcher.open_session().await?;
        dispatcher.find_dead().await?;
        Ok(dispatcher)
    }

    pub(crate) fn session(&self) -> SessionId {
        self.member.id()
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Begins a new session; what the one before held is lost.
    async fn open_session(&mut self) -> Result<()> {
        self.deliveries.lose_all();
        self.request = None;
        self.sleep = None;
        Ok(self.member.open().await?)
    }

    /// Works until it is shut down.
    pub(crate) async fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.accept(command);
            }
            self.gather().await;
            self.expire();
            let (now, deliveries) = (self.now(), &self.deliveries);
            let ends = |closing: &mut Closing| closing.until <= now || deliveries.is_empty();
            if let Some(closing) = self.closing.take_if(ends) {
                return self.close(closing.done).await;
            }
            match self.step().await {
                Ok(true) => {}
                Ok(false) => self.rest().await,
                Err(error) => self.fail(&error).await,
            }
        }
    }

    /// Lets those who were just served ask again, as they do as a rule, so that the next transaction
    /// serves all of them.
    async fn gather(&mut self) {
        let served = std::mem::take(&mut self.served);
        if served == 0 {
            return;
        }
        for _ in 0..GATHERING_TURNS {
            if self.wants.len() >= served {
                break;
            }
            tokio::task::yield_now().await;
            while let Ok(command) = self.commands.try_recv() {
                self.accept(command);
            }
        }
        self.asks_again = self.wants.len() >= served;
    }

    /// Does the next thing that is due. False: there is nothing to do for now.
    async fn step(&mut self) -> Result<bool> {
        let ticks = self.now() >= self.member.next_tick();
        let ahead = self.ahead.take().filter(|_| !ticks);
        if ticks {
            // And then something else: on a slow store the next tick is due when this one ends.
            self.tick().await?;
        }
        let returns_to_queue = |(item, _): &(Return, _)| item.how != GiveBack::Completed;
        if self.returns.iter().any(returns_to_queue) {
            // Before anything is taken: what comes back comes first.
            self.give_back().await?;
            return Ok(true);
        }
        let leads = self.leads.is_some();
        if leads {
            self.lead().await?;
        }
        let has_reclaimed = self.reclaim().await;
        if leads {
            return Ok(true);
        }
        // What comes back comes first, and must have been seen.
        let now = self.now();
        self.ahead = ahead.filter(|ahead| now < ahead.until && !has_reclaimed);
        if self.serve().await? {
            return Ok(true);
        }
        if self.returns.is_empty() {
            return Ok(has_reclaimed);
        }
        // Nobody wants anything with which they could go.
        self.give_back().await?;
        Ok(true)
    }

    fn accept(&mut self, command: Command<T, Delivery<T>>) {
        match command {
            Command::Want(want) if self.closing.is_some() => want.fail(self.shut_down()),
            Command::Want(want) => self.wants.push_back(want),
            Command::GiveBack { item, done } => {
                self.deliveries.forget(&item.id, item.grant);
                self.returns.push((item, done));
            }
            Command::Forget { id, grant } => self.deliveries.forget(&id, grant),
            Command::ShutDown { grace, done } => self.begin_to_close(grace, done),
        }
    }

    fn begin_to_close(&mut self, grace: Duration, done: Option<oneshot::Sender<Result<()>>>) {
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

    /// Forgets who has left, answers whose time is over, and takes back what was held too long.
    fn expire(&mut self) {
        let now = self.now();
        for want in std::mem::take(&mut self.wants) {
            if want.is_gone() {
                continue;
            }
            if want.waits && want.until <= now {
                want.answer_none();
            } else {
                self.wants.push_back(want);
            }
        }
        for (id, out) in self.deliveries.take_over(now) {
            out.lose();
            self.metrics.lost.increment(1);
            self.return_later(id, out.grant, GiveBack::Now);
        }
    }

    fn return_later(&mut self, id: ItemId, grant: u64, how: GiveBack) {
        self.returns.push((Return { id, grant, how }, None));
    }

    /// Gives items back in a transaction of its own.
    pub(super) async fn give_back(&mut self) -> Result<()> {
        let (context, returns) = (self.context(&[]), &self.next_returns());
        let given = self
            .runner
            .run(|tr| async move { give_back(&tr, context, returns).await })
            .await?;
        self.returned(&given);
        Ok(())
    }

    /// Returns the items that the next transaction gives back. Those that take items do, too: a caller that
    /// completes an item and wants the next one needs one commit for both.
    pub(super) fn next_returns(&self) -> Vec<Return> {
        let next = self.returns.iter().take(ITEMS_PER_FULFILMENT);
        next.map(|(item, _)| *item).collect()
    }

    /// Notes what became of the [next returns](Self::next_returns), and tells who asked for it.
    pub(super) fn returned(&mut self, given: &[bool]) {
        for ((item, done), given) in self.returns.drain(..given.len()).zip(given) {
            if !given {
                tracing::debug!(id = ?item.id, "a delivery had been resolved or lost before");
            }
            let outcome = match given {
                true => Ok(()),
                false => Err(Error::DeliveryLost { id: item.id }),
            };
            if let Some(done) = done {
                // Whoever asked may have gone.
                let _ = done.send(outcome);
            }
        }
    }

    /// Tells everybody who waits that it does not work, and waits before it tries again.
    async fn fail(&mut self, error: &Error) {
        tracing::warn!(queue = %self.keys().queue, error = %chain(error), "dispatcher failed");
        for want in std::mem::take(&mut self.wants) {
            want.fail(error.clone());
        }
        // What is to be given back is tried again: it does no harm if it was already.
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
        let wants = self
            .wants
            .iter()
            .filter(|want| want.waits)
            .map(|want| want.until);
        let next = wants
            .chain([self.deliveries.earliest()])
            .chain(self.sleep.iter().map(|sleep| sleep.until))
            .chain(self.ahead.iter().map(|ahead| ahead.until))
            .chain(self.closing.iter().map(|closing| closing.until))
            .chain(
                self.request
                    .filter(|_| self.sleep.is_none())
                    .map(|request| request.look_at),
            )
            .fold(self.member.next_tick(), Duration::min);
        let timer = self.runner.environment().sleep(next.saturating_sub(now));
        let watch = async {
            match self.sleep.as_mut().and_then(|sleep| sleep.watch.as_mut()) {
                Some(watch) => watch.get_mut().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            command = self.commands.recv() => match command {
                Some(command) => self.accept(command),
                None => self.begin_to_close(Duration::ZERO, None),
            },
            woken = watch => match (woken, &mut self.sleep) {
                (Ok(woken), _) => self.wake(Some(woken)),
                // It tells no more. The timer does.
                (Err(_), Some(sleep)) => sleep.watch = None,
                (Err(_), None) => {}
            },
            () = timer => {
                let now = self.now();
                if let Some(sleep) = self.sleep.as_ref().filter(|sleep| sleep.until <= now) {
                    self.wake(sleep.then);
                }
            }
        }
    }

    /// Makes the dispatcher look. `None`: it has waited long enough.
    fn wake(&mut self, woken: Option<Woken>) {
        self.sleep = None;
        if let Some(request) = &mut self.request {
            request.woken = woken;
        }
    }

    fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    fn now(&self) -> Duration {
        self.runner.environment().now()
    }

    /// Returns what the consumers want, in their order, as far as one transaction can give it.
    fn demand(&self) -> Vec<Demand> {
        let mut left = ITEMS_PER_FULFILMENT;
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
