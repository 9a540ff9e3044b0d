//! Deliveries: items in the hands of the application.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Transaction};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, wait_for_answer};
use crate::done::end;
use crate::error::{Error, Result};
use crate::give_back::{GiveBack, Return, When};
use crate::item_ref::ItemRef;
use crate::keys::{Counter, Keys};
use crate::record::{End, Failure, MAX_FAILURE_BYTES, MAX_RESULT_BYTES, Record};
use crate::session::SessionId;
use crate::settings::KnownSettings;
use crate::trace_context::TraceContext;
use crate::wall::{unix_time, wall_millis};

/// What dispatcher and delivery share of an item that is out.
#[derive(Debug)]
pub(crate) struct Out {
    /// The number of the delivery: how often the item was granted, this time included.
    pub(crate) delivery: u64,
    /// When the delivery's time is over, by the environment's clock.
    deadline: Mutex<Duration>,
    fate: watch::Sender<Fate>,
}

/// What has become of a delivery that is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// The item is held.
    Held,
    /// It is held, and is not to be handled any more.
    Cancelled,
    /// It is not held any more.
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

/// How consumers and deliveries reach their dispatcher.
pub(crate) type Commands<T> = mpsc::UnboundedSender<Command<T, Delivery<T>>>;

/// An item that was granted to this process until it is acknowledged.
///
/// It is *held*: no other consumer gets it while its time lasts and the session lives. Acknowledging it
/// in the transaction that does its work makes that work effective once, whatever dies and whenever.
/// Dropping it gives it back.
///
/// What becomes of a delivery says what it costs the item:
///
/// | the delivery | the item | costs |
/// |---|---|---|
/// | is given back with [`nack`](Self::nack) or dropped, its time is over, or it was acknowledged in a transaction that did not commit | goes back to its place | an attempt |
/// | failed and is [retried later](Self::retry_after), its [handler](crate::Worker) failed, or its value does not decode | comes back later | an attempt |
/// | ends with a session that is found dead | goes back to its place; from the second time on at a random time | a death |
/// | is [released](Self::release) | goes back to its place | nothing |
/// | is [snoozed](Self::snooze) | comes back later | nothing |
/// | ends because its consumer or worker shuts down | goes back to its place | nothing |
/// | is [rejected](Self::reject) | becomes a dead letter | |
///
/// An item has as many attempts, deaths and deliveries as the
/// [settings](crate::Settings) say, or its [enqueue](crate::Enqueue). After the last one of any of them it is
/// a dead letter in the place of what the table says.
pub struct Delivery<T> {
    pub(crate) id: ItemId,
    pub(crate) value: T,
    /// Without the payload.
    pub(crate) record: Record,
    pub(crate) out: Arc<Out>,
    pub(crate) session: SessionId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Commands<T>,
    pub(crate) state: AtomicU8,
    /// What the item's end says came of it.
    pub(crate) result: Mutex<Bytes>,
}

/// What has been decided of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DeliveryState {
    /// Nothing: dropping it gives the item back.
    Open,
    /// It was acknowledged in a transaction whose end is not known here.
    Acknowledged,
    /// The dispatcher has been told.
    Resolved,
}

/// What all deliveries of a dispatcher share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: KnownSettings,
    pub(crate) time_limit: Duration,
    /// Whether the consumer shuts down: what is dropped from then on has not failed.
    pub(crate) shuts_down: AtomicBool,
}

impl<T> Delivery<T> {
    /// Returns the item's id: that of its first enqueue.
    #[must_use]
    pub fn id(&self) -> ItemId {
        self.id
    }

    /// Returns a reference to the item, for an application to keep.
    #[must_use]
    pub fn item_ref(&self) -> ItemRef {
        ItemRef::new(&self.shared.keys, self.id)
    }

