//! What takes items: a process's part in a queue.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use microqueue::Item;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Environment, Runner, Subspace};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::command::{Command, Reply, Want, wait_for_answer};
use crate::delivery::{Commands, Delivery, Shared};
use crate::dispatcher::Dispatcher;
use crate::error::{Error, Result};
use crate::options::ConsumerOptions;
use crate::queue::HighContentionQueue;
use crate::registry::ITEMS_PER_FULFILLMENT;

/// Takes items from a queue. Clones share one session.
///
/// Behind it runs a task, the dispatcher, which combines the wishes of all clones: a process needs
/// one consumer for each queue, however many tasks take from it. The session ends, and what it holds
/// goes back, with [`shut_down`](Self::shut_down), or when the last clone is dropped.
///
/// # Conflicts
/// Its transactions conflict with those of other sessions that take the same items, that register while
/// it takes, or that answer the same requests; with a pause; and with a session that finds this one dead.
/// Enqueues never make them fail. After a conflict it goes by the
/// [registry](crate#the-staged-registry) for a while, where there are hardly any.
///
/// # Retries
/// Its transactions are retried by the runner that it was opened with, within the limits of that. If
/// one fails for good, every call that waits gets the error, and the session goes on: call again. What
/// such a transaction may have taken for a delivery comes back at a heartbeat; what it may have popped
/// is lost.
pub struct Consumer<T> {
    commands: Commands<T>,
    env: Environment,
    queue: Subspace,
    handle: Arc<Handle<T>>,
}

/// Tells the dispatcher when the last consumer is gone. Deliveries can talk to it until then.
struct Handle<T> {
    commands: Commands<T>,
    shared: Arc<Shared>,
}

impl<T> Handle<T> {
    fn release(&self) {
        self.shared.shuts_down.store(true, Ordering::Relaxed);
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.release();
        // It may have ended before.
        let _ = self.commands.send(Command::ShutDown {
            grace: Duration::ZERO,
            done: None,
        });
    }
}

impl<T, C> HighContentionQueue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session that takes from the queue, and spawns the task that keeps it alive.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which others bury.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn consumer<D: Database>(
        &self,
        runner: &Runner<D>,
        options: ConsumerOptions,
    ) -> Result<Consumer<T>> {
        let (commands, received) = mpsc::unbounded_channel();
        let dispatcher = Dispatcher::open(
            self.clone(),
            runner.clone(),
            options,
            commands.downgrade(),
            received,
        );
        let dispatcher = dispatcher.await?;
        let shared = dispatcher.shared();
        let span = tracing::debug_span!("dispatcher", queue = %self.subspace(), session = %dispatcher.session());
        tokio::spawn(dispatcher.run().instrument(span));
        Ok(Consumer {
            handle: Arc::new(Handle {
                commands: commands.clone(),
                shared,
            }),
            commands,
            env: runner.environment().clone(),
            queue: self.subspace().clone(),
        })
    }
}

impl<T> Consumer<T> {
    /// Notes that deliveries which are dropped from now on are so because the consumer shuts down.
    pub(crate) fn release(&self) {
        self.handle.release();
    }
}

