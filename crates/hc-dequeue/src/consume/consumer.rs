//! The consumer: takes items on behalf of a process.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use microqueue::Item;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::{Database, Runner};

use crate::consume::delivery::Delivery;
use crate::consume::untyped::UntypedConsumer;
use crate::items::error::{Error, Result};
use crate::options::{DispatcherOptions, WorkerOptions};
use crate::queue::handle::Queue;

/// Takes items from a queue. All clones share one session.
///
/// A background task, the dispatcher, combines the requests of all clones into common transactions. A process
/// therefore needs one consumer per queue, however many tasks take items. The session ends when
/// [`shut_down`](Self::shut_down) is called or the last clone is dropped; the items that it holds then go back to the
/// queue.
///
/// A call in the runtime of the dispatcher that finds no other call waiting usually runs the dispatcher itself, for one
/// step: on the embedded store, its first poll may then last as long as a commit. If several calls are polled by the
/// same task, the dispatcher combines all but the first few.
///
/// The dispatcher needs a thread of the runtime. Code that blocks its thread right after a call may keep the dispatcher
/// waiting there: run such code with `tokio::task::spawn_blocking`. A [`Worker`](crate::Worker) takes care that its
/// handlers do not do so.
///
/// # Conflicts
/// The consumer's transactions conflict with those of other sessions that take the same items, that register a
/// request while it takes items, or that answer the same requests. They also conflict with a pause, and with a
/// session that declares this one dead. Enqueues never make them fail. After a conflict, the consumer uses the
/// [registry](crate#how-it-works) for a while, where conflicts are rare.
///
/// # Errors
/// Calls that take items fail with the errors of [`Runner::run`], and with [`Error::ShutDown`] once the consumer shuts
/// down.
///
/// # Retries
/// The runner retries the consumer's transactions within its limits. If a transaction fails for good, every waiting
/// call returns the error. The session continues: call again. Items that such a transaction may have taken for
/// deliveries come back at a heartbeat, as after a failure with the backoff; items that it may have popped are lost.
///
/// If an item has survived a death and its next one would be its last, a transaction records that the item is handed
/// out before a call returns it. If this one fails for good, only that call returns the error, and its items go back as
/// if they had not been granted.
///
/// # Cancel safety
/// If the future of a call is dropped after an item was granted to it, another waiting call gets the item, or it goes
/// back to its place. This counts neither as an attempt nor as a delivery. An item that [`pop`](Self::pop) has taken by
/// then is lost.
pub struct Consumer<T> {
    untyped: UntypedConsumer,
    value: PhantomData<fn() -> T>,
}

impl<T, C> Queue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session that takes items from the queue, and spawns the task that keeps it alive.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{Queue, Result, WorkerOptions};
    /// # async fn example<D: Database>(runner: &Runner<D>, jobs: &Queue<String>) -> Result<()> {
    /// let consumer = jobs.consumer(runner, WorkerOptions::new()).await?;
    /// while let Some(job) = consumer.dequeue_within(Duration::from_secs(1)).await? {
    ///     println!("{}", job.value());
    ///     job.complete().await?;
    /// }
    /// consumer.shut_down(Duration::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without heartbeats, which other sessions remove.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn consumer<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
    ) -> Result<Consumer<T>> {
        let consumer = UntypedConsumer::open(
            self.untyped(),
            runner.on_store(),
            DispatcherOptions::of_consumer(&options),
        );
        Ok(Consumer {
            untyped: consumer.await?,
            value: PhantomData,
        })
    }
}

