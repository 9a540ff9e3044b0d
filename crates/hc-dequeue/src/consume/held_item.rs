//! The item of a delivery, without the value: everything that a delivery does and that does not depend on the type of
//! the value.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Environment, Subspace, Transaction};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::consume::command::{Command, ask};
use crate::consume::holdings::{Delivered, Holdings, Lifetime, Ready, Wake};
use crate::consume::metrics::Metrics;
use crate::consume::shared_task::SharedTask;
use crate::items::changes::Changes;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::key_limits::KnownLimits;
use crate::items::keys::{Counter, Keys, Records};
use crate::items::record::{End, MAX_FAILURE_BYTES, MAX_RESULT_BYTES, Record, Reserve};
use crate::items::settings::KnownSettings;
use crate::items::trace_context::TraceContext;
use crate::items::value::Value;
use crate::options::Backoff;
use crate::protocol::give_back::{GiveBack, Return, When};
use crate::session::wall::wall_millis;

/// An item that a dispatcher hands out, and its value. Until the application [receives](Outstanding::receive) it,
/// dropping it gives the item back as if it had not been granted: the call that would have returned it was dropped.
pub(crate) struct HandedOut {
    pub(crate) item: Arc<HeldItem>,
    pub(crate) value: Value,
}

/// The channel from consumers and deliveries to their dispatcher.
pub(crate) type Commands = mpsc::UnboundedSender<Command<HandedOut>>;

/// An item that this process holds, which all clones of its delivery share. Dropping it gives the item back: as failed,
/// if the application has received it.
pub(crate) struct HeldItem {
    pub(crate) id: ItemId,
    /// The record without the payload.
    pub(crate) record: Record,
    pub(crate) out: Arc<Outstanding>,
    /// The items that its session holds.
    pub(crate) held: Arc<Records>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: Commands,
    /// A [`Decision`].
    pub(crate) decision: AtomicU8,
    /// The result that is stored when the item is completed.
    pub(crate) result: Mutex<Bytes>,
}

/// What an outstanding delivery shares with the dispatcher.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// The number of the delivery: how often the item has been granted, including this time.
    pub(crate) delivery: u64,
    /// When the item was handed out, by the environment's clock.
    pub(crate) began: Duration,
    /// When the delivery's time limit passes, by the environment's clock.
    deadline: Mutex<Duration>,
    /// A [`Reception`].
    reception: AtomicU8,
    /// Why its handler was called again, if it was.
    repeats: Mutex<Option<Repeats>>,
    /// A [`HoldState`].
    hold: AtomicU8,
    hold_changed: Notify,
}

/// Calls of a handler whose transactions were not committed and are repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repeats {
    pub(crate) calls: u32,
    /// The error of the last of them.
    pub(crate) error: String,
}

impl fmt::Display for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, error } = self;
        write!(
            f,
            "none of {calls} calls of its handler was committed, the last one because of: {error}"
        )
    }
}

/// What became of an item that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Reception {
    /// The call that takes it has not returned.
    Expected,
    /// The application has it.
    Received,
    /// The dispatcher has taken it back before the application got it.
    TakenBack,
}

/// Whether a delivery still holds its item, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum HoldState {
    /// The item is held.
    Held,
    /// The item is held, but was cancelled and must not be handled any more.
    Cancelled,
    /// The item is no longer held.
    Lost,
}

