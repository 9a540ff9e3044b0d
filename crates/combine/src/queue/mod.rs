//! The handle of a combine queue: the operations that an application calls in its own transactions.

pub(crate) mod aside;
mod initialize;
pub(crate) mod inspect;
pub(crate) mod read;
mod settle;

use std::fmt;
use std::sync::Arc;

use hc_dequeue::keyspace::codec::{self, Codec, MessagePack};
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::recipe::warn_if_settings_differ;
use hc_dequeue::keyspace::{
    Bytes, Database, Environment, KeyValue, OpenOptions, Runner, Subspace, Transaction,
    Versionstamp,
};
use hc_dequeue::microqueue::blocks::BlockBatch;
use hc_dequeue::session::Sessions;

use crate::bucket::Bucket;
use crate::bucket_logs::{encode_pairs, verify_stamps};
use crate::combiner::Combiner;
use crate::error::{Error, Result};
use crate::keys::{Keys, describe_key, settings_key};
use crate::record::{MAX_UPDATE_BYTES, PassState};
use crate::settings::{Settings, SettingsRecord};

/// Values of type `V` under keys of type `K`, changed by updates of type `U`, in one subspace; the codec
/// `C` encodes all three.
///
/// Each operation takes a transaction and stages its reads and writes there. The caller commits
/// it, and its retries repeat the operation. A [`Worker`](crate::Worker) combines the updates.
///
/// To use a different codec for keys, updates or values, implement [`Codec`] for all three on a type of
/// your own.
///
/// A handle keeps no state from the store, so cloning it is cheap.
///
/// # Cancel safety
/// If the future of an operation on a transaction is dropped before it is ready, the operation has staged nothing but
/// conflict ranges, unless its documentation says otherwise. Dropping a read or a wait changes nothing.
pub struct CombineQueue<K, U, V = U, C = MessagePack> {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: Settings,
    pub(crate) combiner: Arc<dyn Combiner<K, U, V>>,
    pub(crate) env: Environment,
    pub(crate) codec: C,
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Opens the queue in `subspace` with the codec `C` and the default registry of ids. Creates it with the default
    /// [settings](Settings) if it does not exist; an existing queue keeps its stored settings.
    ///
    /// All processes that run workers or read exact values must use the same combiner.
    ///
    /// ```
    /// use combine::keyspace::{self, Runner};
    /// use combine::{CombineQueue, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// // The values are sums of `i64`, under keys of type `String`.
    /// let words = CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    /// # drop(words);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Conflicts
    /// As [`open_with`](Self::open_with).
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    ///
    /// # Cancel safety
    /// As [`open_with`](Self::open_with).
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        combiner: impl Combiner<K, U, V>,
    ) -> Result<Self>
    where
        C: Default,
    {
        let given = Self::record(Settings::default());
        Self::open_or_create(
            runner,
            subspace.into(),
            &given,
            combiner,
            OpenOptions::default(),
        )
        .await
    }

    /// Opens the queue in `subspace`. Creates it with `settings` if it does not exist; an existing queue keeps its
    /// stored settings. If these differ from `settings`, a warning in the log names both.
    ///
    /// The options contain the codec, and a registry of ids in which the queue is registered as a `combine`.
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if the queue is created. Registers the subspace as
    /// [`Ids::register`](hc_dequeue::keyspace::ids::Ids::register) does.
    ///
    /// # Errors
    /// - [`SettingsDiffer`](Error::SettingsDiffer) if the queue was created with other codecs
    /// - [`InvalidSettings`](Error::InvalidSettings) if the settings are out of range
    /// - [`StampAhead`](hc_dequeue::microqueue::Error::StampAhead) if updates or passes come from a store
    ///   with a larger version
    /// - [`Overlap`](hc_dequeue::keyspace::Error::Overlap) if the subspace overlaps that of another recipe
    /// - those of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not have been created.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        settings: Settings,
        combiner: impl Combiner<K, U, V>,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let given = Self::record(settings);
        let subspace = subspace.into();
        let queue = Self::open_or_create(runner, subspace, &given, combiner, options).await?;
        let stored = Self::record(queue.settings);
        let hint = "they never change";
        warn_if_settings_differ(queue.subspace(), &given, &stored, hint);
        Ok(queue)
    }

    /// Returns what is stored for these settings.
    fn record(settings: Settings) -> SettingsRecord {
        let codecs = [
            <C as Codec<K>>::NAME,
            <C as Codec<U>>::NAME,
            <C as Codec<V>>::NAME,
        ];
        SettingsRecord {
            settings,
            codecs: codecs.map(str::to_owned),
        }
    }

    async fn open_or_create<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        given: &SettingsRecord,
        combiner: impl Combiner<K, U, V>,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        given.settings.check()?;
        let codec = options.codec().clone();
        let env = runner.environment().clone();
        let key = settings_key(&subspace);
        let opened: Result<SettingsRecord> = options.open(runner, &subspace, &key, given).await;
        let settings = opened?.settings;
        let queue = Self::with_settings(subspace, settings, combiner, codec, env);
        let handle = &queue;
        let verify = |tr| async move { handle.verify_order(&tr).await };
        runner.run(verify).await?;
        Ok(queue)
    }

    /// Returns the queue in `subspace` with these settings.
    pub(crate) fn with_settings(
        subspace: Subspace,
        settings: Settings,
        combiner: impl Combiner<K, U, V>,
        codec: C,
        env: Environment,
    ) -> Self {
        Self {
            keys: Arc::new(Keys::new(subspace, settings.bucket_count, env.clone())),
            settings,
            combiner: Arc::new(combiner),
            env,
            codec,
        }
    }

    /// Verifies that updates added after this transaction will be newer than all updates and passes of
    /// the queue. [`open`](Self::open) calls this.
    ///
    /// Without this, [`is_all_settled`](Self::is_all_settled) would report new updates as settled,
    /// because their versionstamps are smaller than the version of a complete pass.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`StampAhead`](hc_dequeue::microqueue::Error::StampAhead) if updates or passes come from a store
    /// with a larger version; those of the store.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        self.keys.logs.verify_order(tr).await?;
        let stamp_of = |row: &KeyValue| {
            let state = PassState::decode(row.key(), Some(row.value())).ok()?;
            Some(Versionstamp::new(state.last, 0))
        };
        verify_stamps(tr, &self.keys.queue, self.keys.passes(), stamp_of).await
    }

    /// Stages an update of a key, as one row in the log of its bucket.
    ///
    /// # Conflicts
    /// Reads nothing, so it never conflicts, on any key. Writes the row and the wake stamp. It makes a
    /// transaction fail only if that transaction has read an [`exact`](Self::exact) value of the same
    /// bucket serializably.
    ///
    /// # Retries
    /// A retry of the transaction must call this again. [`Runner::run`] commits the update exactly once.
    ///
    /// # Errors
    /// [`KeyTooLarge`](Error::KeyTooLarge), [`UpdateTooLarge`](Error::UpdateTooLarge) and the codec's
    /// [`Encode`](hc_dequeue::keyspace::Error::Encode), before anything is staged.
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::{self, Runner};
    /// use combine::{CombineQueue, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| words.add(&tr, fish, &1).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add(&self, tr: &impl Transaction, key: &K, update: &U) -> Result<()> {
        self.add_all(tr, [(key, update)]).await
    }

    /// Stages updates in the order given. If one does not fit, none is staged.
    ///
    /// Writes one row for each bucket of the updates, or one row for each 16 KiB of updates of the same
    /// bucket, and the wake stamp.
    ///
    /// # Conflicts
    /// As [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::{self, Runner};
    /// use combine::{CombineQueue, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let updates = &[("red".to_owned(), 1), ("fish".to_owned(), 2)];
    /// runner
    ///     .run(async |tr| {
    ///         words.add_all(&tr, updates.iter().map(|(word, count)| (word, count))).await
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_all<'a>(
        &self,
        tr: &impl Transaction,
        updates: impl IntoIterator<Item = (&'a K, &'a U)>,
    ) -> Result<()>
    where
        K: 'a,
        U: 'a,
    {
        let mut batch = self.keys.logs.batch();
        encode_pairs(&self.codec, updates, |key, update| {
            self.push(&mut batch, key, update)
        })?;
        self.stage(tr, &batch)
    }

    /// Appends an update to a batch.
    pub(crate) fn push(&self, batch: &mut BlockBatch<'_>, key: &[u8], update: &[u8]) -> Result<()> {
        self.keys.check(key)?;
        let bytes = key.len() + update.len();
        if bytes > MAX_UPDATE_BYTES {
            return Err(Error::UpdateTooLarge {
                queue: self.keys.queue.clone(),
                bytes,
                limit: MAX_UPDATE_BYTES,
            });
        }
        Ok(batch.push(self.keys.bucket(key).0, key, update)?)
    }

    /// Stages a batch of updates.
    pub(crate) fn stage(&self, tr: &impl Transaction, batch: &BlockBatch<'_>) -> Result<()> {
        if batch.logs().next().is_some() {
            batch.stage(tr)?;
            self.keys.wake_all(tr);
        }
        Ok(())
    }

    /// Returns the queue's subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.keys.queue
    }

    /// Returns what a key is in this queue, in words. Returns `None` if it is no key of the queue. For the same without
    /// a handle, see [`describe_key`](crate::describe_key).
    #[must_use]
    pub fn describe_key(&self, key: &[u8]) -> Option<&'static str> {
        describe_key(self.subspace(), key)
    }

    /// Returns the settings that the queue was created with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the sessions of the queue's workers, for tools that list them.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        self.keys.sessions.clone()
    }

    /// Returns the bucket of a key.
    ///
    /// # Errors
    /// [`KeyTooLarge`](Error::KeyTooLarge) and the codec's
    /// [`Encode`](hc_dequeue::keyspace::Error::Encode).
    pub fn bucket(&self, key: &K) -> Result<Bucket> {
        Ok(self.keys.bucket(&self.encode_key(key)?))
    }

    /// Returns the keys of the store at which to split the queue into shards, so that each shard has
    /// `buckets_per_shard` buckets, at least one. Fluo's recipe calls this number *buckets per tablet*.
    ///
    /// The first half of the keys are the starts of buckets in the updates. The second half are the
    /// starts of the same buckets in the values, which are sorted by the hashes of their keys.
    #[must_use]
    pub fn suggested_splits(&self, buckets_per_shard: u32) -> Vec<Vec<u8>> {
        let step = usize::try_from(buckets_per_shard.max(1)).unwrap_or(usize::MAX);
        let updates = self.keys.buckets().step_by(step);
        let values = self.keys.buckets().step_by(step);
        (updates.map(|bucket| self.keys.logs.subspace(bucket.0).into_bytes()))
            .chain(values.map(|bucket| self.keys.values_of(bucket).0))
            .collect()
    }

    pub(crate) fn encode_key(&self, key: &K) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        <C as Codec<K>>::encode(&self.codec, key, &mut bytes)?;
        self.keys.check(&bytes)?;
        Ok(bytes)
    }

    pub(crate) fn decode_value(&self, row: &[u8], bytes: Bytes) -> Result<V> {
        let value =
            codec::decode::<V, _>(&self.codec, bytes).map_err(|error| error.at(row.to_vec()));
        Ok(value?)
    }
}

impl<K, U, V, C: Clone> Clone for CombineQueue<K, U, V, C> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            settings: self.settings,
            combiner: self.combiner.clone(),
            env: self.env.clone(),
            codec: self.codec.clone(),
        }
    }
}

impl<K, U, V, C> fmt::Debug for CombineQueue<K, U, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CombineQueue")
            .field("subspace", &queue_name(&self.keys.queue))
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
