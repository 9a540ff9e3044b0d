//! Reads lanes for a walk.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use futures::try_join;
use microqueue::Item;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{Bytes, Isolation, KeyValue, Transaction};

use super::bucket::{Bucket, RateState};
use super::ring::{Ring, Turn};
use super::rows::{LaneRows, Page, STATE_ROWS, StoredState, page};
use super::walk::{Head, Lane, Next, Pick, Waiting, Walk};
use super::{Gone, LaneId, LaneMemory};
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::group_limits::{GroupLimits, KnownLimits};
use crate::items::keys::Keys;
use crate::items::kind::Kinds;
use crate::items::part::Part;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::{Record, Spent};
use crate::items::scan::{FirstItems, ReadLimit, Skip, scan};

/// The largest number of notices that one look reads.
const MAX_NOTICES: usize = 256;

/// How many more notices than items a look reads: some lanes have nothing to grant.
const SPARE_NOTICES: usize = 16;

/// The largest number of lanes that one look reads.
const MAX_LANES: usize = 128;

/// How many rows of a lane a look skips. Items behind them are not found.
const MAX_SKIPPED_OF_LANE: usize = 1_000;

impl Waiting for Item<Record> {
    fn rank(&self) -> u8 {
        self.value.priority.rank()
    }

    fn has_slot(&self) -> bool {
        self.value.has_slot
    }
}

/// A notice of a lane.
#[derive(Debug, Clone)]
pub(crate) struct Notice {
    rank: u8,
    lane: LaneId,
    value: Bytes,
}

impl Notice {
    pub(crate) fn parse(keys: &Keys, row: &KeyValue) -> Option<Self> {
        let (rank, group) = keys.parse_notice(row.key())?;
        Some(Self {
            rank,
            lane: LaneId::of(&group),
            value: row.to_value(),
        })
    }
}

/// The first notices, and what else makes a session look at lanes.
#[derive(Debug)]
pub(crate) struct Notices {
    notices: Vec<Notice>,
    /// Whether the read has found as many notices as wanted or possible.
    pub(crate) is_complete: bool,
    /// The groups of parked lanes that are due, with the versions since when.
    pub(crate) due: BTreeMap<Bytes, i64>,
    /// The rank of the last one, if there may be others after it.
    cut: Option<u8>,
}