impl Outstanding {
    pub(crate) fn new(delivery: u64, began: Duration, deadline: Duration) -> Self {
        Self {
            delivery,
            began,
            deadline: Mutex::new(deadline),
            reception: AtomicU8::new(Reception::Expected as u8),
            repeats: Mutex::default(),
            hold: AtomicU8::new(HoldState::Held as u8),
            hold_changed: Notify::new(),
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

    /// Records that the application has the item. From now on, dropping the delivery counts as a failure. Returns
    /// `false` if the dispatcher has taken it back: then the application must not get it.
    pub(crate) fn receive(&self) -> bool {
        self.settle(Reception::Received)
    }

    /// Takes the item back, unless the application has it.
    pub(crate) fn take_back(&self) -> bool {
        self.settle(Reception::TakenBack)
    }

    fn settle(&self, as_what: Reception) -> bool {
        let expected = Reception::Expected as u8;
        let order = Ordering::Relaxed;
        self.reception
            .compare_exchange(expected, as_what as u8, order, order)
            .is_ok()
    }

    pub(crate) fn is_received(&self) -> bool {
        self.reception.load(Ordering::Relaxed) == Reception::Received as u8
    }

    /// Records that the handler is called again.
    pub(crate) fn note_repeats(&self, repeats: Repeats) {
        *self.repeats.lock() = Some(repeats);
    }

    /// Returns why the handler was last called again, if it was.
    pub(crate) fn repeats(&self) -> Option<Repeats> {
        self.repeats.lock().clone()
    }

    pub(crate) fn lose(&self) {
        self.advance(HoldState::Lost);
    }

    pub(crate) fn cancel(&self) {
        self.advance(HoldState::Cancelled);
    }

    /// Moves on to a state, unless a later one was reached.
    fn advance(&self, hold: HoldState) {
        self.hold.fetch_max(hold as u8, Ordering::AcqRel);
        self.hold_changed.notify_waiters();
    }

    /// Returns whether the delivery has this state or a later one.
    fn has_reached(&self, least: HoldState) -> bool {
        self.hold.load(Ordering::Acquire) >= least as u8
    }
}

/// What has been decided about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Decision {
    /// Nothing: dropping the delivery gives the item back.
    Open,
    /// It was acknowledged in a transaction whose outcome is not known here.
    Acknowledged,
    /// The dispatcher has received the decision.
    Resolved,
}

/// State that a dispatcher, its consumers and all deliveries share.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Keys>,
    /// The environment of the dispatcher, by whose clock time limits pass. The one of the keys may have another clock.
    pub(crate) env: Environment,
    pub(crate) settings: KnownSettings,
    pub(crate) time_limit: Duration,
    pub(crate) backoff: Backoff,
    /// Whether the consumer is shutting down: a delivery dropped from then on counts no attempt.
    pub(crate) shuts_down: AtomicBool,
    /// Whether a delivery of a member of a batch has ended since the dispatcher has last looked here.
    pub(crate) let_go_of_member: AtomicBool,
    pub(crate) dispatcher: Arc<SharedTask>,
    pub(crate) holdings: Holdings,
    pub(crate) metrics: Metrics,
}

impl Shared {
    /// Hands items out of the reserve, up to `limit`.
    pub(crate) fn hand_out_reserve(
        self: &Arc<Self>,
        limit: usize,
        commands: &Commands,
    ) -> Vec<HandedOut> {
        let (items, wake) = self.holdings.take(limit, self.lifetime());
        wake.dispatcher(commands);
        let handed_out = |item| self.handed_out(item, commands);
        items.into_iter().map(handed_out).collect()
    }

    /// Hands an item out.
    pub(crate) fn hand_out(self: &Arc<Self>, item: Ready, commands: &Commands) -> HandedOut {
        let (delivered, wake) = self.holdings.deliver(item, self.lifetime());
        wake.dispatcher(commands);
        self.handed_out(delivered, commands)
    }

    /// Returns the lifetime of a delivery that begins now.
    fn lifetime(&self) -> Lifetime {
        let began = self.env.now();
        let deadline = began.saturating_add(self.time_limit);
        Lifetime { began, deadline }
    }

    fn handed_out(self: &Arc<Self>, delivered: Delivered, commands: &Commands) -> HandedOut {
        let Delivered { item, out } = delivered;
        let Ready {
            id,
            record,
            value,
            held,
            ..
        } = item;
        self.metrics.hand_out(&record, &self.keys.env);
        let item = Arc::new(HeldItem {
            id,
            record,
            out,
            held,
            shared: self.clone(),
            commands: commands.clone(),
            decision: AtomicU8::new(Decision::Open as u8),
            result: Mutex::default(),
        });
        HandedOut { item, value }
    }
}

impl Wake {
    /// Wakes the dispatcher, if that is needed.
    pub(crate) fn dispatcher(self, commands: &Commands) {
        if self == Self::Dispatcher {
            // The dispatcher may have ended.
            let _ = commands.send(Command::Wake);
        }
    }
}

impl HeldItem {
    /// Returns the queue's subspace.
    pub(crate) fn queue(&self) -> &Subspace {
        &self.shared.keys.queue
    }

    /// Returns the name of the queue, as the console shows it.
    pub(crate) fn queue_name(&self) -> &str {
        &self.shared.keys.name
    }

    /// Returns a reference to the item.
    pub(crate) fn item_ref(&self) -> ItemRef {
        ItemRef::new(&self.shared.keys, self.id)
    }

