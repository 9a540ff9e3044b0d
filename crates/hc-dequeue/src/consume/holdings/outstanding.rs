//! What an outstanding delivery shares with the dispatcher.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::options::Backoff;

/// When a delivery begins, by the environment's clock, how long it may take, and how long its item waits if that is
/// over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime {
    pub(crate) began: Duration,
    pub(crate) time_limit: Duration,
    pub(crate) backoff: Backoff,
}

/// The state of an outstanding delivery.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// The number of the delivery: how often the item has been granted, including this time.
    pub(crate) delivery: u64,
    pub(crate) life: Lifetime,
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
    pub(crate) fn new(delivery: u64, life: Lifetime) -> Self {
        Self {
            delivery,
            life,
            deadline: Mutex::new(life.began.saturating_add(life.time_limit)),
            reception: AtomicU8::new(Reception::Expected as u8),
            repeats: Mutex::default(),
            hold: AtomicU8::new(HoldState::Held as u8),
            hold_changed: Notify::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        *self.deadline.lock()
    }

    /// Restarts the time limit.
    pub(crate) fn restart(&self, now: Duration) {
        let deadline = now.saturating_add(self.life.time_limit);
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

    /// Waits until the delivery has this state or a later one.
    pub(crate) async fn until(&self, least: HoldState) {
        loop {
            // It receives each change from here on.
            let changed = self.hold_changed.notified();
            if self.has_reached(least) {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether the delivery has this state or a later one.
    pub(crate) fn has_reached(&self, least: HoldState) -> bool {
        self.hold.load(Ordering::Acquire) >= least as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_received_or_taken_back_and_never_both() {
        let life = Lifetime {
            began: Duration::ZERO,
            time_limit: Duration::ZERO,
            backoff: Backoff::default(),
        };
        let outstanding = || Outstanding::new(1, life);
        let received = outstanding();
        assert!(received.receive() && !received.take_back() && received.is_received());
        let taken_back = outstanding();
        assert!(taken_back.take_back() && !taken_back.receive() && !taken_back.is_received());
    }
}
