//! Runs committed transactions again, one after the other.

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::mutation::{MutationOp, Versionstamp};
use keyspace::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery};
use keyspace::transaction::{Isolation, key_after};

use super::{
    Checked, Event, HistoryError, Moment, Read, Record, RecordedStep, RecordedWrite, ReplayedRows,
};
use crate::model::atomic;

/// Checks a history between the first and the last content of a store.
pub(super) fn check(
    first: &ReplayedRows,
    records: &[Record],
    last: &ReplayedRows,
) -> Result<Checked, HistoryError> {
    check_order(records)?;
    let mut state = ReplayState::new(first);
    for (moment, record) in moments(records)? {
        match moment {
            Moment::Version(_) => {
                state.run(record, moment, |_| true)?;
                state.undo();
            }
            Moment::Commit(_) => {
                let serializable = |isolation| isolation == Isolation::Serializable;
                state.run(record, moment, serializable)?;
                state.keep();
            }
        }
    }
    state.check_last(last)?;
    Ok(count(records))
}

/// Returns the moments, in order, at which each transaction must have read its results.
fn moments(records: &[Record]) -> Result<Vec<(Moment, &Record)>, HistoryError> {
    let mut moments = Vec::new();
    for record in records {
        let seen = record.read_version.map(Moment::Version);
        let committed = record.versionstamp.map(Moment::Commit);
        moments.extend(
            [seen, committed]
                .into_iter()
                .flatten()
                .map(|at| (at, record)),
        );
    }
    moments.sort_by_key(|(moment, _)| place(*moment));
    for pair in moments.windows(2) {
        let [
            (Moment::Commit(one), first),
            (Moment::Commit(other), second),
        ] = pair
        else {
            continue;
        };
        if one == other {
            return Err(HistoryError::SharedVersionstamp {
                first: first.number,
                second: second.number,
                versionstamp: *one,
            });
        }
    }
    Ok(moments)
}

/// Returns the sort key of a moment. A version comes after all commits of that version.
fn place(moment: Moment) -> (i64, u32) {
    match moment {
        Moment::Version(version) => (version, u32::MAX),
        Moment::Commit(stamp) => (stamp.commit_version(), stamp.batch_index().into()),
    }
}

/// Checks that a transaction that began after an acknowledgment comes after the acknowledged transaction.
fn check_order(records: &[Record]) -> Result<(), HistoryError> {
    enum Claim {
        Acknowledged(Versionstamp),
        Is(Moment),
    }
    let mut claims: Vec<(Event, u64, Claim)> = Vec::new();
    for record in records {
        let number = record.number;
        if let (Some(asked), Some(version)) = (record.version_asked, record.read_version) {
            claims.push((asked, number, Claim::Is(Moment::Version(version))));
        }
        if let Some(stamp) = record.versionstamp {
            claims.push((
                record.commit_asked,
                number,
                Claim::Is(Moment::Commit(stamp)),
            ));
            claims.push((record.acknowledged, number, Claim::Acknowledged(stamp)));
        }
    }
    claims.sort_by_key(|(event, ..)| *event);
    let mut newest: Option<(Versionstamp, u64)> = None;
    for (_, number, claim) in claims {
        match claim {
            Claim::Acknowledged(stamp) => newest = newest.max(Some((stamp, number))),
            Claim::Is(moment) => {
                if let Some((versionstamp, earlier)) = newest
                    && place(moment) <= place(Moment::Commit(versionstamp))
                {
                    return Err(HistoryError::Order {
                        earlier,
                        versionstamp,
                        later: number,
                        moment,
                    });
                }
            }
        }
    }
    Ok(())
}

fn count(records: &[Record]) -> Checked {
    let commits = (records.iter())
        .filter(|record| record.versionstamp.is_some())
        .count();
    let steps = records.iter().flat_map(|record| &record.steps);
    Checked {
        commits,
        read_only: records.len() - commits,
        reads: steps
            .filter(|step| matches!(step, RecordedStep::Read(..)))
            .count(),
    }
}

/// The content of the store at a moment.
struct ReplayState {
    rows: ReplayedRows,
    /// The keys that the current transaction has changed, with their earlier values.
    changed: Vec<(Bytes, Option<Bytes>)>,
    /// Whether the current transaction has written a key that selectors may or may not count, depending on
    /// what the client knows about it: a key that is stamped, or one that may have no value as a result.
    has_uncertain: bool,
}

impl ReplayState {
    fn new(rows: &ReplayedRows) -> Self {
        Self {
            rows: rows.clone(),
            changed: Vec::new(),
            has_uncertain: false,
        }
    }

