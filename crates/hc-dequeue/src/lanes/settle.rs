//! Stages what follows from a look: the conflicts of starts, which notices go, and until when a lane is parked that
//! waits for its rate.

use std::collections::BTreeMap;

use microqueue::Item;
use microqueue::keyspace::{ConflictKind, Isolation, KeyValue, MutationOp, Transaction};

use super::bucket::{Bucket, Level, LookAgain, RateState};
use super::look::{LaneState, Look, Picked};
use super::ring::Turn;
use super::rows::level_in;
use super::walk::{Head, Lane};
use super::{LaneId, LaneMemory, Met};
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::group_limits::GroupLimits;
use crate::items::keys::Keys;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::Record;

impl Look {
    /// Adds to the changes what follows for the lanes from the grant of the first items, which are `granted`, and
    /// stages which notices go, and which lanes are parked. `changes` must contain the slots of these items. The
    /// notices of a lane with rows that were skipped stay; if the session may take nothing else from it, it passes over
    /// these notices from now on.
    ///
    /// # Conflicts
    /// For each lane of which an item was granted, reads the pause and the limits: its own or, if it has none, also the
    /// default ones. If there is a limit or a rate, reads and writes the gate. Also does so for a lane that waits for
    /// its rate.
    pub(crate) fn finish(
        self,
        tr: &impl Transaction,
        keys: &Keys,
        memory: &LaneMemory,
        granted: usize,
        changes: &mut Changes,
    ) -> Result<()> {
        let picks = Picks::of(&self.picked, granted);
        let lanes = self.walk.into_lanes();
        let mut follows_default = false;
        let mut met = Met {
            lanes: self.states.len() as u64,
            fruitless: u64::from(granted == 0),
            ..Met::default()
        };
        for (id, state) in &self.states {
            let slots = state.slots + changes.slots(&id.group);
            let rest = LaneRest::of(&lanes[id], state, slots, &picks, id);
            met.at_limit += u64::from(rest.head.is_some() && !rest.has_slot);
            met.rate_waits += u64::from(rest.has_slot && !rest.may_start);
            if rest.starts > 0 && !id.group.is_empty() {
                let (begin, end) = keys.limits_and_pause(&id.group);
                tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
                follows_default |= !state.has_own_limits;
            }
            if state.is_gone && (rest.bucket.is_some() || state.rate != RateState::default()) {
                // The transaction before has decided the rest, and has written the gate.
                continue;
            }
            let wake = LookAgain::of(rest.has_slot, rest.may_start, rest.bucket.as_ref());
            let rate = state.rate_after(&lanes[id].limits, &rest, wake);
            stage_rate(tr, keys, id, state, &rate);
            if rate.parked.is_some() {
                memory.note_parked(true);
            }
            // A look that is too early commits by that, so that the next read version is a new one.
            let follows_rate = matches!(wake, LookAgain::At(_)) || state.rate != rate;
            if follows_rate || (rest.starts > 0 && lanes[id].limits.have_gate()) {
                stage_gate(tr, keys, &id.group)?;
            }
            if state.has_nothing_here(&rest) {
                memory.note_vain(keys.env.now(), id, &state.notices);
                if state.due.is_some() {
                    changes.add_notice(&id.group, RANK_OF_SLOT);
                }
            }
            state.stage_notices(tr, keys, id, &rest, changes);
        }
        if follows_default {
            tr.add_conflict_key(ConflictKind::Read, &keys.group_limits(b""))?;
        }
        memory.note(met);
        let turns = self.picked.into_iter().take(granted);
        memory.apply(turns.map(|picked| picked.turn));
        Ok(())
    }
}

/// What the grants of a look leave of a lane.
struct LaneRest {
    /// How many of its items were granted.
    starts: usize,
    /// The tokens that are left, if the group has a rate.
    bucket: Option<Bucket>,
    /// The next item.
    head: Option<Head>,
    /// Whether there is a slot for it.
    has_slot: bool,
    /// Whether it may be granted.
    may_start: bool,
}

impl LaneRest {
    fn of(
        lane: &Lane<Item<Record>>,
        state: &LaneState,
        slots: i64,
        picks: &Picks<'_>,
        id: &LaneId,
    ) -> Self {
        let starts = picks.granted.get(id).copied().unwrap_or(0);
        let bucket = state.bucket.clone().map(|bucket| bucket.after(starts));
        let head = picks.heads.get(id).copied().or_else(|| lane.next());
        let has_slot = head.is_some_and(|head| lane.has_slot_for(head, slots));
        let may_start = has_slot && bucket.as_ref().is_none_or(Bucket::may_start);
        Self {
            starts,
            bucket,
            head,
            has_slot,
            may_start,
        }
    }
}

/// The picks of a look, by lane.
#[derive(Default)]
struct Picks<'a> {
    /// How many items of a lane were granted.
    granted: BTreeMap<&'a LaneId, usize>,
    /// The first item of a lane that was picked and not granted.
    heads: BTreeMap<&'a LaneId, Head>,
}

impl<'a> Picks<'a> {
    fn of(picked: &'a [Picked], granted: usize) -> Self {
        let mut picks = Self::default();
        for (number, picked) in picked.iter().enumerate() {
            let Turn::Lane { lane, .. } = &picked.turn else {
                continue;
            };
            if number < granted {
                *picks.granted.entry(lane).or_default() += 1;
            } else {
                picks.heads.entry(lane).or_insert(picked.head);
            }
        }
        picks
    }
}

