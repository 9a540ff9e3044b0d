//! What a commit does with the rows, and the form in which equal states have equal rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::checker_store::{CheckerTransaction, NoBugs, Write};
use microqueue::StagedId;
use microqueue::keyspace::codec::{self, MessagePack};
use microqueue::keyspace::{Bytes, KeyValue, Versionstamp};
use parking_lot::Mutex;

use super::promises;
use super::world::{LaneFlight, LaneModel, LaneState};
use crate::items::death::Death;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::{GrantPart, Record, RecordCodec, is_signal};
use crate::tests::flights::number_stamps;

/// What was made of each row: a world has few rows, and each in many states.
#[derive(Debug, Default)]
pub(super) struct Memo<V>(Mutex<BTreeMap<(Bytes, Bytes), V>>);

impl<V: Clone> Memo<V> {
    pub(super) fn get(&self, key: &Bytes, value: &Bytes, make: impl FnOnce() -> V) -> V {
        let row = (key.clone(), value.clone());
        self.0.lock().entry(row).or_insert_with(make).clone()
    }
}

/// The version of the only request.
pub(super) const REQUEST: i64 = 300;

/// Returns whether an item that is appended under this prefix is a death: nothing else leaves the queue.
pub(super) fn is_death(keys: &Keys, prefix: &[u8]) -> bool {
    !prefix.starts_with(keys.queue.bytes())
}

/// Returns the death in a row of the queue of deaths.
fn death_in(value: &[u8]) -> Death {
    // After microqueue's format.
    let record = codec::decode(&RecordCodec, value[1..].to_vec().into()).unwrap();
    codec::decode(&MessagePack, record.payload).unwrap()
}

impl LaneModel {
    /// Applies a commit, and dooms the transactions that fail with it.
    pub(super) fn commit(&self, state: &mut LaneState, of_lanes: &LaneFlight) {
        let keys = &*self.keys;
        let LaneFlight { flight, .. } = of_lanes;
        let before = promises::Slots::of(self, &state.rows);
        let of = |part, key: &[u8]| {
            let (begin, end) = keys.part(part);
            *begin <= *key && *key < *end
        };
        // Counters and the wake stamp are not in the model.
        let in_model = |key: &[u8]| of(Part::Lanes, key) || of(Part::Notices, key);
        let mut deaths = Vec::new();
        flight.apply(&mut state.rows, in_model, |prefix, value| {
            if is_death(keys, prefix) {
                deaths.push(death_in(value));
                return None;
            }
            assert!(prefix.starts_with(keys.requests.subspace().bytes()));
            let id = StagedId::of_call(0).at(Versionstamp::new(REQUEST, 0));
            Some(keys.request(&id))
        });
        state.flights.retain(|other| !flight.dooms(&other.flight));
        state.last = state.now;
        let after = promises::Slots::of(self, &state.rows);
        let commit = promises::Commit {
            before: &before,
            after: &after,
            flight: of_lanes,
            deaths: &deaths,
        };
        if let Some(broken) = commit.breaks(keys, state) {
            state.broken = Some(broken);
        }
    }

    /// Gives stamps small numbers, and records the same counts.
    pub(super) fn normalize(&self, state: &mut LaneState) {
        let keys = &*self.keys;
        let mark = keys.mark();
        let is_stamp = |key: &[u8]| keys.parse_notice(key).is_some() || *key == *mark;
        let flights = state.flights.iter_mut().map(|flight| &mut flight.flight);
        number_stamps(&mut state.rows, flights, is_stamp);
        for (key, value) in &mut state.rows {
            let normalized = self.normal.get(key, value, || self.normalized(key, value));
            *value = normalized;
        }
        state.flights.sort();
    }

    /// Returns the value of a row without what this model does not look at.
    fn normalized(&self, key: &Bytes, value: &Bytes) -> Bytes {
        let keys = &*self.keys;
        let row = KeyValue::new(key, value);
        let simple = |record: &Record| {
            let mut simple = Record::new(0, record.payload.clone());
            simple.group = record.group.clone();
            simple.priority = record.priority;
            simple.has_slot = record.has_slot;
            simple.cancelled_millis = u64::from(record.cancelled_millis != 0);
            simple.deliveries = record.recent_deliveries().min(1);
            simple.spent = record.spent;
            simple
        };
        if keys.parse_grant(key).is_ok() {
            if is_signal(value) {
                return value.clone();
            }
            let mut part = GrantPart::decode(key, value.clone()).unwrap();
            part.item.value = simple(&part.item.value);
            return part.encode().unwrap().into();
        }
        let Some((records, item)) = promises::item_in(keys, &row) else {
            return value.clone();
        };
        let tr = CheckerTransaction::begin(&Arc::default(), 0, NoBugs);
        records.insert(&tr, &item.id, &simple(&item.value)).unwrap();
        match tr.into_recorded().writes.remove(0) {
            Write::Set(_, value) => value.into(),
            other => panic!("{other:?}"),
        }
    }
}
