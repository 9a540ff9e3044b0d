//! Compares the rows of a map with the entries of its indexes, in bounded transactions.

use bytes::Bytes;
use futures::future::try_join_all;

use super::Map;
use super::index::Definition;
use super::key::Key;
use crate::contract::error::{Error, Result};
use crate::contract::selector::{KeyValue, RangeQuery};
use crate::contract::transaction::{Database, Isolation, Transaction, key_after};
use crate::run::{Runner, Tx};
use crate::values::codec::Codec;

/// The largest number of rows or entries that one transaction compares.
const MAX_STEP_ROWS: usize = 500;

/// The largest number of differences that a report names.
pub const MAX_DIFFERENCES: usize = 100;

/// What [`Map::verify`] has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MapReport {
    /// How many rows were compared.
    pub rows: u64,
    /// How many entries of indexes were compared.
    pub entries: u64,
    /// The first differences, up to [`MAX_DIFFERENCES`].
    pub differences: Vec<Difference>,
}

/// A difference between rows and entries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// A row does not decode, so its entries are not known.
    Undecodable {
        /// The key of the row.
        row: Bytes,
    },
    /// A row has no entry with this key.
    MissingEntry {
        /// The key of the entry.
        entry: Bytes,
    },
    /// An entry is of no row, or of a row that does not have this key in the index.
    StrayEntry {
        /// The key of the entry.
        entry: Bytes,
    },
}

impl MapReport {
    fn add(&mut self, differences: impl IntoIterator<Item = Difference>) {
        let room = MAX_DIFFERENCES.saturating_sub(self.differences.len());
        self.differences.extend(differences.into_iter().take(room));
    }
}

impl<K: Key, V, C: Codec<V>> Map<K, V, C> {
    /// Compares all rows with the entries of the indexes, and all entries with the rows, in transactions of up to 500,
    /// while others read and write. Call it on indexes that are built.
    ///
    /// # Conflicts
    /// Reads by snapshot, and writes nothing.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future stops it, and changes nothing.
    pub async fn verify<D: Database>(&self, runner: &Runner<D>) -> Result<MapReport> {
        let mut report = MapReport::default();
        let (mut begin, end) = self.rows.range();
        loop {
            let range = (begin.clone(), end.clone());
            let step = |tr: Tx<D::Transaction>| {
                let range = range.clone();
                async move { self.compare_rows(&tr, range).await }
            };
            let step = runner.run(step).await?;
            report.rows += step.count;
            report.add(step.differences);
            let Some(next) = step.next else {
                break;
            };
            begin = next;
        }
        for index in &*self.indexes {
            let (mut begin, end) = index.entries(&self.subspace).range();
            loop {
                let range = (begin.clone(), end.clone());
                let step = |tr: Tx<D::Transaction>| {
                    let range = range.clone();
                    async move { self.compare_entries(&tr, index, range).await }
                };
                let step = runner.run(step).await?;
                report.entries += step.count;
                report.add(step.differences);
                let Some(next) = step.next else {
                    break;
                };
                begin = next;
            }
        }
        Ok(report)
    }

    /// Looks for the entries of some rows.
    async fn compare_rows(&self, tr: &impl Transaction, range: (Vec<u8>, Vec<u8>)) -> Result<Step> {
        let (rows, mut step) = Step::read(tr, range).await?;
        for row in rows {
            let Ok(expected) = self.entries_of(&row) else {
                let row = row.to_key();
                step.differences.push(Difference::Undecodable { row });
                continue;
            };
            let found = expected
                .iter()
                .map(|entry| tr.get(entry, Isolation::Snapshot));
            let found = try_join_all(found).await?;
            let missing = expected
                .into_iter()
                .zip(found)
                .filter(|(_, found)| found.is_none());
            step.differences.extend(missing.map(|(entry, _)| {
                let entry = entry.into();
                Difference::MissingEntry { entry }
            }));
        }
        Ok(step)
    }

    /// Returns the keys of the entries that a row has.
    fn entries_of(&self, row: &KeyValue) -> Result<Vec<Vec<u8>>> {
        let value = self.decode(row.key(), row.to_value())?;
        let element = &self.element(row.key())?;
        let mut all = Vec::new();
        for index in &*self.indexes {
            let entries = &index.entries(&self.subspace);
            let keys = index.keys_of(&value);
            all.extend(
                keys.iter()
                    .map(|key| [entries.bytes(), key, element].concat()),
            );
        }
        Ok(all)
    }

    /// Looks for the rows of some entries of an index.
    async fn compare_entries(
        &self,
        tr: &impl Transaction,
        index: &Definition<V>,
        range: (Vec<u8>, Vec<u8>),
    ) -> Result<Step> {
        let (rows, mut step) = Step::read(tr, range).await?;
        let entries = index.entries(&self.subspace);
        for row in rows {
            let is_expected = self.is_expected(tr, index, entries.bytes(), &row);
            if !is_expected.await? {
                let entry = row.to_key();
                step.differences.push(Difference::StrayEntry { entry });
            }
        }
        Ok(step)
    }

    /// Returns whether the row of an entry has its key.
    async fn is_expected(
        &self,
        tr: &impl Transaction,
        index: &Definition<V>,
        prefix: &[u8],
        entry: &KeyValue,
    ) -> Result<bool> {
        let rest = &entry.key()[prefix.len()..];
        let Ok(element) = index.row_of(rest) else {
            return Ok(false);
        };
        let place = self.place(&element)?;
        let Some(value) = tr.get(&place, Isolation::Snapshot).await? else {
            return Ok(false);
        };
        let keys = match self.decode(&place, value) {
            Ok(value) => index.keys_of(&value),
            // It is named as a row that does not decode.
            Err(Error::Corrupt { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        Ok(keys.iter().any(|key| [&key[..], &element].concat() == rest))
    }
}

/// What one transaction has compared.
struct Step {
    count: u64,
    differences: Vec<Difference>,
    /// Where the next one begins.
    next: Option<Vec<u8>>,
}

impl Step {
    async fn read(
        tr: &impl Transaction,
        (begin, end): (Vec<u8>, Vec<u8>),
    ) -> Result<(Vec<KeyValue>, Self)> {
        let query = RangeQuery::keys(begin, end).limit(MAX_STEP_ROWS);
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        let last = batch.rows.last();
        let step = Self {
            count: batch.rows.len() as u64,
            differences: Vec::new(),
            next: last.map(|row| key_after(row.key())),
        };
        Ok((batch.rows, step))
    }
}