    /// Runs a transaction, and checks the reads that `checked` selects.
    fn run(
        &mut self,
        record: &Record,
        moment: Moment,
        checked: impl Fn(Isolation) -> bool,
    ) -> Result<(), HistoryError> {
        for step in &record.steps {
            match step {
                RecordedStep::Read(isolation, read)
                    if checked(*isolation) && !self.is_open(read) =>
                {
                    let expected = self.repeat(read);
                    if *read != expected {
                        return Err(HistoryError::Read {
                            transaction: record.number,
                            moment,
                            found: read.to_string(),
                            expected: expected.to_string(),
                        });
                    }
                }
                RecordedStep::Read(..) | RecordedStep::Unanswered => {}
                RecordedStep::Write(write) => {
                    let stamp = record.versionstamp.unwrap_or(Versionstamp::INCOMPLETE);
                    self.write(write, stamp);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a read has more than one possible answer.
    fn is_open(&self, read: &Read) -> bool {
        let counts = match read {
            Read::Get { .. } => false,
            Read::GetKey { .. } => true,
            Read::GetRange { query, .. } => query.begin.offset != 1 || query.end.offset != 1,
        };
        counts && self.has_uncertain
    }

    /// Makes the changes of the transaction permanent.
    fn keep(&mut self) {
        self.changed.clear();
        self.has_uncertain = false;
    }

    /// Reverts the changes of the transaction.
    fn undo(&mut self) {
        for (key, before) in self.changed.drain(..).rev() {
            replace(&mut self.rows, key, before);
        }
        self.has_uncertain = false;
    }

    fn write(&mut self, write: &RecordedWrite, stamp: Versionstamp) {
        match write {
            RecordedWrite::Set { key, value } => self.put(key.clone(), Some(value.clone())),
            RecordedWrite::ClearRange { begin, end } => self.clear_range(begin, end),
            RecordedWrite::Atomic { op, key, param } => self.atomic(*op, key, param, stamp),
        }
    }

    fn atomic(&mut self, op: MutationOp, key: &Bytes, param: &Bytes, stamp: Versionstamp) {
        self.has_uncertain |= matches!(
            op,
            MutationOp::CompareAndClear
                | MutationOp::SetVersionstampedKey
                | MutationOp::SetVersionstampedValue
        );
        match op {
            MutationOp::SetVersionstampedKey => {
                self.put(atomic::complete(key, stamp).into(), Some(param.clone()));
            }
            MutationOp::SetVersionstampedValue => {
                let value = atomic::complete(param, stamp);
                self.put(key.clone(), Some(value.into()));
            }
            _ => {
                let old = self.rows.get(key).cloned();
                let new = atomic::apply(op, old.as_deref(), param);
                self.put(key.clone(), new.map(Bytes::from));
            }
        }
    }

    fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        let before = replace(&mut self.rows, key.clone(), value);
        self.changed.push((key, before));
    }

    fn clear_range(&mut self, begin: &Bytes, end: &Bytes) {
        let cleared: Vec<Bytes> = self
            .rows
            .range::<Bytes, _>(begin..end)
            .map(|(key, _)| key.clone())
            .collect();
        for key in cleared {
            self.put(key, None);
        }
    }

    /// Returns the read with its current answer.
    fn repeat(&self, read: &Read) -> Read {
        match read {
            Read::Get { key, .. } => Read::Get {
                key: key.clone(),
                value: self.rows.get(key).cloned(),
            },
            Read::GetKey { selector, .. } => Read::GetKey {
                selector: selector.clone(),
                key: self.resolve(selector),
            },
            Read::GetRange { query, batch } => Read::GetRange {
                query: query.clone(),
                batch: self.get_range(query, batch),
            },
        }
    }

    /// Returns the rows of a batch: the number of rows that the batch had, if more followed.
    fn get_range(&self, query: &RangeQuery, found: &RangeBatch) -> RangeBatch {
        let begin = self.resolve(&query.begin);
        let end = self.resolve(&query.end);
        if begin >= end {
            return RangeBatch {
                rows: Vec::new(),
                more: found.more,
            };
        }
        let row = |(key, value): (&Bytes, &Bytes)| KeyValue::new(key, value);
        let count = match query.limit {
            _ if found.more => found.rows.len(),
            0 => usize::MAX,
            limit => limit,
        };
        let entries = self.rows.range(begin..end);
        let rows = if query.reverse {
            entries.rev().map(row).take(count).collect()
        } else {
            entries.map(row).take(count).collect()
        };
        RangeBatch {
            rows,
            more: found.more,
        }
    }

    fn resolve(&self, selector: &KeySelector) -> Bytes {
        let from = if selector.or_equal {
            key_after(&selector.key).into()
        } else {
            selector.key.clone()
        };
        let steps = |count: i32| count.unsigned_abs() as usize;
        if selector.offset > 0 {
            let mut keys = self.rows.range(from..);
            keys.nth(steps(selector.offset - 1))
                .map_or(Bytes::from_static(END_OF_KEYSPACE), |(key, _)| key.clone())
        } else {
            let mut keys = self.rows.range(..from).rev();
            keys.nth(steps(selector.offset))
                .map_or(Bytes::new(), |(key, _)| key.clone())
        }
    }

    /// Compares with the final content of the store.
    fn check_last(&self, last: &ReplayedRows) -> Result<(), HistoryError> {
        let keys = self.rows.keys().chain(last.keys());
        let differs = |key: &&Bytes| self.rows.get(*key) != last.get(*key);
        match keys.filter(differs).min() {
            None => Ok(()),
            Some(key) => Err(HistoryError::Row {
                key: key.clone(),
                found: last.get(key).cloned(),
                expected: self.rows.get(key).cloned(),
            }),
        }
    }
}

/// Sets or removes the value of a key, and returns its earlier value.
fn replace(rows: &mut ReplayedRows, key: Bytes, value: Option<Bytes>) -> Option<Bytes> {
    match value {
        Some(value) => rows.insert(key, value),
        None => rows.remove(&key),
    }
}
