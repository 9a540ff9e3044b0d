//! What must hold at every state, and for every step.

use std::collections::{BTreeMap, BTreeSet};

use conformance::checker_store::{Rows, rows_of};
use microqueue::Item;
use microqueue::keyspace::{Bytes, KeyValue};
use stateright::Property;

use super::world::{LaneModel, LaneState};
use crate::items::counters::parse_count;
use crate::items::key_limits::KeyLimits;
use crate::items::keys::{Keys, Records};
use crate::items::record::{Part, Record, is_notice};
use crate::items::spot::{RANK_OF_SLOT, Spot};

/// The number of slots in use is the number of items that have one.
pub(super) const EXACT: &str = "slots are exact";
/// Whatever may be granted has a stamp that says so, or the mark makes a session look.
pub(super) const COVERED: &str = "lanes are covered";
/// No item starts beyond the limit that is valid at the commit, and none of a paused key.
pub(super) const WITHIN_LIMIT: &str = "starts are within the limit";
/// A take finds nothing only if there is nothing.
pub(super) const NONE_HIDDEN: &str = "nothing is hidden";

pub(super) fn properties() -> Vec<Property<LaneModel>> {
    vec![
        Property::always(EXACT, |model: &LaneModel, state: &LaneState| {
            is_exact(&model.keys, &state.rows)
        }),
        Property::always(COVERED, |model: &LaneModel, state: &LaneState| {
            is_covered(&model.keys, &state.rows)
        }),
        Property::always(WITHIN_LIMIT, |_, state: &LaneState| {
            state.broken != Some(WITHIN_LIMIT)
        }),
        Property::always(NONE_HIDDEN, |_, state: &LaneState| {
            state.broken != Some(NONE_HIDDEN)
        }),
    ]
}

/// Returns the item in a row, with the part that contains it. Rows of grants are left out.
pub(super) fn item_in(keys: &Keys, row: &KeyValue) -> Option<(Records, Item<Record>)> {
    let dead = keys.dead.subspace().bytes();
    let records = if let Ok(spot) = keys.parse_queued(row.key()) {
        spot.records(keys).into_owned()
    } else if let Ok(session) = keys.parse_holder(row.key()) {
        keys.held(session)
    } else if let Ok(ready) = keys.parse_ready(row) {
        keys.delayed(ready)
    } else if row.key().starts_with(dead) {
        keys.dead.clone()
    } else {
        return None;
    };
    let item = records.decode(row).ok()?;
    Some((records, item))
}

/// Where an item is, as far as the promises depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Queued,
    Held,
    Elsewhere,
}

/// Returns all items.
fn items(keys: &Keys, rows: &Rows) -> Vec<(Where, Item<Record>)> {
    let mut items = Vec::new();
    for (key, value) in rows {
        let row = KeyValue::new(key, value);
        if keys.parse_grant(key).is_ok() && !is_notice(value) {
            let part = Part::decode(key, value.clone()).unwrap();
            items.push((Where::Held, part.item));
        } else if let Some((_, item)) = item_in(keys, &row) {
            let place = if keys.parse_queued(key).is_ok() {
                Where::Queued
            } else if keys.parse_holder(key).is_ok() {
                Where::Held
            } else {
                Where::Elsewhere
            };
            items.push((place, item));
        }
    }
    items
}

fn slots_of(keys: &Keys, rows: &Rows, key: &[u8]) -> i64 {
    let row = keys.slots(key);
    rows.get(&*row)
        .map_or(0, |value| parse_count(&row, value).unwrap())
}

fn limits_of(keys: &Keys, rows: &Rows, key: &[u8]) -> KeyLimits {
    let own = rows.get(&*keys.key_limits(key));
    let limits = own.or_else(|| rows.get(&*keys.key_limits(b"")));
    limits.map_or(KeyLimits::new(), |value| {
        KeyLimits::parse(b"", value).unwrap()
    })
}

fn is_exact(keys: &Keys, rows: &Rows) -> bool {
    let mut counted: BTreeMap<Bytes, i64> = BTreeMap::new();
    for (_, item) in items(keys, rows) {
        if item.value.has_slot {
            *counted.entry(item.value.key).or_default() += 1;
        }
    }
    for (key, _) in rows_of(rows, &keys.part("l")) {
        let lane = keys.parse_lane(key).unwrap();
        if **key == *keys.slots(&lane.key) {
            let stored = slots_of(keys, rows, &lane.key);
            if stored == 0 || counted.remove(&lane.key) != Some(stored) {
                return false;
            }
        }
    }
    counted.is_empty()
}