impl LaneState {
    /// Returns the state of the rate after the look.
    fn rate_after(&self, limits: &GroupLimits, rest: &LaneRest, wake: LookAgain) -> RateState {
        if *limits != GroupLimits::UNREADABLE {
            return self.rate.after(rest.bucket.clone(), rest.starts, wake);
        }
        // They may contain a rate.
        RateState {
            level: self.rate.level.clone(),
            parked: if self.due.is_some() {
                None
            } else {
                self.rate.parked
            },
        }
    }

    /// Returns whether others may take an item from the lane, while this session may not.
    fn has_nothing_here(&self, rest: &LaneRest) -> bool {
        self.skipped > 0 && (rest.head.is_none() || self.skips_slot && !rest.may_start)
    }

    /// Returns whether the lane has a notice of this rank or a lower one, as far as was seen.
    fn has_notice_up_to(&self, rank: u8) -> bool {
        self.notices.iter().any(|(seen, _)| *seen <= rank)
    }

    /// Returns whether the lane has exactly one notice, of this rank, as far as was seen.
    fn has_only_notice(&self, rank: u8) -> bool {
        matches!(self.notices[..], [(seen, _)] if seen == rank)
    }

    /// Stages which notices go, and adds the one of the rank at which an item may be granted, if there is one.
    fn stage_notices(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        id: &LaneId,
        rest: &LaneRest,
        changes: &mut Changes,
    ) {
        let left = match rest.head {
            Some(head) if rest.may_start => Some(head.notice),
            _ => None,
        };
        // Rows that were skipped may be those of a newer version, or of kinds that others take, which rely on the
        // notices.
        if self.has_nothing_here(rest) || self.skipped > 0 && left.is_some() {
            if let Some(rank) = left
                && !self.has_notice_up_to(rank)
            {
                changes.add_notice(&id.group, rank);
            }
            return;
        }
        let must = changes.notice_of(&id.group);
        if must.is_none() && left.is_some_and(|rank| self.has_only_notice(rank)) {
            return;
        }
        let rank = left.into_iter().chain(must).min();
        for (seen, value) in &self.notices {
            if Some(*seen) != rank {
                let notice = keys.notice(*seen, &id.group);
                tr.atomic(MutationOp::CompareAndClear, &notice, value);
            }
        }
        if let Some(rank) = rank {
            changes.add_notice(&id.group, rank);
        }
    }
}

/// Stages the tokens of a rate.
fn stage_level(tr: &impl Transaction, keys: &Keys, group: &[u8], level: Option<&Level>) {
    match level {
        Some(level) => tr.set(&keys.level(group), &level.to_bytes()),
        None => tr.clear(&keys.level(group)),
    }
}

/// Stages that an item gives its token back which no handler got. A look at its lane must follow.
///
/// # Conflicts
/// Reads and writes the gate of the group: transactions that take tokens fail with this one, and the other way round.
/// The limits must be in a conflict range.
pub(crate) async fn give_token_back(
    tr: &impl Transaction,
    keys: &Keys,
    record: &Record,
    limits: &GroupLimits,
    changes: &mut Changes,
) -> Result<()> {
    let group = &record.group;
    let Some((spent, rate)) = record.spent.zip(limits.rate()) else {
        return Ok(());
    };
    let row = keys.level(group);
    // Safe as a snapshot read: each transaction that changes the row writes the gate.
    let Some(value) = tr.get(&row, Isolation::Snapshot).await? else {
        return Ok(());
    };
    let level = level_in(&KeyValue::new(&row, &value));
    let bucket = Bucket::new(rate, tr.read_version().await?, Some(level));
    stage_level(tr, keys, group, bucket.give_back(spent).as_ref());
    stage_gate(tr, keys, group)?;
    changes.add_notice(group, RANK_OF_SLOT);
    changes.wake();
    Ok(())
}

/// Stages that the transaction conflicts with others that do so for the same lane.
pub(crate) fn stage_gate(tr: &impl Transaction, keys: &Keys, group: &[u8]) -> Result<()> {
    let gate = keys.gate(group);
    tr.add_conflict_key(ConflictKind::Read, &gate)?;
    tr.add_conflict_key(ConflictKind::Write, &gate)?;
    Ok(())
}

/// Stages the state of a rate where it has changed.
fn stage_rate(
    tr: &impl Transaction,
    keys: &Keys,
    LaneId { group, .. }: &LaneId,
    state: &LaneState,
    after: &RateState,
) {
    let before = &state.rate;
    if let Some(due) = state.due
        && ![before.parked, after.parked].contains(&Some(due))
    {
        // The other row of the lane says something else.
        tr.clear(&keys.parked(due, group));
    }
    if before.level != after.level {
        stage_level(tr, keys, group, after.level.as_ref());
    }
    if before.parked != after.parked {
        if let Some(until) = before.parked {
            tr.clear(&keys.parked(until, group));
        }
        match after.parked {
            Some(until) => {
                tr.set(&keys.parked(until, group), b"");
                tr.set(&keys.parked_until(group), &until.to_be_bytes());
            }
            None => tr.clear(&keys.parked_until(group)),
        }
    }
}
