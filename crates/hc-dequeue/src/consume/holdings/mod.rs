//! The items that a session holds: those that were handed out, and those in its reserve.
//!
//! The dispatcher fills the reserve, and consumers take items from it themselves. Such an item costs its handler
//! neither a transaction nor a switch to another task. The dispatcher is woken when the reserve runs low.

mod deliveries;
pub(crate) mod outstanding;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use microqueue::ItemId;
use parking_lot::Mutex;

use self::deliveries::Deliveries;
use self::outstanding::{Lifetime, Outstanding};
use crate::consume::policy::reserve::Size;
use crate::items::keys::Records;
use crate::items::record::Record;
use crate::items::value::Value;

/// An item that was granted to a session and is not handed out yet.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: ItemId,
    /// The record without the payload.
    pub(crate) record: Record,
    pub(crate) value: Value,
    /// The size of the payload.
    pub(crate) bytes: usize,
    /// The items that the session holds.
    pub(crate) held: Arc<Records>,
}

/// An item whose delivery has begun.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) item: Ready,
    pub(crate) out: Arc<Outstanding>,
}

/// What a session holds. Its dispatcher and all of its consumers share it.
#[derive(Debug, Default)]
pub(crate) struct Holdings(Mutex<HoldingsState>);

#[derive(Debug, Default)]
struct HoldingsState {
    deliveries: Deliveries,
    reserve: VecDeque<(Ready, Duration)>,
    /// The size of the payloads in the reserve.
    bytes: usize,
    size: Size,
    handling: Average,
    /// Until when the dispatcher sleeps.
    sleeps_until: Duration,
    /// Whether the dispatcher knows that the reserve is low.
    is_known_low: bool,
    is_closing: bool,
}

/// What is in a reserve, and how fast handlers use it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stock {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
    /// When the first item came.
    pub(crate) since: Option<Duration>,
    /// How long recent deliveries were outstanding.
    pub(crate) handling: Option<Duration>,
}

/// Whether a change has left something to do for the dispatcher, which may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub(crate) enum Wake {
    None,
    Dispatcher,
}

impl Wake {
    fn if_so(wakes: bool) -> Self {
        if wakes { Self::Dispatcher } else { Self::None }
    }
}

impl Holdings {
    /// Begins the deliveries of up to `limit` items of the reserve, in the order in which they were granted.
    pub(crate) fn take(
        &self,
        limit: usize,
        life: impl Fn(&Record) -> Lifetime,
    ) -> (Vec<Delivered>, Wake) {
        let mut state = self.0.lock();
        let mut wake = Wake::None;
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((item, _)) = state.reserve.pop_front()
        {
            state.bytes -= item.bytes;
            let life = life(&item.record);
            let (delivered, wakes) = state.deliver(item, life);
            taken.push(delivered);
            wake = wake.max(wakes);
        }
        if !taken.is_empty() && state.reserve.len() <= state.size.low && !state.is_known_low {
            state.is_known_low = true;
            wake = Wake::Dispatcher;
        }
        (taken, wake)
    }

    /// Begins the delivery of an item.
    pub(crate) fn deliver(&self, item: Ready, life: Lifetime) -> (Delivered, Wake) {
        self.0.lock().deliver(item, life)
    }

    /// Adds items to the reserve.
    pub(crate) fn fill(&self, items: impl IntoIterator<Item = Ready>, now: Duration) {
        let mut state = self.0.lock();
        for item in items {
            state.bytes += item.bytes;
            state.reserve.push_back((item, now));
        }
        state.is_known_low = false;
    }

    pub(crate) fn stock(&self) -> Stock {
        let state = self.0.lock();
        Stock {
            items: state.reserve.len(),
            bytes: state.bytes,
            since: state.reserve.front().map(|(_, came)| *came),
            handling: state.handling.0,
        }
    }

