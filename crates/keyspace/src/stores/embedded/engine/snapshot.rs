//! Reads the store as a commit left it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use super::shared::EngineShared;
use crate::contract::error::{Code, Error, Result};
use crate::contract::selector::KeyValue;
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::layers::{Checkpointed, Layers, PartId, Parts};
use crate::stores::embedded::runs::damage::FileError;

/// The rows that a range read takes from the layers at once: at first, and at most.
const FIRST_CHUNK_ROWS: usize = 32;
const MAX_CHUNK_ROWS: usize = 256;

/// The rows as one batch left them.
pub(super) struct PublishedState {
    version: i64,
    /// The size of the batch.
    bytes: usize,
    /// The number of the newest part.
    newest: PartId,
    /// Emptied when transactions may no longer read the state. Old runs and parts are then freed even if a
    /// transaction is never dropped.
    layers: RwLock<Option<Layers>>,
}

impl PublishedState {
    pub(super) fn new(version: i64, parts: Parts, runs: &Checkpointed, bytes: usize) -> Self {
        Self {
            version,
            bytes,
            newest: parts.newest,
            layers: RwLock::new(Some(parts.over(runs))),
        }
    }

    /// Returns the version of the batch.
    pub(super) fn version(&self) -> i64 {
        self.version
    }

    /// Returns the size of the batch.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the rows that a checkpoint has moved to `runs` from there. Waits for a read that is under way.
    pub(super) fn rebase(&self, runs: &Checkpointed) {
        if let Some(layers) = &mut *self.layers.write() {
            runs.take_over(layers, self.newest);
        }
    }

    /// Returns the rows, which can then be read for any time. `None` if transactions may no longer read
    /// them.
    pub(super) fn layers(&self) -> Option<Layers> {
        self.layers.read().clone()
    }

    /// Releases the rows. Waits for a read that is under way.
    pub(super) fn empty(&self) {
        *self.layers.write() = None;
    }
}

#[cfg(test)]
impl PublishedState {
    pub(super) fn is_empty(&self) -> bool {
        self.layers.read().is_none()
    }
}

/// A state as a transaction reads it, at the transaction's read version.
///
/// Reads fail with `transaction_too_old` once the version is older than five seconds.
#[derive(Clone)]
pub(crate) struct Snapshot {
    version: i64,
    state: Arc<PublishedState>,
    shared: Arc<EngineShared>,
}

impl Snapshot {
    pub(super) fn new(version: i64, state: Arc<PublishedState>, shared: Arc<EngineShared>) -> Self {
        Self {
            version,
            state,
            shared,
        }
    }

    /// Reads a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|layers| layers.get(key))
    }

    /// Reads up to `max_rows` rows `begin <= key < end`, from the end backward if `reverse`.
    pub(crate) fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        reverse: bool,
        max_rows: usize,
    ) -> Result<Vec<KeyValue>> {
        self.read(|layers| layers.scan(begin, end, reverse, max_rows))
    }

    /// Takes rows from one end of a range, up to the limits.
    pub(crate) fn take_rows(
        &self,
        (begin, end): (&Bytes, &Bytes),
        limits: &mut ReadLimits,
        direction: Direction,
    ) -> Result<Vec<KeyValue>> {
        let mut begin = begin.clone();
        let mut end = end.clone();
        let mut rows: Vec<KeyValue> = Vec::new();
        let mut chunk_rows = FIRST_CHUNK_ROWS;
        while !limits.is_reached() {
            let wanted = chunk_rows.min(limits.rows);
            let backward = direction == Direction::Backward;
            let chunk = self.scan(&begin, &end, backward, wanted)?;
            let is_last = chunk.len() < wanted;
            for row in chunk {
                if limits.is_reached() {
                    break;
                }
                limits.take(&row);
                rows.push(row);
            }
            match (rows.last(), direction) {
                _ if is_last => break,
                (Some(last), Direction::Forward) => begin = key_after(last.key()).into(),
                (Some(last), Direction::Backward) => end = last.to_key(),
                (None, _) => break,
            }
            chunk_rows = (chunk_rows * 2).min(MAX_CHUNK_ROWS);
        }
        Ok(rows)
    }

    fn read<T>(&self, read: impl FnOnce(&Layers) -> Result<T, FileError>) -> Result<T> {
        if self.shared.timeline.is_too_old(self.version) {
            return Err(Code::TRANSACTION_TOO_OLD.into());
        }
        let answer = {
            let layers = self.state.layers.read();
            layers.as_ref().map(read)
        };
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(cause)) => Err(self.shared.fail(cause)),
            None => {
                self.shared.timeline.check()?;
                Err(Error::from(Code::TRANSACTION_TOO_OLD))
            }
        }
    }
}
