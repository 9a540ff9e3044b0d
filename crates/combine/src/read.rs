//! Looking at values: as they were reported, and exactly.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{
    self, Bytes, Isolation, RangeQuery, StreamingMode, Transaction, key_after, read_all,
};
use hc_dequeue::microqueue::Item;

use crate::bucket_worker::Pending;
use crate::error::{Error, Result};
use crate::keys::Bucket;
use crate::queue::CombineQueue;
use crate::record::Value;

/// How [`CombineQueue::exact`] reads.
///
/// ```
/// use combine::Exact;
/// use combine::keyspace::Isolation;
///
/// let strict = Exact::new().isolation(Isolation::Serializable).most_pending(100);
/// # drop(strict);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exact {
    isolation: Isolation,
    most_pending: usize,
}

impl Default for Exact {
    /// By snapshot, and up to 10,000 pending updates.
    fn default() -> Self {
        Self {
            isolation: Isolation::Snapshot,
            most_pending: 10_000,
        }
    }
}

impl Exact {
    /// Begins with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how it reads. A serializable read makes the transaction fail with a conflict whenever
    /// another one adds to the key or combines it.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Sets how many pending updates the reader is ready to fold.
    #[must_use]
    pub fn most_pending(mut self, updates: usize) -> Self {
        self.most_pending = updates;
        self
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns the value of a key as it was last reported. `None`: it has none.
    ///
    /// # Conflicts
    /// Serializable: the key's value, so that this transaction fails if the value is reported anew.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if it does not decode.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn settled(
        &self,
        tr: &impl Transaction,
        key: &K,
        isolation: Isolation,
    ) -> Result<Option<V>> {
        let key = self.encode_key(key)?;
        let row = self.keys.value(self.keys.bucket(&key), &key);
        let value = Value::decode(&row, tr.get(&row, isolation).await?)?;
        self.decode(&row, value.bytes)
    }

    /// Returns the value of a key after every update that was committed before this transaction
    /// began, combined by a worker or not. Updates that were set aside are not in it.
    ///
    /// # Conflicts
    /// None, unless serializable: then the key's value and all of its pending updates, so that this
    /// transaction fails whenever anybody adds to the key or combines it.
    ///
    /// # Errors
    /// [`TooManyPending`](Error::TooManyPending);
    /// [`ReadAfterWrite`](hc_dequeue::microqueue::Error::ReadAfterWrite) in a transaction that has
    /// added to the key, always: it may not have worked; [`CombinerPanicked`](Error::CombinerPanicked);
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn exact(
        &self,
        tr: &impl Transaction,
        key: &K,
        options: &Exact,
    ) -> Result<Option<V>> {
        let encoded = self.encode_key(key)?;
        let bucket = self.keys.bucket(&encoded);
        let updates = self.updates_of(bucket, &encoded);
        let most = options.most_pending;
        let pending = async {
            Ok::<_, Error>(match options.isolation {
                Isolation::Serializable => {
                    let listed = updates.items(tr, None, most.saturating_add(1)).await?;
                    let items = listed.into_iter().map(Item::try_from);
                    let items: Result<Vec<_>, _> = items.collect();
                    items.map_err(keyspace::Error::from)?
                }
                Isolation::Snapshot => {
                    let limit = most.saturating_add(1);
                    updates.snapshot(tr, limit, usize::MAX).await?
                }
            })
        };
        let current = self.current(tr, bucket, &encoded, options.isolation);
        let (pending, current) = futures::try_join!(pending, current)?;
        let key_bytes = Bytes::from(encoded);
        if pending.len() > most {
            return Err(Error::TooManyPending {
                queue: self.keys.queue.clone(),
                key: key_bytes,
                limit: most,
            });
        }
        if pending.is_empty() {
            return Ok(current);
        }
        let decode = |item: Item<Bytes>| {
            let update = <C as Codec<U>>::decode(&self.codec, item.value);
            update.map_err(|error| error.at(self.keys.update(&key_bytes, &item.id)))
        };
        let updates = pending.into_iter().map(decode).collect::<Result<_, _>>()?;
        catch_unwind(AssertUnwindSafe(|| {
            self.combiner.fold(key, current, updates)
        }))
        .map_err(|_| Error::CombinerPanicked { key: key_bytes })
    }

    /// Returns the value of a key after what has been folded, reported or not.
    async fn current(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        key: &[u8],
        isolation: Isolation,
    ) -> Result<Option<V>> {
        let mut row = self.keys.value(bucket, key);
        let mut value = Value::decode(&row, tr.get(&row, isolation).await?)?;
        if value.is_outdated {
            row = self.keys.current(bucket, key);
            value = Value::decode(&row, tr.get(&row, isolation).await?)?;
        }
        self.decode(&row, value.bytes)
    }

    /// Returns a page of the keys that have a value, with the values as they were last reported: up to
    /// `limit` behind the key `after`, or from the first. They come bucket by bucket, and within a
    /// bucket in the order of the codec's bytes. Fewer than `limit` are the last page.
    ///
    /// # Conflicts
    /// Serializable: what it reads.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a record does not decode.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn values(
        &self,
        tr: &impl Transaction,
        after: Option<&K>,
        limit: usize,
        isolation: Isolation,
    ) -> Result<Vec<(K, V)>> {
        let (mut begin, end) = self.keys.values();
        if let Some(after) = after {
            let after = self.encode_key(after)?;
            begin = key_after(&self.keys.value(self.keys.bucket(&after), &after));
        }
        let mut found = Vec::new();
        while found.len() < limit {
            let asked = limit - found.len();
            let query = RangeQuery::keys(begin, end.clone())
                .limit(asked)
                .mode(StreamingMode::WantAll);
            let rows = read_all(tr, query, isolation).await?;
            for row in &rows {
                // There is a row without a value for a key whose first value is not reported yet.
                let value = Value::decode(row.key(), Some(row.to_value()))?;
                if let Some(value) = self.decode(row.key(), value.bytes)? {
                    let key = self.keys.parse_value(row.key())?;
                    let key = <C as Codec<K>>::decode(&self.codec, key.into());
                    found.push((key.map_err(|error| error.at(row.to_key()))?, value));
                }
            }
            match rows.last() {
                Some(last) if rows.len() == asked => begin = key_after(last.key()),
                _ => break,
            }
        }
        Ok(found)
    }

    /// Counts the updates of a bucket that are not combined yet.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn pending(&self, tr: &impl Transaction, bucket: Bucket) -> Result<Pending> {
        Ok(Pending::of_range(tr, self.keys.updates(bucket).range()).await?)
    }

    fn decode(&self, row: &[u8], value: Option<Bytes>) -> Result<Option<V>> {
        value.map(|bytes| self.decode_value(row, bytes)).transpose()
    }
}
