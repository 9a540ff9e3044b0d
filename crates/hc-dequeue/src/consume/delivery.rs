//! Deliveries: items that the application holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use microqueue::ItemId;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Subspace, Transaction};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::consume::command::{Command, ask};
use crate::consume::shared_task::SharedTask;
use crate::items::end::end;
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::keys::{Counter, Keys};
use crate::items::record::{End, Failure, MAX_FAILURE_BYTES, MAX_RESULT_BYTES, Record};
use crate::items::settings::KnownSettings;
use crate::items::trace_context::TraceContext;
use crate::options::Backoff;
use crate::protocol::give_back::{GiveBack, Return, When};
use crate::session::SessionId;
use crate::session::wall::{unix_time, wall_millis};

/// State of an outstanding delivery that it shares with the dispatcher.
#[derive(Debug)]
pub(crate) struct Out {
    /// The number of the delivery: how often the item has been granted, including this time.
    pub(crate) delivery: u64,
    /// When the delivery's time limit passes, by the environment's clock.
    deadline: Mutex<Duration>,
    fate: watch::Sender<Fate>,
}

/// The state of an outstanding delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// The item is held.
    Held,
    /// The item is held, but was cancelled and must not be handled any more.
    Cancelled,
    /// The item is no longer held.
    Lost,
}

impl Out {
    pub(crate) fn new(delivery: u64, deadline: Duration) -> Self {
        Self {
            delivery,
            deadline: Mutex::new(deadline),
            fate: watch::Sender::new(Fate::Held),
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        *self.deadline.lock()
    }

    /// Moves the deadline to a later time, never to an earlier one.
    pub(crate) fn extend(&self, deadline: Duration) {
        let mut current = self.deadline.lock();
        *current = deadline.max(*current);
    }

    pub(crate) fn lose(&self) {
        self.fate.send_replace(Fate::Lost);
    }

    pub(crate) fn cancel(&self) {
        self.fate
            .send_modify(|fate| *fate = Fate::Cancelled.max(*fate));
    }
}

/// The channel from consumers and deliveries to their dispatcher.
pub(crate) type Commands<T> = mpsc::UnboundedSender<Command<T, Delivery<T>>>;

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
/// | is [discarded](Self::discard) | becomes a dead letter | |
///
/// The [settings](crate::Settings) limit the attempts, deaths and deliveries of each item, and an
/// [enqueue](crate::Enqueue) may set other limits for its item. An item that reaches one of its limits becomes a dead
/// letter instead of coming back.
///
/// Clones are the same delivery: it is dropped with the last of them.
pub struct Delivery<T> {
    held: Arc<HeldItem<T>>,
}

/// The item of a delivery, which all clones of the delivery share.
pub(crate) struct HeldItem<T> {
    pub(crate) id: ItemId,
    pub(crate) value: Guarded<T>,
    /// The record without the payload.
    pub(crate) record: Record,
    pub(crate) out: Arc<Out>,
    pub(crate) session: SessionId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Commands<T>,
    pub(crate) state: AtomicU8,
    /// The result that is stored when the item is completed.
    pub(crate) result: Mutex<Bytes>,
}

/// What has been decided about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DeliveryState {
    /// Nothing: dropping the delivery gives the item back.
    Open,
    /// It was acknowledged in a transaction whose outcome is not known here.
    Acknowledged,
    /// The dispatcher has received the decision.
    Resolved,
}

/// State that all deliveries of a dispatcher share.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: KnownSettings,
    pub(crate) time_limit: Duration,
    pub(crate) backoff: Backoff,
    /// Whether the consumer is shutting down: a delivery dropped from then on counts no attempt.
    pub(crate) shuts_down: AtomicBool,
    pub(crate) dispatcher: Arc<SharedTask>,
}

impl<T> Delivery<T> {
    pub(crate) fn new(item: HeldItem<T>) -> Self {
        Self {
            held: Arc::new(item),
        }
    }

    /// Returns the queue's subspace.
    pub(crate) fn queue(&self) -> &Subspace {
        &self.held.shared.keys.queue
    }

    /// Returns the item's id, which stays the same from its first enqueue on.
    #[must_use]
    pub fn id(&self) -> ItemId {
        self.held.id
    }