/// Returns the first item of each lane that may be granted, with the rank that its stamp needs.
fn grantable_heads(keys: &Keys, rows: &Rows) -> BTreeMap<Bytes, u8> {
    let mut heads = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, _) in rows_of(rows, &keys.part("l")) {
        let Ok(Spot::Lane { key: lane, rank }) = keys.parse_queued(key) else {
            continue;
        };
        if !seen.insert(lane.clone()) {
            continue;
        }
        let limit = match &*lane {
            b"" => None,
            key => limits_of(keys, rows, key).limit(),
        };
        let slots = slots_of(keys, rows, &lane);
        let may_start = match limit {
            None => true,
            Some(0) => false,
            Some(limit) => rank == RANK_OF_SLOT || slots < limit.into(),
        };
        if may_start {
            heads.insert(lane, rank);
        }
    }
    heads
}

fn is_covered(keys: &Keys, rows: &Rows) -> bool {
    grantable_heads(keys, rows).iter().all(|(key, rank)| {
        let is_stamped = |rank: u8| rows.contains_key(&*keys.stamp(rank, key));
        let has_own_limits = rows.contains_key(&*keys.key_limits(key));
        (RANK_OF_SLOT..=*rank).any(is_stamped)
            || (!has_own_limits && rows.contains_key(&*keys.mark()))
    })
}

/// Returns whether a take would find something.
pub(super) fn has_grantable(keys: &Keys, rows: &Rows) -> bool {
    let outside = keys.outside_lanes();
    let delayed = rows_of(rows, &keys.part("t")).next().is_some();
    let is_marked = rows.contains_key(&*keys.mark());
    let heads = grantable_heads(keys, rows);
    let counts = |key: &Bytes| !is_marked || rows.contains_key(&*keys.key_limits(key));
    !delayed && (rows_of(rows, &outside).next().is_some() || heads.keys().any(counts))
}

/// The items that are held, and the slots in use.
pub(super) struct Slots {
    /// The items that wait for a slot.
    waiting: BTreeSet<(Bytes, Vec<u8>)>,
    held: BTreeSet<(Bytes, Vec<u8>)>,
    of_keys: BTreeMap<Bytes, i64>,
}

impl Slots {
    pub(super) fn of(keys: &Keys, rows: &Rows) -> Self {
        let mut waiting = BTreeSet::new();
        let mut held = BTreeSet::new();
        let mut of_keys: BTreeMap<Bytes, i64> = BTreeMap::new();
        for (place, item) in items(keys, rows) {
            let key = item.value.key;
            let named = (key.clone(), item.id.key_in(&keys.pointers()));
            if place == Where::Held && !key.is_empty() {
                held.insert(named);
            } else if place == Where::Queued && !item.value.has_slot {
                waiting.insert(named);
            }
            *of_keys.entry(key).or_default() += i64::from(item.value.has_slot);
        }
        Self {
            waiting,
            held,
            of_keys,
        }
    }
}

/// Returns the promise that a commit has broken.
pub(super) fn broken_by(
    keys: &Keys,
    rows: &Rows,
    before: &Slots,
    after: &Slots,
    pops: bool,
) -> Option<&'static str> {
    let is_broken = |key: &Bytes, slots: i64| {
        let limit = limits_of(keys, rows, key).limit();
        limit.is_some_and(|limit| limit == 0 || slots > limit.into())
    };
    let slots = |slots: &Slots, key| slots.of_keys.get(key).copied().unwrap_or(0);
    let has_started = after.held.difference(&before.held).any(|(key, _)| {
        let grows = slots(after, key) > slots(before, key);
        is_broken(key, if grows { slots(after, key) } else { 1 })
    });
    // A popped item needs a free slot for a moment.
    let popped = before.waiting.difference(&after.waiting);
    let mut popped = popped.filter(|(key, _)| pops && !key.is_empty());
    let has_popped = popped.any(|(key, _)| is_broken(key, slots(after, key) + 1));
    (has_started || has_popped).then_some(WITHIN_LIMIT)
}
