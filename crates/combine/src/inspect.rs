//! Reads a queue for operators: any queue by its stored bytes, its backlog, and the state of one key.

use std::time::Duration;

use futures::{TryFutureExt, try_join};
use hc_dequeue::keyspace::codec::{Codec, Raw};
use hc_dequeue::keyspace::recipe::stored_settings;
use hc_dequeue::keyspace::{Bytes, Database, Isolation, Runner, Subspace, Transaction, Tx};

use crate::bucket::Bucket;
use crate::bucket_worker::{Pending, lag_of};
use crate::combiner::Combiner;
use crate::error::{Error, Result};
use crate::keys::settings_key;
use crate::queue::CombineQueue;
use crate::read::{Exact, PendingUpdates};
use crate::record::AsideRecord;
use crate::settings::SettingsRecord;

/// The state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState<V> {
    /// The value as last reported, which [`settled`](CombineQueue::settled) returns.
    pub settled: Option<V>,
    /// The value after all folded updates, whether reported or not.
    pub current: Option<V>,
    /// The reason why the reports of the key are withheld, if they are.
    pub withheld: Option<String>,
    /// The encoded updates that are not folded yet, in order. Folding them into the current value gives
    /// the [`exact`](CombineQueue::exact) value.
    pub pending: Vec<Bytes>,
    /// Whether the bucket of the key has more than 8 MiB of blocks that are not folded. The updates in
    /// blocks beyond that are missing from `pending`.
    pub has_more: bool,
}

impl CombineQueue<Bytes, Bytes, Bytes, Raw> {
    /// Opens the existing queue in `subspace` for a tool that does not know its types or codecs. Keys,
    /// updates and values are the stored bytes.
    ///
    /// Returns the queue and the settings that it was created with, including the names of its codecs, or
    /// `None` if there is no queue. It does not create, register or verify anything.
    ///
    /// A tool that adds to the queue must call [`verify_order`](Self::verify_order) first, and must add
    /// bytes that the queue's own codecs write: workers set aside updates that do not decode.
    ///
    /// The combiner is used only for [`exact`](Self::exact) values and by workers. It must do to the
    /// bytes what the queue's own combiner does to the values that they encode. A tool that cannot do
    /// this must not read exact values or [run a worker](Self::work).
    ///
    /// # Conflicts
    /// Reads the settings by snapshot.
    ///
    /// # Errors
    /// - [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the settings do not decode, for example
    ///   because a newer version wrote them
    /// - [`InvalidSettings`](Error::InvalidSettings) if the settings are out of range
    /// - those of [`Runner::run`]
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::codec::{Codec, Json};
    /// use combine::keyspace::{self, Bytes, Database, OpenOptions, Runner, Subspace};
    /// use combine::{CombineQueue, Settings, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let (subspace, options) = (Subspace::from("words"), OpenOptions::new().codec(Json));
    /// let words: CombineQueue<String, i64, i64, Json> =
    ///     CombineQueue::open_with(&runner, subspace.clone(), Settings::default(), Sum, options).await?;
    /// let (words, fish) = (&words, &"fish".to_owned());
    /// runner.run(|tr| async move { words.add(&tr, fish, &3).await }).await?;
    ///
    /// // Elsewhere, without the types.
    /// let keep = |_: &Bytes, value: Option<Bytes>, _: Vec<Bytes>| value;
    /// let (stored, record) = CombineQueue::inspect(&runner, subspace, keep).await?.unwrap();
    /// assert_eq!(record.codecs, ["Json", "Json", "Json"]);
    /// let tr = runner.database().begin()?;
    /// let state = stored.look_up(&tr, &Bytes::from("\"fish\"")).await?;
    /// assert_eq!((state.current, &state.pending[..]), (None, &[Bytes::from("3")][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        combiner: impl Combiner<Bytes, Bytes, Bytes>,
    ) -> Result<Option<(Self, SettingsRecord)>> {
        let key = &settings_key(&subspace);
        let read = |tr: Tx<_>| async move { Ok::<_, Error>(stored_settings(&tr, key).await?) };
        let record: Option<SettingsRecord> = runner.run(read).await?;
        let Some(record) = record else {
            return Ok(None);
        };
        // Without this check, a corrupt bucket count could be arbitrarily large.
        record.settings.check()?;
        let env = runner.environment().clone();
        let queue = Self::with_settings(subspace, record.settings, combiner, Raw, env);
        Ok(Some((queue, record)))
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns how long the oldest update that is not folded yet has waited, or `None` if there is none.
    ///
    /// The time is derived from the versions of the store, so it is too large after a recovery of the
    /// store. Values that are folded but not reported yet do not count.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn lag(&self, tr: &impl Transaction) -> Result<Option<Duration>> {
        // A pass clears every block that it has folded completely.
        let firsts = self.keys.logs.firsts(tr).await?.into_iter();
        Ok(lag_of(tr, firsts.map(|(_, first)| first)).await?)
    }

    /// Counts the updates of all buckets that are not combined yet, in up to about 1 MiB of blocks per
    /// bucket.
    ///
    /// It reads several buckets at the same time. If the state of a bucket's passes does not decode, its
    /// whole log counts.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn pending_total(&self, tr: &impl Transaction) -> Result<Pending> {
        let logs = &self.keys.logs;
        let buckets = logs.non_empty(tr).await?.into_iter().map(Bucket);
        let count = |bucket| async move {
            match self.pending(tr, bucket).await {
                // Only the passes over this bucket fail.
                Err(error) if error.is_corrupt() => {
                    Pending::of_log(tr, logs, bucket, None, None).await
                }
                counted => counted,
            }
        };
        Pending::total(buckets, count).await
    }

    /// Returns the state of a key, without folding anything.
    ///
    /// It reads the pending updates of the key's bucket, including those of other keys, up to 8 MiB.
    ///
    /// # Conflicts
    /// Reads by snapshot, except for a key that only a clear of the bucket's log writes.
    ///
    /// # Errors
    /// - [`ReadAfterWrite`](hc_dequeue::microqueue::Error::ReadAfterWrite) if this transaction has added
    ///   to the queue
    /// - [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a value, the reason why reports are
    ///   withheld, or the state of the bucket's passes does not decode
    pub async fn look_up(&self, tr: &impl Transaction, key: &K) -> Result<KeyState<V>> {
        self.refuse_after_add(tr).await?;
        let encoded = Bytes::from(self.encode_key(key)?);
        let withheld_row = self.keys.withheld(&encoded);
        // Safe as snapshot reads: nothing is staged on the basis of their results.
        let (settled, current, withheld) = try_join!(
            self.settled(tr, key, Isolation::Snapshot),
            self.current(tr, &encoded, Isolation::Snapshot),
            tr.get(&withheld_row, Isolation::Snapshot)
                .map_err(Error::from),
        )?;
        let withheld = withheld.map(|stored| AsideRecord::decode(&stored));
        let withheld = withheld
            .transpose()
            .map_err(|error| error.at(withheld_row))?;
        let mut pending = PendingUpdates::from([(&encoded, Vec::new())]);
        let bucket = self.keys.bucket(&encoded);
        let options = Exact::default();
        let is_whole = self
            .read_pending(tr, bucket, &options, &mut pending)
            .await?;
        let updates = pending.into_values().flatten();
        Ok(KeyState {
            settled,
            current,
            withheld: withheld.map(|record| record.reason),
            pending: updates.map(|(_, update)| update).collect(),
            has_more: !is_whole,
        })
    }
}