    /// Returns whether the item must be handed out [apart](crate::items::settings::Settings::hands_out_apart).
    pub(crate) fn is_apart(&self) -> bool {
        let record = &self.record;
        // The token comes back if the record does not say that a handler got the item. The settings may have changed
        // since the grant, or a caller gets what a request wanted for the reserve.
        let must_say_so = record.reserve != Reserve::Out && record.spent.is_some();
        // Most items have not seen a death.
        must_say_so || record.deaths > 0 && self.shared.settings.get().hands_out_apart(record)
    }

    /// Returns the number of this attempt, starting at 1.
    pub(crate) fn attempt(&self) -> u64 {
        self.record.attempts + 1
    }

    /// Returns the trace context of the item's enqueue, if it had one in a form that this version knows.
    pub(crate) fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::parse(self.record.trace_context.as_deref()?)
    }

    /// Sets the result that is stored when the item is completed.
    pub(crate) fn set_result(&self, result: &[u8]) -> Result<()> {
        if result.len() > MAX_RESULT_BYTES {
            return Err(Error::ResultTooLong {
                bytes: result.len(),
                limit: MAX_RESULT_BYTES,
            });
        }
        *self.result.lock() = Bytes::copy_from_slice(result);
        Ok(())
    }

    /// Returns the decision that the item is completed, with its result.
    pub(crate) fn completed(&self) -> GiveBack {
        GiveBack::Completed(self.result.lock().clone())
    }

    /// Stages the completion of the item.
    ///
    /// # Conflicts
    /// As [`Delivery::ack`](crate::Delivery::ack).
    pub(crate) async fn ack(&self, tr: &impl Transaction) -> Result<()> {
        let record = self.held_record(tr).await?;
        if record.cancelled_millis != 0 {
            return Err(Error::Cancelled {
                item: self.item_ref(),
            });
        }
        self.end(tr, record, End::Completed).await
    }

    /// Stages the end of an item that this transaction itself has cancelled.
    ///
    /// # Conflicts
    /// As [`ack`](Self::ack).
    pub(crate) async fn end_cancelled(&self, tr: &impl Transaction) -> Result<()> {
        let record = self.held_record(tr).await?;
        self.end(tr, record, End::Cancelled).await
    }

    /// Returns whether this delivery holds the item, and the item was not cancelled.
    ///
    /// # Conflicts
    /// As [`ack`](Self::ack), without the write.
    pub(crate) async fn is_held(&self, tr: &impl Transaction) -> Result<bool> {
        let record = self.read_held(tr).await?;
        Ok(record.is_some_and(|record| record.cancelled_millis == 0))
    }

    /// Returns whether this delivery holds the item, cancelled or not.
    ///
    /// # Conflicts
    /// As [`ack`](Self::ack), without the write.
    pub(crate) async fn is_there(&self, tr: &impl Transaction) -> Result<bool> {
        Ok(self.read_held(tr).await?.is_some())
    }

    /// Reads the record of the item, which this delivery must hold.
    async fn held_record(&self, tr: &impl Transaction) -> Result<Record> {
        let record = self.read_held(tr).await?;
        record.ok_or_else(|| self.delivery_lost())
    }

    /// Reads the record of the item, if this delivery holds the item.
    async fn read_held(&self, tr: &impl Transaction) -> Result<Option<Record>> {
        let record = self.held.get(tr, &self.id).await?;
        Ok(record.filter(|record| record.deliveries == self.out.delivery))
    }

    /// Stages the end of the item, which this delivery holds.
    async fn end(&self, tr: &impl Transaction, record: Record, how: End) -> Result<()> {
        let keys = &*self.shared.keys;
        let settings = &*self.shared.settings.get();
        let limits = &KnownLimits::of_slots(tr, keys, [&record]).await?;
        let mut changes = Changes::default();
        // The record was read serializably.
        tr.clear(&self.id.key_in(self.held.subspace()));
        changes.add(Counter::Held, -1);
        let result = match how {
            End::Completed => self.result.lock().clone(),
            End::Cancelled | End::Removed => Bytes::new(),
        };
        let ending = Ending {
            id: &self.id,
            record: &record,
            how,
            result,
        };
        end(tr, keys, Rules { settings, limits }, ending, &mut changes)?;
        changes.stage(tr, keys);
        self.set_decision(Decision::Acknowledged);
        self.let_go_of_member();
        Ok(())
    }

    /// Applies the handler's outcome to the item without waiting, unless the handler has already decided.
    pub(crate) fn conclude(&self, how: GiveBack, reason: Option<&str>) {
        if self.is_open_to(&how) {
            self.send_decision(how, reason);
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
        let decision = self.decision.load(Ordering::Relaxed);
        match how {
            GiveBack::Completed(_) => decision == Decision::Open as u8,
            _ => decision != Decision::Resolved as u8,
        }
    }

    /// Restarts the delivery's time limit, unless the delivery is lost.
    pub(crate) fn keep_alive(&self) -> Result<()> {
        if self.is_lost() {
            return Err(self.delivery_lost());
        }
        let now = self.shared.env.now();
        self.out.extend(now.saturating_add(self.shared.time_limit));
        Ok(())
    }

    /// Waits until the item is cancelled or the delivery is lost.
    pub(crate) async fn cancelled(&self) {
        self.until(HoldState::Cancelled).await;
    }

    /// Returns whether the item was cancelled or the delivery is lost, as far as this process knows.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.out.has_reached(HoldState::Cancelled)
    }

    /// Waits until the delivery has this state or a later one.
    pub(crate) async fn until(&self, least: HoldState) {
        loop {
            // It receives each change from here on.
            let changed = self.out.hold_changed.notified();
            if self.out.has_reached(least) {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether the delivery is lost, as far as this process knows.
    pub(crate) fn is_lost(&self) -> bool {
        self.out.has_reached(HoldState::Lost)
    }

    /// Has the dispatcher apply a decision to the item, and returns when that is committed.
    pub(crate) fn resolve<'a>(
        &'a self,
        how: GiveBack,
        reason: Option<&'a str>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let decide = |done| self.decide(how, reason, Some(done));
            let resolved = ask(&self.shared.dispatcher, &self.commands, decide).await;
            resolved.unwrap_or_else(|| {
                Err(Error::ShutDown {
                    queue: self.queue().clone(),
                })
            })
        })
    }

    /// Like [`resolve`](Self::resolve), with a reason that must be short enough to be stored.
    pub(crate) async fn resolve_because(&self, how: GiveBack, reason: &str) -> Result<()> {
        if reason.len() > MAX_FAILURE_BYTES {
            return Err(Error::ReasonTooLong {
                bytes: reason.len(),
                limit: MAX_FAILURE_BYTES,
            });
        }
        self.resolve(how, Some(reason)).await
    }

    /// Returns the end of a delay that begins at the current wall time.
    pub(crate) fn after(&self, delay: Duration) -> When {
        When::At(wall_millis(&self.shared.keys.env).saturating_add(millis(delay)))
    }

    fn delivery_lost(&self) -> Error {
        Error::DeliveryLost {
            item: self.item_ref(),
        }
    }

    /// Lets the dispatcher look at batches soon, if the item is a member of one and may have ended.
    fn let_go_of_member(&self) {
        let let_go = &self.shared.let_go_of_member;
        if self.record.member.is_some() && !let_go.swap(true, Ordering::Relaxed) {
            Wake::Dispatcher.dispatcher(&self.commands);
        }
    }

    fn set_decision(&self, decision: Decision) {
        self.decision.store(decision as u8, Ordering::Relaxed);
    }

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
    ) -> Command<HandedOut> {
        self.set_decision(Decision::Resolved);
        self.let_go_of_member();
        let item = Return {
            id: self.id,
            delivery: self.out.delivery,
            how,
            reason: reason.map(Into::into),
        };
        Command::GiveBack { item, done }
    }
}

impl Drop for HeldItem {
    fn drop(&mut self) {
        self.let_go_of_member();
        let decision = *self.decision.get_mut();
        if decision == Decision::Acknowledged as u8 {
            // The item has most likely left the queue. If its transaction failed, a heartbeat finds the item.
            let now = self.shared.env.now();
            let holdings = &self.shared.holdings;
            let forgotten = holdings.forget(&self.id, self.out.delivery, now);
            forgotten.dispatcher(&self.commands);
        } else if decision == Decision::Open as u8 {
            if !self.out.is_received() {
                self.send_decision(GiveBack::Unused, None);
            } else if self.shared.shuts_down.load(Ordering::Relaxed) {
                self.send_decision(GiveBack::Returned(When::Now), None);
            } else {
                let how = GiveBack::Failed(When::Later(self.shared.backoff));
                self.send_decision(how, Some("its delivery was dropped"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_received_or_taken_back_and_never_both() {
        let outstanding = || Outstanding::new(1, Duration::ZERO, Duration::ZERO);
        let received = outstanding();
        assert!(received.receive() && !received.take_back() && received.is_received());
        let taken_back = outstanding();
        assert!(taken_back.take_back() && !taken_back.receive() && !taken_back.is_received());
    }
}
