//! The reserve: items that the session takes ahead of its handlers.

use std::time::Duration;

use super::Dispatcher;
use crate::consume::policy::reserve::{Durations, Size};
use crate::consume::policy::{Event, ReserveFill};
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::protocol::{Demand, Purpose, count_wanted};

impl Dispatcher {
    /// Decides anew how many items the reserve has, and gives it back if the session must not keep it.
    pub(super) fn review_reserve(&mut self) {
        if self.options.max_reserve == 0 {
            return;
        }
        let is_overdue = self.reserve_ends() <= self.now();
        if is_overdue {
            // The handlers that are still busy have not been measured yet.
            let patience = self.durations().map(Durations::patience);
            self.shared
                .holdings
                .note_handling(patience.unwrap_or_default());
        }
        let size = match self.durations() {
            Some(durations) if self.policy.keeps_reserve(is_overdue) => {
                durations.size(self.options.concurrency, self.options.max_reserve)
            }
            _ => Size::NONE,
        };
        self.resize_reserve(size);
    }

    /// Gives the reserve back.
    pub(super) fn return_reserve(&mut self) {
        self.resize_reserve(Size::NONE);
    }

    /// Gives the reserve back, and has none from now on.
    pub(super) fn drain(&mut self) {
        self.report(Event::Draining);
        self.review_reserve();
    }

    fn resize_reserve(&mut self, size: Size) {
        self.reserve = size;
        for item in self.shared.holdings.resize(size) {
            self.return_unused(item.id, item.record.deliveries);
        }
    }

    /// Returns when the first item has been in the reserve for too long, or `Duration::MAX`.
    pub(super) fn reserve_ends(&self) -> Duration {
        let since = self.shared.holdings.stock().since;
        match (since, self.durations()) {
            (Some(since), Some(durations)) => since.saturating_add(durations.patience()),
            _ => Duration::MAX,
        }
    }

    /// Returns the durations of handlers and takes, once both were measured.
    fn durations(&self) -> Option<Durations> {
        Some(Durations {
            handling: self.shared.holdings.stock().handling?,
            taking: self.pacer.taking.0?,
        })
    }

    /// Returns the fact for the policy.
    pub(super) fn reserve_fact(&self) -> ReserveFill {
        let stock = self.shared.holdings.stock();
        if stock.items >= self.reserve.full || stock.bytes >= MAX_STEP_BYTES {
            ReserveFill::Full
        } else if stock.items <= self.reserve.low {
            ReserveFill::Low
        } else {
            ReserveFill::Room
        }
    }

    /// Returns the demand of the callers, and then that of the reserve.
    pub(super) fn demand(&self) -> Vec<Demand> {
        let mut demand = self.callers.demand();
        if self.reserve_fact() != ReserveFill::Full {
            let room = self.reserve.full - self.shared.holdings.stock().items;
            let left = MAX_STEP_ITEMS - count_wanted(&demand);
            demand.push(Demand {
                wanted: room.min(left),
                purpose: Purpose::Reserve,
            });
        }
        demand
    }
}