impl Notices {
    pub(crate) fn none() -> Self {
        Self {
            notices: Vec::new(),
            is_complete: true,
            due: BTreeMap::new(),
            cut: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.due.is_empty()
    }
}

/// Reads the first notices. If there are too many at a level, these are the ones whose turn comes next. The next read
/// then begins there: before that are the places of notices that were removed, over which a store may have to step.
///
/// # Conflicts
/// Reads by snapshot: a notice is removed only if it still has the value that was read.
pub(crate) async fn first_notices(
    tr: &impl Transaction,
    keys: &Keys,
    memory: &LaneMemory,
    wanted: usize,
) -> Result<Notices> {
    let max = (wanted + SPARE_NOTICES).min(MAX_NOTICES);
    let now = keys.env.now();
    let parse = |row: &KeyValue| {
        let notice = Notice::parse(keys, row).ok_or(Skip::Unreadable)?;
        if memory.is_vain(now, notice.rank, &notice.lane, &notice.value) {
            return Err(Skip::PassedOver);
        }
        Ok(notice)
    };
    let limit = ReadLimit {
        items: max,
        row_bytes: usize::MAX,
    };
    let read = async |range| Ok::<_, Error>(scan(tr, range, limit, parse).await?.found);
    let (first, end) = keys.part(Part::Notices);
    if let Some(crowded) = memory.crowded() {
        let (begin, end) = keys.notices(crowded);
        let place = place_of_notices(keys, memory, crowded);
        let (before, after) = try_join!(read((first.clone(), begin)), read((place, end)))?;
        // Otherwise, many notices that the session passes over may hide others of a higher level.
        let is_complete = before.is_complete && before.items.len() < max;
        if is_complete && after.items.len() == max {
            let mut notices = before.items;
            notices.extend(after.items);
            return Ok(Notices {
                notices,
                cut: Some(crowded),
                ..Notices::none()
            });
        }
    }
    let front = memory.notices.read(tr, keys, (first, end), limit, parse);
    let FirstItems {
        items: mut notices,
        is_complete,
    } = front.await?;
    let crowded = match notices.last() {
        Some(last) if notices.len() == max => Some(last.rank),
        _ => None,
    };
    memory.note_crowded(crowded);
    let Some(crowded) = crowded else {
        return Ok(Notices {
            notices,
            is_complete,
            ..Notices::none()
        });
    };
    let at_front = notices.split_off(notices.partition_point(|notice| notice.rank < crowded));
    let (begin, end) = keys.notices(crowded);
    let place = place_of_notices(keys, memory, crowded);
    let (in_turn, before) = try_join!(read((place.clone(), end)), read((begin, place)))?;
    let mut in_turn = in_turn.items;
    in_turn.extend(before.items);
    if in_turn.len() < max {
        // These reads end early among many notices that the session passes over. The first read has left them out.
        let known: BTreeSet<_> = in_turn.iter().map(|notice| notice.lane.clone()).collect();
        let others = at_front.into_iter();
        in_turn.extend(others.filter(|notice| !known.contains(&notice.lane)));
    }
    notices.extend(in_turn.into_iter().take(max));
    Ok(Notices {
        notices,
        cut: Some(crowded),
        ..Notices::none()
    })
}

/// Returns the key from which on the notices of a level are read.
fn place_of_notices(keys: &Keys, memory: &LaneMemory, rank: u8) -> Vec<u8> {
    let (place, is_included) = memory.place(rank);
    let place = keys.notice_at(rank, place.hash, &place.group);
    if is_included {
        place
    } else {
        key_after(&place)
    }
}

/// What a look has found.
pub(crate) struct Look {
    /// The items to grant, in order.
    pub(crate) items: Vec<Item<Record>>,
    pub(super) picked: Vec<Picked>,
    /// Whether nothing else could have been granted.
    pub(crate) is_complete: bool,
    pub(super) walk: Walk<Item<Record>>,
    pub(super) states: BTreeMap<LaneId, LaneState>,
    /// The limits of the lanes that were read.
    pub(crate) limits: KnownLimits,
}

impl Look {
    /// Returns the token that the item takes whose turn it is, if its group has a rate.
    fn spent(&self, turn: &Turn) -> Option<Spent> {
        let Turn::Lane { lane, .. } = turn else {
            return None;
        };
        let bucket = self.states.get(lane)?.bucket.as_ref();
        bucket.map(Bucket::spent)
    }
}

/// An item that was picked.
pub(super) struct Picked {
    pub(super) turn: Turn,
    pub(super) head: Head,
}

/// What a look must know of a lane besides its items.
pub(super) struct LaneState {
    /// How many slots were in use before the transaction.
    pub(super) slots: i64,
    pub(super) has_own_limits: bool,
    /// The tokens before the transaction, if the group has a rate.
    pub(super) bucket: Option<Bucket>,
    pub(super) rate: RateState,
    /// Whether the transaction before has started an item of the lane.
    pub(super) is_gone: bool,
    /// Since which version it is due, if it was parked until then.
    pub(super) due: Option<i64>,
    /// The notices that were seen: rank and value.
    pub(super) notices: Vec<(u8, Bytes)>,
    /// Where its items go on after those that were read.
    next: Vec<u8>,
    /// Whether one of the rows that were skipped is that of an item that has a slot.
    pub(super) skips_slot: bool,
    /// How many of its rows were skipped. They may be those of a newer version, or of kinds that others take, which
    /// rely on the notices.
    pub(super) skipped: usize,
}

/// What the transaction has done of which a look must know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Past<'a> {
    /// Its own changes, which are not staged yet.
    pub(crate) changes: &'a Changes,
    /// What the transaction before has taken, which this one may still see.
    pub(crate) gone: &'a Gone,
}

