//! Handling what there is, until there is nothing left.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Runner, Tx};

use crate::consumer::Consumer;
use crate::counters::read_counter;
use crate::delivery::Delivery;
use crate::error::{BoxError, Error, Result};
use crate::find::Place;
use crate::give_back::{GiveBack, When};
use crate::handler::Handler;
use crate::keys::Counter;
use crate::options::{Backoff, ConsumerOptions};
use crate::outcome::Outcome;
use crate::process::in_transaction;
use crate::queue::HighContentionQueue;

/// What came of the calls of a handler: each of them counts once.
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
    /// The item was put off or given back, which costs it no attempt.
    pub snoozed: u64,
    /// The item has failed, and is tried again.
    pub retried: u64,
    /// The item is a dead letter: it was discarded, or this was the last of its attempts or deliveries.
    pub dead: u64,
    /// The item was cancelled while it was handled.
    pub cancelled: u64,
}

/// Handles what is queued or due, one item after the other in the order of the queue, until there is nothing left:
/// also what handlers enqueue meanwhile, and what schedules have due when it begins.
///
/// Handlers are those of [`work`](HighContentionQueue::work), and outcomes, errors and panics mean the same. They
/// need not be `Send`, and may borrow. [`drain_process`] takes those of
/// [`process`](HighContentionQueue::process).
///
/// - Items that are delayed and not due stay: move a [`ManualWall`](super::ManualWall) and drain again. That
///   includes items that have failed, which wait for the default [`Backoff`]: five minutes at most.
/// - An item that is retried or snoozed without a delay is handled again at once, before later ones, until the
///   queue's [settings](crate::Settings) make it a dead letter.
/// - An item that does not decode is not handled: it fails as it does with a worker.
/// - While the queue is paused, nothing is handled.
/// - Other consumers of the queue may take items as well, and what they hold is not waited for.
///
/// It opens a session of its own, and ends it.
///
/// # Conflicts
/// As those of a [`Consumer`].
///
/// # Errors
/// Those of [`Runner::run`].
///
/// # Cancel safety
/// Dropping the future drops the handler wherever it is. Its item goes back, and that was an attempt of it.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn drain<T, C, D, F, Fut, R>(
    runner: &Runner<D>,
    queue: &HighContentionQueue<T, C>,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Arc<Delivery<T>>) -> Fut,
    Fut: Future<Output = R>,
    R: Into<Outcome>,
{
    let options = ConsumerOptions::default();
    let consumer = queue.consumer(runner, options).await?;
    let mut drain = Drain {
        runner,
        queue,
        handler: Handler::new(queue, runner, Backoff::default(), handler),
        drained: Drained::default(),
    };
    let handled = drain.handle_all(&consumer).await;
    let ended = consumer.shut_down(Duration::ZERO).await;
    handled?;
    ended?;
    Ok(drain.drained)
}

/// Drains the queue as [`drain`] does, and handles each item in the transaction that completes it, with a handler
/// of [`process`](HighContentionQueue::process).
///
/// # Conflicts
/// As [`drain`], and those of the handler.
///
/// # Retries
/// As [`process`](HighContentionQueue::process).
///
/// # Errors
/// As [`drain`].
///
/// # Cancel safety
/// As [`drain`].
///
/// # Panics
/// As [`drain`].
pub async fn drain_process<T, C, D, F, Fut, O, E>(
    runner: &Runner<D>,
    queue: &HighContentionQueue<T, C>,
    handler: F,
) -> Result<Drained>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Tx<D::Transaction>, Arc<Delivery<T>>) -> Fut + Sync,
    Fut: Future<Output = Result<O, E>> + Send,
    O: Into<Outcome> + Send,
    E: Into<BoxError> + Send,
{
    let handler = &handler;
    let work = |delivery| async move { in_transaction(runner, handler, &delivery).await };
    drain(runner, queue, work).await
}

/// A queue that is drained.
struct Drain<'a, T, C, D: Database, F> {
    runner: &'a Runner<D>,
    queue: &'a HighContentionQueue<T, C>,
    handler: Handler<F>,
    drained: Drained,
}

impl<T, C, D, F, Fut, R> Drain<'_, T, C, D, F>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
    D: Database,
    F: Fn(Arc<Delivery<T>>) -> Fut,
    Fut: Future<Output = R>,
    R: Into<Outcome>,
{
    async fn handle_all(&mut self, consumer: &Consumer<T>) -> Result<()> {
        while let Some(delivery) = consumer.dequeue().await? {
            self.handle(&Arc::new(delivery)).await?;
        }
        Ok(())
    }

    /// Handles an item, and returns when what comes of it is committed: the next item is taken after that.
    async fn handle(&mut self, delivery: &Arc<Delivery<T>>) -> Result<()> {
        let (queue, item) = (self.queue, &delivery.item_ref());
        let completed =
            |tr| async move { read_counter(&tr, &queue.keys, Counter::Completed).await };
        let completed_before = self.runner.run(completed).await?;

        let (how, reason) = match self.handler.handle(delivery).await {
            Some(outcome) => self.handler.resolution(delivery, outcome),
            None => (GiveBack::Failed(When::Now), None),
        };
        match delivery.concluded(how, reason.as_deref()).await {
            // Where the item is says what has become of it instead.
            Ok(()) | Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {}
            Err(error) => return Err(error),
        }

        let look = |tr| async move {
            let completed = read_counter(&tr, &queue.keys, Counter::Completed);
            try_join!(completed, queue.status(&tr, item))
        };
        let drained = &mut self.drained;
        let (completed, status) = self.runner.run(look).await?;
        let has_failed = |attempts| attempts >= delivery.attempt();
        let count = match status.map(|status| (status.place, status.attempts)) {
            None | Some((Place::Done { .. }, _)) if completed > completed_before => {
                &mut drained.completed
            }
            None | Some((Place::Done { .. }, _)) => &mut drained.cancelled,
            Some((Place::Dead, _)) => &mut drained.dead,
            Some((_, attempts)) if has_failed(attempts) => &mut drained.retried,
            Some(_) => &mut drained.snoozed,
        };
        *count += 1;
        Ok(())
    }
}
