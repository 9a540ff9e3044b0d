//! Planted bugs: rules of the protocol that are broken between the recipe and the rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::checker_store::{Bugs, Rows, Span, Write};
use hc_dequeue::keyspace::Bytes;

use crate::record::{Current, PassState};

/// A rule of the protocol that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A pass reads the state of the passes by snapshot.
    StateNotInConflict,
    /// A pass adds no read conflict range over the log.
    LogNotInConflict,
    /// A pass adds no read conflict range over the values.
    ValuesNotInConflict,
    /// A pass adds no read conflict range over the current values.
    CurrentsNotInConflict,
    /// `initialize` reads the current value by snapshot.
    CurrentNotInConflict,
    /// A pass treats the end of its read as the end of the log.
    EndIgnored,
    /// A pass does not know which updates of the first block have already been folded.
    PositionIgnored,
    /// A pass clears the blocks after the observer has added to the log.
    ClearedLate,
    /// A current value cannot express that the key has no value.
    NoneUnsaid,
    /// A key that returns to the value last reported keeps its current value.
    CurrentKept,
    /// A pass takes only whole blocks, and no more than one update fits it.
    WholeBlocks,
    /// A pass forgets that there are current values.
    StateForgets,
    /// A record that is set aside stays there after it has been redriven.
    NoteKept,
}

/// The ranges in which the parts of a bucket are stored.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) state: Vec<u8>,
    pub(crate) log: (Vec<u8>, Vec<u8>),
    pub(crate) values: (Vec<u8>, Vec<u8>),
    pub(crate) currents: (Vec<u8>, Vec<u8>),
    /// The records that are set aside.
    pub(crate) notes: (Vec<u8>, Vec<u8>),
    /// The row of a value by the row of its current value.
    pub(crate) value_of: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The rule that a model breaks, if it breaks any, and where the rows are.
#[derive(Debug, Clone)]
pub(crate) struct PlantedBug {
    pub(crate) bug: Option<Bug>,
    pub(crate) parts: Arc<Parts>,
}

impl Bugs for PlantedBug {
    fn hides_read(&self, key: &[u8]) -> bool {
        match self.bug {
            Some(Bug::StateNotInConflict) => *key == *self.parts.state,
            Some(Bug::CurrentNotInConflict) => is_in(&self.parts.currents, key),
            _ => false,
        }
    }

    fn hides_range(&self, begin: &[u8]) -> bool {
        match self.bug {
            Some(Bug::LogNotInConflict) => is_in(&self.parts.log, begin),
            Some(Bug::ValuesNotInConflict) => is_in(&self.parts.values, begin),
            Some(Bug::CurrentsNotInConflict) => is_in(&self.parts.currents, begin),
            _ => false,
        }
    }

    fn read(&self, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        if self.bug != Some(Bug::PositionIgnored) || *key != *self.parts.state {
            return value;
        }
        let state = PassState::decode(key, value.as_deref()).expect("a pass has written it");
        let position = None;
        Some(PassState { position, ..state }.encode().into())
    }

    fn cuts(&self, begin: &[u8]) -> bool {
        self.bug == Some(Bug::EndIgnored) && is_in(&self.parts.log, begin)
    }

    fn rewrite(&self, writes: &mut Vec<Write>, rows: &Rows) {
        let parts = &*self.parts;
        match self.bug {
            Some(Bug::ClearedLate) => writes.sort_by_key(|write| match write {
                Write::Clear(span) => is_in(&parts.log, &span.begin),
                _ => false,
            }),
            Some(Bug::NoneUnsaid) => {
                for write in writes {
                    without_none(write, parts);
                }
            }
            Some(Bug::CurrentKept) => keep_current(writes, parts, rows),
            Some(Bug::StateForgets) => {
                for write in writes {
                    if let Write::Set(key, state) = write
                        && *key == parts.state
                    {
                        // The flags are in the second byte.
                        state[1] = 0;
                    }
                }
            }
            Some(Bug::NoteKept) => writes.retain(|write| match write {
                Write::Clear(span) => !is_in(&parts.notes, &span.begin),
                _ => true,
            }),
            _ => {}
        }
    }
}

fn is_in((begin, end): &(Vec<u8>, Vec<u8>), key: &[u8]) -> bool {
    **begin <= *key && *key < **end
}

/// Turns a current value that expresses "no value" into none.
fn without_none(write: &mut Write, parts: &Parts) {
    if let Write::Set(key, value) = write
        && is_in(&parts.currents, key)
        && Current::decode(key, &value.clone().into()).is_ok_and(|current| current.bytes.is_none())
    {
        *write = Write::Clear(Span::key(key));
    }
}

/// If a write removes the current value of a key without a report, replaces it with the value last
/// reported.
fn keep_current(writes: &mut [Write], parts: &Parts, rows: &Rows) {
    let written = |key: &[u8]| {
        let is_written = |write: &Write| match write {
            Write::Set(set, _) => *set == key,
            Write::Clear(span) => span.has(key),
            Write::Append(..) => false,
        };
        writes.iter().any(is_written)
    };
    let cleared = writes.iter().enumerate().filter_map(|(place, write)| {
        let Write::Clear(span) = write else {
            return None;
        };
        let value = parts.value_of.get(&span.begin)?;
        if written(value) {
            return None;
        }
        Some((place, span.begin.clone(), value))
    });
    for (place, key, value) in cleared.collect::<Vec<_>>() {
        let bytes = rows.get(&value[..]).map(|stored| stored.slice(1..));
        let current = Current {
            bytes,
            is_withheld: false,
        };
        writes[place] = Write::Set(key, current.encode());
    }
}
