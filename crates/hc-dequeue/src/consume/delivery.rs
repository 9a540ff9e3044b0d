//! Deliveries: items that the application holds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use microqueue::ItemId;
use microqueue::keyspace::codec::{self, MessagePack};
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{Bytes, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::batches::operations::Batch;
use crate::consume::held_item::{HandedOut, HeldItem};
use crate::consume::holdings::outstanding::HoldState;
use crate::items::batch::{BatchCounts, BatchRef, Joining};
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::record::{Failure, Progress};
use crate::items::trace_context::TraceContext;
use crate::protocol::give_back::{GiveBack, When};
use crate::queue::enqueue_options::Enqueue;
use crate::session::wall::unix_time;

/// An item that this process holds until it is acknowledged or given back.
///
/// No other consumer gets the item until the delivery's time limit passes or the session dies. Acknowledging the item
/// in the transaction that does its work makes the work take effect exactly once. Dropping the delivery gives the
/// item back as failed.
///
/// How a delivery ends decides what happens to the item and which of its limits it counts against:
///
/// | the delivery | the item | counts as |
/// |---|---|---|
/// | is given back with [`nack`](Self::nack) | goes back to its place | an attempt |
/// | is given back with [`retry_after`](Self::retry_after) | comes back at that time | an attempt |
/// | is dropped, its time limit passes, the transaction that acknowledged it did not commit, its [handler](crate::Worker) failed or panicked, or its value does not decode | comes back after the [`Backoff`](crate::Backoff) | an attempt |
/// | ends because its session was declared dead | goes back to its place; from the second death on, at a random time | a death |
/// | is [released](Self::release) | goes back to its place | nothing |
/// | is [snoozed](Self::snooze) | comes back later | nothing |
/// | ends because its consumer or worker shuts down | goes back to its place | nothing |
/// | is never received, because the call that takes it is dropped | goes back to its place | nothing |
/// | is [discarded](Self::discard) | becomes a dead letter | |
///
/// The [settings](crate::Settings) limit the attempts, deaths and deliveries of each item, and an
/// [enqueue](crate::Enqueue) may set other limits for its item. An item that reaches one of its limits becomes a dead
/// letter instead of coming back.
///
/// Clones are the same delivery: it is dropped with the last of them.
///
/// # Errors
/// Methods that complete the item or give it back fail with [`Error::DeliveryLost`] if the delivery no longer holds the
/// item, with [`Error::ShutDown`] after the end of the consumer, and with the errors of [`Runner::run`].
/// [`ack`](Self::ack) documents its own.
///
/// # Cancel safety
/// If the future of [`ack`](Self::ack) is dropped before it is ready, `ack` has staged nothing but conflict ranges. The
/// other methods that complete the item or give it back decide at their first poll: after it, the decision takes effect
/// even if the future is dropped.
///
/// [`Error::DeliveryLost`]: crate::Error::DeliveryLost
/// [`Error::ShutDown`]: crate::Error::ShutDown
/// [`Runner::run`]: microqueue::keyspace::Runner::run
pub struct Delivery<T> {
    item: Arc<HeldItem>,
    value: Arc<Guarded<T>>,
}

impl Enqueue {
    /// Makes the item a member of the [batch](Delivery::batch) of a delivery's item, which adds it while it runs, also
    /// after the batch was [closed](crate::Queue::close_batch). If the delivery's item is in no batch, the new one is a
    /// member of none, also after [`with_batch`](Self::with_batch).
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Delivery, Enqueue, Queue, Result};
    /// /// Handles a folder: its pages are handled before the batch of the folder is complete.
    /// async fn handle(tr: &impl Transaction, jobs: &Queue<String>, folder: &Delivery<String>) -> Result<()> {
    ///     let page = format!("{}/1", folder.value());
    ///     let _ = jobs.enqueue_with(tr, &page, &Enqueue::new().with_batch_of(folder)).await?;
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn with_batch_of<T>(mut self, delivery: &Delivery<T>) -> Self {
        self.batch = delivery.joining();
        self
    }
}

