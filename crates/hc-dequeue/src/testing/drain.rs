//! Runs handlers until no item is left.

use std::future::{Future, pending};
use std::time::Duration;

use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{Database, Runner, Store, Tx};

use crate::batches::end::finish_all;
use crate::consume::delivery::Delivery;
use crate::consume::held_item::{HandedOut, HeldItem};
use crate::consume::untyped::UntypedConsumer;
use crate::items::counters::read_counter;
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::part::Counter;
use crate::jobs::handlers::Handlers;
use crate::jobs::queue::Jobs;
use crate::options::{DispatcherOptions, WorkerOptions};
use crate::protocol::give_back::{GiveBack, When};
use crate::queue::handle::{Queue, UntypedQueue};
use crate::work::calls::Calls;
use crate::work::outcome::{IntoOutcome, Outcome};
use crate::work::process::in_transaction;

/// The results of the calls of a handler, and of items that no handler gets. Each call counts once.
///
/// ```
/// use hc_dequeue::testing::Drained;
///
/// let expected = Drained { completed: 2, dead: 1, ..Drained::default() };
/// assert_eq!(expected.retried, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// The item is done.
    pub completed: u64,
    /// The item was snoozed or given back without a counted attempt.
    pub snoozed: u64,
    /// The item has failed and will be retried.
    pub retried: u64,
    /// The item became a dead letter: it was discarded, or it reached its limit of attempts or deliveries.
    pub dead: u64,
    /// The item was cancelled while its handler ran.
    pub cancelled: u64,
    /// The item's value does not decode, so the handler was not called. The item has failed, and is retried or dead.
    pub undecodable: u64,
}

/// Handles all items that are queued or due, one after another in the order of the queue, until none is left. This
/// includes items that handlers enqueue, and items of schedules that are due at the start.
///
/// The handler is one of [`work`](Queue::work): its outcomes, errors and panics mean the same. It need
/// not be `Send`, and may borrow. [`drain_process`] takes a handler of [`process`](Queue::process).
///
/// - Delayed items that are not due stay: move a [`ManualWall`](super::ManualWall) and drain again. This includes
///   failed items, which wait for the default [`Backoff`](crate::Backoff): five minutes at most. [`drain_with`] takes
///   another one.
/// - Items of a group that waits for its [rate](crate::GroupLimits::with_rate) stay. The rate counts the store's time,
///   which a `ManualWall` does not move: call [`advance_rates`](super::advance_rates), and drain again.
/// - An item that is retried or snoozed without a delay is handled again at once, in turns with later items, until it
///   reaches a limit of the queue's [settings](crate::Settings) and becomes a dead letter.
/// - An item that does not decode is not handled, but [counted](Drained::undecodable). It fails as it does with a
///   worker.
/// - While the queue is paused, nothing is handled.
/// - Other consumers of the queue may take items at the same time. The function does not wait for the items that they
///   hold.
///
/// The function opens its own session, and ends it before it returns.
///
/// # Conflicts
/// As those of a [`Consumer`](crate::Consumer).
///
/// # Errors
/// Those of [`Runner::run`].
///
/// # Cancel safety
/// Dropping the future drops the handler. Its item goes back to its place without a counted attempt.
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain<T, C, D, F, Fut, R>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Delivery<T>) -> Fut,
    Fut: Future<Output = R>,
    R: IntoOutcome,
{
    drain_with(runner, queue, WorkerOptions::default(), handler).await
}

