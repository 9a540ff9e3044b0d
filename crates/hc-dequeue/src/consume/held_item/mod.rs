//! The item of a delivery, without the value: everything that a delivery does and that does not depend on the type of
//! the value.

pub(crate) mod checkpoint;
pub(crate) mod command;
pub(crate) mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Subspace, Transaction};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::command::{Command, Commands, ask};
use self::shared::Shared;
use crate::consume::holdings::outstanding::{HoldState, Outstanding};
use crate::consume::holdings::{Delivered, Ready, Wake};
use crate::items::changes::Changes;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::group_limits::KnownLimits;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Records;
use crate::items::part::Counter;
use crate::items::record::{End, Limits, MAX_FAILURE_BYTES, MAX_RESULT_BYTES, Record, Reserve};
use crate::items::trace_context::TraceContext;
use crate::items::value::Value;
use crate::protocol::give_back::{GiveBack, Return, When};
use crate::session::wall::wall_millis;

/// An item that a dispatcher hands out, and its value. Until the application [receives](Outstanding::receive) it,
/// dropping it gives the item back as if it had not been granted: the call that would have returned it was dropped.
pub(crate) struct HandedOut {
    pub(crate) item: Arc<HeldItem>,
    pub(crate) value: Value,
}

impl HandedOut {
    /// Hands items out of the reserve, up to `limit`.
    pub(crate) fn hand_out_reserve(
        shared: &Arc<Shared>,
        limit: usize,
        commands: &Commands,
    ) -> Vec<Self> {
        let began = shared.env.now();
        let lifetime = |record: &Record| shared.lifetime(began, record);
        let (items, wake) = shared.holdings.take(limit, lifetime);
        wake.dispatcher(commands);
        let handed_out = |item| Self::new(shared, item, commands);
        items.into_iter().map(handed_out).collect()
    }

    /// Hands an item out.
    pub(crate) fn hand_out(shared: &Arc<Shared>, item: Ready, commands: &Commands) -> Self {
        let lifetime = shared.lifetime(shared.env.now(), &item.record);
        let (delivered, wake) = shared.holdings.deliver(item, lifetime);
        wake.dispatcher(commands);
        Self::new(shared, delivered, commands)
    }

    fn new(shared: &Arc<Shared>, delivered: Delivered, commands: &Commands) -> Self {
        let Delivered { item, out } = delivered;
        let Ready {
            id,
            record,
            value,
            held,
            ..
        } = item;
        shared.metrics.hand_out(&record, &shared.keys.env);
        let item = Arc::new(HeldItem {
            id,
            record,
            out,
            held,
            shared: shared.clone(),
            commands: commands.clone(),
            decision: AtomicU8::new(Decision::Open as u8),
            result: Mutex::default(),
            step_names: Mutex::default(),
            is_in_transaction: AtomicBool::new(false),
        });
        Self { item, value }
    }
}

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
    /// The names of the steps that this delivery runs or has done.
    pub(crate) step_names: Mutex<BTreeSet<String>>,
    /// Whether its handler runs in the transaction that completes the item.
    pub(crate) is_in_transaction: AtomicBool,
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
        self.shared.keys.item_ref(self.id)
    }

    /// Returns the key of the item's row.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.id.key_in(self.held.subspace())
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

    /// Returns the limits of the item, as far as this process knows the settings.
    pub(crate) fn limits(&self) -> Limits {
        self.shared.settings.get().limits_of(&self.record)
    }

    /// Returns whether the item becomes a dead letter if this attempt fails.
    pub(crate) fn is_last_attempt(&self) -> bool {
        let Limits {
            attempts,
            deliveries,
            ..
        } = self.limits();
        self.attempt() >= attempts.into() || self.record.recent_deliveries() >= deliveries.into()
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
        let record = self.live_record(tr).await?;
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

    /// Reads the record of the item, which this delivery must hold, and which must not be cancelled.
    async fn live_record(&self, tr: &impl Transaction) -> Result<Record> {
        let record = self.held_record(tr).await?;
        if record.cancelled_millis != 0 {
            return Err(Error::Cancelled {
                item: self.item_ref(),
            });
        }
        Ok(record)
    }

    /// Reads the record of the item, which this delivery must hold.
    async fn held_record(&self, tr: &impl Transaction) -> Result<Record> {
        let record = self.read_held(tr).await?;
        record.ok_or_else(|| self.delivery_lost())
    }

    /// Reads the record of the item, if this delivery holds the item.
    async fn read_held(&self, tr: &impl Transaction) -> Result<Option<Record>> {
        let record = self.held.get(tr, &self.id).await?;
        match record {
            Some(record) if record.deliveries == self.out.delivery => Ok(Some(record)),
            _ => Ok(None),
        }
    }

    /// Stages the end of the item, which this delivery holds.
    async fn end(&self, tr: &impl Transaction, record: Record, how: End) -> Result<()> {
        let keys = &*self.shared.keys;
        let settings = &*self.shared.settings.get();
        let limits = &KnownLimits::of_slots(tr, keys, [&record]).await?;
        let mut changes = Changes::default();
        // The record was read serializably.
        tr.clear(&self.key());
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
        self.out.restart(self.shared.env.now());
        Ok(())
    }

    /// Waits until the item is cancelled or the delivery is lost.
    pub(crate) async fn cancelled(&self) {
        self.out.until(HoldState::Cancelled).await;
    }

    /// Returns whether the item was cancelled or the delivery is lost, as far as this process knows.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.out.has_reached(HoldState::Cancelled)
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
    ) -> Command {
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
                let how = GiveBack::Failed(When::Later(self.out.life.backoff));
                self.send_decision(how, Some("its delivery was dropped"));
            }
        }
    }
}
