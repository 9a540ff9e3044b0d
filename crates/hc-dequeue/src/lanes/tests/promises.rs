//! What must hold at every state, and for every step.

use std::collections::{BTreeMap, BTreeSet};

use conformance::checker_store::{Rows, rows_of};
use microqueue::keyspace::{Bytes, KeyValue};
use microqueue::{Item, ItemId};
use stateright::Property;

use super::spec::{How, UNIT};
use super::world::{LaneFlight, LaneModel, LaneState, item_id};
use crate::items::counters::parse_count;
use crate::items::death::Death;
use crate::items::group_limits::GroupLimits;
use crate::items::keys::{Keys, Records};
use crate::items::part::Part;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::rate::Rate;
use crate::items::record::{GrantPart, Record, is_signal};
use crate::items::spot::Spot;
use crate::lanes::bucket::Level;

/// The number of slots in use is the number of items that have one.
pub(super) const EXACT: &str = "slots are exact";
/// Whatever may be granted has a notice that says so, or the mark makes a session look.
pub(super) const COVERED: &str = "lanes are covered";
/// No item starts beyond the limit that is valid at the commit, and none of a paused group.
pub(super) const WITHIN_LIMIT: &str = "starts are within the limit";
/// In any span of versions, no more items of a group start than its rate allows.
pub(super) const WITHIN_RATE: &str = "starts are within the rate";
/// The tokens of a group are as if only the items had been granted that handlers got.
pub(super) const ONLY_STARTS: &str = "only starts take tokens";
/// The two rows of a parked lane agree.
pub(super) const PARKED: &str = "parked lanes have two rows";
/// A lane that waits for its rate is not parked for too long.
pub(super) const IN_TIME: &str = "lanes are parked in time";
/// A take finds nothing only if there is nothing.
pub(super) const NONE_HIDDEN: &str = "nothing is hidden";
/// The commit in which an item becomes a dead letter enqueues its death, once. No other commit does.
pub(super) const TOLD: &str = "deaths come with dead letters";

pub(super) fn properties() -> Vec<Property<LaneModel>> {
    vec![
        Property::always(EXACT, |model: &LaneModel, state: &LaneState| {
            is_exact(model, &state.rows)
        }),
        Property::always(COVERED, |model: &LaneModel, state: &LaneState| {
            is_covered(&model.keys, &state.rows)
        }),
        Property::always(WITHIN_LIMIT, |_, state: &LaneState| {
            state.broken != Some(WITHIN_LIMIT)
        }),
        Property::always(WITHIN_RATE, |_, state: &LaneState| {
            state.broken != Some(WITHIN_RATE)
        }),
        Property::always(ONLY_STARTS, are_spent_by_starts),
        Property::always(PARKED, |model: &LaneModel, state: &LaneState| {
            are_parked(&model.keys, &state.rows)
        }),
        Property::always(IN_TIME, are_in_time),
        Property::always(NONE_HIDDEN, |_, state: &LaneState| {
            state.broken != Some(NONE_HIDDEN)
        }),
        Property::always(TOLD, |_, state: &LaneState| state.broken != Some(TOLD)),
    ]
}

