//! Reads a queue for operators: any queue by its stored bytes, its backlog, and the state of one key.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use futures::try_join;
use hc_dequeue::keyspace::codec::{Codec, DecodeError, Raw};
use hc_dequeue::keyspace::recipe::read_settings;
use hc_dequeue::keyspace::{
    self, Bytes, Database, Isolation, Runner, Subspace, Transaction, Undecodable,
};
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::EntryId;

use crate::bucket::Bucket;
use crate::bucket_worker::{Backlog, MAX_BACKLOG_BYTES, MAX_CONCURRENT_BUCKETS, WaitingLog};
use crate::combiner::Combiner;
use crate::error::{Error, Result};
use crate::keys::settings_key;
use crate::queue::CombineQueue;
use crate::queue::read::{Exact, PendingUpdates, waiting_log};
use crate::record::AsideRecord;
use crate::settings::SettingsRecord;

/// The state of a key. What does not decode is there with its bytes and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState<V> {
    /// The value as last reported, which [`settled`](CombineQueue::settled) returns.
    pub settled: Result<Option<V>, Undecodable>,
    /// The value after all folded updates, whether reported or not.
    pub current: Result<Option<V>, Undecodable>,
    /// The reason why the reports of the key are withheld, if they are.
    pub withheld: Result<Option<String>, Undecodable>,
    /// The encoded updates that are not folded yet, in order. Folding them into the current value gives
    /// the [`exact`](CombineQueue::exact) value. They are unknown if the state of the bucket's passes does
    /// not decode, or if a newer version of the library has written one of their blocks.
    pub pending: Result<Vec<Bytes>, Undecodable>,
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
    /// - [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the settings do not decode or are out of range,
    ///   for example because a newer version wrote them
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
    /// let subspace = Subspace::from("words");
    /// let options = OpenOptions::new().with_codec(Json);
    /// let words: CombineQueue<String, i64, i64, Json> =
    ///     CombineQueue::open_with(&runner, subspace.clone(), Settings::default(), Sum, options).await?;
    /// let words = &words;
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| words.add(&tr, fish, &3).await).await?;
    ///
    /// // Elsewhere, without the types.
    /// let keep = |_: &Bytes, value: Option<Bytes>, _: Vec<Bytes>| value;
    /// let (stored, record) = CombineQueue::inspect(&runner, subspace, keep).await?.unwrap();
    /// assert_eq!(record.codecs, ["Json", "Json", "Json"]);
    /// let tr = runner.database().begin()?;
    /// let state = stored.key_state(&tr, &Bytes::from("\"fish\"")).await?;
    /// assert_eq!((state.current?, &state.pending?[..]), (None, &[Bytes::from("3")][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        combiner: impl Combiner<Bytes, Bytes, Bytes>,
    ) -> Result<Option<(Self, SettingsRecord)>> {
        let record: Option<SettingsRecord> =
            read_settings(runner, &settings_key(&subspace)).await?;
        let Some(record) = record else {
            return Ok(None);
        };
        let env = runner.environment().clone();
        let queue = Self::with_settings(subspace, record.settings, combiner, Raw, env);
        Ok(Some((queue, record)))
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C> {
    /// Returns the queue as its stored bytes. It combines nothing.
    pub(crate) fn untyped(&self) -> CombineQueue<Bytes, Bytes, Bytes, Raw> {
        let keep = |_: &Bytes, value: Option<Bytes>, _: Vec<Bytes>| value;
        CombineQueue {
            keys: self.keys.clone(),
            settings: self.settings,
            combiner: Arc::new(keep),
            env: self.env.clone(),
            codec: Raw,
        }
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns how many updates of all buckets are not combined yet, and how long the oldest of them has
    /// waited. Values that are folded but not reported yet do not count.
    ///
    /// It reads several buckets at the same time, about 1 MiB of blocks per bucket and 8 MiB in total. A
    /// damaged bucket is listed in [`damaged`](Backlog::damaged), and does not cause an error.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn backlog(&self, tr: &impl Transaction) -> Result<Backlog> {
        // Safe as snapshot reads, these and those of the blocks: nothing is staged on the basis of their
        // results. A pass clears every block that it has folded completely, so the first block waits.
        let logs = &self.keys.logs;
        let waiting = |(log, first): (u32, microqueue::Result<EntryId>)| async move {
            let bucket = Bucket(log);
            let position = match self.pass_state(tr, bucket).await {
                Ok(state) => Some(state.position),
                Err(error) if error.is_corrupt() => None,
                Err(error) => return Err(error),
            };
            Ok(WaitingLog {
                is_damaged: first.is_err() || position.is_none(),
                first: first.ok(),
                ..waiting_log(bucket, position.flatten())
            })
        };
        let firsts = stream::iter(logs.firsts(tr).await?.into_iter().map(waiting));
        let waiting = firsts
            .buffered(MAX_CONCURRENT_BUCKETS)
            .try_collect()
            .await?;
        Ok(Backlog::read(tr, logs, waiting, MAX_BACKLOG_BYTES).await?)
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
    /// - [`KeyTooLarge`](Error::KeyTooLarge) and the codec's
    ///   [`Encode`](hc_dequeue::keyspace::Error::Encode)
    /// - those of the store
    pub async fn key_state(&self, tr: &impl Transaction, key: &K) -> Result<KeyState<V>> {
        self.refuse_after_add(tr).await?;
        let encoded = Bytes::from(self.encode_key(key)?);
        let bucket = self.keys.bucket(&encoded);
        let mut pending = PendingUpdates::from([(&encoded, Vec::new())]);
        let options = Exact::default();
        // Safe as snapshot reads: nothing is staged on the basis of their results.
        let (settled, current, withheld, is_whole) = try_join!(
            undecodable(tr, self.settled(tr, key, Isolation::Snapshot)),
            undecodable(tr, self.current(tr, &encoded, Isolation::Snapshot)),
            undecodable(tr, self.withheld(tr, &encoded)),
            undecodable(tr, self.read_pending(tr, bucket, &options, &mut pending)),
        )?;
        let updates = pending.into_values().flatten();
        let has_more = matches!(is_whole, Ok(false));
        Ok(KeyState {
            settled,
            current,
            withheld,
            pending: is_whole.map(|_| updates.map(|(_, update)| update).collect()),
            has_more,
        })
    }

    /// Returns the reason why the reports of a key are withheld, if they are.
    async fn withheld(&self, tr: &impl Transaction, encoded: &[u8]) -> Result<Option<String>> {
        let row = self.keys.withheld(encoded);
        let Some(stored) = tr.get(&row, Isolation::Snapshot).await? else {
            return Ok(None);
        };
        let record = AsideRecord::decode(&stored).map_err(|error| error.at(row))?;
        Ok(Some(record.reason))
    }
}

/// What was read, or the record that does not decode.
type Decoded<T> = Result<T, Undecodable>;

/// Returns the result of a read, in which a record that does not decode is a value and not an error.
async fn undecodable<T>(
    tr: &impl Transaction,
    read: impl Future<Output = Result<T>>,
) -> Result<Decoded<T>> {
    let (key, reason) = match read.await {
        Ok(read) => return Ok(Ok(read)),
        Err(
            Error::Keyspace(keyspace::Error::Corrupt { key, reason })
            | Error::Updates(microqueue::Error::Keyspace(keyspace::Error::Corrupt { key, reason })),
        ) => (key, reason),
        Err(error) => return Err(error),
    };
    let codec = "a record of a combine queue";
    // Safe as a snapshot read, like the read that has failed.
    let bytes = tr.get(&key, Isolation::Snapshot).await?.unwrap_or_default();
    Ok(Err(Undecodable::new(
        key,
        bytes,
        DecodeError { codec, reason },
    )))
}
