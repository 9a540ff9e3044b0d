//! Reads which logs have blocks, and the blocks of a log.

use std::ops::{ControlFlow, Range};

use futures::future::try_join_all;
use keyspace::codec::DecodeError;
use keyspace::{
    self, Bytes, Isolation, KeySelector, KeyValue, RangeQuery, StreamingMode, Transaction,
    Versionstamp, key_after, visit_rows,
};

use super::entry_id::{EntryId, WHOLE_BLOCK};
use super::frame::{self, Entry, decode_block};
use super::{BlockLogs, entry_count};
use crate::error::{Error, Result};
use crate::item::ItemId;

/// The most logs that are read at the same time.
const MAX_CONCURRENT_READS: u32 = 64;

/// The most keys at the end of a log that are skipped because they are not keys of blocks.
const MAX_FOREIGN_KEYS: usize = 16;

/// A stored block.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// Its key in the store.
    pub row: Bytes,
    /// Its id, with the index [`WHOLE_BLOCK`]. An entry of the block has this id with its own index.
    pub id: EntryId,
    /// The stored bytes, which may not be a valid block.
    pub bytes: Bytes,
}

impl StoredBlock {
    /// Fails if a newer version of the library has written the block. The caller must then leave the block
    /// where it is, and not treat it as damaged.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt), which asks for an upgrade.
    pub fn refuse_newer(&self) -> Result<()> {
        Ok(frame::refuse_newer(&self.row, &self.bytes)?)
    }

    /// Returns the entries.
    ///
    /// # Errors
    /// As [`decode_block`].
    pub fn entries(&self) -> Result<Vec<Entry>, DecodeError> {
        decode_block(&self.bytes)
    }

    /// Returns the number of entries according to the header.
    ///
    /// # Errors
    /// As [`entry_count`].
    pub fn entry_count(&self) -> Result<u16, DecodeError> {
        entry_count(&self.bytes)
    }
}

impl BlockLogs {
    /// Returns the range of keys of a log after a position, as begin and end.
    ///
    /// The range leaves out blocks that lie wholly at or before the position.
    #[must_use]
    pub fn after(&self, log: u32, position: Option<EntryId>) -> (Vec<u8>, Vec<u8>) {
        let subspace = self.subspace(log);
        let (begin, end) = subspace.range();
        let begin = position.map_or(begin, |position| {
            let block = position.block().key_in(&subspace);
            match position.index {
                WHOLE_BLOCK => key_after(&block),
                _ => block,
            }
        });
        (begin, end)
    }

    /// Reads the blocks of a log after a [position](Self::after), in order, until the end of the log or
    /// until `visit` breaks.
    ///
    /// # Conflicts
    /// Reads by snapshot. New blocks come only at the end. A caller that clears blocks must add the read
    /// conflicts for them.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if a key is not the key of a block; those of the store; the
    /// first error that `visit` returns.
    pub async fn visit<E: From<Error>>(
        &self,
        tr: &impl Transaction,
        log: u32,
        position: Option<EntryId>,
        mut visit: impl FnMut(StoredBlock) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let (begin, end) = self.after(log, position);
        let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
        let layout = self.layout(log);
        let visited = visit_rows(tr, query, Isolation::Snapshot, |row: KeyValue| {
            let id = of_block(&layout.id(row.key()).map_err(Either::Ours)?);
            let block = StoredBlock {
                id,
                row: row.to_key(),
                bytes: row.to_value(),
            };
            visit(block).map_err(Either::Theirs)
        });
        visited.await.map_err(|error| match error {
            Either::Ours(Error::Keyspace(error)) => self.queue(log).read_error(error).into(),
            Either::Ours(error) => error.into(),
            Either::Theirs(error) => error,
        })
    }

    /// Fails if the transaction has added to a log, even if its snapshot reads ignore its own writes.
    ///
    /// # Conflicts
    /// Reads a key that only a clear of the log writes.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](Error::ReadAfterWrite).
    pub async fn refuse_after_add(&self, tr: &impl Transaction, log: u32) -> Result<()> {
        self.queue(log).probe(tr).await
    }

    /// Returns the first block of a log after a [position](Self::after), or `None` if there is none.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the key is not the key of a block; those of the store.
    pub async fn first(
        &self,
        tr: &impl Transaction,
        log: u32,
        position: Option<EntryId>,
    ) -> Result<Option<EntryId>> {
        let (begin, end) = self.after(log, position);
        let selector = KeySelector::first_greater_or_equal(begin);
        let key = tr.get_key(&selector, Isolation::Snapshot).await?;
        self.id_before(log, &key, &end)
    }

    /// Returns the logs that have a block, in order.
    ///
    /// # Conflicts
    /// As [`firsts`](Self::firsts).
    ///
    /// # Errors
    /// As [`firsts`](Self::firsts).
    pub async fn non_empty(&self, tr: &impl Transaction) -> Result<Vec<u32>> {
        let firsts = self.firsts(tr).await?;
        Ok(firsts.into_iter().map(|(log, _)| log).collect())
    }

