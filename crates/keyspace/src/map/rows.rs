//! Ranges of rows: at once, as a stream and in pages.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use foundationdb_tuple::Subspace;
use futures::future::try_join_all;
use futures::stream::{self, Stream};
use xxhash_rust::xxh3::Xxh3;

use super::Map;
use super::cursor::Cursor;
use super::index::Definition;
use super::key::Key;
use crate::contract::error::{Error, MapError, Result};
use crate::contract::selector::{KeyValue, RangeQuery, StreamingMode};
use crate::contract::transaction::{RowCount, Transaction, key_after};
use crate::values::codec::{self, Codec, DecodeError, MessagePack};
use crate::values::listed::{Listed, Undecodable};

/// How many bytes of keys and values a page reads. The last row may exceed it.
const MAX_PAGE_BYTES: usize = 1_000_000;

/// Rows of a [`Map`], in the order of their keys, or in that of an [index](super::Index).
pub struct Rows<'a, K, V, C = MessagePack> {
    map: &'a Map<K, V, C>,
    /// Of the keys of the rows, or of those of the entries.
    begin: Vec<u8>,
    end: Vec<u8>,
    is_reversed: bool,
    entries: Option<Entries<V>>,
}

/// The entries of an index.
pub(super) struct Entries<V> {
    pub(super) index: Arc<Definition<V>>,
    pub(super) subspace: Subspace,
}

impl<V> Clone for Entries<V> {
    fn clone(&self) -> Self {
        Self {
            index: self.index.clone(),
            subspace: self.subspace.clone(),
        }
    }
}

/// A row that was read.
struct ReadRow {
    /// The key of the row, or that of its entry.
    place: Bytes,
    key: Bytes,
    /// `None` if an entry is of no row.
    value: Option<Bytes>,
}

impl<K, V, C> Clone for Rows<'_, K, V, C> {
    fn clone(&self) -> Self {
        Self {
            map: self.map,
            begin: self.begin.clone(),
            end: self.end.clone(),
            is_reversed: self.is_reversed,
            entries: self.entries.clone(),
        }
    }
}

impl<K, V, C> fmt::Debug for Rows<'_, K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("map", self.map)
            .field("begin", &Bytes::copy_from_slice(&self.begin))
            .field("end", &Bytes::copy_from_slice(&self.end))
            .field("is_reversed", &self.is_reversed)
            .finish_non_exhaustive()
    }
}

/// A page of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<K, V> {
    /// The rows. A row whose value does not decode is listed, too.
    pub rows: Vec<Listed<K, V>>,
    /// Where the next page begins, or `None` if there was no further row.
    pub next: Option<Cursor>,
}

impl<'a, K: Key, V, C: Codec<V>> Rows<'a, K, V, C> {
    pub(super) fn between(map: &'a Map<K, V, C>, begin: Vec<u8>, end: Vec<u8>) -> Self {
        Self {
            map,
            begin,
            end,
            is_reversed: false,
            entries: None,
        }
    }

    pub(super) fn of_entries(
        map: &'a Map<K, V, C>,
        entries: Entries<V>,
        begin: Vec<u8>,
        end: Vec<u8>,
    ) -> Self {
        Self {
            entries: Some(entries),
            ..Self::between(map, begin, end)
        }
    }

