//! The callers that wait for items.

use std::collections::VecDeque;
use std::time::Duration;

use crate::consume::held_item::command::{Reply, Want};
use crate::consume::policy::Wants;
use crate::items::MAX_STEP_ITEMS;
use crate::items::error::Error;
use crate::protocol::{Demand, Purpose};

/// The callers that wait for items, in their order.
pub(super) struct Callers(VecDeque<Want>);

impl Callers {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(super) fn push(&mut self, want: Want) {
        self.0.push_back(want);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns all callers.
    pub(super) fn take_all(&mut self) -> VecDeque<Want> {
        std::mem::take(&mut self.0)
    }

    /// Returns the fact for the policy.
    pub(super) fn fact(&self, now: Duration) -> Wants {
        if self.0.is_empty() {
            Wants::Nothing
        } else if self.is_overdue(now) {
            Wants::ItemsNow
        } else {
            Wants::Items
        }
    }

    /// Returns whether the time of a caller is over.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.0.iter().any(|want| want.until <= now)
    }

    /// Returns when the time of the next caller is over, or `Duration::MAX`. Callers whose time is already over do not
    /// count.
    pub(super) fn next_deadline(&self, now: Duration) -> Duration {
        self.0
            .iter()
            .map(|want| want.until)
            .filter(|until| now < *until)
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// Returns the demands of the callers, up to the limit of one transaction.
    pub(super) fn demand(&self) -> Vec<Demand> {
        let mut left = MAX_STEP_ITEMS;
        let mut demand = Vec::new();
        for want in &self.0 {
            let wanted = want.wanted.min(left);
            left -= wanted;
            if wanted == 0 {
                break;
            }
            let purpose = match want.reply {
                Reply::Deliver(_) => Purpose::Deliver,
                Reply::Pop(_) => Purpose::Pop,
            };
            demand.push(Demand { wanted, purpose });
        }
        demand
    }

    /// Records that there is no item for the present callers.
    pub(super) fn find_none(&mut self) {
        for want in &mut self.0 {
            want.found_none = true;
        }
    }

    /// Forgets callers that have gone, and answers callers whose time is over and for whom there was no item.
    pub(super) fn expire(&mut self, now: Duration) {
        for want in self.take_all() {
            if want.is_gone() {
                continue;
            }
            if want.found_none && want.until <= now {
                want.answer_none();
            } else {
                self.push(want);
            }
        }
    }

    /// Returns the error to all callers.
    pub(super) fn fail(&mut self, error: &Error) {
        for want in self.take_all() {
            want.fail(error.clone());
        }
    }
}