/// Drains the queue as [`drain`] does, with the options of a worker:
///
/// - the [backoff](WorkerOptions::with_backoff), by which a [`ManualWall`](super::ManualWall) must be moved before a
///   failed item is handled again
/// - the [time limit](WorkerOptions::with_time_limit), by the clock of the machine: a handler that takes longer is
///   dropped, and has failed
///
/// The others have no effect: the items are handled one after another, none is taken ahead, and the drain does not wait
/// for items.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::keyspace::{self, RunOptions, Runner};
/// use hc_dequeue::testing::{ManualWall, drain, drain_with};
/// use hc_dequeue::{Backoff, Queue, WorkerOptions};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let wall = ManualWall::new();
/// let options = RunOptions::default().with_environment(wall.environment());
/// let runner = Runner::with_options(keyspace::open("memory:")?, options);
/// let mails = Queue::<String>::open(&runner, "mails").await?;
/// mails.submit(&runner, &"welcome".to_owned()).await?;
///
/// let hour = Duration::from_secs(60 * 60);
/// let options = WorkerOptions::new().with_backoff(Backoff::new(hour, hour));
/// let fail = async |_| Err::<(), _>("the server does not answer");
/// assert_eq!(drain_with(&runner, &mails, options, fail).await?.retried, 1);
///
/// let send = async |_| ();
/// wall.advance(hour / 2 - Duration::from_secs(1));
/// assert_eq!(drain(&runner, &mails, send).await?.completed, 0);
/// wall.advance(hour);
/// assert_eq!(drain(&runner, &mails, send).await?.completed, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Conflicts
/// As [`drain`].
///
/// # Errors
/// As [`drain`].
///
/// # Cancel safety
/// As [`drain`].
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain_with<T, C, D, F, Fut, R>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
    options: WorkerOptions,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Delivery<T>) -> Fut,
    Fut: Future<Output = R>,
    R: IntoOutcome,
{
    let handler = &Guarded::new(handler);
    let handle = |handed_out| async move {
        match Delivery::receive(handed_out) {
            Some(delivery) => Outcome::of(handler(delivery).await),
            // It is lost, so that this future is dropped.
            None => pending().await,
        }
    };
    drain_untyped(queue.untyped(), runner.on_store(), options, handle).await
}

/// Drains the queue as [`drain`] does, with a handler of [`process`](Queue::process): each item is
/// handled in the transaction that completes it.
///
/// # Conflicts
/// As [`drain`], and those of the handler.
///
/// # Retries
/// As [`process`](Queue::process).
///
/// # Errors
/// As [`drain`].
///
/// # Cancel safety
/// As [`drain`]. A transaction of the handler that was already sent may still commit, and completes its item.
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain_process<T, C, D, F, Fut, R>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Tx<D::Transaction>, Delivery<T>) -> Fut + Sync,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome + Send,
{
    drain_process_with(runner, queue, WorkerOptions::default(), handler).await
}

/// Drains the queue as [`drain_process`] does, with the options of a worker, which mean what they mean to
/// [`drain_with`].
///
/// # Conflicts
/// As [`drain_process`].
///
/// # Retries
/// As [`process`](Queue::process).
///
/// # Errors
/// As [`drain`].
///
/// # Cancel safety
/// As [`drain_process`].
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain_process_with<T, C, D, F, Fut, R>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
    options: WorkerOptions,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Tx<D::Transaction>, Delivery<T>) -> Fut + Sync,
    Fut: Future<Output = R> + Send,
    R: IntoOutcome + Send,
{
    let handler = &handler;
    let on_store = &runner.on_store().idempotent();
    let work = |delivery| async move { in_transaction(on_store, handler, &delivery).await };
    drain_with(runner, queue, options, work).await
}

/// Drains a queue of [jobs](Jobs) as [`drain`] does, with the handlers of a worker. Jobs of types without a handler
/// stay.
///
/// ```
/// # use hc_dequeue::keyspace::{self, Runner};
/// # use hc_dequeue::testing::drain_jobs;
/// # use hc_dequeue::{Delivery, Handlers, Job, Jobs};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// struct Report(u32);
///
/// impl Job for Report {
///     const KIND: &'static str = "report";
/// }
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let jobs = Jobs::open(&runner, "jobs").await?;
/// jobs.submit(&runner, &Report(7)).await?;
///
/// let handlers = Handlers::new().work(async |report: Delivery<Report>| assert_eq!(report.value().0, 7));
/// assert_eq!(drain_jobs(&runner, &jobs, handlers).await?.completed, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
/// # Conflicts
/// As [`drain`], and those of the handlers.
///
/// # Errors
/// As [`drain`], and for the handlers as [`Jobs::work`].
///
/// # Cancel safety
/// As [`drain_process`].
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain_jobs<C: Codec<()>, D: Database>(
    runner: &Runner<D>,
    jobs: &Jobs<C>,
    handlers: Handlers<D, C>,
) -> Result<Drained> {
    drain_jobs_with(runner, jobs, WorkerOptions::default(), handlers).await
}