    /// Returns a reference to the item, which an application may store.
    #[must_use]
    pub fn item_ref(&self) -> ItemRef {
        ItemRef::new(&self.held.shared.keys, self.held.id)
    }

    /// Returns the enqueued value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.held.value
    }

    /// Returns the number of this attempt, starting at 1: one more than the item's previous failures.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.held.record.attempts + 1
    }

    /// Returns how many sessions have died while they held the item.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.held.record.deaths
    }

    /// Returns how often the item has been granted since it was enqueued or redriven, including this time.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.held.record.recent_deliveries()
    }

    /// Returns the item's last failure, if it has failed.
    #[must_use]
    pub fn last_failure(&self) -> Option<Failure> {
        self.held.record.failure.as_ref().map(Failure::from)
    }

    /// Returns when the item was first enqueued, by the wall clock of the enqueuing process.
    #[must_use]
    pub fn enqueued(&self) -> SystemTime {
        unix_time(self.held.record.enqueued_millis)
    }

    /// Returns the trace context of the item's enqueue. Returns `None` if it had none, or one in a form that this
    /// version does not know.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::parse(self.held.record.trace_context.as_deref()?)
    }

    /// Sets the result that is stored with the item when it is [acknowledged](Self::ack) or
    /// [completed](Self::complete).
    ///
    /// The result is only stored if the queue [keeps](crate::Settings::keep_done) done items.
    ///
    /// # Errors
    /// [`Error::ResultTooLong`] if the result has more than [`MAX_RESULT_BYTES`]. The previous result is kept.
    pub fn set_result(&self, result: impl Into<Bytes>) -> Result<()> {
        let result = result.into();
        if result.len() > MAX_RESULT_BYTES {
            return Err(Error::ResultTooLong {
                bytes: result.len(),
                limit: MAX_RESULT_BYTES,
            });
        }
        *self.held.result.lock() = result;
        Ok(())
    }

    /// Returns the decision that the item is completed, with its result.
    pub(crate) fn completed(&self) -> GiveBack {
        GiveBack::Completed(self.held.result.lock().clone())
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
    ///     let store = |tr: hc_dequeue::keyspace::Tx<_>| async move {
    ///         tr.set(key, result);
    ///         job.ack(&tr).await?;
    ///         Ok::<_, Error>(())
    ///     };
    ///     runner.run(store).await
    /// }
    /// ```
    /// # Conflicts
    /// Reads and writes the item's key. While the item is held, only two other operations write this key: a
    /// [cancellation] and an enqueue that takes over the item's dedupe id.
    ///
    /// [cancellation]: crate::Queue::cancel
    ///
    /// # Errors
    /// [`Error::DeliveryLost`] if this delivery no longer holds the item, and [`Error::Cancelled`] if the item was
    /// cancelled. In both cases the transaction must not commit.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn ack(&self, tr: &impl Transaction) -> Result<()> {
        let record = self.read_held(tr).await?;
        let record = record.ok_or(Error::DeliveryLost {
            item: self.item_ref(),
        })?;
        if record.cancelled_millis != 0 {
            return Err(Error::Cancelled {
                item: self.item_ref(),
            });
        }
        self.end(tr, &record, End::Completed)
    }

    /// Stages the end of an item that this transaction itself has cancelled.
    ///
    /// # Conflicts
    /// As [`ack`](Self::ack).
    pub(crate) async fn end_cancelled(&self, tr: &impl Transaction) -> Result<()> {
        let record = self.read_held(tr).await?;
        let record = record.ok_or(Error::DeliveryLost {
            item: self.item_ref(),
        })?;
        self.end(tr, &record, End::Cancelled)
    }

    /// Returns whether this delivery holds the item, and the item was not cancelled.
    ///
    /// # Conflicts
    /// As [`ack`](Self::ack), without the write.
    pub(crate) async fn is_held(&self, tr: &impl Transaction) -> Result<bool> {
        let record = self.read_held(tr).await?;
        Ok(record.is_some_and(|record| record.cancelled_millis == 0))
    }

    /// Reads the record of the item, if this delivery holds the item.
    async fn read_held(&self, tr: &impl Transaction) -> Result<Option<Record>> {
        let held = self.held.shared.keys.held(self.held.session);
        let record = held.get(tr, &self.held.id).await?;
        Ok(record.filter(|record| record.deliveries == self.held.out.delivery))
    }

    /// Stages the end of the item, which this delivery holds.
    fn end(&self, tr: &impl Transaction, record: &Record, how: End) -> Result<()> {
        let keys = &*self.held.shared.keys;
        let settings = self.held.shared.settings.get();
        keys.held(self.held.session).remove(tr, &self.held.id)?;
        keys.count(tr, Counter::Held, -1);
        let result = match how {
            End::Completed => self.held.result.lock().clone(),
            End::Cancelled | End::Removed => Bytes::new(),
        };
        end(tr, keys, &settings, &self.held.id, record, how, result)?;
        self.held
            .state
            .store(DeliveryState::Acknowledged as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Completes the item in a transaction of the consumer, and returns when it is committed.
    ///
    /// The consumer combines this with other acknowledgements and with the transaction that takes the next items. Use
    /// it for work whose effects are outside the store; for work in the same store, use [`ack`](Self::ack).
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// The item is completed even if the future is dropped.
    pub async fn complete(&self) -> Result<()> {
        self.resolve(self.completed(), None).await
    }

    /// Marks a delivery that its consumer did not receive as resolved. Returns its item and its number.
    pub(crate) fn disown(&self) -> (ItemId, u64) {
        self.held
            .state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        (self.held.id, self.held.out.delivery)
    }

    /// Applies the handler's outcome to the item without waiting, unless the handler has already decided.
    pub(crate) fn conclude(&self, how: GiveBack, reason: Option<&str>) {
        if self.is_open_to(&how) {
            self.held.send_decision(how, reason);
        }
    }

    /// Applies the handler's outcome to the item, unless the handler has already decided, and returns when that is
    /// committed.
    pub(crate) async fn concluded(&self, how: GiveBack, reason: Option<&str>) -> Result<()> {
        if self.is_open_to(&how) {
            self.resolve(how, reason).await?;
        }
        Ok(())
    }

    /// Returns whether the outcome of a handler still decides what happens to the item. An acknowledged item is not
    /// completed a second time. It may still be given back, because the acknowledgement may not have committed; if it
    /// did commit, giving the item back has no effect.
    fn is_open_to(&self, how: &GiveBack) -> bool {
        let state = self.held.state.load(Ordering::Relaxed);
        match how {
            GiveBack::Completed(_) => state == DeliveryState::Open as u8,
            _ => state != DeliveryState::Resolved as u8,
        }
    }

    /// Gives the item back to its place in the queue, and returns when that is committed. This does not count as an
    /// attempt.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn release(&self) -> Result<()> {
        self.resolve(GiveBack::Returned(When::Now), None).await
    }

    /// Gives the item back to its place in the queue, where it is granted next, and returns when that is committed.
    /// This counts as an attempt; after its last attempt, the item becomes a dead letter.
    ///
    /// # Errors
    /// Those of [`Runner::run`](microqueue::keyspace::Runner::run); [`Error::DeliveryLost`] if the delivery no longer
    /// holds the item; [`Error::ShutDown`].
    ///
    /// # Cancel safety
    /// The item is given back even if the future is dropped.
    pub async fn nack(&self) -> Result<()> {
        self.resolve(GiveBack::Failed(When::Now), None).await
    }

    /// Gives the item back after a failure, to be granted again after `delay` by the wall clocks, and stores the
    /// reason with it. This counts as an attempt; after its last attempt, the item becomes a dead letter.
    ///
    /// # Errors
    /// [`Error::ReasonTooLong`], before anything happens; otherwise as [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn retry_after(&self, delay: Duration, reason: &str) -> Result<()> {
        let how = GiveBack::Failed(self.after(delay));
        self.resolve(how, Some(checked(reason)?)).await
    }

    /// Gives the item back, to be granted again after `delay` by the wall clocks. This never counts as an attempt.
    ///
    /// The item comes back to its old place, before all items that were enqueued later. If `n` items are snoozed for `s`
    /// seconds each time, and a handler takes `h` seconds, they keep `n * h / s` handlers busy all the time. If that is as
    /// many as there are, newer items are not granted any more. Snooze few items, or for a long time.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn snooze(&self, delay: Duration) -> Result<()> {
        let how = GiveBack::Returned(self.after(delay));
        self.resolve(how, None).await
    }

    /// Makes the item a dead letter, whatever its number of attempts, and stores the reason with it.
    ///
    /// # Errors
    /// As [`retry_after`](Self::retry_after).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn discard(&self, reason: &str) -> Result<()> {
        self.resolve(GiveBack::Discarded, Some(checked(reason)?))
            .await
    }

    /// Restarts the delivery's time limit.
    ///
    /// # Errors
    /// [`Error::DeliveryLost`] if the delivery is already lost, as far as this process knows.
    pub fn keep_alive(&self) -> Result<()> {
        if self.is_lost() {
            return Err(Error::DeliveryLost {
                item: self.item_ref(),
            });
        }
        let now = self.held.shared.keys.env.now();
        self.held
            .out
            .extend(now.saturating_add(self.held.shared.time_limit));
        Ok(())
    }

    /// Waits until the delivery is lost because its time limit has passed or its session has ended. Work for a lost
    /// delivery must not be committed.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn lost(&self) {
        self.until(Fate::Lost).await;
    }

    /// Waits until the item is [cancelled](crate::Queue::cancel) or the delivery is lost.
    ///
    /// An idle dispatcher notices a cancellation at once, a busy one at its next heartbeat.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn cancelled(&self) {
        self.until(Fate::Cancelled).await;
    }

    /// Returns whether the item was cancelled or the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.held.out.fate.borrow() >= Fate::Cancelled
    }

    async fn until(&self, least: Fate) {
        let mut fate = self.held.out.fate.subscribe();
        // This cannot fail: the sender lives as long as this delivery.
        let _ = fate.wait_for(|fate| *fate >= least).await;
    }

    /// Returns whether the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.held.out.fate.borrow() == Fate::Lost
    }

    async fn resolve(&self, how: GiveBack, reason: Option<&str>) -> Result<()> {
        let decide = |done| self.held.decide(how, reason, Some(done));
        let resolved = ask(&self.held.shared.dispatcher, &self.held.commands, decide).await;
        resolved.ok_or_else(|| self.shut_down())?
    }

    /// Returns the end of a delay that begins at the current wall time.
    pub(crate) fn after(&self, delay: Duration) -> When {
        When::At(wall_millis(&self.held.shared.keys.env).saturating_add(millis(delay)))
    }

    fn shut_down(&self) -> Error {
        Error::ShutDown {
            queue: self.queue().clone(),
        }
    }
}

