//! Reading the store as a commit left it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use redb::StorageError;

use super::engine::Shared;
use super::tree::{Rows, guarded};
use crate::error::{Code, Error, Result};
use crate::selector::KeyValue;

/// The rows as one commit left them.
pub(super) struct State {
    version: i64,
    /// Emptied once no transaction may read it any more, so that a transaction forgotten somewhere
    /// does not keep old pages for ever.
    rows: RwLock<Option<Rows>>,
}

impl State {
    pub(super) fn new(version: i64, rows: Rows) -> Self {
        Self {
            version,
            rows: RwLock::new(Some(rows)),
        }
    }

    /// Returns the version of the commit.
    pub(super) fn version(&self) -> i64 {
        self.version
    }

    /// Lets go of the rows, after a read that is under way.
    pub(super) fn empty(&self) {
        *self.rows.write() = None;
    }
}

#[cfg(test)]
impl State {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.read().is_none()
    }
}

/// What a transaction reads: a state, at the transaction's read version.
///
/// Answers `transaction_too_old` five seconds after the version was given.
#[derive(Clone)]
pub(super) struct Snapshot {
    version: i64,
    state: Arc<State>,
    shared: Arc<Shared>,
}

impl Snapshot {
    pub(super) fn new(version: i64, state: Arc<State>, shared: Arc<Shared>) -> Self {
        Self {
            version,
            state,
            shared,
        }
    }

    /// Reads a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|rows| {
            let value = rows.get(key)?;
            Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
        })
    }

    /// Reads up to `max_rows` rows `begin <= key < end`, from the end backwards if `reverse`.
    pub(super) fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        reverse: bool,
        max_rows: usize,
    ) -> Result<Vec<KeyValue>> {
        if begin >= end {
            return Ok(Vec::new());
        }
        self.read(|rows| {
            let mut range = rows.range(begin..end)?;
            let next = || {
                if reverse {
                    range.next_back()
                } else {
                    range.next()
                }
            };
            std::iter::from_fn(next)
                .take(max_rows)
                .map(|row| {
                    let (key, value) = row?;
                    Ok(KeyValue::new(key.value(), value.value()))
                })
                .collect()
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Rows) -> Result<T, StorageError>) -> Result<T> {
        if self.shared.timeline().is_too_old(self.version) {
            return Err(Code::TRANSACTION_TOO_OLD.into());
        }
        let answer = {
            let rows = self.state.rows.read();
            rows.as_ref().map(|rows| guarded(|| Ok(read(rows)?)))
        };
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(cause)) => Err(self.shared.poison(cause)),
            None => {
                self.shared.timeline().check()?;
                Err(Error::from(Code::TRANSACTION_TOO_OLD))
            }
        }
    }
}