/// Drains a queue of jobs as [`drain_jobs`] does, with the options of a worker, which mean what they mean to
/// [`drain_with`].
///
/// # Conflicts
/// As [`drain_jobs`].
///
/// # Errors
/// As [`drain_jobs`].
///
/// # Cancel safety
/// As [`drain_process`].
///
/// # Panics
/// Panics outside a tokio runtime.
pub async fn drain_jobs_with<C: Codec<()>, D: Database>(
    runner: &Runner<D>,
    jobs: &Jobs<C>,
    options: WorkerOptions,
    handlers: Handlers<D, C>,
) -> Result<Drained> {
    let (queue, handle) = jobs.handled_by(runner, handlers)?;
    drain_untyped(queue, runner.on_store(), options, handle).await
}

/// Drains a queue with a function that calls the handler of an item.
async fn drain_untyped<Fut: Future<Output = Outcome>>(
    queue: UntypedQueue,
    runner: Runner<Store>,
    options: WorkerOptions,
    handle: impl Fn(HandedOut) -> Fut,
) -> Result<Drained> {
    let options = DispatcherOptions::of_consumer(&options);
    let mut drain = Drain {
        calls: Calls::new(&queue.keys.queue, runner.environment(), &queue.kinds),
        consumer: UntypedConsumer::open(queue.clone(), runner.clone(), options).await?,
        queue,
        runner,
        drained: Drained::default(),
    };
    // What happens to each item is decided below, unless this future is dropped.
    drain.consumer.release();
    let handled = drain.handle_all(handle).await;
    drain.drained.undecodable = drain.consumer.undecodable();
    let ended = drain.consumer.shut_down(Duration::ZERO).await;
    handled?;
    ended?;
    Ok(drain.drained)
}

/// A queue that is being drained.
struct Drain {
    queue: UntypedQueue,
    runner: Runner<Store>,
    consumer: UntypedConsumer,
    calls: Calls,
    drained: Drained,
}

impl Drain {
    async fn handle_all<Fut: Future<Output = Outcome>>(
        &mut self,
        handle: impl Fn(HandedOut) -> Fut,
    ) -> Result<()> {
        loop {
            let UntypedQueue { keys, settings, .. } = &self.queue;
            finish_all(&self.runner, keys, &settings.get()).await?;
            let mut handed_out = self.consumer.dequeue(1, Duration::ZERO).await?;
            self.consumer.confirm(&handed_out).await?;
            let Some(handed_out) = handed_out.pop() else {
                return Ok(());
            };
            let item = handed_out.item.clone();
            // The call that creates the future may panic, too.
            let handled = async { handle(handed_out).await };
            self.handle(&item, handled).await?;
        }
    }

    /// Handles an item, and returns when its outcome is committed. The next item is taken after that.
    async fn handle(
        &mut self,
        item: &HeldItem,
        handled: impl Future<Output = Outcome>,
    ) -> Result<()> {
        let keys = &*self.queue.keys;
        let completed = |tr| async move { read_counter(&tr, keys, Counter::Completed).await };
        let completed_before = self.runner.run(completed).await?;

        let (how, reason) = match self.calls.call(item, handled).await {
            Some(outcome) => self.calls.resolution(item, outcome),
            None => (GiveBack::Failed(When::Later(item.out.life.backoff)), None),
        };
        match item.concluded(how, reason.as_deref()).await {
            // The place where the item is shows what happened to it.
            Ok(()) | Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {}
            Err(error) => return Err(error),
        }

        let check = |tr| async move {
            let tr = &tr;
            let completed = read_counter(tr, keys, Counter::Completed);
            try_join!(completed, find(tr, keys, &item.id))
        };
        let drained = &mut self.drained;
        let (completed, found) = self.runner.run(check).await?;
        let count = match found {
            None | Some((Location::Done, _)) if completed > completed_before => {
                &mut drained.completed
            }
            None | Some((Location::Done, _)) => &mut drained.cancelled,
            Some((Location::Dead, _)) => &mut drained.dead,
            Some((_, record)) if record.attempts >= item.attempt() => &mut drained.retried,
            Some(_) => &mut drained.snoozed,
        };
        *count += 1;
        Ok(())
    }
}