impl<T: Send + Sync + 'static> Consumer<T> {
    /// Takes the first item, or returns `None` if there is none.
    pub async fn dequeue(&self) -> Result<Option<Delivery<T>>> {
        self.dequeue_within(Duration::ZERO).await
    }

    /// Takes the first item as soon as there is one. Returns `None` if there is none within `time`.
    ///
    /// The queue is read at least once after the call, as by [`dequeue`](Self::dequeue), even if that takes longer than
    /// `time`: a short time on a slow store never hides an item.
    pub async fn dequeue_within(&self, time: Duration) -> Result<Option<Delivery<T>>> {
        Ok(self.dequeue_batch_within(1, time).await?.pop())
    }

    /// Takes up to `limit` of the first items. Returns an empty vector if there are none.
    ///
    /// Fewer items than `limit` do not mean that the queue is empty.
    ///
    /// # Errors
    /// Also [`Error::Wanted`], if `limit` is zero or more than 512.
    pub async fn dequeue_batch(&self, limit: usize) -> Result<Vec<Delivery<T>>> {
        self.dequeue_batch_within(limit, Duration::ZERO).await
    }

    /// Takes up to `limit` of the first items as soon as there is at least one. Returns an empty vector if there are
    /// none within `time`, which counts as in [`dequeue_within`](Self::dequeue_within).
    ///
    /// # Errors
    /// As [`dequeue_batch`](Self::dequeue_batch).
    pub async fn dequeue_batch_within(
        &self,
        limit: usize,
        time: Duration,
    ) -> Result<Vec<Delivery<T>>> {
        let until = self.untyped.env().now().saturating_add(time);
        loop {
            let left = until.saturating_sub(self.untyped.env().now());
            let handed_out = self.untyped.dequeue(limit, left).await?;
            self.untyped.confirm(&handed_out).await?;
            let is_none = handed_out.is_empty();
            let received: Vec<_> = handed_out
                .into_iter()
                .filter_map(Delivery::receive)
                .collect();
            // Otherwise this call was polled so late that the time limits of the items had passed.
            if is_none || !received.is_empty() {
                return Ok(received);
            }
        }
    }

    /// Removes the first item from the queue and returns it, or `None` if there is none.
    ///
    /// The commit that takes the item completes it. If the process dies afterwards, the item is lost: each item is
    /// delivered at most once. This is the fastest way to take items.
    pub async fn pop(&self) -> Result<Option<Item<T>>> {
        self.pop_within(Duration::ZERO).await
    }

    /// Removes the first item from the queue and returns it as soon as there is one. Returns `None` if there is none
    /// within `time`, which counts as in [`dequeue_within`](Self::dequeue_within).
    pub async fn pop_within(&self, time: Duration) -> Result<Option<Item<T>>> {
        let item = self.untyped.pop(time).await?;
        Ok(item.map(|Item { id, value }| Item {
            id,
            value: value.into_inner(),
        }))
    }

    /// Returns a stream of deliveries, as items become available, until the consumer is shut down.
    ///
    /// # Errors
    /// Those of [`Runner::run`], as items of the stream. The stream continues after an error.
    pub fn deliveries(&self) -> impl Stream<Item = Result<Delivery<T>>> + Send + use<T> {
        unfold(self.clone(), |consumer| async move {
            match consumer.dequeue_within(Duration::MAX).await {
                Ok(Some(delivery)) => Some((Ok(delivery), consumer)),
                Ok(None) | Err(Error::ShutDown { .. }) => None,
                Err(error) => Some((Err(error), consumer)),
            }
        })
    }

    /// Ends the session, and returns when the end is committed.
    ///
    /// Calls that wait for items return [`Error::ShutDown`] at once. The session stays alive until every outstanding
    /// delivery is resolved or dropped, but for `grace` at most. After that, the remaining deliveries are
    /// [lost](Delivery::lost), and their items go back to the queue without a counted attempt. Returns how many
    /// deliveries were lost.
    ///
    /// The call returns at the latest [`SESSION_END_LIMIT`](crate::shutdown::SESSION_END_LIMIT) after the grace. It
    /// needs a thread of the runtime: code of the application that blocks all threads of the runtime also blocks this
    /// call.
    ///
    /// # Errors
    /// Those of [`Runner::run`], and [`Error::NotEnded`] if the store does not answer in time. In both cases, other
    /// sessions declare this session dead after its lease and return its items. [`Error::ShutDown`] if another clone
    /// has already shut the consumer down, or if the runtime has ended.
    ///
    /// # Cancel safety
    /// If the future is dropped, the session ends anyway. The remaining grace is skipped if this was the last clone.
    pub async fn shut_down(self, grace: Duration) -> Result<usize> {
        self.untyped.shut_down(grace).await
    }
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self {
            untyped: self.untyped.clone(),
            value: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &queue_name(self.untyped.queue()))
            .finish_non_exhaustive()
    }
}
