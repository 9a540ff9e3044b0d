//! A loop around a consumer: takes items, handles them, and acknowledges or retries them.

use std::future::{Future, pending};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Runner, Store};

use crate::consume::delivery::Delivery;
use crate::consume::held_item::HandedOut;
use crate::items::error::Result;
use crate::options::WorkerOptions;
use crate::queue::handle::{Queue, UntypedQueue};
use crate::shutdown::ShutdownReport;
use crate::work::handler::Handler;
use crate::work::outcome::{IntoOutcome, Outcome};
use crate::work::slots::{Handle, Slots};

/// Handles the items of a queue until it is shut down.
///
/// The worker calls the handler for each delivery. The returned [`Outcome`] decides what happens to the item:
///
/// - `Done`, or `Ok(())`: the item is completed, unless the handler has already acknowledged it in its own
///   transaction. The worker acknowledges it in the transaction that takes the next items.
/// - `Retry`, an `Err`, a panic, or a passed time limit: the item is retried after the [`Backoff`](crate::Backoff).
///   After [`Settings::max_attempts`](crate::Settings::max_attempts) attempts, it becomes a dead letter.
/// - `Snooze`: the item is granted again later. This does not count as an attempt.
/// - `Discard`: the item becomes a dead letter.
///
/// The worker drops the handler's future early in two cases:
///
/// - The item is [cancelled](Delivery::cancelled).
/// - The delivery is [lost](Delivery::lost), because its time limit has passed or the session has died. The item
///   then comes back, after the backoff or at once. A handler that hangs therefore occupies its slot only until the
///   time limit. A handler that blocks its thread cannot be stopped, but its later acknowledgement is refused.
///
/// A panic in code of the application fails the item, wherever it happens, and never ends the worker.
///
/// Dropping the worker drops all handlers at once and returns their items without counting an attempt.
///
/// # Conflicts
/// As those of its [`Consumer`](crate::Consumer), and those of the transactions that a handler runs itself.
///
/// # Retries
/// The runner retries the worker's transactions, and the worker tries again if the runner gives up. Since items are
/// retried, a handler runs at least once for each item; what it does in the transaction that
/// [acknowledges](Delivery::ack) the item takes effect once.
pub struct Worker<T> {
    slots: Slots,
    value: PhantomData<fn() -> T>,
}

impl<T, C> Queue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session and calls the handler for each item, outside a transaction.
    ///
    /// The handler gets the delivery, but no transaction. It may take as long as the worker's time limit, and its
    /// effects may be outside the store. [`process`](Self::process) is for handlers that work in a transaction. Long
    /// work in the store has [steps](Delivery::step) and [checkpoints](Delivery::set_checkpoint).
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{Delivery, Outcome, Queue, Result, Worker, WorkerOptions};
    /// # async fn send(mail: &str) -> std::io::Result<()> { Ok(()) }
    /// async fn send_mails<D: Database>(
    ///     runner: &Runner<D>,
    ///     mails: &Queue<String>,
    /// ) -> Result<Worker<String>> {
    ///     let handler = async |mail: Delivery<String>| {
    ///         if mail.value().is_empty() {
    ///             return Ok(Outcome::discard("the mail is empty"));
    ///         }
    ///         send(mail.value()).await?; // an error is retried
    ///         Ok::<_, std::io::Error>(Outcome::Done)
    ///     };
    ///     mails.work(runner, WorkerOptions::new().with_concurrency(4), handler).await
    /// }
    /// ```
    /// # Errors
    /// Those of [`consumer`](Self::consumer), and [`Error::TooHigh`](crate::Error::TooHigh) if the concurrency is more
    /// than [`MAX_CONCURRENCY`](crate::MAX_CONCURRENCY).
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without heartbeats, which other sessions remove.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn work<D, F, Fut, R>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: F,
    ) -> Result<Worker<T>>
    where
        D: Database,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome + Send + 'static,
    {
        self.work_by(runner, options, handler).await
    }

    /// Opens a session and calls a [`Handler`] for each item, as [`work`](Self::work) calls a closure. Such a handler
    /// borrows its state, instead of a clone in each call.
    ///
    /// # Errors
    /// As [`work`](Self::work).
    ///
    /// # Cancel safety
    /// As [`work`](Self::work).
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn work_by<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: impl Handler<T>,
    ) -> Result<Worker<T>> {
        let handle = call(handler);
        Worker::open(self.untyped(), runner.on_store(), &options, handle).await
    }
}

/// Returns what calls a handler for an item of its type. A slot catches a panic, wherever it happens.
pub(crate) fn call<T: Send + Sync + 'static>(handler: impl Handler<T>) -> Box<Handle> {
    let handler = Arc::new(handler);
    Box::new(move |item: HandedOut| -> BoxFuture<'static, Outcome> {
        let Some(delivery) = Delivery::receive(item) else {
            // It is lost, so that this future is dropped.
            return Box::pin(pending());
        };
        let handler = handler.clone();
        Box::pin(async move { Outcome::of(handler.handle(delivery).await) })
    })
}

impl<T: Send + Sync + 'static> Worker<T> {
    pub(crate) async fn open(
        queue: UntypedQueue,
        runner: Runner<Store>,
        options: &WorkerOptions,
        handle: Box<Handle>,
    ) -> Result<Self> {
        Ok(Self {
            slots: Slots::open(queue, runner, options, handle).await?,
            value: PhantomData,
        })
    }

    /// Stops taking items, lets the handlers finish for up to `grace`, and ends the session.
    ///
    /// Items whose handlers have not finished by then return to the queue without a counted attempt, so that
    /// deployments do not turn long items into dead letters.
    ///
    /// A handler that blocks its thread cannot be dropped. The call goes on without it [`DROP_LIMIT`] after the grace,
    /// and its later acknowledgement is refused. The call returns at the latest [`SESSION_END_LIMIT`] after that. It
    /// needs a thread of the runtime that no handler blocks, and the runtime itself waits for blocked threads when it
    /// is dropped: if the [report](ShutdownReport::running) counts such handlers, end the process with
    /// [`std::process::exit`], or use `Runtime::shutdown_background` of tokio.
    ///
    /// [`DROP_LIMIT`]: crate::shutdown::DROP_LIMIT
    /// [`SESSION_END_LIMIT`]: crate::shutdown::SESSION_END_LIMIT
    ///
    /// # Errors
    /// Those of [`Consumer::shut_down`](crate::Consumer::shut_down).
    ///
    /// # Cancel safety
    /// Dropping the future drops the handlers.
    pub async fn shut_down(self, grace: Duration) -> Result<ShutdownReport> {
        self.slots.shut_down(grace).await
    }
}
