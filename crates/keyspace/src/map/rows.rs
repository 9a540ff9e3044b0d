//! Ranges of rows: at once, as a stream and in pages.

use std::fmt;

use bytes::Bytes;
use futures::stream::{self, Stream};
use xxhash_rust::xxh3::Xxh3;

use super::Map;
use super::cursor::Cursor;
use super::key::Key;
use crate::contract::error::{Error, MapError, Result};
use crate::contract::selector::{KeyValue, RangeQuery, StreamingMode};
use crate::contract::transaction::{RowCount, Transaction, key_after};
use crate::values::codec::{self, Codec, MessagePack};
use crate::values::listed::{Listed, Undecodable};

/// How many bytes of keys and values a page reads. The last row may exceed it.
const MAX_PAGE_BYTES: usize = 1_000_000;

/// Rows of a [`Map`], in the order of their keys.
pub struct Rows<'a, K, V, C = MessagePack> {
    map: &'a Map<K, V, C>,
    begin: Vec<u8>,
    end: Vec<u8>,
    is_reversed: bool,
}

impl<K, V, C> Clone for Rows<'_, K, V, C> {
    fn clone(&self) -> Self {
        Self {
            map: self.map,
            begin: self.begin.clone(),
            end: self.end.clone(),
            is_reversed: self.is_reversed,
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
            .finish()
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
        let batch = tr
            .get_range(&self.query().limit(1), self.map.isolation)
            .await?;
        let row = batch.rows.first();
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
        let begin = (Some(self.query()), Vec::new().into_iter());
        stream::unfold(begin, move |(mut query, mut batch)| {
            let rows = rows.clone();
            async move {
                loop {
                    if let Some(row) = batch.next() {
                        return Some((rows.decode(&row), (query, batch)));
                    }
                    let next = query.take()?;
                    match tr.get_range(&next, rows.map.isolation).await {
                        Ok(read) => {
                            query = next.after(&read);
                            batch = read.rows.into_iter();
                        }
                        Err(error) => return Some((Err(error), (None, batch))),
                    }
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
    /// let name = async |tr| (1..=3).try_for_each(|id| names.set(&tr, &id, &format!("name {id}")));
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
        // One more row tells whether there is a next page.
        let mut next = Some(rest.query().limit(limit.saturating_add(1)));
        while let Some(query) = next {
            let batch = tr.get_range(&query, self.map.isolation).await?;
            next = query.after(&batch);
            for row in &batch.rows {
                if page.rows.len() == limit || bytes >= MAX_PAGE_BYTES {
                    return Ok(page);
                }
                bytes += row.key().len() + row.value().len();
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
    /// Writes the range, and reads nothing.
    pub fn clear(&self, tr: &impl Transaction) {
        tr.clear_range(&self.begin, &self.end);
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

    fn cursor(&self, row: &KeyValue) -> Cursor {
        Cursor {
            rows: self.hash(),
            last: row.key()[self.map.rows.bytes().len()..].to_vec(),
        }
    }

    /// Leaves out the rows up to the end of a page.
    fn begin_after(&mut self, cursor: &Cursor) -> Result<()> {
        let last = [self.map.rows.bytes(), &cursor.last].concat();
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

    fn decode_key(&self, row: &KeyValue) -> Result<K> {
        let key = self.map.rows.unpack(row.key());
        key.map_err(|error| {
            Error::corrupt(row.key(), format!("expected the key of a row: {error}"))
        })
    }

    fn decode(&self, row: &KeyValue) -> Result<(K, V)> {
        let key = self.decode_key(row)?;
        Ok((key, self.map.decode(row.key(), row.to_value())?))
    }

    fn list(&self, row: &KeyValue) -> Result<Listed<K, V>> {
        let value = codec::decode(&self.map.codec, row.to_value());
        let undecodable = |error| Undecodable::new(row.to_key(), row.to_value(), error);
        Ok(Listed {
            id: self.decode_key(row)?,
            value: value.map_err(undecodable),
        })
    }
}
