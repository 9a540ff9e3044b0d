//! Transactions that have read, and may commit later.

use conformance::checker_store::{RecordedAccess, Rows, Span, Write};
use microqueue::keyspace::{Bytes, MutationOp, Versionstamp};

/// The atomic operations of the models, with numbers, since operations have no order.
const ATOMICS: [MutationOp; 3] = [
    MutationOp::Add,
    MutationOp::CompareAndClear,
    MutationOp::SetVersionstampedValue,
];

/// A transaction that has read and may commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flight {
    /// The number of its process.
    pub(crate) process: usize,
    conflicts: Vec<Span>,
    pub(crate) writes: Vec<Write>,
    atomics: Vec<(u8, Vec<u8>, Vec<u8>)>,
    written: Vec<Span>,
}

impl Flight {
    pub(crate) fn new(process: usize, recorded: RecordedAccess) -> Self {
        let number = |op| ATOMICS.iter().position(|known| *known == op).unwrap() as u8;
        let mut conflicts = recorded.conflicts;
        conflicts.sort();
        conflicts.dedup();
        let atomics = recorded.atomics.into_iter();
        let atomics = atomics.map(|(op, key, param)| (number(op), key, param));
        Self {
            process,
            conflicts,
            writes: recorded.writes,
            atomics: atomics.collect(),
            written: recorded.written,
        }
    }

    /// Returns whether the transaction writes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.atomics.is_empty()
    }

    /// Returns whether another transaction fails if this one commits before it.
    pub(crate) fn dooms(&self, other: &Self) -> bool {
        let mut written = self.writes.iter().map(Write::span).collect::<Vec<_>>();
        written.extend(self.atomics.iter().map(|(_, key, _)| Span::key(key)));
        written.extend(self.written.iter().cloned());
        let meets = |span: &Span| written.iter().any(|written| written.meets(span));
        other.conflicts.iter().any(meets)
    }

    /// Changes the rows as the commit does. `append` returns the key of a value that is appended under a prefix, if it
    /// is in the model. Atomic operations count only on keys that are `in_model`.
    pub(crate) fn apply(
        &self,
        rows: &mut Rows,
        in_model: impl Fn(&[u8]) -> bool,
        mut append: impl FnMut(&[u8], &[u8]) -> Option<Vec<u8>>,
    ) {
        for write in &self.writes {
            match write {
                Write::Set(key, value) => {
                    rows.insert(key.clone().into(), value.clone().into());
                }
                Write::Clear(span) => rows.retain(|key, _| !span.has(key)),
                Write::Append(prefix, value) => {
                    if let Some(key) = append(prefix, value) {
                        rows.insert(key.into(), value.clone().into());
                    }
                }
            }
        }
        let atomics = self.atomics.iter().filter(|(_, key, _)| in_model(key));
        for (op, key, param) in atomics {
            apply(rows, ATOMICS[usize::from(*op)], key, param);
        }
    }

    /// Returns the values with which the transaction compares others.
    fn compared(&mut self) -> impl Iterator<Item = (&[u8], &mut Vec<u8>)> {
        let is_compare = |op: u8| ATOMICS[usize::from(op)] == MutationOp::CompareAndClear;
        let compared = self.atomics.iter_mut();
        compared
            .filter(move |(op, ..)| is_compare(*op))
            .map(|(_, key, param)| (&**key, param))
    }
}

fn apply(rows: &mut Rows, op: MutationOp, key: &[u8], param: &[u8]) {
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
            // Another value than all other stamps have.
            rows.insert(key, stamp(i64::MAX).into());
        }
    }
}

fn stamp(number: i64) -> Vec<u8> {
    Versionstamp::new(number, 0).as_bytes().to_vec()
}

/// Returns whether all reads of a transaction are in its conflict ranges, except of rows that never change here.
pub(crate) fn is_serializable(recorded: &RecordedAccess, constants: &[Span]) -> bool {
    let covers = |span: &Span, read: &Span| span.begin <= read.begin && read.end <= span.end;
    recorded.reads.iter().all(|read| {
        let mut spans = recorded.conflicts.iter().chain(constants);
        spans.any(|span| covers(span, read))
    })
}

/// Gives the values of stamps small numbers: only their equality matters.
pub(crate) fn number_stamps<'a>(
    rows: &mut Rows,
    flights: impl Iterator<Item = &'a mut Flight>,
    is_stamp: impl Fn(&[u8]) -> bool,
) {
    let mut values: Vec<Vec<u8>> = Vec::new();
    let mut number = |value: &[u8]| -> Vec<u8> {
        let known = values.iter().position(|known| known == value);
        let number = known.unwrap_or_else(|| {
            values.push(value.to_vec());
            values.len() - 1
        });
        stamp(number as i64 + 1)
    };
    for (key, value) in rows {
        if is_stamp(key) {
            *value = number(value).into();
        }
    }
    for flight in flights {
        for (key, value) in flight.compared() {
            if is_stamp(key) {
                *value = number(value);
            }
        }
    }
}