/// Decides which items to grant: those that are in no lane and those of lanes, up to `max`.
///
/// # Conflicts
/// Reads by snapshot: removing an item ensures that it still exists at the commit.
pub(crate) async fn look(
    tr: &impl Transaction,
    keys: &Keys,
    memory: &LaneMemory,
    notices: Notices,
    outside: Vec<Item<Record>>,
    past: Past<'_>,
    max: ReadLimit,
) -> Result<Look> {
    let touched = past
        .changes
        .with_notices()
        .chain(notices.due.keys())
        .map(|group| (RANK_OF_SLOT, LaneId::of(group)));
    let seen = notices
        .notices
        .iter()
        .map(|notice| (notice.rank, notice.lane.clone()));
    let walk = Walk::new(outside, touched.chain(seen), notices.cut, memory.ring());
    let mut seen: BTreeMap<LaneId, Vec<(u8, Bytes)>> = BTreeMap::new();
    for notice in notices.notices {
        seen.entry(notice.lane)
            .or_default()
            .push((notice.rank, notice.value));
    }
    let mut reader = Reader {
        tr,
        keys,
        kinds: memory.kinds(),
        past,
        seen,
        due: notices.due,
        default: None,
        look: Look {
            items: Vec::new(),
            picked: Vec::new(),
            is_complete: true,
            walk,
            states: BTreeMap::new(),
            limits: KnownLimits::default(),
        },
    };
    let mut bytes = 0;
    while reader.look.items.len() < max.items && bytes < max.row_bytes {
        match reader.look.walk.next() {
            Next::Pick(Pick { mut item, turn }) => {
                item.value.spent = reader.look.spent(&turn);
                bytes += item.value.payload.len();
                let head = Head::of(&item);
                let meets_gate = reader.meets_gate(&item.value.group);
                reader.look.picked.push(Picked { turn, head });
                if meets_gate {
                    reader.look.is_complete = false;
                    break;
                }
                reader.look.items.push(item);
            }
            Next::Read(_) if reader.look.states.len() >= MAX_LANES => reader.look.walk.give_up(),
            Next::Read(lanes) => {
                let missing = max.items - reader.look.items.len();
                reader.read(lanes, missing).await?;
            }
            Next::ReadOn(lane) => {
                let missing = max.items - reader.look.items.len();
                reader.read_on(lane, missing).await?;
            }
            Next::End { is_complete } => {
                reader.look.is_complete = is_complete;
                break;
            }
        }
    }
    Ok(reader.look)
}

/// The first item of a lane, for which there is a slot.
pub(crate) struct Startable {
    /// The rank of the lane's notice of it.
    pub(crate) notice: u8,
    /// Whether its group has a rate.
    pub(crate) has_rate: bool,
    /// Whether it waits for that.
    pub(crate) waits_for_rate: bool,
}

/// Returns the first item of a lane, if there is a slot for it.
pub(crate) async fn first_startable(
    tr: &impl Transaction,
    keys: &Keys,
    group: &Bytes,
) -> Result<Option<Startable>> {
    let mut changes = Changes::default();
    changes.add_notice(group, RANK_OF_SLOT);
    let memory = LaneMemory::new(Ring::beginning_at(0));
    let max = ReadLimit {
        items: 1,
        row_bytes: usize::MAX,
    };
    let notices = Notices::none();
    let past = Past {
        changes: &changes,
        gone: &Gone::default(),
    };
    let look = look(tr, keys, &memory, notices, Vec::new(), past, max).await?;
    let picked = look.picked.first().map(|picked| picked.head);
    let lane = look.walk.into_lanes().remove(&LaneId::of(group));
    let has_rate = lane.as_ref().is_some_and(|lane| lane.bucket.is_some());
    let waiting = lane.and_then(|lane| {
        let head = lane.next()?;
        if !lane.has_slot_for(head, lane.slots) {
            return None;
        }
        Some(head)
    });
    Ok(picked.or(waiting).map(|head| Startable {
        notice: head.notice,
        has_rate,
        waits_for_rate: picked.is_none(),
    }))
}