    /// Returns the same rows in the other direction.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.is_reversed = !self.is_reversed;
        self
    }

    /// Returns the first row.
    ///
    /// # Conflicts
    /// Reads the range up to the row, or the whole range if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the key if the row does not decode, and those of [`Transaction::get_range`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a conflict range.
    pub async fn first(&self, tr: &impl Transaction) -> Result<Option<(K, V)>> {
        self.check(tr).await?;
        let (rows, _) = self.read(tr, self.query().limit(1)).await?;
        let row = rows.first();
        row.map(|row| self.decode(row)).transpose()
    }

    /// Returns the last row.
    ///
    /// # Conflicts
    /// As [`first`](Self::first), from the other end.
    ///
    /// # Errors
    /// As [`first`](Self::first).
    ///
    /// # Cancel safety
    /// As [`first`](Self::first).
    pub async fn last(&self, tr: &impl Transaction) -> Result<Option<(K, V)>> {
        self.clone().reversed().first(tr).await
    }

    /// Returns a stream of the rows, which reads some at a time. After a row that does not decode, it goes on.
    ///
    /// All of its rows are read in the caller's transaction, which lasts for five seconds; [`page`](Self::page) reads
    /// more rows than that.
    ///
    /// # Conflicts
    /// Reads the range, up to where the stream was read.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the key for each row that does not decode, and those of [`Transaction::get_range`], with
    /// which it ends.
    pub fn stream<'t, Tr: Transaction>(
        &self,
        tr: &'t Tr,
    ) -> impl Stream<Item = Result<(K, V)>> + Send + use<'a, 't, K, V, C, Tr>
    where
        V: Send,
    {
        let rows = self.clone();
        let begin = (rows, Some(self.query()), Vec::new().into_iter());
        stream::unfold(begin, async move |(rows, mut query, mut batch)| {
            loop {
                if let Some(row) = batch.next() {
                    return Some((rows.decode(&row), (rows, query, batch)));
                }
                match rows.read_on(tr, query.take()?).await {
                    Ok((read, next)) => {
                        query = next;
                        batch = read.into_iter();
                    }
                    Err(error) => return Some((Err(error), (rows, None, batch))),
                }
            }
        })
    }

    /// Returns a page of the rows: up to `limit` after the end of another page, or the first ones. A page has fewer if
    /// they have more than 1,000,000 bytes, and at least one if there is one.
    ///
    /// Pages of different transactions skip and repeat no row that is there all the time.
    ///
    /// ```
    /// use keyspace::{Error, Map, Runner};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let names = &Map::<u64, String>::open(&runner, "names").await?;
    /// let name = async |tr| {
    ///     for id in 1..=3 {
    ///         names.set(&tr, &id, &format!("name {id}")).await?;
    ///     }
    ///     Ok::<_, Error>(())
    /// };
    /// runner.run(name).await?;
    /// let first = runner.run(async |tr| names.rows().page(&tr, None, 2).await).await?;
    /// assert_eq!(first.rows.len(), 2);
    /// // An HTTP API hands its text out, and gets it back.
    /// let cursor = first.next.unwrap().to_string().parse()?;
    /// let next = runner.run(async |tr| names.rows().page(&tr, Some(&cursor), 2).await).await?;
    /// assert_eq!((next.rows[0].id, next.next), (3, None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Conflicts
    /// Reads the range from the end of the other page to the row after this one.
    ///
    /// # Errors
    /// - [`MapError::EmptyPage`] if `limit` is zero
    /// - [`MapError::OtherCursor`] if the cursor is not of a page of the same rows in the same direction
    /// - [`Error::Corrupt`] if a key does not decode
    /// - those of [`Transaction::get_range`]
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a conflict range.
    pub async fn page(
        &self,
        tr: &impl Transaction,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<K, V>> {
        if limit == 0 {
            return Err(MapError::EmptyPage.into());
        }
        let mut rest = self.clone();
        if let Some(cursor) = after {
            rest.begin_after(cursor)?;
        }
        let mut page = Page {
            rows: Vec::new(),
            next: None,
        };
        let mut bytes = 0;
        self.check(tr).await?;
        // One more row tells whether there is a next page.
        let mut next = Some(rest.query().limit(limit.saturating_add(1)));
        while let Some(query) = next {
            let (rows, rest) = self.read(tr, query).await?;
            next = rest;
            for row in &rows {
                if page.rows.len() == limit || bytes >= MAX_PAGE_BYTES {
                    return Ok(page);
                }
                bytes += row.place.len() + row.value.as_ref().map_or(0, Bytes::len);
                page.rows.push(self.list(row)?);
                page.next = Some(self.cursor(row));
            }
        }
        page.next = None;
        Ok(page)
    }

    /// Counts the rows, up to a number.
    ///
    /// # Conflicts
    /// Reads the range, up to the row after the last one that is counted.
    ///
    /// # Errors
    /// Those of [`Transaction::get_range`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most conflict ranges.
    pub async fn count(&self, tr: &impl Transaction, up_to: usize) -> Result<RowCount> {
        self.check(tr).await?;
        let mut counted = 0;
        let mut next = Some(self.query().limit(up_to.saturating_add(1)));
        while let Some(query) = next {
            let batch = tr.get_range(&query, self.map.isolation).await?;
            next = query.after(&batch);
            counted += batch.rows.len();
        }
        Ok(RowCount {
            count: counted.min(up_to),
            has_more: counted > up_to,
        })
    }

    /// Stages the removal of the rows.
    ///
    /// # Conflicts
    /// Writes the range, and reads nothing, if the map has no indexes. With indexes, reads the rows and removes each,
    /// as [`Map::remove`] does: as many as a transaction takes.
    ///
    /// # Errors
    /// As [`Map::remove`]. Some of the rows may be staged then.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the removal of some of the rows staged.
    pub async fn clear(&self, tr: &impl Transaction) -> Result<()> {
        if self.map.indexes.is_empty() {
            tr.clear_range(&self.begin, &self.end);
            return Ok(());
        }
        self.check(tr).await?;
        let mut next = Some(self.query());
        while let Some(query) = next {
            let (rows, rest) = self.read(tr, query).await?;
            next = rest;
            for row in rows {
                self.map.remove(tr, &self.key_of(&row)?).await?;
            }
        }
        Ok(())
    }

    /// Checks that the index was built, if the rows are in the order of one.
    async fn check(&self, tr: &impl Transaction) -> Result<()> {
        let Some(Entries { index, .. }) = &self.entries else {
            return Ok(());
        };
        let map = self.map;
        index.check_built(tr, &map.subspace, map.isolation).await
    }

    /// Reads some rows. Also returns what reads the next ones.
    async fn read(
        &self,
        tr: &impl Transaction,
        query: RangeQuery,
    ) -> Result<(Vec<ReadRow>, Option<RangeQuery>)> {
        let isolation = self.map.isolation;
        let batch = tr.get_range(&query, isolation).await?;
        let next = query.after(&batch);
        let Some(entries) = &self.entries else {
            let rows = batch.rows.iter().map(|row| ReadRow {
                place: row.to_key(),
                key: row.to_key(),
                value: Some(row.to_value()),
            });
            return Ok((rows.collect(), next));
        };
        let place_of = |entry: &KeyValue| {
            let row = entries
                .index
                .row_of(&entry.key()[entries.subspace.bytes().len()..]);
            let row = row.map_err(|error| Error::corrupt(entry.key(), error.to_string()))?;
            self.map.place(&row)
        };
        let keys: Vec<_> = batch.rows.iter().map(place_of).collect::<Result<_>>()?;
        let values = keys.iter().map(|key| tr.get(key, isolation));
        let values = try_join_all(values).await?;
        let rows = batch.rows.iter().zip(keys).zip(values);
        let rows = rows.map(|((entry, key), value)| ReadRow {
            place: entry.to_key(),
            key: key.into(),
            value,
        });
        Ok((rows.collect(), next))
    }

    /// Reads some rows for a stream, which checks its index with each read.
    async fn read_on(
        &self,
        tr: &impl Transaction,
        query: RangeQuery,
    ) -> Result<(Vec<ReadRow>, Option<RangeQuery>)> {
        self.check(tr).await?;
        self.read(tr, query).await
    }

    fn query(&self) -> RangeQuery {
        let query = RangeQuery::keys(self.begin.clone(), self.end.clone());
        let query = query.mode(StreamingMode::WantAll);
        if self.is_reversed {
            query.reversed()
        } else {
            query
        }
    }

    /// Returns what a cursor says of the rows of which it is one.
    fn hash(&self) -> [u8; 8] {
        let mut hash = Xxh3::new();
        for key in [&self.begin, &self.end] {
            hash.update(&(key.len() as u64).to_be_bytes());
            hash.update(key);
        }
        hash.update(&[u8::from(self.is_reversed)]);
        hash.digest().to_be_bytes()
    }

    /// Returns the prefix of all rows, or of all entries.
    fn prefix(&self) -> &[u8] {
        let entries = self.entries.as_ref().map(|entries| &entries.subspace);
        entries.unwrap_or(&self.map.rows).bytes()
    }

    fn cursor(&self, row: &ReadRow) -> Cursor {
        Cursor {
            rows: self.hash(),
            last: row.place[self.prefix().len()..].to_vec(),
        }
    }

    /// Leaves out the rows up to the end of a page.
    fn begin_after(&mut self, cursor: &Cursor) -> Result<()> {
        let last = [self.prefix(), &cursor.last].concat();
        let is_within = self.begin <= last && last < self.end;
        if cursor.rows != self.hash() || !is_within {
            return Err(MapError::OtherCursor.into());
        }
        if self.is_reversed {
            self.end = last;
        } else {
            self.begin = key_after(&last);
        }
        Ok(())
    }

    fn key_of(&self, row: &ReadRow) -> Result<K> {
        let key = self.map.rows.unpack(&row.key);
        key.map_err(|error| Error::corrupt(&row.key, format!("expected the key of a row: {error}")))
    }

    fn value_of(&self, row: &ReadRow) -> Result<V, Undecodable> {
        let Some(value) = &row.value else {
            let codec = "an entry of a row";
            let reason = "the row is missing".to_owned();
            let error = DecodeError { codec, reason };
            return Err(Undecodable::new(row.place.clone(), Bytes::new(), error));
        };
        let decoded = codec::decode(&self.map.codec, value.clone());
        decoded.map_err(|error| Undecodable::new(row.key.clone(), value.clone(), error))
    }

    fn decode(&self, row: &ReadRow) -> Result<(K, V)> {
        Ok((self.key_of(row)?, self.value_of(row)?))
    }

    fn list(&self, row: &ReadRow) -> Result<Listed<K, V>> {
        Ok(Listed {
            id: self.key_of(row)?,
            value: self.value_of(row),
        })
    }
}