impl<T: Send + 'static> Consumer<T> {
    /// Takes the first item, or returns `None` if there is none.
    ///
    /// # Errors
    /// Those of [`Runner::run`]; [`Error::ShutDown`].
    ///
    /// # Cancel safety
    /// An item that was granted when the future is dropped goes to another one who wants it, or back.
    pub async fn dequeue(&self) -> Result<Option<Delivery<T>>> {
        self.dequeue_within(Duration::ZERO).await
    }

    /// Takes the first item as soon as there is one. `None`: there was none for so long.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue).
    ///
    /// # Cancel safety
    /// As [`dequeue`](Self::dequeue).
    pub async fn dequeue_within(&self, time: Duration) -> Result<Option<Delivery<T>>> {
        Ok(self.dequeue_batch_within(1, time).await?.pop())
    }

    /// Takes the first items, up to `limit` of them. None: there is none. Fewer than `limit` do not
    /// say that there are no more.
    ///
    /// # Errors
    /// [`Error::Wanted`], and as [`dequeue`](Self::dequeue).
    ///
    /// # Cancel safety
    /// As [`dequeue`](Self::dequeue).
    pub async fn dequeue_batch(&self, limit: usize) -> Result<Vec<Delivery<T>>> {
        self.dequeue_batch_within(limit, Duration::ZERO).await
    }

    /// Takes the first items, up to `limit` of them, as soon as there is one. None: there was none
    /// for so long.
    ///
    /// # Errors
    /// As [`dequeue_batch`](Self::dequeue_batch).
    ///
    /// # Cancel safety
    /// As [`dequeue`](Self::dequeue).
    pub async fn dequeue_batch_within(
        &self,
        limit: usize,
        time: Duration,
    ) -> Result<Vec<Delivery<T>>> {
        let (reply, answer) = oneshot::channel();
        self.want(limit, time, Reply::Deliver(reply))?;
        let answer = wait_for_answer(&self.commands, answer).await;
        answer.ok_or_else(|| self.gone())?
    }

    /// Takes the first item out of the queue for good, or returns `None` if there is none.
    ///
    /// The item is done with the commit that takes it: who dies with it has lost it. At most once,
    /// and the fastest.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue).
    ///
    /// # Cancel safety
    /// An item that was taken when the future is dropped is lost.
    pub async fn pop(&self) -> Result<Option<Item<T>>> {
        self.pop_within(Duration::ZERO).await
    }

    /// Takes the first item out of the queue for good, as soon as there is one. `None`: there was none
    /// for so long.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue).
    ///
    /// # Cancel safety
    /// As [`pop`](Self::pop).
    pub async fn pop_within(&self, time: Duration) -> Result<Option<Item<T>>> {
        let (reply, answer) = oneshot::channel();
        self.want(1, time, Reply::Pop(reply))?;
        let items = wait_for_answer(&self.commands, answer).await;
        let items = items.ok_or_else(|| self.gone())?;
        Ok(items?.pop())
    }

    /// Returns deliveries one after the other, as items come, until the consumer is shut down.
    ///
    /// # Errors
    /// Those of [`Runner::run`], each as one item of the stream, which goes on.
    ///
    /// # Cancel safety
    /// As [`dequeue`](Self::dequeue).
    pub fn deliveries(&self) -> impl Stream<Item = Result<Delivery<T>>> + Send + use<T> {
        unfold(self.clone(), |consumer| async move {
            match consumer.dequeue_within(Duration::MAX).await {
                Ok(Some(delivery)) => Some((Ok(delivery), consumer)),
                Ok(None) | Err(Error::ShutDown { .. }) => None,
                Err(error) => Some((Err(error), consumer)),
            }
        })
    }

    /// Ends the session, and returns when that is committed.
    ///
    /// Callers that wait for items get [`Error::ShutDown`] at once. Deliveries that are out keep the
    /// session alive for up to `grace`, until each of them is resolved and dropped. After that they are
    /// [lost](Delivery::lost), and their items go back to the queue without a counted attempt.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. Then other sessions find this one dead when its lease is over, and
    /// return its items.
    ///
    /// # Cancel safety
    /// Dropping the future ends the session as well, without the rest of the grace if it was the last
    /// clone.
    pub async fn shut_down(self, grace: Duration) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        let done = Some(done);
        let command = Command::ShutDown { grace, done };
        self.handle.release();
        self.commands.send(command).map_err(|_| self.gone())?;
        let ended = wait_for_answer(&self.commands, is_done).await;
        ended.ok_or_else(|| self.gone())?
    }

    fn want(&self, limit: usize, time: Duration, reply: Reply<T, Delivery<T>>) -> Result<()> {
        if !(1..=ITEMS_PER_FULFILLMENT).contains(&limit) {
            return Err(Error::Wanted {
                wanted: limit,
                limit: ITEMS_PER_FULFILLMENT,
            });
        }
        let want = Want {
            wanted: limit,
            until: self.env.now().saturating_add(time),
            waits: !time.is_zero(),
            reply,
        };
        self.commands
            .send(Command::Want(want))
            .map_err(|_| self.gone())
    }

    fn gone(&self) -> Error {
        Error::ShutDown {
            queue: self.queue.clone(),
        }
    }
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            env: self.env.clone(),
            queue: self.queue.clone(),
            handle: self.handle.clone(),
        }
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue.to_string())
            .finish_non_exhaustive()
    }
}
