//! Reads values, either as last reported or exactly.
//!
//! | operation | reads | reads by snapshot |
//! |---|---|---|
//! | `exact`, `exact_many`, by snapshot (the default) | the probe of the bucket's log | `u` of the bucket, `x`; `v` and `c` of the key; `w` |
//! | `exact`, `exact_many`, serializable | all `u` of the bucket, so the probe, too; `v` and `c` of the key | `x`, `w` |
//! | `key_state` | the probe of the bucket's log | `u` of the bucket, `x`; `v`, `c` and `q` of the key; `w` |
//!
//! Only a clear of a log writes its probe, and no operation of this crate makes one that covers it, so the serializable
//! read of the probe never conflicts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::slice;
use std::time::Duration;

use futures::future::try_join_all;
use futures::try_join;
use hc_dequeue::keyspace::codec::{self, Codec, DecodeError};
use hc_dequeue::keyspace::foreign;
use hc_dequeue::keyspace::{
    Bytes, Code, ConflictKind, Isolation, KeyValue, Listed, RangeQuery, StreamingMode, Transaction,
    Undecodable, key_after, read_all,
};
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::EntryId;

use crate::bucket::Bucket;
use crate::bucket_worker::{Pending, WaitingLog, lag_of};
use crate::error::{Error, Result};
use crate::queue::CombineQueue;
use crate::record::{Current, decode_value};

/// The options of [`CombineQueue::exact`].
///
/// ```
/// use combine::Exact;
/// use combine::keyspace::Isolation;
///
/// let strict = Exact::new().with_isolation(Isolation::Serializable).with_max_bytes(1 << 20);
/// # drop(strict);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exact {
    isolation: Isolation,
    max_bytes: usize,
}

impl Default for Exact {
    /// Reads by snapshot, up to 8 MiB of pending updates.
    fn default() -> Self {
        Self {
            isolation: Isolation::Snapshot,
            max_bytes: 8 << 20,
        }
    }
}

impl Exact {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the isolation of the reads. With a serializable read, the transaction conflicts with every
    /// transaction that adds to the key's bucket or changes the key's value.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Sets the most bytes of pending updates to read. The limit applies to all updates of the key's
    /// bucket, including those of other keys.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }
}

/// Returns the log of a bucket. Updates before `position` in its block are folded.
pub(crate) fn waiting_log(bucket: Bucket, position: Option<EntryId>) -> WaitingLog {
    WaitingLog {
        bucket,
        first: None,
        // A restored store may have put blocks before the one of the position.
        after: None,
        next: position,
        is_damaged: false,
    }
}