impl<T> Batch<T> {
    /// Makes the batch a member of the [batch](Delivery::batch) of a delivery's item, its parent, as
    /// [`with_parent`](Self::with_parent) does, also after the parent was [closed](crate::Queue::close_batch).
    #[must_use]
    pub fn with_parent_of<V>(mut self, delivery: &Delivery<V>) -> Self {
        self.parent = delivery.joining();
        self
    }
}

impl<T: Send + Sync + 'static> Delivery<T> {
    /// Gives an item that a dispatcher has handed out the type of its value, for the application: no await follows
    /// before it has the delivery. Returns `None` if the dispatcher has taken the item back.
    pub(crate) fn receive(HandedOut { item, value }: HandedOut) -> Option<Self> {
        if !item.out.receive() {
            return None;
        }
        Some(Self {
            item,
            value: value.into_shared(),
        })
    }
}

impl<T> Delivery<T> {
    pub(crate) fn item(&self) -> &HeldItem {
        &self.item
    }

    /// Returns the item's id, which stays the same from its first enqueue on. It is unique in its queue. Outside of it,
    /// use [`item_ref`](Self::item_ref).
    #[must_use]
    pub fn id(&self) -> ItemId {
        self.item.id
    }

    /// Returns a reference to the item, which an application may store. It is the same in each attempt, names the
    /// queue, and has a text: use it as the idempotency key for other services.
    #[must_use]
    pub fn item_ref(&self) -> ItemRef {
        self.item.item_ref()
    }

