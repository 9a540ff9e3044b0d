//! What a transaction changes besides the rows of items, collected until it is staged.

use std::collections::BTreeMap;

use microqueue::keyspace::{Bytes, MutationOp, Transaction};

use crate::items::batch::{BatchId, BatchMember, Tally};
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::{End, Record};
use crate::items::spot::Spot;

/// The changes of counters, lanes and batches that a transaction has not staged yet.
///
/// **Invariant:** only [`take_slot`](Self::take_slot), [`free_slot`](Self::free_slot) and [`end_slot`](Self::end_slot)
/// set or clear the flag in a record, and each changes the number of slots in use. At every version, that number is the
/// number of records with the flag.
#[derive(Debug, Clone, Default)]
#[must_use]
pub(crate) struct Changes {
    counts: [i64; Counter::ALL.len()],
    lanes: BTreeMap<Bytes, LaneChange>,
    batches: BTreeMap<BatchId, [i64; Tally::ALL.len()]>,
    wakes: bool,
}

/// The changes of a lane.
#[derive(Debug, Clone, Copy, Default)]
struct LaneChange {
    /// How many more slots are in use.
    slots: i64,
    /// Whether a slot was freed for which others may wait.
    frees: bool,
    /// The lowest rank of which a notice is to be written.
    notice: Option<u8>,
}

impl LaneChange {
    /// Returns whether others may get a slot that was in use.
    fn frees(self) -> bool {
        self.frees && self.slots < 0
    }

    /// Returns the rank of the notice that must be written, if there must be one.
    ///
    /// A transaction that frees a slot, or leaves an item waiting that did not wait before, writes a notice even if it
    /// has looked at the lane: another one may commit first that also looks, sees the slot in use or no item, and
    /// removes the notice of a third.
    fn notice(self) -> Option<u8> {
        if self.frees() {
            Some(RANK_OF_SLOT)
        } else {
            self.notice
        }
    }
}

impl Changes {
    pub(crate) fn add(&mut self, counter: Counter, change: i64) {
        self.counts[counter as usize] += change;
    }

    pub(crate) fn of(&self, counter: Counter) -> i64 {
        self.counts[counter as usize]
    }

    /// Adds that waiting sessions check again.
    pub(crate) fn wake(&mut self) {
        self.wakes = true;
    }

    /// Adds that the lane of a spot may have something to grant there.
    pub(crate) fn add_notice_at(&mut self, spot: &Spot) {
        if let Spot::Lane { group, rank } = spot {
            self.add_notice(group, *rank);
        }
    }

    /// Adds that a lane may have something to grant at a rank.
    pub(crate) fn add_notice(&mut self, group: &Bytes, rank: u8) {
        let notice = &mut self.lane(group).notice;
        *notice = Some(notice.map_or(rank, |other| other.min(rank)));
    }

    /// Gives an item with a group a slot, unless it has one.
    pub(crate) fn take_slot(&mut self, record: &mut Record) {
        if !record.group.is_empty() && !record.has_slot {
            record.has_slot = true;
            self.lane(&record.group).slots += 1;
        }
    }

    /// Frees the slot of an item, if it has one. `limits` must contain those of its group.
    pub(crate) fn free_slot(&mut self, record: &mut Record, limits: &KnownLimits) {
        self.end_slot(record, limits);
        record.has_slot = false;
    }

    /// Frees the slot of an item that ends, if it has one. `limits` must contain those of its group.
    pub(crate) fn end_slot(&mut self, record: &Record, limits: &KnownLimits) {
        if record.has_slot {
            let is_limited = limits.of(&record.group).limit().is_some();
            let lane = self.lane(&record.group);
            lane.slots -= 1;
            lane.frees |= is_limited;
        }
    }

    /// Adds a new member to its batch: a batch, or an item by [`add_member`](crate::items::members::add_member).
    pub(crate) fn join(&mut self, member: BatchMember) {
        self.tally(member.batch, Tally::Pending, 1);
    }

    /// Adds that a member leaves its batch, and as what it counts.
    pub(crate) fn leave(&mut self, member: Option<BatchMember>, how: Option<Tally>) {
        if let Some(member) = member {
            self.tally(member.batch, Tally::Pending, -1);
            if let Some(how) = how {
                self.tally(member.batch, how, 1);
            }
        }
    }