/// Reads lanes.
struct Reader<'a, Tr> {
    tr: &'a Tr,
    keys: &'a Keys,
    kinds: &'a Kinds,
    past: Past<'a>,
    /// The notices of lanes that were not read.
    seen: BTreeMap<LaneId, Vec<(u8, Bytes)>>,
    due: BTreeMap<Bytes, i64>,
    default: Option<GroupLimits>,
    look: Look,
}

impl<Tr: Transaction> Reader<'_, Tr> {
    /// Reads some of these lanes, the first ones, for the items that are missing.
    async fn read(&mut self, mut lanes: Vec<LaneId>, missing: usize) -> Result<()> {
        lanes.truncate(missing);
        let default = match self.default {
            Some(default) => default,
            None => {
                let key = self.keys.group_limits(b"");
                let row = self.tr.get(&key, Isolation::Snapshot).await?;
                row.as_deref()
                    .map(GroupLimits::parse_or_pause)
                    .unwrap_or_default()
            }
        };
        self.default = Some(default);
        // One more, so that it is known whether something is left.
        let items = missing.div_ceil(self.look.walk.count_unread()) + 1;
        let reads = lanes.into_iter().map(|id| {
            let (begin, end) = self.keys.lane(&id.group).range();
            let page = page(self.tr, begin, end, STATE_ROWS + items);
            async move { Ok::<_, Error>((id, page.await?)) }
        });
        for (id, page) in try_join_all(reads).await? {
            self.add(id, page, items, default).await?;
        }
        Ok(())
    }

    /// Adds a lane with this number of items, if there are as many.
    async fn add(
        &mut self,
        id: LaneId,
        page: Page,
        max_items: usize,
        default: GroupLimits,
    ) -> Result<()> {
        let stored = StoredState::read(self.keys, &id.group, &page.rows);
        let own = stored.limits;
        let limits = match own {
            // The lane of the items without a group has no limits: the row contains the default ones.
            _ if id.group.is_empty() => GroupLimits::new(),
            _ if stored.is_paused => own.unwrap_or(default).with_limit(0),
            Some(own) => own,
            None => default,
        };
        let read = self.choose(page, stored.rows, max_items, &limits);
        let Self { past, look, .. } = self;
        let bucket = match limits.rate() {
            Some(rate) => {
                let now = self.tr.read_version().await?;
                Some(Bucket::new(rate, now, stored.rate.level.clone()))
            }
            None => None,
        };
        let state = LaneState {
            slots: stored.slots,
            has_own_limits: own.is_some(),
            bucket: bucket.clone(),
            rate: stored.rate,
            is_gone: past.gone.groups.contains(&id.group),
            due: self.due.get(&id.group).copied(),
            notices: self.seen.remove(&id).unwrap_or_default(),
            next: read.next,
            skips_slot: read.skips_slot,
            skipped: read.skipped,
        };
        let ranks: Vec<_> = state.notices.iter().map(|(rank, _)| *rank).collect();
        look.limits.insert(id.group.clone(), limits);
        look.states.insert(id.clone(), state);
        let lane = Lane {
            limits,
            slots: stored.slots + past.changes.slots(&id.group),
            bucket,
            items: read.items.into(),
            has_more: read.has_more,
            last: Head::FIRST,
        };
        look.walk.add(id, lane, ranks.into_iter());
        Ok(())
    }

    async fn read_on(&mut self, id: LaneId, missing: usize) -> Result<()> {
        let (_, end) = self.keys.lane(&id.group).range();
        let state = &self.look.states[&id];
        let limit = missing.max(state.skipped).min(MAX_SKIPPED_OF_LANE);
        let page = page(self.tr, state.next.clone(), end, limit).await?;
        let limits = self.look.limits.of(&id.group);
        let read = self.choose(page, 0, usize::MAX, limits);
        let Look { states, walk, .. } = &mut self.look;
        let state = states.get_mut(&id).expect("the lane was read");
        state.next = read.next;
        state.skips_slot |= read.skips_slot;
        state.skipped += read.skipped;
        let is_over = read.items.is_empty() && state.skipped >= MAX_SKIPPED_OF_LANE;
        walk.change(id, |lane| {
            lane.items.extend(read.items);
            lane.has_more = read.has_more && !is_over;
        });
        Ok(())
    }

    /// Returns the first items in the rows of a lane after its state, without those that the transaction before has
    /// taken. Skips rows that do not decode, and items of kinds that the session does not take. In an ordered group,
    /// the items after such an item wait for it.
    fn choose(
        &self,
        page: Page,
        state_rows: usize,
        max_items: usize,
        limits: &GroupLimits,
    ) -> LaneRows {
        let mut read = LaneRows {
            items: Vec::new(),
            has_more: page.has_more,
            next: page.next,
            skips_slot: false,
            skipped: 0,
        };
        for row in &page.rows[state_rows..] {
            if read.items.len() == max_items {
                read.has_more = true;
                read.next = row.key().to_vec();
                break;
            }
            match self.keys.decode_queued(row) {
                Ok(item) if self.past.gone.items.contains(&item.id) => {}
                Ok(item) if self.kinds.admit(&item.value.kind) => read.items.push(item),
                Ok(item) => {
                    read.skipped += 1;
                    read.skips_slot |= item.value.has_slot;
                    if limits.are_ordered() {
                        read.has_more = false;
                        break;
                    }
                }
                Err(_) => read.skipped += 1,
            }
        }
        read
    }

    /// Returns whether the transaction before has written the gate of a group, so that this one would fail with it.
    fn meets_gate(&self, group: &Bytes) -> bool {
        self.past.gone.groups.contains(group) && self.look.limits.of(group).have_gate()
    }
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Database, Environment, Subspace};

    use super::*;
    use crate::lanes::ring::Ring;
    use crate::tests::memory;

    #[tokio::test]
    async fn many_notices_that_are_passed_over_on_both_sides_of_the_ring_hide_none() {
        let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
        let memory_of_lanes = LaneMemory::new(Ring::beginning_at(1 << 15));
        let tr = memory().begin().unwrap();
        let groups = (0..6_000).map(|group: u32| Bytes::from(group.to_string()));
        let lanes: BTreeSet<_> = groups.map(|group| LaneId::of(&group)).collect();
        let value = Bytes::from_static(b"since");
        // Only the last lanes are not passed over, as many as a read looks for.
        let wanted = 1;
        let max = wanted + SPARE_NOTICES;
        let (vain, others): (Vec<_>, Vec<_>) = (0..)
            .zip(&lanes)
            .partition(|(number, _)| *number < lanes.len() - max);
        for lane in &lanes {
            tr.set(&keys.notice(RANK_OF_SLOT, &lane.group), &value);
        }
        for (_, lane) in vain {
            let notices = [(RANK_OF_SLOT, value.clone())];
            memory_of_lanes.note_vain(keys.env.now(), lane, &notices);
        }
        let mut found = Notices::none();
        for _ in 0..lanes.len() {
            found = first_notices(&tr, &keys, &memory_of_lanes, wanted)
                .await
                .unwrap();
            if found.is_complete {
                break;
            }
        }
        let found: Vec<_> = found.notices.iter().map(|notice| &notice.lane).collect();
        assert_eq!(
            found,
            others.iter().map(|(_, lane)| *lane).collect::<Vec<_>>()
        );
    }
}