    /// Returns the enqueued value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the item's [kind](crate::Enqueue::with_kind), if it has one. It may be an [alias](crate::Job::ALIASES).
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.item.record.kind.get()
    }

    /// Returns the item's [priority](crate::Enqueue::with_priority).
    #[must_use]
    pub fn priority(&self) -> i8 {
        self.item.record.priority.get()
    }

    /// Returns the item's [group](crate::Enqueue::with_group), if it has one.
    #[must_use]
    pub fn group(&self) -> Option<&Bytes> {
        Some(&self.item.record.group).filter(|group| !group.is_empty())
    }

    /// Returns the [batch](crate::Enqueue::with_batch) of which the item is a member, if there is one.
    #[must_use]
    pub fn batch(&self) -> Option<BatchRef> {
        let HeldItem { record, shared, .. } = &*self.item;
        record
            .member
            .map(|member| shared.keys.batch_ref(member.batch))
    }

    /// Returns how a new member joins the batch.
    fn joining(&self) -> Option<Joining> {
        self.batch().map(|batch| Joining {
            batch,
            by_member: true,
        })
    }

    /// Returns how the members of a batch have ended, if the item is the batch's
    /// [callback](crate::Batch::with_callback).
    #[must_use]
    pub fn batch_counts(&self) -> Option<BatchCounts> {
        Some(self.item.record.callback_of?.counts)
    }

    /// Returns the batch that has ended, if the item is its [callback](crate::Batch::with_callback): by
    /// [`members`](crate::Queue::members), the callback reads their results.
    #[must_use]
    pub fn ended_batch(&self) -> Option<BatchRef> {
        let HeldItem { record, shared, .. } = &*self.item;
        let batch = record.callback_of?.batch?;
        Some(shared.keys.batch_ref(batch))
    }

    /// Returns the number of this attempt, starting at 1: one more than the item's previous failures.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.item.attempt()
    }

    /// Returns whether the item becomes a dead letter if this attempt fails: it is the last one of
    /// [`max_attempts`](Self::max_attempts), or the last of [`max_deliveries`](Self::max_deliveries).
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.item.is_last_attempt()
    }

    /// Returns after how many failed attempts the item becomes a dead letter: its own limit, or that of the settings,
    /// as they were at the last heartbeat of this process.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.item.limits().attempts
    }

    /// Returns after how many deaths of sessions the item becomes a dead letter, as
    /// [`max_attempts`](Self::max_attempts).
    #[must_use]
    pub fn max_deaths(&self) -> u32 {
        self.item.limits().deaths
    }

    /// Returns how often the item may be granted before it becomes a dead letter, as
    /// [`max_attempts`](Self::max_attempts).
    #[must_use]
    pub fn max_deliveries(&self) -> u32 {
        self.item.limits().deliveries
    }

    /// Returns how many sessions have died while they held the item.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.item.record.deaths
    }

    /// Returns how often the item has been granted since it was enqueued or redriven, including this time.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.item.record.recent_deliveries()
    }

    /// Returns the item's last failure, if it has failed.
    #[must_use]
    pub fn last_failure(&self) -> Option<Failure> {
        self.item.record.failure.as_ref().map(Failure::from)
    }

    /// Returns when the item was first enqueued, by the wall clock of the enqueuing process.
    #[must_use]
    pub fn enqueued(&self) -> SystemTime {
        unix_time(self.item.record.enqueued_millis)
    }

    /// Returns the trace context of the item's enqueue. Returns `None` if it had none, or one in a form that this
    /// version does not know.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.item.trace_context()
    }

    /// Sets the result that is stored with the item when it is [acknowledged](Self::ack) or
    /// [completed](Self::complete).
    ///
    /// The result is only stored if the queue [keeps](crate::Settings::keep_done) done items.
    ///
    /// # Errors
    /// [`Error::ResultTooLong`](crate::Error::ResultTooLong) if the result has more than
    /// [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES). The previous result is kept.
    pub fn set_result(&self, result: impl Into<Bytes>) -> Result<()> {
        // It is copied, since the owner of the application's bytes may panic when it is dropped.
        self.item.set_result(&result.into())
    }

    /// Returns the checkpoint that an earlier delivery [has left](Self::set_checkpoint). It stays the same while this
    /// delivery holds the item.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&Bytes> {
        self.item.record.checkpoint.own()
    }

    /// Returns the [checkpoint](Self::checkpoint) as a value in MessagePack.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if it does not decode as an `S`, as after a change of the
    /// type: then [`checkpoint`](Self::checkpoint) has the bytes.
    pub fn checkpoint_as<S: Serialize + DeserializeOwned>(&self) -> Result<Option<S>> {
        let Some(own) = self.checkpoint() else {
            return Ok(None);
        };
        let value = codec::decode(&MessagePack, own.clone());
        Ok(Some(value.map_err(|error| error.at(self.item.key()))?))
    }

    /// Stages a checkpoint in the caller's transaction, together with what the transaction has done: the next delivery
    /// of the item [gets](Self::checkpoint) it, and goes on from there.
    ///
    /// The bytes, up to [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES), replace those that were there. Empty
    /// ones remove them. The checkpoint stays with the item however the delivery ends, until the item is done or
    /// [replaced](crate::Queue::replace). Each costs a write of the item's row, which has the value, too.
    ///
    /// It is for handlers of [`work`](crate::Queue::work) and for consumers. In the transaction that completes the
    /// item, as that of [`process`](crate::Queue::process), it has no effect.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Runner, Store, Subspace, Transaction, Tx};
    /// # use hc_dequeue::{Delivery, Error, Result};
    /// /// Imports the rows of a file, a thousand in each transaction. After a deployment, goes on where it was.
    /// async fn import(runner: &Runner<Store>, job: &Delivery<Vec<String>>) -> Result<()> {
    ///     let rows = job.value();
    ///     let mut next: usize = job.checkpoint_as()?.unwrap_or(0);
    ///     while next < rows.len() {
    ///         let end = rows.len().min(next + 1_000);
    ///         let some = async |tr: Tx<_>| {
    ///             for row in &rows[next..end] {
    ///                 tr.set(&Subspace::from("rows").pack(row), b"");
    ///             }
    ///             job.set_checkpoint_as(&tr, &end).await?;
    ///             job.set_progress(&tr, end as u64, rows.len() as u64, "importing").await
    ///         };
    ///         runner.run(some).await?;
    ///         next = end;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Conflicts
    /// Reads and writes the item's row. While it is held, a [cancellation](crate::Queue::cancel), an enqueue that takes
    /// over its dedupe id and, once, after five seconds, its session also write this row.
    ///
    /// # Errors
    /// Nothing is staged.
    ///
    /// - [`Error::CheckpointTooLong`](crate::Error::CheckpointTooLong): with the [steps](Self::step) that are done, it
    ///   has more than [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES).
    /// - [`Error::DeliveryLost`](crate::Error::DeliveryLost) if this delivery no longer holds the item, and
    ///   [`Error::Cancelled`](crate::Error::Cancelled) if the item was cancelled. The transaction must not commit.
    pub async fn set_checkpoint(&self, tr: &impl Transaction, bytes: &[u8]) -> Result<()> {
        self.item.set_checkpoint(tr, bytes).await
    }

    /// Stages a [checkpoint](Self::set_checkpoint) that is a value in MessagePack. For another codec, encode the value
    /// with it, and set the bytes.
    ///
    /// # Conflicts
    /// As [`set_checkpoint`](Self::set_checkpoint).
    ///
    /// # Errors
    /// As [`set_checkpoint`](Self::set_checkpoint), and [`Encode`](microqueue::keyspace::Error::Encode) before anything
    /// is read.
    pub async fn set_checkpoint_as<S: Serialize + DeserializeOwned>(
        &self,
        tr: &impl Transaction,
        value: &S,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        codec::encode(&MessagePack, value, &mut bytes)?;
        self.item.set_checkpoint(tr, &bytes).await
    }

    /// Stages how far the work for the item is, for [`status`](crate::Queue::status), listings and the console: `done`
    /// of `total`, in any unit, and a line of text of up to
    /// [`MAX_PROGRESS_TEXT_BYTES`](crate::MAX_PROGRESS_TEXT_BYTES).
    ///
    /// It replaces what was there, and stays with the item as a checkpoint does, and when the item is done. Beside a
    /// [checkpoint](Self::set_checkpoint) in the same transaction, it costs no other write.
    ///
    /// # Conflicts
    /// As [`set_checkpoint`](Self::set_checkpoint).
    ///
    /// # Errors
    /// [`Error::ProgressTextTooLong`](crate::Error::ProgressTextTooLong), before anything is read; otherwise as
    /// [`set_checkpoint`](Self::set_checkpoint).
    pub async fn set_progress(
        &self,
        tr: &impl Transaction,
        done: u64,
        total: u64,
        text: &str,
    ) -> Result<()> {
        let text = text.to_owned();
        let progress = Progress { done, total, text };
        self.item.set_progress(tr, progress).await
    }

    /// Stages the completion of the item in the caller's transaction, together with everything else that the
    /// transaction writes.
    ///
    /// If the transaction does not commit, the delivery still holds the item: acknowledge it in the next attempt, or
    /// drop the delivery.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Database, Runner, Subspace, Transaction};
    /// # use hc_dequeue::{Delivery, Error, Result};
    /// /// Stores the result of a job, and completes the job in the same transaction.
    /// async fn store<D: Database>(runner: &Runner<D>, job: &Delivery<String>, result: &[u8]) -> Result<()> {
    ///     let key = &Subspace::from("results").pack(job.value());
    ///     let store = async |tr: hc_dequeue::keyspace::Tx<_>| {
    ///         tr.set(key, result);
    ///         job.ack(&tr).await?;
    ///         Ok::<_, Error>(())
    ///     };
    ///     runner.run(store).await
    /// }
    /// ```
    /// # Conflicts
    /// Reads and writes the item's row. While the item is held, only its [checkpoints](Self::set_checkpoint), a
    /// [cancellation](crate::Queue::cancel) and an enqueue that takes over its dedupe id also write this row. If the
    /// item has a [group](Self::group), also reads the limits of the group and the default ones.
    ///
    /// # Errors
    /// [`Error::DeliveryLost`](crate::Error::DeliveryLost) if this delivery no longer holds the item, and
    /// [`Error::Cancelled`](crate::Error::Cancelled) if the item was cancelled. In both cases the transaction must not
    /// commit.
    pub async fn ack(&self, tr: &impl Transaction) -> Result<()> {
        self.item.ack(tr).await
    }

    /// Completes the item in a transaction of the consumer, and returns when it is committed.
    ///
    /// The consumer combines this with other acknowledgements and with the transaction that takes the next items. Use
    /// it for work whose effects are outside the store; for work in the same store, use [`ack`](Self::ack).
    pub async fn complete(&self) -> Result<()> {
        self.item.resolve(self.item.completed(), None).await
    }

    /// Gives the item back to the queue, and returns when that is committed. This does not count as an attempt.
    ///
    /// Items without a group that come back take turns with those that have not. One with a group returns to its place
    /// among the items of the group.
    pub async fn release(&self) -> Result<()> {
        self.item.resolve(GiveBack::Returned(When::Now), None).await
    }

    /// Gives the item back to the queue as [`release`](Self::release) does, and returns when that is committed. This
    /// counts as an attempt; after its last attempt, the item becomes a dead letter.
    pub async fn nack(&self) -> Result<()> {
        self.item.resolve(GiveBack::Failed(When::Now), None).await
    }

    /// Gives the item back after a failure, to be granted again after `delay` by the wall clocks, and stores the
    /// reason with it. This counts as an attempt; after its last attempt, the item becomes a dead letter.
    ///
    /// # Errors
    /// [`Error::ReasonTooLong`](crate::Error::ReasonTooLong), before anything happens; otherwise those of the other
    /// [methods](Self#errors).
    pub async fn retry_after(&self, delay: Duration, reason: &str) -> Result<()> {
        let how = GiveBack::Failed(self.item.after(delay));
        self.item.resolve_because(how, reason).await
    }

    /// Gives the item back, to be granted again after `delay` by the wall clocks. This never counts as an attempt.
    ///
    /// If `n` items are snoozed for `s` seconds each time, and a handler takes `h` seconds, they ask for `n * h / s`
    /// handlers all the time. While other items wait, they get at most about half of the grants. Snooze few items, or
    /// for a long time.
    pub async fn snooze(&self, delay: Duration) -> Result<()> {
        let how = GiveBack::Returned(self.item.after(delay));
        self.item.resolve(how, None).await
    }

    /// Makes the item a dead letter, whatever its number of attempts, and stores the reason with it.
    ///
    /// # Errors
    /// As [`retry_after`](Self::retry_after).
    pub async fn discard(&self, reason: &str) -> Result<()> {
        self.item.resolve_because(GiveBack::Discarded, reason).await
    }

    /// Restarts the delivery's time limit.
    ///
    /// # Errors
    /// [`Error::DeliveryLost`](crate::Error::DeliveryLost) if the delivery is already lost, as far as this process
    /// knows.
    pub fn keep_alive(&self) -> Result<()> {
        self.item.keep_alive()
    }

    /// Waits until the delivery is lost because its time limit has passed or its session has ended. Work for a lost
    /// delivery must not be committed.
    pub async fn lost(&self) {
        self.item.out.until(HoldState::Lost).await;
    }

    /// Waits until the item is [cancelled](crate::Queue::cancel) or the delivery is lost.
    ///
    /// An idle dispatcher notices a cancellation at once, a busy one at its next heartbeat.
    pub async fn cancelled(&self) {
        self.item.cancelled().await;
    }

    /// Returns whether the item was cancelled or the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.item.is_cancelled()
    }

    /// Returns whether the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.item.is_lost()
    }
}

impl<T> Clone for Delivery<T> {
    fn clone(&self) -> Self {
        Self {
            item: self.item.clone(),
            value: self.value.clone(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.item.id)
            .field("value", self.value())
            .field("attempt", &self.attempt())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