    /// Returns what was enqueued.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns which attempt of the item's this is, from 1 on: how often it has failed before, and one more.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.record.attempts + 1
    }

    /// Returns how many sessions have died with the item.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.record.deaths
    }

    /// Returns how often the item was granted, this time included, whatever became of it.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.record.deliveries
    }

    /// Returns why the item failed last, if it did.
    #[must_use]
    pub fn last_failure(&self) -> Option<Failure> {
        self.record.failure.as_ref().map(Failure::from)
    }

    /// Returns when the item was enqueued first, by the wall clock of the process that enqueued it.
    #[must_use]
    pub fn enqueued(&self) -> SystemTime {
        unix_time(self.record.enqueued_millis)
    }

    /// Returns the trace context of what enqueued the item. `None`: it had none, or one of a form that this
    /// version does not know.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::parse(self.record.trace_context.as_deref()?)
    }

    /// Sets the result that is kept with the item once it is [acknowledged](Self::ack) or
    /// [completed](Self::complete), if the queue [keeps](crate::Settings::keep_done) items that are done. Nothing
    /// is written before that.
    ///
    /// # Errors
    /// [`Error::ResultTooLong`]: it has up to [`MAX_RESULT_BYTES`] bytes. The delivery is as it was.
    pub fn set_result(&self, result: impl Into<Bytes>) -> Result<()> {
        let result = result.into();
        if result.len() > MAX_RESULT_BYTES {
            return Err(Error::ResultTooLong {
                bytes: result.len(),
                limit: MAX_RESULT_BYTES,
            });
        }
        *self.result.lock() = result;
        Ok(())
    }

    /// Returns that the item is done, with its result.
    pub(crate) fn completed(&self) -> GiveBack {
        GiveBack::Completed(self.result.lock().clone())
    }

    /// Stages that the item is done. What else the transaction does happens together with that.
    ///
    /// If the transaction does not commit, the item is still held: acknowledge it in the next
    /// attempt, or drop the delivery.
    ///
    /// # Conflicts
    /// Reads and writes the item's key. While the item is held, only a [cancellation] and an enqueue that takes
    /// its dedupe id over do that, too.
    ///
    /// [cancellation]: crate::HighContentionQueue::cancel
    ///
    /// # Errors
    /// [`Error::DeliveryLost`] if the item is not held by this delivery any more, and [`Error::Cancelled`] if
    /// it was cancelled meanwhile: the transaction must not commit.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn ack(&self, tr: &impl Transaction) -> Result<()> {
        let (keys, settings) = (&*self.shared.keys, self.shared.settings.get());
        let held = keys.held(self.session);
        let record = held.get(tr, &self.id).await?;
        let record = record.filter(|record| record.deliveries == self.out.delivery);
        let record = record.ok_or(Error::DeliveryLost { id: self.id })?;
        if record.cancelled_millis != 0 {
            return Err(Error::Cancelled { id: self.id });
        }
        held.remove(tr, &self.id)?;
        keys.count(tr, Counter::Held, -1);
        let result = self.result.lock().clone();
        end(
            tr,
            keys,
            &settings,
            &self.id,
            &record,
            End::Completed,
            result,
        )?;
        self.state
            .store(DeliveryState::Acknowledged as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Acknowledges the item in a transaction of the consumer's own, together with others and with
    /// what the consumer does next, and returns when that is committed. For work whose effects are
    /// elsewhere; work in the same store acknowledges with [`ack`](Self::ack).
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// The item is acknowledged also if the future is dropped.
    pub async fn complete(&self) -> Result<()> {
        self.resolve(self.completed(), None).await
    }

    /// Takes a delivery back that was not received. Returns its item and its number.
    pub(crate) fn disown(&self) -> (ItemId, u64) {
        self.state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        (self.id, self.out.delivery)
    }

    /// Does with the item what came of its handler, unless the handler has done it, and does not wait for it.
    pub(crate) fn conclude(&self, how: GiveBack, reason: Option<&str>) {
        if self.is_open_to(&how) {
            // Without a dispatcher the session has ended, and the item was returned.
            let _ = self.tell(how, reason, None);
        }
    }

    /// Does with the item what came of its handler, unless the handler has done it, and returns when that is
    /// committed.
    pub(crate) async fn concluded(&self, how: GiveBack, reason: Option<&str>) -> Result<()> {
        match self.is_open_to(&how) {
            true => self.resolve(how, reason).await,
            false => Ok(()),
        }
    }

    /// Returns whether the outcome of a handler still decides what becomes of the item. An item that was
    /// acknowledged is not completed a second time. It may have to be given back, because the acknowledgement may
    /// not have been committed; if it was, giving back does nothing.
    fn is_open_to(&self, how: &GiveBack) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        match how {
            GiveBack::Completed(_) => state == DeliveryState::Open as u8,
            _ => state != DeliveryState::Resolved as u8,
        }
    }

    /// Gives the item back to its place in the queue, and returns when that is committed. This costs it
    /// nothing.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn release(&self) -> Result<()> {
        self.resolve(GiveBack::Returned(When::Now), None).await
    }

    /// Gives the item back to its place in the queue, where it is the next to be granted again, and
    /// returns when that is committed. This was an attempt: after the last one the item becomes a dead
    /// letter.
    ///
    /// # Errors
    /// Those of [`Runner::run`](microqueue::keyspace::Runner::run); [`Error::DeliveryLost`] if it had
    /// gone back before; [`Error::ShutDown`].
    ///
    /// # Cancel safety
    /// The item is given back also if the future is dropped.
    pub async fn nack(&self) -> Result<()> {
        self.resolve(GiveBack::Failed(When::Now), None).await
    }

    /// Gives the item back after a failure, to be granted again after `delay` by the wall clocks. This
    /// was an attempt: after the last one the item becomes a dead letter. The reason is kept with the item.
    ///
    /// # Errors
    /// [`Error::ReasonTooLong`], at once; and as [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn retry_after(&self, delay: Duration, reason: &str) -> Result<()> {
        let how = GiveBack::Failed(self.after(delay));
        self.resolve(how, Some(checked(reason)?)).await
    }

    /// Puts the item off, to be granted again after `delay` by the wall clocks. This was no attempt,
    /// however often it is repeated.
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

    /// Makes the item a dead letter, however often it was tried. The reason is kept with the item.
    ///
    /// # Errors
    /// As [`retry_after`](Self::retry_after).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn reject(&self, reason: &str) -> Result<()> {
        self.resolve(GiveBack::Rejected, Some(checked(reason)?))
            .await
    }

    /// Begins the delivery's time anew.
    ///
    /// # Errors
    /// [`Error::DeliveryLost`] if it is over already, as far as this process knows.
    pub fn keep_alive(&self) -> Result<()> {
        if self.is_lost() {
            return Err(Error::DeliveryLost { id: self.id });
        }
        let now = self.shared.keys.env.now();
        self.out.extend(now.saturating_add(self.shared.time_limit));
        Ok(())
    }

    /// Waits until the delivery is lost: its time or its session is over. What was done for it must
    /// not be committed.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn lost(&self) {
        self.until(Fate::Lost).await;
    }

    /// Waits until the item is [cancelled](crate::HighContentionQueue::cancel), or the delivery lost. A
    /// dispatcher that has nothing else to do learns of a cancellation at once, another one with its next
    /// heartbeat.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn cancelled(&self) {
        self.until(Fate::Cancelled).await;
    }

    /// Returns whether the item was cancelled or the delivery lost, as far as this process knows.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.out.fate.borrow() >= Fate::Cancelled
    }

    async fn until(&self, least: Fate) {
        let mut fate = self.out.fate.subscribe();
        // The sender lives as long as this delivery.
        let _ = fate.wait_for(|fate| *fate >= least).await;
    }

    /// Returns whether the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.out.fate.borrow() == Fate::Lost
    }

    async fn resolve(&self, how: GiveBack, reason: Option<&str>) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        self.tell(how, reason, Some(done))?;
        let resolved = wait_for_answer(&self.commands, is_done).await;
        resolved.ok_or_else(|| self.shut_down())?
    }

    /// Tells the dispatcher what becomes of the item.
    fn tell(
        &self,
        how: GiveBack,
        reason: Option<&str>,
        done: Option<oneshot::Sender<Result<()>>>,
    ) -> Result<()> {
        self.state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        let item = Return {
            id: self.id,
            delivery: self.out.delivery,
            how,
            reason: reason.map(Into::into),
        };
        let command = Command::GiveBack { item, done };
        self.commands.send(command).map_err(|_| self.shut_down())
    }

    /// Returns when a delay is over that begins now.
    pub(crate) fn after(&self, delay: Duration) -> When {
        When::At(wall_millis(&self.shared.keys.env).saturating_add(millis(delay)))
    }

    fn shut_down(&self) -> Error {
        Error::ShutDown {
            queue: self.shared.keys.queue.clone(),
        }
    }
}