/// Returns the item in a row, with the part that contains it. Rows of grants are left out.
pub(super) fn item_in(keys: &Keys, row: &KeyValue) -> Option<(Records, Item<Record>)> {
    let dead = keys.dead.subspace().bytes();
    let records = if let Ok(spot) = keys.parse_queued(row.key()) {
        keys.items_at(&spot).into_owned()
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
pub(super) enum Where {
    Queued,
    /// Its session has not collected it.
    Granted,
    Held,
    Dead,
    Elsewhere,
}

/// Returns all items.
fn items(model: &LaneModel, rows: &Rows) -> impl Iterator<Item = (Where, Item<Record>)> {
    rows.iter().filter_map(|(key, value)| {
        let place = || placed_item(&model.keys, key, value);
        model.placed.get(key, value, place)
    })
}

fn placed_item(keys: &Keys, key: &Bytes, value: &Bytes) -> Option<(Where, Item<Record>)> {
    if keys.parse_grant(key).is_ok() && !is_signal(value) {
        let part = GrantPart::decode(key, value.clone()).unwrap();
        return Some((Where::Granted, part.item));
    }
    let (_, item) = item_in(keys, &KeyValue::new(key, value))?;
    let place = if keys.parse_queued(key).is_ok() {
        Where::Queued
    } else if keys.parse_holder(key).is_ok() {
        Where::Held
    } else if key.starts_with(keys.dead.subspace().bytes()) {
        Where::Dead
    } else {
        Where::Elsewhere
    };
    Some((place, item))
}

fn slots_of(keys: &Keys, rows: &Rows, group: &[u8]) -> i64 {
    let row = keys.slots(group);
    rows.get(&*row)
        .map_or(0, |value| parse_count(&row, value).unwrap())
}

/// Returns the limits of a group, with a limit of zero while it is paused.
fn limits_of(keys: &Keys, rows: &Rows, group: &[u8]) -> GroupLimits {
    let own = rows.get(&*keys.group_limits(group));
    let limits = own.or_else(|| rows.get(&*keys.group_limits(b"")));
    let limits = limits.map_or(GroupLimits::new(), |value| {
        GroupLimits::parse(b"", value).unwrap()
    });
    if rows.contains_key(&*keys.group_pause(group)) {
        return limits.with_limit(0);
    }
    limits
}

fn is_exact(model: &LaneModel, rows: &Rows) -> bool {
    let keys = &*model.keys;
    let mut counted: BTreeMap<Bytes, i64> = BTreeMap::new();
    for (_, item) in items(model, rows) {
        if item.value.has_slot {
            *counted.entry(item.value.group).or_default() += 1;
        }
    }
    for (key, _) in rows_of(rows, &keys.part(Part::Lanes)) {
        let lane = keys.parse_lane(key).unwrap();
        if **key == *keys.slots(&lane.group) {
            let stored = slots_of(keys, rows, &lane.group);
            if stored == 0 || counted.remove(&lane.group) != Some(stored) {
                return false;
            }
        }
    }
    counted.is_empty()
}

/// The first item of a lane, for which there is a slot.
struct Head {
    /// The rank that its notice needs.
    rank: u8,
    /// The version from which on its rate lets it start, if the group has one.
    from: Option<i64>,
}

impl Head {
    fn may_start(&self, at: u8) -> bool {
        self.from.is_none_or(|from| from <= UNIT * i64::from(at))
    }
}

/// Returns the first item of each lane in which one has a slot, or there is one for it.
fn heads_of(keys: &Keys, rows: &Rows) -> BTreeMap<Bytes, Head> {
    let mut heads = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (key, _) in rows_of(rows, &keys.part(Part::Lanes)) {
        let Ok(Spot::Lane { group: lane, rank }) = keys.parse_queued(key) else {
            continue;
        };
        if !seen.insert(lane.clone()) {
            continue;
        }
        let limits = match &*lane {
            b"" => GroupLimits::new(),
            group => limits_of(keys, rows, group),
        };
        let slots = slots_of(keys, rows, &lane);
        let has_slot = match limits.limit() {
            None => true,
            Some(0) => false,
            Some(limit) => rank == RANK_OF_SLOT || slots < limit.into(),
        };
        let from = limits.rate().map(|rate| {
            let full_at = full_at(keys, rows, &lane).unwrap_or(0);
            full_at - (i64::from(rate.burst()) - 1) * rate.interval()
        });
        if has_slot {
            heads.insert(lane, Head { rank, from });
        }
    }
    heads
}

/// Returns the number in a row of a rate.
fn number(rows: &Rows, key: &[u8]) -> Option<i64> {
    let value = rows.get(key)?;
    Some(i64::from_be_bytes((**value).try_into().unwrap()))
}

/// Returns the version at which all tokens of a group are there, if some are missing.
fn full_at(keys: &Keys, rows: &Rows, group: &[u8]) -> Option<i64> {
    let value = rows.get(&*keys.level(group))?;
    Some(Level::parse(value).unwrap().full_at)
}

/// The tokens are those of a bucket from which only the starts so far have taken some. Changes of the rate are left
/// out.
fn are_spent_by_starts(model: &LaneModel, state: &LaneState) -> bool {
    if model.world.changes > 0 {
        return true;
    }
    let keys = &*model.keys;
    let of_rates = model.world.limits.iter();
    let mut of_rates = of_rates.filter_map(|(group, limits)| Some((group, limits.rate()?)));
    let Some((group, rate)) = of_rates.next() else {
        return true;
    };
    let now = UNIT * i64::from(state.now);
    let mut starts = state.starts.clone();
    starts.sort_unstable();
    let take = |full_at: i64, start: &u8| full_at.max(UNIT * i64::from(*start)) + rate.interval();
    let expected = starts.iter().fold(now.min(0), take);
    full_at(keys, &state.rows, group).unwrap_or(0).max(now) == expected.max(now)
}

fn is_covered(keys: &Keys, rows: &Rows) -> bool {
    heads_of(keys, rows).iter().all(|(group, head)| {
        let has_own_limits = rows.contains_key(&*keys.group_limits(group));
        has_notice(keys, rows, group, head.rank)
            || (!has_own_limits && rows.contains_key(&*keys.mark()))
            || (head.from.is_some() && rows.contains_key(&*keys.parked_until(group)))
    })
}

fn has_notice(keys: &Keys, rows: &Rows, group: &[u8], rank: u8) -> bool {
    let has_notice = |rank: u8| rows.contains_key(&*keys.notice(rank, group));
    (RANK_OF_SLOT..=rank).any(has_notice)
}

/// The two rows of each parked lane agree.
fn are_parked(keys: &Keys, rows: &Rows) -> bool {
    let of_lanes = rows_of(rows, &keys.part(Part::Lanes)).filter_map(|(key, _)| {
        let lane = keys.parse_lane(key).unwrap();
        let is_parked = **key == *keys.parked_until(&lane.group);
        let until = is_parked.then(|| number(rows, key).unwrap())?;
        Some((until, lane.group))
    });
    let parked =
        rows_of(rows, &keys.part(Part::Parked)).filter_map(|(key, _)| keys.parse_parked(key));
    of_lanes.collect::<BTreeSet<_>>() == parked.collect()
}

/// A lane that waits for its rate is parked no longer than necessary. Its bucket is not emptier than empty, so that
/// tokens come back.
fn are_in_time(model: &LaneModel, state: &LaneState) -> bool {
    let keys = &*model.keys;
    let now = UNIT * i64::from(state.now);
    heads_of(keys, &state.rows).iter().all(|(group, head)| {
        let rate = limits_of(keys, &state.rows, group).rate();
        let Some((from, rate)) = head.from.zip(rate) else {
            return true;
        };
        let parked = number(&state.rows, &keys.parked_until(group)).unwrap_or(0);
        let all = i64::from(rate.burst()) * rate.interval();
        let full_at = full_at(keys, &state.rows, group).unwrap_or(0);
        has_notice(keys, &state.rows, group, head.rank)
            || parked <= from.max(now) && full_at <= now + all
    })
}

/// Returns whether a take would find something.
pub(super) fn has_grantable(keys: &Keys, rows: &Rows, at: u8) -> bool {
    let outside = keys.outside_lanes();
    let delayed = rows_of(rows, &keys.part(Part::Delayed)).next().is_some();
    let is_marked = rows.contains_key(&*keys.mark());
    let counts = |(group, head): (&Bytes, &Head)| {
        head.may_start(at) && (!is_marked || rows.contains_key(&*keys.group_limits(group)))
    };
    let has_items = rows_of(rows, &outside).next().is_some();
    !delayed && (has_items || heads_of(keys, rows).iter().any(counts))
}

/// The token of an item that is held.
struct HeldToken {
    group: Bytes,
    /// The time of the read version.
    start: u8,
    is_collected: bool,
}

/// The items that are held, the dead letters, and the slots in use.
pub(super) struct Slots {
    dead: BTreeMap<ItemId, Record>,
    /// The tokens that items have taken which are held.
    spent: BTreeMap<ItemId, HeldToken>,
    /// The items that wait for a slot.
    waiting: BTreeSet<(Bytes, Vec<u8>)>,
    held: BTreeSet<(Bytes, Vec<u8>)>,
    of_groups: BTreeMap<Bytes, i64>,
}

impl Slots {
    pub(super) fn of(model: &LaneModel, rows: &Rows) -> Self {
        let keys = &*model.keys;
        let mut waiting = BTreeSet::new();
        let mut held = BTreeSet::new();
        let mut spent = BTreeMap::new();
        let mut dead = BTreeMap::new();
        let mut of_groups: BTreeMap<Bytes, i64> = BTreeMap::new();
        for (place, item) in items(model, rows) {
            if place == Where::Dead {
                dead.insert(item.id, item.value.clone());
            }
            let group = item.value.group;
            if let Some(token) = item.value.spent {
                let group = group.clone();
                let start = (token.version / UNIT) as u8;
                let is_collected = place == Where::Held;
                let token = HeldToken {
                    group,
                    start,
                    is_collected,
                };
                spent.insert(item.id, token);
            }
            let named = (group.clone(), item.id.key_in(&keys.pointers()));
            if matches!(place, Where::Granted | Where::Held) && !group.is_empty() {
                held.insert(named);
            } else if place == Where::Queued && !item.value.has_slot {
                waiting.insert(named);
            }
            *of_groups.entry(group).or_default() += i64::from(item.value.has_slot);
        }
        Self {
            dead,
            spent,
            waiting,
            held,
            of_groups,
        }
    }

    fn of_group(&self, group: &Bytes) -> i64 {
        self.of_groups.get(group).copied().unwrap_or(0)
    }
}

/// A commit.
pub(super) struct Commit<'a> {
    pub(super) before: &'a Slots,
    pub(super) after: &'a Slots,
    pub(super) flight: &'a LaneFlight,
    /// The deaths that it has enqueued.
    pub(super) deaths: &'a [Death],
}

impl Commit<'_> {
    /// Returns the promise that the commit has broken. Notes what it has started.
    pub(super) fn breaks(&self, keys: &Keys, state: &mut LaneState) -> Option<&'static str> {
        let Self { before, after, .. } = self;
        let returned = self.flight.returned.map(|(item, how)| (item_id(item), how));
        for (id, token) in &before.spent {
            let is_unused = returned == Some((*id, How::Unused))
                || self.flight.reclaims && !token.is_collected && !after.spent.contains_key(id);
            if is_unused {
                let number = state.starts.iter().position(|start| *start == token.start);
                state.starts.remove(number.expect("it was noted"));
            }
        }
        let is_beyond = |group: &Bytes, slots: i64| {
            let limit = limits_of(keys, &state.rows, group).limit();
            limit.is_some_and(|limit| limit == 0 || slots > limit.into())
        };
        let held: Vec<_> = after.held.difference(&before.held).collect();
        let has_started = held.iter().any(|(group, _)| {
            let grows = after.of_group(group) > before.of_group(group);
            is_beyond(group, if grows { after.of_group(group) } else { 1 })
        });
        // A popped item needs a free slot for a moment.
        let popped = before.waiting.difference(&after.waiting);
        let popped = popped.filter(|(group, _)| self.flight.pops && !group.is_empty());
        let popped: Vec<_> = popped.collect();
        let has_popped = popped
            .iter()
            .any(|(group, _)| is_beyond(group, after.of_group(group) + 1));
        let started = held.into_iter().chain(popped);
        let again = returned.and_then(|(id, _)| after.spent.get(&id));
        let started = started
            .map(|(group, _)| group)
            .chain(again.map(|token| &token.group));
        let rates = started.filter_map(|group| limits_of(keys, &state.rows, group).rate());
        let rates: Vec<_> = rates.collect();
        let rate = rates.first().copied();
        let starts = rates.iter().map(|_| self.flight.read_at);
        state.starts.extend(starts);
        if has_started || has_popped {
            return Some(WITHIN_LIMIT);
        }
        if self.deaths != self.expected_deaths(keys) {
            return Some(TOLD);
        }
        let is_too_fast = rate.is_some_and(|rate| is_too_fast(rate, &mut state.starts));
        is_too_fast.then_some(WITHIN_RATE)
    }

    /// Returns the death of each item that has become a dead letter.
    fn expected_deaths(&self, keys: &Keys) -> Vec<Death> {
        let Self { before, after, .. } = self;
        let new = after
            .dead
            .iter()
            .filter(|(id, _)| !before.dead.contains_key(id));
        let death = |(id, record): (&ItemId, &Record)| Death {
            queue: keys.name.clone(),
            item: keys.item_ref(*id),
            kind: None,
            reason: record.failure.as_ref().unwrap().text.to_string(),
            attempts: record.attempts,
            deaths: record.deaths,
            payload: Some(record.payload.clone()),
        };
        new.map(death).collect()
    }
}

/// Returns whether a span of versions has more starts than a rate allows.
fn is_too_fast(rate: Rate, starts: &mut [u8]) -> bool {
    starts.sort_unstable();
    let allowed = |span: u8| i64::from(rate.burst()) + UNIT * i64::from(span) / rate.interval();
    let spans =
        (0..starts.len()).flat_map(|first| (first..starts.len()).map(move |last| (first, last)));
    let mut spans = spans.map(|(first, last)| (last - first + 1, starts[last] - starts[first]));
    spans.any(|(count, span)| count as i64 > allowed(span))
}