impl<T> Clone for Delivery<T> {
    fn clone(&self) -> Self {
        Self {
            held: self.held.clone(),
        }
    }
}

impl<T> HeldItem<T> {
    /// Sends the dispatcher the decision about the item, without waiting.
    fn send_decision(&self, how: GiveBack, reason: Option<&str>) {
        // If the dispatcher is gone, the session has ended and the item was returned.
        let _ = self.commands.send(self.decide(how, reason, None));
    }

    /// Marks the delivery as resolved, and returns the command with the decision for the dispatcher.
    fn decide(
        &self,
        how: GiveBack,
        reason: Option<&str>,
        done: Option<oneshot::Sender<Result<()>>>,
    ) -> Command<T, Delivery<T>> {
        self.state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        let item = Return {
            id: self.id,
            delivery: self.out.delivery,
            how,
            reason: reason.map(Into::into),
        };
        Command::GiveBack { item, done }
    }
}

impl<T> Drop for HeldItem<T> {
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        if state == DeliveryState::Acknowledged as u8 {
            // The item has most likely left the queue. If its transaction failed, a heartbeat finds the item.
            let _ = self.commands.send(Command::Forget {
                id: self.id,
                delivery: self.out.delivery,
            });
        } else if state == DeliveryState::Open as u8 {
            if self.shared.shuts_down.load(Ordering::Relaxed) {
                self.send_decision(GiveBack::Returned(When::Now), None);
            } else {
                let how = GiveBack::Failed(When::Later(self.shared.backoff));
                self.send_decision(how, Some("its delivery was dropped"));
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.held.id)
            .field("value", self.value())
            .field("attempt", &self.attempt())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Returns the reason if it is short enough to be stored.
fn checked(reason: &str) -> Result<&str> {
    match reason.len() {
        0..=MAX_FAILURE_BYTES => Ok(reason),
        bytes => Err(Error::ReasonTooLong {
            bytes,
            limit: MAX_FAILURE_BYTES,
        }),
    }
}