    /// Returns the logs that have a block, in order, each with its first block, or with
    /// [`Corrupt`](keyspace::Error::Corrupt) if its first key is not the key of a block.
    ///
    /// This reads 64 ranges of logs at the same time. In each of them it goes from one log that has blocks
    /// to the next, so that the number of reads depends on the logs that have blocks.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn firsts(&self, tr: &impl Transaction) -> Result<Vec<(u32, Result<EntryId>)>> {
        let step = self.log_count.div_ceil(MAX_CONCURRENT_READS).max(1);
        let walks = (0..self.log_count).step_by(step as usize).map(|begin| {
            let end = begin.saturating_add(step).min(self.log_count);
            self.walk(tr, begin..end)
        });
        Ok(try_join_all(walks).await?.into_iter().flatten().collect())
    }

    /// Goes from one log that has a key to the next, in a range of logs that is not empty.
    async fn walk(
        &self,
        tr: &impl Transaction,
        mut logs: Range<u32>,
    ) -> Result<Vec<(u32, Result<EntryId>)>> {
        let mut found = Vec::new();
        let (_, end) = self.subspace(logs.end - 1).range();
        while !logs.is_empty() {
            let (begin, _) = self.subspace(logs.start).range();
            let selector = KeySelector::first_greater_or_equal(begin);
            let key = tr.get_key(&selector, Isolation::Snapshot).await?;
            if *key >= end[..] {
                break;
            }
            let log = self.last_at_or_before(&key, &logs);
            // A key between two logs belongs to neither.
            if *key < self.subspace(log).range().1[..] {
                let first = self.layout(log).id(&key);
                found.push((log, first.map(|id| of_block(&id))));
            }
            logs.start = log + 1;
        }
        Ok(found)
    }

    /// Returns the last of some logs whose keys begin at or before a key. Those of the first one do.
    fn last_at_or_before(&self, key: &[u8], logs: &Range<u32>) -> u32 {
        let mut low = logs.start;
        let mut high = logs.end;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.subspace(middle).range().0[..] <= *key {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Verifies that blocks added after this transaction will go after all existing ones, as
    /// [`MicroQueue::verify_order`](crate::MicroQueue::verify_order) does for one queue.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`StampAhead`](Error::StampAhead) if new blocks would go before existing ones;
    /// [`Corrupt`](keyspace::Error::Corrupt) if the last 16 keys of a log are not keys of blocks; those of
    /// the store.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        // Safe as snapshot reads: a block that commits after the read version gets a larger versionstamp.
        let read_version = tr.read_version().await?;
        for logs in self
            .non_empty(tr)
            .await?
            .chunks(MAX_CONCURRENT_READS as usize)
        {
            let looks = logs.iter().map(|log| self.last(tr, *log));
            for (log, last) in logs.iter().zip(try_join_all(looks).await?) {
                let stamp = last.map(|last| last.versionstamp);
                let newest = Versionstamp::new(read_version, u16::MAX);
                if let Some(stamp) = stamp.filter(|stamp| *stamp > newest) {
                    return Err(Error::StampAhead {
                        queue: self.subspace(*log),
                        stamp,
                        read_version,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the last block of a log. A few keys after it may not be keys of blocks: a reader of the log
    /// reports them, and they must not keep the other logs from being opened.
    async fn last(&self, tr: &impl Transaction, log: u32) -> Result<Option<EntryId>> {
        let (begin, mut end) = self.subspace(log).range();
        let mut foreign = None;
        for _ in 0..MAX_FOREIGN_KEYS {
            let selector = KeySelector::last_less_than(end);
            let key = tr.get_key(&selector, Isolation::Snapshot).await?;
            if *key < begin[..] {
                return Ok(None);
            }
            match self.layout(log).id(&key) {
                Ok(id) => return Ok(Some(of_block(&id))),
                Err(error) => foreign = Some(error),
            }
            end = key.to_vec();
        }
        foreign.map_or(Ok(None), Err)
    }

    /// Returns the id of the block with this key, or `None` if the key is at or after the end of the log.
    fn id_before(&self, log: u32, key: &[u8], end: &[u8]) -> Result<Option<EntryId>> {
        if key >= end {
            return Ok(None);
        }
        Ok(Some(of_block(&self.layout(log).id(key)?)))
    }
}

/// The origin of an error during a visit of blocks.
enum Either<E> {
    Ours(Error),
    Theirs(E),
}

impl<E> From<keyspace::Error> for Either<E> {
    fn from(error: keyspace::Error) -> Self {
        Self::Ours(error.into())
    }
}

fn of_block(id: &ItemId) -> EntryId {
    match *id {
        ItemId::Commit { versionstamp, call } => EntryId {
            versionstamp,
            call,
            index: WHOLE_BLOCK,
        },
        ItemId::Index { .. } => unreachable!("a key of a queue in commit order gives such an id"),
    }
}
