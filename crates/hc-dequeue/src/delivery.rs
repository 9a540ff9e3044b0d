//! Deliveries: items in the hands of the application.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use microqueue::ItemId;
use microqueue::keyspace::Transaction;
use microqueue::keyspace::record::millis;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, wait_for_answer};
use crate::error::{Error, Result};
use crate::give_back::{GiveBack, Return};
use crate::keys::{Counter, Keys};
use crate::registry::fulfill::complete;
use crate::session::SessionId;
use crate::settings::Settings;
use crate::wall::wall_millis;

/// What dispatcher and delivery share of an item that is out.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) grant: u64,
    /// When the delivery's time is over, by the environment's clock.
    deadline: Mutex<Duration>,
    lost: watch::Sender<bool>,
}

impl Out {
    pub(crate) fn new(grant: u64, deadline: Duration) -> Self {
        Self {
            grant,
            deadline: Mutex::new(deadline),
            lost: watch::Sender::new(false),
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
        self.lost.send_replace(true);
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
/// An item has [`Settings::max_attempts`](crate::Settings::max_attempts) attempts. What becomes of the
/// delivery says whether it was one:
///
/// | the delivery | the item | counts |
/// |---|---|---|
/// | is given back with [`nack`](Self::nack), is dropped, or its time is over | goes back to its place | yes |
/// | failed and is [retried later](Self::retry_after), or its [handler](crate::Worker) failed | comes back later | yes |
/// | ends with a session that is found dead | goes back to its place | yes |
/// | is [snoozed](Self::snooze) | comes back later | no |
/// | ends because its consumer or worker shuts down | goes back to its place | no |
///
/// After the last attempt it is a dead letter in the place of what the table says.
pub struct Delivery<T> {
    pub(crate) id: ItemId,
    pub(crate) value: T,
    pub(crate) attempts: u32,
    pub(crate) enqueued_millis: u64,
    pub(crate) out: Arc<Out>,
    pub(crate) session: SessionId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Commands<T>,
    pub(crate) state: AtomicU8,
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
    pub(crate) settings: Settings,
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

    /// Returns what was enqueued.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns which attempt of the item's this is, from 1 on: how often it was granted, this time
    /// included, without the times that [did not count](Self).
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns when the item was enqueued first, by the wall clock of who did.
    #[must_use]
    pub fn enqueued(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.enqueued_millis)
    }

    /// Stages that the item is done. What else the transaction does happens together with that.
    ///
    /// If the transaction does not commit, the item is still held: acknowledge it in the next
    /// attempt, or drop the delivery.
    ///
    /// # Conflicts
    /// Reads and writes the item's key, which nobody else does while it is held.
    ///
    /// # Errors
    /// [`Error::DeliveryLost`] if the item is not held by this delivery any more: the transaction
    /// must not commit.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn ack(&self, tr: &impl Transaction) -> Result<()> {
        let Shared { keys, settings, .. } = &*self.shared;
        let held = keys.held(self.session);
        let record = held.get(tr, &self.id).await?;
        let record = record.filter(|record| record.grant == self.out.grant);
        let record = record.ok_or(Error::DeliveryLost { id: self.id })?;
        held.remove(tr, &self.id)?;
        keys.count(tr, Counter::Held, -1);
        complete(tr, keys, settings, &record);
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
        self.resolve(GiveBack::Completed).await
    }

    /// Takes the delivery back that nobody has received: its item and its grant.
    pub(crate) fn disown(&self) -> (ItemId, u64) {
        self.state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        (self.id, self.out.grant)
    }

    /// Completes the item, unless it was acknowledged, and does not wait for it.
    pub(crate) fn finish(&self) {
        if self.state.load(Ordering::Relaxed) == DeliveryState::Open as u8 {
            // Without a dispatcher the session has ended, and the item was returned.
            let _ = self.tell(GiveBack::Completed, None);
        }
    }

    /// Notes that the handler failed: the item comes back later, which is not waited for. If it was
    /// acknowledged, that may not have been committed; if it was, there is nothing to give back.
    pub(crate) fn fail(&self, delay: Duration) {
        if self.state.load(Ordering::Relaxed) != DeliveryState::Resolved as u8 {
            // As above.
            let _ = self.tell(GiveBack::At(self.after(delay)), None);
        }
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
        self.resolve(GiveBack::Now).await
    }

    /// Gives the item back after a failure, to be granted again after `delay` by the wall clocks. This
    /// was an attempt: after the last one the item becomes a dead letter.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn retry_after(&self, delay: Duration) -> Result<()> {
        let ready = self.after(delay);
        self.resolve(GiveBack::At(ready)).await
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
        let ready = self.after(delay);
        self.resolve(GiveBack::Snoozed(ready)).await
    }

    /// Makes the item a dead letter, however often it was granted.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    ///
    /// # Cancel safety
    /// As [`nack`](Self::nack).
    pub async fn reject(&self) -> Result<()> {
        self.resolve(GiveBack::Dead).await
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
        let mut lost = self.out.lost.subscribe();
        // The sender lives as long as this delivery.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Returns whether the delivery is lost, as far as this process knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.out.lost.borrow()
    }

    async fn resolve(&self, how: GiveBack) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        self.tell(how, Some(done))?;
        let resolved = wait_for_answer(&self.commands, is_done).await;
        resolved.ok_or_else(|| self.shut_down())?
    }

    /// Tells the dispatcher what becomes of the item.
    fn tell(&self, how: GiveBack, done: Option<oneshot::Sender<Result<()>>>) -> Result<()> {
        self.state
            .store(DeliveryState::Resolved as u8, Ordering::Relaxed);
        let item = Return {
            id: self.id,
            grant: self.out.grant,
            how,
        };
        let command = Command::GiveBack { item, done };
        self.commands.send(command).map_err(|_| self.shut_down())
    }

    fn after(&self, delay: Duration) -> u64 {
        wall_millis(&self.shared.keys.env).saturating_add(millis(delay))
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
            let (id, grant) = (self.id, self.out.grant);
            let _ = self.commands.send(Command::Forget { id, grant });
        } else if state == DeliveryState::Open as u8 {
            let how = match self.shared.shuts_down.load(Ordering::Relaxed) {
                true => GiveBack::Uncounted,
                false => GiveBack::Now,
            };
            // Without a dispatcher the session ends, and its items are returned.
            let _ = self.tell(how, None);
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("value", &self.value)
            .field("attempts", &self.attempts)
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
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
