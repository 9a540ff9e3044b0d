//! Whose turn it is: lanes of one level stand in a ring, and each is granted as many items in a turn as its weight
//! says.
//!
//! Items that are in no lane alternate with items of lanes, beginning with a lane. The place in the ring is a session's
//! own and only advisory. With one session that takes items, every other lane has at most one turn before a lane that
//! waits has its own.

use std::collections::BTreeMap;

use microqueue::keyspace::Bytes;

use super::LaneId;
use crate::items::priority::RANK_OF_SLOT;

/// A grant of one item, as the ring sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// An item of this rank that is in no lane.
    Outside { rank: u8 },
    /// An item of this rank in a lane, of which this many may follow in the same turn.
    Lane { rank: u8, lane: LaneId, left: u32 },
}

/// The place of a session in the ring, for each level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ring {
    begin: u16,
    levels: BTreeMap<u8, RingLevel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct RingLevel {
    /// The lane that had the last turn, and how many items it may still be granted in it.
    last: Option<(LaneId, u32)>,
    /// Whether the next item is one that is in no lane.
    is_outside_next: bool,
}

impl Ring {
    /// Returns a ring in which no lane had a turn, and the lanes from this hash on come first.
    pub(crate) fn beginning_at(hash: u16) -> Self {
        Self {
            begin: hash,
            levels: BTreeMap::new(),
        }
    }

    /// Returns whether an item that is in no lane comes before the lanes of the level.
    pub(crate) fn is_outside_next(&self, rank: u8) -> bool {
        let level = self.levels.get(&rank);
        level.is_some_and(|level| level.is_outside_next)
    }

    /// Returns the lane from which on the turns of a level go on, and whether it is the first or comes last.
    pub(crate) fn place(&self, rank: u8) -> (LaneId, bool) {
        let last = self.levels.get(&rank).and_then(|level| level.last.clone());
        match last {
            Some((lane, left)) => (lane, left > 0),
            None => {
                let first = LaneId {
                    hash: self.begin,
                    group: Bytes::new(),
                };
                (first, true)
            }
        }
    }

    /// Returns how many items a lane may be granted after one more, given its weight.
    pub(crate) fn left_after(&self, rank: u8, lane: &LaneId, weight: u32) -> u32 {
        let last = self.levels.get(&rank).and_then(|level| level.last.as_ref());
        match last {
            Some((last, left)) if last == lane && *left > 0 => left - 1,
            _ => weight.saturating_sub(1),
        }
    }

    pub(crate) fn apply(&mut self, turn: Turn) {
        match turn {
            Turn::Outside { rank } => self.level(rank).is_outside_next = false,
            Turn::Lane { rank, lane, left } => {
                // Lanes of which the level is not known are read from here on, too.
                self.level(RANK_OF_SLOT).last = Some((lane.clone(), 0));
                let level = self.level(rank);
                level.last = Some((lane, left));
                level.is_outside_next = true;
            }
        }
    }

    /// Forgets that it is the turn of items that are in no lane.
    pub(crate) fn forget_outside(&mut self) {
        for level in self.levels.values_mut() {
            level.is_outside_next = false;
        }
    }

    fn level(&mut self, rank: u8) -> &mut RingLevel {
        self.levels.entry(rank).or_default()
    }
}
