//! Reading: which logs have blocks, and the blocks of a log.

use std::ops::ControlFlow;

use futures::future::try_join_all;
use keyspace::codec::DecodeError;
use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{
    self, Bytes, Isolation, KeySelector, KeyValue, RangeQuery, StreamingMode, Transaction,
    Versionstamp, key_after, visit_rows,
};

use super::entry_id::{EntryId, WHOLE_BLOCK};
use super::frame::{Entry, decode_block};
use super::{BlockLogs, entry_count};
use crate::error::{Error, Result};
use crate::item::ItemId;

/// How many logs are looked at side by side. With more of them, a look goes from one log that has
/// blocks to the next.
const LOOKS_AT_ONCE: u32 = 64;

/// A block, as it is stored.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// Its key in the store.
    pub row: Bytes,
    /// Its id. An entry of it has this id with its own index.
    pub id: EntryId,
    /// Its bytes, whether they are a block or not.
    pub bytes: Bytes,
}

impl StoredBlock {
    /// Returns the entries.
    ///
    /// # Errors
    /// As [`decode_block`].
    pub fn entries(&self) -> Result<Vec<Entry>, DecodeError> {
        decode_block(&self.bytes)
    }

    /// Returns how many entries the header says there are.
    ///
    /// # Errors
    /// As [`entry_count`].
    pub fn entry_count(&self) -> Result<u16, DecodeError> {
        entry_count(&self.bytes)
    }
}

impl BlockLogs {
    /// Returns the keys of a log from a position on, as begin and end: of all blocks but those that
    /// are wholly before or at the position.
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

    /// Reads the blocks of a log from a [position](Self::after) on, one after the other, to the end or
    /// until `visit` breaks.
    ///
    /// # Conflicts
    /// Reads by snapshot: blocks come at the end only, and a caller that clears some protects what it
    /// clears.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if a key is none of a block; those of the store; the first
    /// that `visit` returns.
    ///
    /// # Cancel safety
    /// Reads only.
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
            let id = layout.id(row.key()).map_err(Either::Ours)?;
            let id = of_block(&id);
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

    /// Refuses a transaction that has added to a log, also if its snapshot reads ignore that.
    ///
    /// # Conflicts
    /// Reads a key that nothing writes but a clear of the log.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](Error::ReadAfterWrite).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn refuse_after_add(&self, tr: &impl Transaction, log: u32) -> Result<()> {
        self.queue(log).probe(tr).await
    }

    /// Returns the first block of a log from a [position](Self::after) on.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if the key is none of a block; those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
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
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store; [`Corrupt`](keyspace::Error::Corrupt) if a key is none of a block.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn non_empty(&self, tr: &impl Transaction) -> Result<Vec<u32>> {
        if self.log_count <= LOOKS_AT_ONCE {
            let looks = (0..self.log_count).map(|log| async move {
                let first = self.first(tr, log, None).await?;
                Ok::<_, Error>(first.map(|_| log))
            });
            return Ok(try_join_all(looks).await?.into_iter().flatten().collect());
        }
        let mut found = Vec::new();
        let (mut begin, end) = self.logs.range();
        loop {
            let selector = KeySelector::first_greater_or_equal(begin);
            let key = tr.get_key(&selector, Isolation::Snapshot).await?;
            if *key >= end[..] {
                return Ok(found);
            }
            let log = self.log_of(&key)?;
            found.push(log);
            begin = self.subspace(log).range().1;
        }
    }

    /// Makes sure that blocks added from now on go after all that are there, as
    /// [`MicroQueue::verify_order`](crate::MicroQueue::verify_order) does for one queue.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`StampAhead`](Error::StampAhead) if they would not; those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        // Safe as snapshot reads: what commits after the read version gets a stamp above it.
        let read_version = tr.read_version().await?;
        for logs in self.non_empty(tr).await?.chunks(LOOKS_AT_ONCE as usize) {
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

    async fn last(&self, tr: &impl Transaction, log: u32) -> Result<Option<EntryId>> {
        let (begin, end) = self.subspace(log).range();
        let selector = KeySelector::last_less_than(end.clone());
        let key = tr.get_key(&selector, Isolation::Snapshot).await?;
        match *key >= begin[..] {
            true => self.id_before(log, &key, &end),
            false => Ok(None),
        }
    }

    /// Returns the id of the block under a key that was found in a log or after its end.
    fn id_before(&self, log: u32, key: &[u8], end: &[u8]) -> Result<Option<EntryId>> {
        if key >= end {
            return Ok(None);
        }
        Ok(Some(of_block(&self.layout(log).id(key)?)))
    }

    /// Returns the log that a key is in.
    fn log_of(&self, key: &[u8]) -> Result<u32> {
        let unpacked: Result<(u32, TupleVersionstamp, u64), _> = self.logs.unpack(key);
        let log = unpacked.ok().map(|(log, ..)| log);
        let log = log.filter(|log| *log < self.log_count);
        log.ok_or_else(|| keyspace::Error::corrupt(key, "expected the key of a block").into())
    }
}

/// Which side an error comes from while blocks are visited.
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
