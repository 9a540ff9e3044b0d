//! What a commit does with the rows, and the form in which equal states have equal rows.

use std::sync::Arc;

use conformance::checker_store::{CheckerTransaction, NoBugs, Rows, Span, Write};
use microqueue::StagedId;
use microqueue::keyspace::{Bytes, KeyValue, MutationOp, Versionstamp};

use super::promises;
use super::world::{Flight, LaneModel, LaneState};
use crate::items::record::{Part, Record, is_notice};

/// The version of the only request.
pub(super) const REQUEST: i64 = 300;

/// The atomic operations of the model, with numbers, since operations have no order.
pub(super) const ATOMICS: [MutationOp; 3] = [
    MutationOp::Add,
    MutationOp::CompareAndClear,
    MutationOp::SetVersionstampedValue,
];

impl LaneModel {
    /// Applies a commit, and dooms the transactions that fail with it.
    pub(super) fn commit(&self, state: &mut LaneState, flight: &Flight) {
        let before = promises::Slots::of(&self.keys, &state.rows);
        let mut touched: Vec<Span> = flight.writes.iter().map(Write::span).collect();
        touched.extend(flight.atomics.iter().map(|(_, key, _)| Span::key(key)));
        touched.extend(flight.written.iter().cloned());
        for write in &flight.writes {
            match write {
                Write::Set(key, value) => {
                    state.rows.insert(key.clone().into(), value.clone().into());
                }
                Write::Clear(span) => state.rows.retain(|key, _| !span.has(key)),
                Write::Append(prefix, value) => {
                    assert!(prefix.starts_with(self.keys.requests.subspace().bytes()));
                    let id = StagedId::of_call(0).at(Versionstamp::new(REQUEST, 0));
                    state
                        .rows
                        .insert(self.keys.request(&id).into(), value.clone().into());
                }
            }
        }
        for (op, key, param) in &flight.atomics {
            self.apply(&mut state.rows, ATOMICS[usize::from(*op)], key, param);
        }
        state.flights.retain(|other| {
            let meets = |span: &Span| touched.iter().any(|written| written.meets(span));
            !other.conflicts.iter().any(meets)
        });
        let after = promises::Slots::of(&self.keys, &state.rows);
        if let Some(broken) =
            promises::broken_by(&self.keys, &state.rows, &before, &after, flight.pops)
        {
            state.broken = Some(broken);
        }
    }

    fn apply(&self, rows: &mut Rows, op: MutationOp, key: &[u8], param: &[u8]) {
        let of_lanes = |part| {
            let (begin, end) = self.keys.part(part);
            *begin <= *key && *key < *end
        };
        if !of_lanes("l") && !of_lanes("hs") {
            // Counters and the wake stamp are not in the model.
            return;
        }
        let key = Bytes::copy_from_slice(key);
        match op {
            MutationOp::Add => {
                let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
                let sum = rows.get(&key).map_or(0, |value| number(value)) + number(param);
                rows.insert(key, sum.to_le_bytes().to_vec().into());
            }
            MutationOp::CompareAndClear => {
                if rows.get(&key).is_some_and(|value| **value == *param) {
                    rows.remove(&key);
                }
            }
            _ => {
                // Smaller than the numbers of all other stamps.
                rows.insert(
                    key,
                    Versionstamp::new(i64::MAX, 0).as_bytes().to_vec().into(),
                );
            }
        }
    }

    /// Gives stamps small numbers, and records the same counts.
    pub(super) fn normalize(&self, state: &mut LaneState) {
        let keys = &*self.keys;
        let mark = keys.mark();
        let is_stamp = |key: &[u8]| keys.parse_stamp(key).is_some() || *key == *mark;
        let compare = ATOMICS
            .iter()
            .position(|op| *op == MutationOp::CompareAndClear)
            .unwrap();
        let mut values: Vec<Vec<u8>> = Vec::new();
        let mut note = |value: &[u8]| {
            if !values.iter().any(|known| known == value) {
                values.push(value.to_vec());
            }
        };
        for (_, value) in state.rows.iter().filter(|(key, _)| is_stamp(key)) {
            note(value);
        }
        for flight in &state.flights {
            for (op, key, param) in &flight.atomics {
                if usize::from(*op) == compare && is_stamp(key) {
                    note(param);
                }
            }
        }
        let number = |value: &[u8]| {
            let number = values.iter().position(|known| known == value).unwrap();
            Versionstamp::new(number as i64 + 1, 0).as_bytes().to_vec()
        };
        let mut rows = Rows::new();
        for (key, value) in &state.rows {
            let value = if is_stamp(key) {
                number(value).into()
            } else {
                self.normalized(key, value)
            };
            rows.insert(key.clone(), value);
        }
        state.rows = rows;
        for flight in &mut state.flights {
            for (op, key, param) in &mut flight.atomics {
                if usize::from(*op) == compare && is_stamp(key) {
                    *param = number(param);
                }
            }
        }
        state.flights.sort();
    }

    /// Returns the value of a row without what this model does not look at.
    fn normalized(&self, key: &Bytes, value: &Bytes) -> Bytes {
        let keys = &*self.keys;
        let row = KeyValue::new(key, value);
        let simple = |record: &Record| {
            let mut simple = Record::new(0, record.payload.clone());
            simple.key = record.key.clone();
            simple.priority = record.priority;
            simple.has_slot = record.has_slot;
            simple.cancelled_millis = u64::from(record.cancelled_millis != 0);
            simple.deliveries = record.recent_deliveries().min(1);
            simple
        };
        if keys.parse_grant(key).is_ok() {
            if is_notice(value) {
                return value.clone();
            }
            let mut part = Part::decode(key, value.clone()).unwrap();
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
