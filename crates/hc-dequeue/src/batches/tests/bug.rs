//! Planted bugs, between the functions and the rows.

use std::sync::Arc;

use conformance::checker_store::{Bugs, RecordedAccess, Span, Write};
use microqueue::keyspace::codec::{self, Codec};
use microqueue::keyspace::{Bytes, KeyValue, MutationOp, RangeQuery};

use super::world::{BATCHES, Op, batch_id};
use crate::items::batch::Tally;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::{Record, RecordCodec};

/// A rule of batches that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// The end of a member writes no notice.
    NoNoticeAtEnd,
    NoNoticeAtClose,
    /// A member that becomes a dead letter writes no notice.
    NoNoticeAtDeath,
    /// The end of a batch without a callback writes no notice of its parent.
    NoNoticeOfParent,
    /// A look removes notices whatever their values are.
    ClearInsteadOfCompare,
    /// A transaction that adds a member does not conflict with the end of the batch.
    AddWithoutRow,
    /// A batch that was closed takes a member that none of its members adds.
    ClosedUnseen,
    /// A transaction that adds a member, and is none itself, does not conflict with the close.
    AddWithoutOpen,
    /// The end of a batch does not conflict with a new member.
    EndWithoutPending,
    /// A look does not see that a batch is open.
    EndWhileOpen,
    /// A callback leaves the parent of its batch.
    CallbackOutside,
    /// A new member is not counted.
    NotAdded,
    /// The end of a member is counted twice.
    EndedTwice,
    /// A member that becomes a dead letter stays pending forever.
    DeadStaysPending,
    /// The end of a batch leaves its rows.
    RowsStay,
    /// A new member is not in the index.
    NotIndexed,
    /// A callback that becomes a member of the parent of its batch is not in the index.
    CallbackNotIndexed,
    /// The end of a batch leaves the index of its members.
    IndexStays,
    /// A callback does not say how many members were cancelled.
    NotTold,
}

impl Bug {
    /// Returns whether an operation writes no notice.
    fn writes_no_notice(self, op: Op) -> bool {
        match self {
            Self::NoNoticeAtEnd => matches!(op, Op::End(_) | Op::EndAndAdd(..)),
            Self::NoNoticeAtClose => matches!(op, Op::Close(_)),
            Self::NoNoticeAtDeath => matches!(op, Op::Die(_)),
            Self::NoNoticeOfParent => matches!(op, Op::Look(_)),
            _ => false,
        }
    }

    /// Changes what an operation has recorded.
    pub(super) fn change(self, op: Op, keys: &Keys, recorded: &mut RecordedAccess) {
        let is_notice = |key: &[u8]| keys.parse_batch_notice(key).is_ok();
        let is_pending = |key: &[u8]| {
            (0..BATCHES).any(|batch| *key == *keys.tally(batch_id(batch), Tally::Pending))
        };
        let atomics = &mut recorded.atomics;
        if self.writes_no_notice(op) {
            let stamps = MutationOp::SetVersionstampedValue;
            atomics.retain(|(op, key, _)| *op != stamps || !is_notice(key));
        }
        match (self, op) {
            (Self::ClearInsteadOfCompare, Op::Look(_)) => {
                let compares = MutationOp::CompareAndClear;
                for (_, key, _) in atomics
                    .iter()
                    .filter(|(op, key, _)| *op == compares && is_notice(key))
                {
                    recorded.writes.push(Write::Clear(Span::key(key)));
                }
            }
            (Self::NotAdded, Op::Add(_)) | (Self::DeadStaysPending, Op::Die(_)) => {
                atomics.retain(|(op, key, _)| *op != MutationOp::Add || !is_pending(key));
            }
            (Self::EndedTwice, Op::End(_)) => {
                let add = |(op, key, _): &&(MutationOp, Vec<u8>, Vec<u8>)| {
                    *op == MutationOp::Add && is_pending(key)
                };
                if let Some(again) = atomics.iter().find(add).cloned() {
                    atomics.insert(0, again);
                }
            }
            (Self::RowsStay, Op::Look(_)) => keep_rows(recorded, &keys.part(Part::Batches)),
            (Self::IndexStays, Op::Look(_)) => keep_rows(recorded, &keys.part(Part::Members)),
            (Self::NotIndexed, Op::Add(_)) => {
                let is_set = |write: &Write| matches!(write, Write::Set(..));
                recorded
                    .writes
                    .retain(|write| !is_set(write) || !is_index(keys, write));
            }
            (Self::CallbackNotIndexed, Op::Look(_)) => {
                let is_append = |write: &Write| matches!(write, Write::Append(..));
                recorded
                    .writes
                    .retain(|write| !is_append(write) || !is_index(keys, write));
            }
            (Self::CallbackOutside, Op::Look(_)) => {
                let parent = change_callback(recorded, |record| {
                    let parent = record.member.take();
                    parent.map(|parent| parent.batch)
                });
                if let Some(parent) = parent {
                    let pending = keys.tally(parent, Tally::Pending);
                    let zero = 0_i64.to_le_bytes().to_vec();
                    let one_less = (-1_i64).to_le_bytes().to_vec();
                    let notice = keys.batch_notice(parent);
                    recorded.atomics.extend([
                        (MutationOp::Add, pending.clone(), one_less),
                        (MutationOp::CompareAndClear, pending, zero),
                        (MutationOp::SetVersionstampedValue, notice, Vec::new()),
                    ]);
                }
            }
            (Self::NotTold, Op::Look(_)) => {
                change_callback(recorded, |record| {
                    let counts = &mut record.callback_of.as_mut()?.counts;
                    counts.cancelled = 0;
                    None::<()>
                });
            }
            _ => {}
        }
    }
}