    /// Sets the size of the reserve. Returns its items if it is to have none.
    pub(crate) fn resize(&self, size: Size) -> Vec<Ready> {
        let mut state = self.0.lock();
        state.size = size;
        state.is_known_low &= state.reserve.len() <= size.low;
        match size {
            Size::NONE => state.empty(),
            _ => Vec::new(),
        }
    }

    /// Takes an item out of the reserve, if it is there.
    pub(crate) fn remove(&self, id: &ItemId) -> Option<Ready> {
        let mut state = self.0.lock();
        let place = state.reserve.iter().position(|(item, _)| item.id == *id)?;
        let (item, _) = state.reserve.remove(place)?;
        state.bytes -= item.bytes;
        Some(item)
    }

    /// Notes that a handler takes at least this long.
    pub(crate) fn note_handling(&self, took: Duration) {
        self.0.lock().handling.note_at_least(took);
    }

    /// Forgets a delivery. The item may have been delivered again since.
    pub(crate) fn forget(&self, id: &ItemId, delivery: u64, now: Duration) -> Wake {
        let mut state = self.0.lock();
        if let Some(out) = state.deliveries.forget(id, delivery) {
            state.handling.note(now.saturating_sub(out.life.began));
        }
        Wake::if_so(state.is_closing && state.deliveries.is_empty())
    }

    /// Returns the delivery of an item, if it is outstanding.
    pub(crate) fn delivery(&self, id: &ItemId) -> Option<Arc<Outstanding>> {
        self.0.lock().deliveries.get(id).cloned()
    }

    /// Returns whether the item was handed out, or is in the reserve.
    pub(crate) fn contains(&self, id: &ItemId) -> bool {
        let state = self.0.lock();
        state.deliveries.get(id).is_some() || state.reserve.iter().any(|(item, _)| item.id == *id)
    }

    /// Returns whether no delivery is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().deliveries.is_empty()
    }

    /// Removes and returns the deliveries that have passed their time limit.
    pub(crate) fn take_over(&self, now: Duration) -> Vec<(ItemId, Arc<Outstanding>)> {
        self.0.lock().deliveries.take_over(now)
    }

    /// Notes that the dispatcher sleeps until this time, or until a delivery passes its time limit. Returns the earlier
    /// time.
    pub(crate) fn sleep(&self, until: Duration) -> Duration {
        let mut state = self.0.lock();
        state.sleeps_until = until.min(state.deliveries.earliest());
        state.sleeps_until
    }

    /// Notes that the session is ending, so that the end of its last delivery matters.
    pub(crate) fn close(&self) {
        self.0.lock().is_closing = true;
    }

    /// Forgets the reserve and all deliveries, which are lost. Returns the deliveries.
    pub(crate) fn lose_all(&self) -> BTreeMap<ItemId, Arc<Outstanding>> {
        let mut state = self.0.lock();
        state.empty();
        state.deliveries.lose_all()
    }
}

impl HoldingsState {
    fn deliver(&mut self, item: Ready, life: Lifetime) -> (Delivered, Wake) {
        let out = Arc::new(Outstanding::new(item.record.deliveries, life));
        self.deliveries.insert(item.id, out.clone());
        let wake = Wake::if_so(out.deadline() < self.sleeps_until);
        (Delivered { item, out }, wake)
    }

    /// Empties the reserve.
    fn empty(&mut self) -> Vec<Ready> {
        self.bytes = 0;
        self.reserve.drain(..).map(|(item, _)| item).collect()
    }
}

/// A moving average of durations. Each new one has a weight of an eighth.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Average(pub(crate) Option<Duration>);

impl Average {
    pub(crate) fn note(&mut self, duration: Duration) {
        self.0 = Some(match self.0 {
            None => duration,
            Some(average) => average - average / 8 + duration / 8,
        });
    }

    /// Raises the average to a duration.
    fn note_at_least(&mut self, duration: Duration) {
        self.0 = self.0.max(Some(duration));
    }
}
