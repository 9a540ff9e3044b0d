//! Builds indexes of maps that have rows, in bounded transactions.

use super::index::{Definition, IndexRecord, records};
use super::key::Key;
use super::{Index, Map, MapPart, entry};
use crate::contract::error::{Error, Result};
use crate::contract::selector::RangeQuery;
use crate::contract::transaction::{Database, Isolation, Transaction, key_after};
use crate::run::{Runner, Tx};
use crate::values::codec::Codec;
use crate::values::record::{self, Fields};

/// The largest number of rows that one step reads.
const MAX_STEP_ROWS: usize = 500;

/// How many bytes of rows one step reads. The last batch of rows may exceed it.
const MAX_STEP_BYTES: usize = 1_000_000;

/// The format of the progress of building an index.
const FORMAT: u8 = 1;

/// Where the building of an index goes on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) rows: u64,
    /// The key of the next row, without the prefix of the rows.
    next: Vec<u8>,
}

impl Progress {
    fn encode(&self) -> Vec<u8> {
        [&[FORMAT][..], &self.rows.to_be_bytes(), &self.next].concat()
    }

    pub(super) async fn read(
        tr: &impl Transaction,
        key: &[u8],
        isolation: Isolation,
    ) -> Result<Self> {
        let Some(stored) = tr.get(key, isolation).await? else {
            return Ok(Self::default());
        };
        let read = |fields: &mut Fields<'_>| {
            let rows = fields.u64()?;
            let next = fields.rest().to_vec();
            Ok(Self { rows, next })
        };
        record::decode(key, &stored, FORMAT, read)
    }
}

impl<K: Key, V, C: Codec<V>> Map<K, V, C> {
    /// Builds the indexes that are not built yet, in transactions of up to 500 rows or 1,000,000 bytes, while others
    /// read and write. Several processes may build at the same time, and a call goes on where another one has stopped.
    ///
    /// # Conflicts
    /// Each transaction reads the rows that it adds, the records of the indexes, and the progress, and writes the
    /// entries and the progress: a write of one of these rows at the same time makes one of both fail, and be repeated.
    ///
    /// # Errors
    /// - [`MapError::Taken`](crate::map::MapError::Taken) if two rows have the same key in a unique index: change one
    ///   of them and call again
    /// - [`Error::Corrupt`] with the key of a row that does not decode: repair or remove it and call again
    /// - those of [`set`](Self::set) about changed indexes, and those of [`Runner::run`]
    ///
    /// What was built until then is kept.
    ///
    /// # Cancel safety
    /// As for an error.
    pub async fn build<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        for index in &*self.indexes {
            let step = |tr: Tx<D::Transaction>| async move { self.build_step(&tr, index).await };
            while !runner.run(step).await? {}
        }
        Ok(())
    }

    /// Builds the entries of some rows. Returns whether the index is built.
    async fn build_step(&self, tr: &impl Transaction, index: &Definition<V>) -> Result<bool> {
        self.check_indexes(tr).await?;
        let key = IndexRecord::key(&self.subspace, index.name());
        let stored = records(tr, &self.subspace, Isolation::Serializable).await?;
        let mut of_index = stored.iter();
        if of_index.any(|(name, record)| name == index.name() && record.is_ready) {
            return Ok(true);
        }
        let of_progress = self.subspace.pack(&(MapPart::Progress, index.name()));
        let mut progress = Progress::read(tr, &of_progress, Isolation::Serializable).await?;
        let (first, end) = self.rows.range();
        let begin = match &*progress.next {
            [] => first,
            next => [self.rows.bytes(), next].concat(),
        };
        let entries = &index.entries(&self.subspace);
        let mut bytes = 0;
        let mut last = None;
        let mut next = Some(RangeQuery::keys(begin, end).limit(MAX_STEP_ROWS));
        while let Some(query) = next.filter(|_| bytes < MAX_STEP_BYTES) {
            let batch = tr.get_range(&query, Isolation::Serializable).await?;
            next = query.after(&batch);
            for row in &batch.rows {
                bytes += row.key().len() + row.value().len();
                progress.rows += 1;
                last = Some(row.to_key());
                let keys = index.keys_of(&self.decode(row.key(), row.to_value())?);
                let row = self.element(row.key())?;
                for key in keys {
                    if index.is_unique() {
                        index.check_unique(tr, entries, &key, &row).await?;
                    }
                    tr.set(&entry(entries, &key, &row)?, b"");
                }
            }
        }
        let Some(last) = last else {
            tr.set(&key, &index.record(true).encode());
            tr.clear(&of_progress);
            return Ok(true);
        };
        progress.next = key_after(&last[self.rows.bytes().len()..]);
        tr.set(&of_progress, &progress.encode());
        Ok(false)
    }

    /// Removes an index: its entries and its record. Handles that know it are refused from then on; open the map
    /// without it.
    ///
    /// # Conflicts
    /// Writes the record, the progress and the entries, and reads nothing.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the index may or may not have been removed.
    pub async fn remove_index<D: Database, I>(
        &self,
        runner: &Runner<D>,
        index: &Index<V, I>,
    ) -> Result<()> {
        let index = index.definition();
        let (begin, end) = &index.entries(&self.subspace).range();
        let record = &IndexRecord::key(&self.subspace, index.name());
        let progress = &self.subspace.pack(&(MapPart::Progress, index.name()));
        let remove = |tr: Tx<D::Transaction>| async move {
            tr.clear_range(begin, end);
            tr.clear(record);
            tr.clear(progress);
            Ok::<_, Error>(())
        };
        runner.run(remove).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;

    #[tokio::test]
    async fn progress_has_the_documented_bytes() {
        let progress = Progress {
            rows: 500,
            next: b"\x15\x07\0".to_vec(),
        };
        let stored = progress.encode();
        assert_eq!(stored, b"\x01\0\0\0\0\0\0\x01\xf4\x15\x07\0");
        let tr = crate::open("memory:").unwrap().begin().unwrap();
        let read = async || Progress::read(&tr, b"key", Isolation::Serializable).await;
        assert_eq!(read().await.unwrap().rows, 0);
        tr.set(b"key", &stored);
        let read_back = read().await.unwrap();
        assert_eq!((read_back.rows, read_back.next), (500, progress.next));
        tr.set(b"key", b"\x01\0");
        assert!(matches!(read().await, Err(Error::Corrupt { .. })));
    }
}