/// Returns whether a write adds a row to the index of members.
fn is_index(keys: &Keys, write: &Write) -> bool {
    let (begin, end) = keys.part(Part::Members);
    match write {
        Write::Set(key, _) | Write::Append(key, _) => *begin <= **key && **key < *end,
        Write::Clear(_) => false,
    }
}

/// Lets a transaction clear nothing in a range.
fn keep_rows(recorded: &mut RecordedAccess, (begin, end): &(Vec<u8>, Vec<u8>)) {
    let is_of_range = |span: &Span| *begin <= span.begin && span.end <= *end;
    let writes = &mut recorded.writes;
    writes.retain(|write| !matches!(write, Write::Clear(span) if is_of_range(span)));
}

/// Changes the record of the callback that a look enqueues, if it enqueues one.
fn change_callback<T>(
    recorded: &mut RecordedAccess,
    change: impl FnOnce(&mut Record) -> Option<T>,
) -> Option<T> {
    let value = recorded.writes.iter_mut().find_map(|write| match write {
        Write::Append(_, value) => Some(value),
        _ => None,
    })?;
    // After microqueue's format.
    let mut record = codec::decode(&RecordCodec, value[1..].to_vec().into()).unwrap();
    let changed = change(&mut record);
    value.truncate(1);
    RecordCodec.encode(&record, value).unwrap();
    changed
}

/// A transaction with a planted bug.
#[derive(Debug, Clone)]
pub(super) struct PlantedBug {
    pub(super) bug: Option<Bug>,
    pub(super) op: Op,
    pub(super) keys: Arc<Keys>,
}

impl PlantedBug {
    fn is_open(&self, key: &[u8]) -> bool {
        (0..BATCHES).any(|batch| *key == *self.keys.batch_open(batch_id(batch)))
    }
}

impl Bugs for PlantedBug {
    fn hides_read(&self, key: &[u8]) -> bool {
        let is_row = || (0..BATCHES).any(|batch| *key == *self.keys.batch_row(batch_id(batch)));
        match self.bug {
            Some(Bug::AddWithoutRow) => is_row(),
            Some(Bug::AddWithoutOpen) => self.is_open(key),
            _ => false,
        }
    }

    fn read(&self, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        if self.bug == Some(Bug::ClosedUnseen) && self.is_open(key) {
            return Some(Bytes::new());
        }
        value
    }

    fn hides_range(&self, begin: &[u8]) -> bool {
        let is_pending = || {
            (0..BATCHES).any(|batch| *begin == *self.keys.tally(batch_id(batch), Tally::Pending))
        };
        self.bug == Some(Bug::EndWithoutPending) && is_pending()
    }

    fn rearrange(&self, _: &RangeQuery, rows: &mut Vec<KeyValue>) {
        if self.bug == Some(Bug::EndWhileOpen) && matches!(self.op, Op::Look(_)) {
            rows.retain(|row| !self.is_open(row.key()));
        }
    }
}