impl<T> Drop for Delivery<T> {
    fn drop(&mut self) {
        let state = *self.state.get_mut();
        if state == DeliveryState::Acknowledged as u8 {
            // Most likely it has left the queue. If its transaction failed, a heartbeat finds it.
            let (id, delivery) = (self.id, self.out.delivery);
            let _ = self.commands.send(Command::Forget { id, delivery });
        } else if state == DeliveryState::Open as u8 {
            let (how, reason) = match self.shared.shuts_down.load(Ordering::Relaxed) {
                true => (GiveBack::Returned(When::Now), None),
                false => (
                    GiveBack::Failed(When::Now),
                    Some("its delivery was dropped"),
                ),
            };
            // Without a dispatcher the session ends, and its items are returned.
            let _ = self.tell(how, reason, None);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("value", &self.value)
            .field("attempt", &self.attempt())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Returns a reason that is short enough to be kept.
fn checked(reason: &str) -> Result<&str> {
    match reason.len() {
        0..=MAX_FAILURE_BYTES => Ok(reason),
        bytes => Err(Error::ReasonTooLong {
            bytes,
            limit: MAX_FAILURE_BYTES,
        }),
    }
}

/// Stages that several items are done.
///
/// # Conflicts
/// As [`Delivery::ack`].
///
/// # Errors
/// As [`Delivery::ack`]: if one is lost, the transaction must not commit.
///
/// # Cancel safety
/// Dropping the future leaves some staged: the transaction must not commit.
pub async fn ack_all<'a, T: 'a + Sync>(
    tr: &impl Transaction,
    deliveries: impl IntoIterator<Item = &'a Delivery<T>>,
) -> Result<()> {
    let acks = deliveries.into_iter().map(|delivery| delivery.ack(tr));
    futures::future::try_join_all(acks).await?;
    Ok(())
}