    /// Adds that an item that may be a member ends.
    pub(crate) fn end_member(&mut self, record: &Record, how: End) {
        let how = match how {
            End::Completed => Tally::Completed,
            End::Cancelled | End::Removed => Tally::Cancelled,
        };
        self.leave(record.member, Some(how));
    }

    /// Adds that an item becomes a dead letter: it leaves its batch, unless it stays a member.
    pub(crate) fn become_dead(&mut self, record: &mut Record) {
        match record.member {
            Some(member) if member.dead_letters_stay => self.tally(member.batch, Tally::Dead, 1),
            _ => self.leave(record.member.take(), Some(Tally::Dead)),
        }
    }

    /// Adds that an item is no longer a dead letter.
    pub(crate) fn leave_dead(&mut self, record: &Record) {
        if let Some(member) = record.member {
            self.tally(member.batch, Tally::Dead, -1);
        }
    }

    /// Adds to a number of a batch.
    pub(crate) fn tally(&mut self, batch: BatchId, tally: Tally, change: i64) {
        self.batches.entry(batch).or_default()[tally as usize] += change;
    }

    /// Adds that the number of slots in use was wrong.
    pub(crate) fn correct_slots(&mut self, group: &Bytes, difference: i64) {
        self.lane(group).slots += difference;
    }

    /// Returns how many more slots of a group are in use.
    pub(crate) fn slots(&self, group: &Bytes) -> i64 {
        self.lanes.get(group).map_or(0, |lane| lane.slots)
    }

    /// Returns the groups of the lanes of which notices must be written.
    pub(crate) fn with_notices(&self) -> impl Iterator<Item = &Bytes> {
        let with_notice = |(group, lane): (_, &LaneChange)| lane.notice().map(|_| group);
        self.lanes.iter().filter_map(with_notice)
    }

    /// Returns the rank of the notice of a lane that must be written.
    pub(crate) fn notice_of(&self, group: &Bytes) -> Option<u8> {
        self.lanes.get(group).copied().and_then(LaneChange::notice)
    }

    /// Adds the changes of another part of the transaction.
    pub(crate) fn merge(&mut self, other: Self) {
        for counter in Counter::ALL {
            self.add(counter, other.of(counter));
        }
        for (group, change) in other.lanes {
            if let Some(rank) = change.notice {
                self.add_notice(&group, rank);
            }
            let lane = self.lane(&group);
            lane.slots += change.slots;
            lane.frees |= change.frees;
        }
        for (batch, changes) in other.batches {
            for tally in Tally::ALL {
                self.tally(batch, tally, changes[tally as usize]);
            }
        }
        self.wakes |= other.wakes;
    }

    fn lane(&mut self, group: &Bytes) -> &mut LaneChange {
        self.lanes.entry(group.clone()).or_default()
    }

    /// Stages the changes. The writes are blind and conflict with nothing.
    pub(crate) fn stage(self, tr: &impl Transaction, keys: &Keys) {
        for counter in Counter::ALL {
            keys.count(tr, counter, self.of(counter));
        }
        let mut wakes = self.wakes;
        for (batch, changes) in &self.batches {
            wakes |= stage_batch(tr, keys, *batch, changes);
        }
        for (group, lane) in &self.lanes {
            if lane.slots != 0 {
                let slots = keys.slots(group);
                tr.atomic(MutationOp::Add, &slots, &lane.slots.to_le_bytes());
                if lane.slots < 0 {
                    tr.atomic(MutationOp::CompareAndClear, &slots, &0_i64.to_le_bytes());
                }
            }
            if let Some(rank) = lane.notice() {
                tr.set_to_versionstamp(&keys.notice(rank, group));
            }
            wakes |= lane.frees();
        }
        if wakes {
            keys.wake_all(tr);
        }
    }
}

/// Stages the changes of a batch. Returns whether it may be complete then.
fn stage_batch(tr: &impl Transaction, keys: &Keys, batch: BatchId, changes: &[i64]) -> bool {
    for tally in Tally::ALL {
        let change = changes[tally as usize];
        if change != 0 {
            // A number that is zero again stays: the end of the batch removes it.
            let key = keys.tally(batch, tally);
            tr.atomic(MutationOp::Add, &key, &change.to_le_bytes());
        }
    }
    let has_fewer = changes[Tally::Pending as usize] < 0;
    if has_fewer {
        tr.set_to_versionstamp(&keys.batch_notice(batch));
    }
    has_fewer
}