/// The updates of some keys that are not folded yet, each with the row of its block.
pub(crate) type PendingUpdates<'a> = BTreeMap<&'a Bytes, Vec<(Bytes, Bytes)>>;

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns the value of a key as last reported, or `None` if it has none.
    ///
    /// # Conflicts
    /// A serializable read conflicts with a pass that reports the value anew.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the value does not decode.
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::{self, Isolation, Runner};
    /// use combine::{CombineQueue, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| words.add(&tr, fish, &1).await).await?;
    /// // No worker has combined the update yet.
    /// let settled = async |tr| words.settled(&tr, fish, Isolation::Snapshot).await;
    /// assert_eq!(runner.run(settled).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settled(
        &self,
        tr: &impl Transaction,
        key: &K,
        isolation: Isolation,
    ) -> Result<Option<V>> {
        let row = self.keys.value(&self.encode_key(key)?);
        let stored = tr.get(&row, isolation).await?;
        self.decode_reported(&row, stored)
    }

    /// Returns the value of a key after every update that was committed before this transaction began,
    /// including updates that no worker has combined yet. It leaves out updates that were set aside.
    ///
    /// This reads all pending updates of the key's bucket, including those of other keys. To read several
    /// keys, call [`exact_many`](Self::exact_many), which reads each bucket once.
    ///
    /// # Conflicts
    /// By snapshot none. A serializable read covers the log of the key's bucket and the key's values, so
    /// it conflicts with every transaction that adds to the bucket or changes the key's value.
    ///
    /// # Errors
    /// - [`TooManyPending`](Error::TooManyPending)
    /// - [`ReadAfterWrite`](hc_dequeue::microqueue::Error::ReadAfterWrite) if this transaction has added
    ///   to the queue
    /// - [`CombinerPanicked`](Error::CombinerPanicked)
    /// - [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt)
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::{self, Runner};
    /// use combine::{CombineQueue, Exact, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| words.add(&tr, fish, &1).await).await?;
    /// // No worker has combined the update yet.
    /// let exact = async |tr| words.exact(&tr, fish, &Exact::default()).await;
    /// assert_eq!(runner.run(exact).await?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn exact(
        &self,
        tr: &impl Transaction,
        key: &K,
        options: &Exact,
    ) -> Result<Option<V>> {
        let mut values = self.exact_many(tr, slice::from_ref(key), options).await?;
        Ok(values.pop().flatten())
    }

    /// Returns the values of several keys in the order given, as [`exact`](Self::exact) does. It reads
    /// the log of each bucket once.
    ///
    /// # Conflicts
    /// As [`exact`](Self::exact), for each key.
    ///
    /// # Errors
    /// As [`exact`](Self::exact).
    pub async fn exact_many(
        &self,
        tr: &impl Transaction,
        keys: &[K],
        options: &Exact,
    ) -> Result<Vec<Option<V>>> {
        self.refuse_after_add(tr).await?;
        let mut encoded = Vec::with_capacity(keys.len());
        for key in keys {
            encoded.push(Bytes::from(self.encode_key(key)?));
        }
        let buckets: BTreeSet<_> = encoded.iter().map(|key| self.keys.bucket(key)).collect();
        let mut pending: PendingUpdates<'_> = encoded.iter().map(|key| (key, Vec::new())).collect();
        for bucket in buckets {
            if !self.read_pending(tr, bucket, options, &mut pending).await? {
                return Err(Error::TooManyPending {
                    queue: self.keys.queue.clone(),
                    bucket,
                    limit: options.max_bytes,
                });
            }
        }
        let reads = encoded
            .iter()
            .map(|key| self.current(tr, key, options.isolation));
        let mut values = try_join_all(reads).await?;
        for ((key, encoded), value) in keys.iter().zip(&encoded).zip(&mut values) {
            let decode = |(row, update): &(Bytes, Bytes)| {
                let update = codec::decode::<U, _>(&self.codec, update.clone());
                update.map_err(|error| error.at(row.to_vec()))
            };
            let updates: Vec<U> = pending[encoded]
                .iter()
                .map(decode)
                .collect::<Result<_, _>>()?;
            if updates.is_empty() {
                continue;
            }
            let current = value.take();
            let fold = || self.combiner.fold(key, current, updates);
            *value = foreign::call(fold).map_err(|_| Error::CombinerPanicked {
                key: encoded.clone(),
            })?;
        }
        Ok(values)
    }

    /// Fails if the transaction has added to the queue, since those updates have no place yet.
    pub(crate) async fn refuse_after_add(&self, tr: &impl Transaction) -> Result<()> {
        // Every addition stamps this key, and a transaction cannot read a key that it has stamped. The
        // read is by snapshot, since additions of other transactions would otherwise conflict with this
        // one.
        match tr.get(&self.keys.wake(), Isolation::Snapshot).await {
            Err(error) if error.code() == Some(Code::ACCESSED_UNREADABLE) => {
                let queue = self.keys.queue.clone();
                Err(microqueue::Error::ReadAfterWrite { queue }.into())
            }
            read => read.map(drop).map_err(Error::from),
        }
    }

    /// Reads the updates of certain keys that are not folded yet, from the log of their bucket. Returns
    /// false if there are more blocks than the options allow to read.
    pub(crate) async fn read_pending(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        options: &Exact,
        pending: &mut PendingUpdates<'_>,
    ) -> Result<bool> {
        let logs = &self.keys.logs;
        if options.isolation == Isolation::Serializable {
            let (begin, end) = logs.after(bucket.0, None);
            tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
        }
        // A transaction whose snapshot reads ignore its own writes could otherwise miss its own
        // additions.
        logs.refuse_after_add(tr, bucket.0).await?;
        // By snapshot, since a pass that folds an update of one of the keys also changes its value.
        let position = self.pass_state(tr, bucket).await?.position;
        let mut left = Some(options.max_bytes);
        logs.visit(tr, bucket.0, None, |block| {
            left = left.and_then(|left| left.checked_sub(block.bytes.len()));
            if left.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            let is_in_it = |position: &EntryId| position.block() == block.id.block();
            let folded = position
                .filter(is_in_it)
                .map_or(0, |position| position.index);
            block.refuse_newer()?;
            // A pass will set this broken block aside.
            let entries = block.entries().unwrap_or_default();
            for entry in entries.into_iter().skip(folded.into()) {
                if let Some(updates) = pending.get_mut(&entry.key) {
                    updates.push((block.row.clone(), entry.value));
                }
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
        Ok(left.is_some())
    }

    /// Returns the value of a key after all folded updates, whether reported or not.
    pub(crate) async fn current(
        &self,
        tr: &impl Transaction,
        key: &[u8],
        isolation: Isolation,
    ) -> Result<Option<V>> {
        let value_row = self.keys.value(key);
        let current_row = self.keys.current(key);
        let (reported, current) = try_join!(
            tr.get(&value_row, isolation),
            tr.get(&current_row, isolation),
        )?;
        match current {
            Some(stored) => {
                let current = Current::decode(&current_row, &stored)?;
                let decode = |bytes| self.decode_value(&current_row, bytes);
                current.bytes.map(decode).transpose()
            }
            None => self.decode_reported(&value_row, reported),
        }
    }

    /// Returns a page of the keys that have a value, with their values as last reported: up to `limit`
    /// keys after the key `after`, or from the first.
    ///
    /// The keys are sorted by their hashes, so they come bucket by bucket. A page with fewer than `limit`
    /// keys is the last one. Each entry has the encoded key, and either the key and its value or the
    /// reason why they do not decode.
    ///
    /// # Conflicts
    /// A serializable read covers the values that it returns.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a key of the store is not the key of a value.
    pub async fn values(
        &self,
        tr: &impl Transaction,
        after: Option<&[u8]>,
        limit: usize,
        isolation: Isolation,
    ) -> Result<Vec<Listed<Bytes, (K, V)>>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let (begin, end) = self.keys.values();
        let begin = after.map_or(begin, |after| key_after(&self.keys.value(after)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query.mode(StreamingMode::WantAll), isolation).await?;
        let listed = rows.iter().map(|row| {
            let id = Bytes::from(self.keys.parse_value(row.key())?);
            let undecodable = |error| Undecodable::new(row.to_key(), row.to_value(), error);
            let value = self.decode_pair(&id, row).map_err(undecodable);
            Ok(Listed { id, value })
        });
        listed.collect()
    }

    fn decode_pair(&self, key: &Bytes, row: &KeyValue) -> Result<(K, V), DecodeError> {
        let bytes = decode_value(row.key(), &row.to_value()).map_err(|error| DecodeError {
            codec: "a value",
            reason: error.to_string(),
        })?;
        let key = codec::decode::<K, _>(&self.codec, key.clone())?;
        Ok((key, codec::decode::<V, _>(&self.codec, bytes)?))
    }

    /// Counts the updates of a bucket that are not combined yet, in up to about 1 MiB of blocks.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store, and [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the state of the
    /// bucket's passes does not decode.
    pub async fn pending(&self, tr: &impl Transaction, bucket: Bucket) -> Result<Pending> {
        let position = self.pass_state(tr, bucket).await?.position;
        let waiting = waiting_log(bucket, position);
        Ok(waiting.count(tr, &self.keys.logs).await?)
    }

    /// Counts the updates of a bucket that are not combined yet, as [`pending`](Self::pending) does, and returns
    /// how long the oldest of them has waited.
    pub(crate) async fn backlog_of(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
    ) -> Result<(Pending, Option<Duration>)> {
        let pending = self.pending(tr, bucket).await?;
        // Safe as a snapshot read: nothing is staged on the basis of its result.
        let first = self.keys.logs.first(tr, bucket.0, None).await?;
        Ok((pending, lag_of(tr, first).await?))
    }

    fn decode_reported(&self, row: &[u8], stored: Option<Bytes>) -> Result<Option<V>> {
        let decode = |stored| self.decode_value(row, decode_value(row, &stored)?);
        stored.map(decode).transpose()
    }
}
