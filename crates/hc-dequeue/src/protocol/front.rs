//! What a session knows of the parts from which it takes items.

use std::time::Duration;

use microqueue::Item;

use crate::items::front::Front;
use crate::items::record::Record;
use crate::items::scan::Skip;
use crate::lanes::LaneMemory;

/// What a session knows of the rows at the front of each part from which it takes items.
#[derive(Debug)]
pub(crate) struct Fronts {
    pub(crate) queued: Front,
    /// Of reads of the delayed items that are due, and of all.
    pub(crate) delayed: Front,
    pub(crate) lanes: LaneMemory,
}

impl Fronts {
    /// Returns the fronts of a session that searches them again at most once per `interval`.
    pub(crate) fn new(interval: Duration, lanes: LaneMemory) -> Self {
        Self {
            queued: Front::new(interval),
            delayed: Front::new(interval),
            lanes,
        }
    }

    /// Returns how many rows at the fronts did not decode when they were last read.
    pub(crate) fn unreadable(&self) -> usize {
        self.queued.unreadable() + self.delayed.unreadable()
    }

    /// Returns in which time the session must search a front again before it may sleep for long, if it must.
    pub(crate) fn owed_in(&self, now: Duration) -> Option<Duration> {
        let fronts = [&self.queued, &self.delayed];
        let owed = fronts.into_iter().filter_map(|front| front.owed_in(now));
        owed.chain(self.lanes.owed_in(now)).min()
    }

    /// Returns the item that a row holds, if the session takes items of its kind.
    pub(crate) fn choose(&self, item: Item<Record>) -> Result<Item<Record>, Skip> {
        if self.lanes.kinds().admit(&item.value.kind) {
            Ok(item)
        } else {
            Err(Skip::PassedOver)
        }
    }
}
