//! The handle of an export queue: the operations that an application calls in its own transactions.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use combine::bucket_logs::{encode_pairs, verify_stamps};
use combine::keyspace::codec::{self, Codec, DecodeError, MessagePack};
use combine::keyspace::names::queue_name;
use combine::keyspace::recipe::{stored_settings, warn_if_settings_differ};
use combine::keyspace::{
    Database, Environment, Isolation, KeyValue, OpenOptions, Runner, Subspace, Transaction,
};
use combine::microqueue::blocks::{BlockBatch, Entry};
use combine::{Bucket, Settings};

use crate::error::{Error, Result};
use crate::keys::{Keys, describe_key, settings_key};
use crate::record::{MAX_ENTRY_BYTES, SettingsRecord, decode_position};

/// The types of the keys and values, of which the handle stores none.
type Types<K, V> = fn() -> (K, V);

/// A log of keys and values for external systems, in one subspace; the codec `C` encodes both.
///
/// Each operation takes a transaction and stages its reads and writes there. The caller commits
/// it, and its retries repeat the operation. The workers of a
/// [`Subscription`](crate::Subscription) export the entries.
///
/// A handle keeps no state from the store, so cloning it is cheap.
///
/// # Cancel safety
/// If the future of an operation on a transaction is dropped before it is ready, the operation has staged nothing but
/// conflict ranges, unless its documentation says otherwise. Dropping a read or a wait changes nothing.
pub struct ExportQueue<K, V, C = MessagePack> {
    pub(crate) keys: Arc<Keys>,
    pub(crate) settings: Settings,
    pub(crate) codec: C,
    pub(crate) types: PhantomData<Types<K, V>>,
}

impl<K, V, C> ExportQueue<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Opens the queue in `subspace` with the codec `C` and the default registry of ids. Creates it with the default
    /// [settings](Settings) if it does not exist; an existing queue keeps its stored settings.
    ///
    /// ```
    /// use export_queue::ExportQueue;
    /// use export_queue::keyspace::{self, Runner};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let changes = ExportQueue::<String, u64>::open(&runner, "changes").await?;
    /// # drop(changes);
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
    ) -> Result<Self>
    where
        C: Default,
    {
        let given = Self::record(Settings::default());
        Self::open_or_create(runner, subspace.into(), &given, OpenOptions::default()).await
    }

    /// Opens the queue in `subspace`. Creates it with `settings` if it does not exist; an existing queue keeps its
    /// stored settings. If these differ from `settings`, a warning in the log names both.
    ///
    /// The options contain the codec, and a registry of ids in which the queue is registered as an `export-queue`.
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if the queue is created. Registers the subspace as
    /// [`Ids::register`](combine::keyspace::ids::Ids::register) does.
    ///
    /// # Errors
    /// - [`SettingsDiffer`](Error::SettingsDiffer) if the queue was created with other codecs
    /// - [`InvalidSettings`](Error::InvalidSettings) if the settings are out of range
    /// - [`StampAhead`](combine::microqueue::Error::StampAhead) if entries or positions come from a store with a
    ///   larger version
    /// - [`Overlap`](combine::keyspace::Error::Overlap) if the subspace overlaps that of another recipe
    /// - those of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not have been created.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        settings: Settings,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let given = Self::record(settings);
        let queue = Self::open_or_create(runner, subspace.into(), &given, options).await?;
        let stored = Self::record(queue.settings);
        let hint = "they never change";
        warn_if_settings_differ(queue.subspace(), &given, &stored, hint);
        Ok(queue)
    }

    /// Returns what is stored for these settings in a queue without subscriptions.
    fn record(settings: Settings) -> SettingsRecord {
        SettingsRecord {
            settings,
            codecs: [<C as Codec<K>>::NAME, <C as Codec<V>>::NAME].map(str::to_owned),
            subscriptions: Vec::new(),
        }
    }

    async fn open_or_create<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        given: &SettingsRecord,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        given.settings.check()?;
        let codec = options.codec().clone();
        let env = runner.environment().clone();
        let key = settings_key(&subspace);
        let opened: Result<SettingsRecord> = options.open(runner, &subspace, &key, given).await;
        let settings = opened?.settings;
        let queue = Self::with_settings(subspace, settings, codec, env);
        let handle = &queue;
        let verify = |tr| async move { handle.verify_order(&tr).await };
        runner.run(verify).await?;
        Ok(queue)
    }

    /// Returns the queue in `subspace` with these settings.
    pub(crate) fn with_settings(
        subspace: Subspace,
        settings: Settings,
        codec: C,
        env: Environment,
    ) -> Self {
        Self {
            keys: Arc::new(Keys::new(subspace, settings.bucket_count(), env)),
            settings,
            codec,
            types: PhantomData,
        }
    }

    /// Verifies that entries added after this transaction will go after all entries and positions.
    /// [`open`](Self::open) calls this.
    ///
    /// Without this, an entry that lands before a position would never be exported.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`StampAhead`](combine::microqueue::Error::StampAhead) if entries or positions come from a store with a
    /// larger version; those of the store.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        self.keys.logs.verify_order(tr).await?;
        let stamp_of = |row: &KeyValue| {
            let position = decode_position(row.key(), Some(row.value())).ok()?;
            Some(position?.versionstamp())
        };
        let positions = self.keys.positions().range();
        verify_stamps(tr, &self.keys.queue, positions, stamp_of).await
    }

    /// Stages an entry, as one row in the log of its bucket.
    ///
    /// # Conflicts
    /// Reads nothing, so it never conflicts. Writes the row and the wake stamp.
    ///
    /// # Retries
    /// A retry of the transaction must call this again. [`Runner::run`] commits the entry exactly once.
    ///
    /// # Errors
    /// [`EntryTooLarge`](Error::EntryTooLarge) and the codec's
    /// [`Encode`](combine::keyspace::Error::Encode), before anything is staged.
    ///
    /// # Examples
    /// ```
    /// use export_queue::keyspace::{self, Runner};
    /// use export_queue::ExportQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let changes = &ExportQueue::<String, u64>::open(&runner, "changes").await?;
    ///
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| changes.add(&tr, fish, &3).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add(&self, tr: &impl Transaction, key: &K, value: &V) -> Result<()> {
        self.add_all(tr, [(key, value)]).await
    }

    /// Stages entries in the order given. If one does not fit, none is staged.
    ///
    /// Writes one row for each bucket of the entries, or one row for each 16 KiB of entries of the same
    /// bucket, and the wake stamp.
    ///
    /// # Conflicts
    /// As [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub async fn add_all<'a>(
        &self,
        tr: &impl Transaction,
        entries: impl IntoIterator<Item = (&'a K, &'a V)>,
    ) -> Result<()>
    where
        K: 'a,
        V: 'a,
    {
        let mut batch = self.keys.logs.batch();
        encode_pairs(&self.codec, entries, |key, value| {
            self.push(&mut batch, key, value)
        })?;
        if batch.logs().next().is_some() {
            batch.stage(tr)?;
            self.keys.wake_all(tr);
        }
        Ok(())
    }

    /// Appends an entry to a batch.
    fn push(&self, batch: &mut BlockBatch<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = key.len() + value.len();
        if bytes > MAX_ENTRY_BYTES {
            return Err(Error::EntryTooLarge {
                queue: self.keys.queue.clone(),
                bytes,
                limit: MAX_ENTRY_BYTES,
            });
        }
        Ok(batch.push(self.keys.bucket(key).0, key, value)?)
    }

    /// Returns the key and the value of an entry.
    pub(crate) fn decode(&self, entry: &Entry) -> Result<(K, V), DecodeError> {
        let key = codec::decode::<K, _>(&self.codec, entry.key.clone())?;
        let value = codec::decode::<V, _>(&self.codec, entry.value.clone())?;
        Ok((key, value))
    }

    /// Reads the settings.
    pub(crate) async fn stored(
        &self,
        tr: &impl Transaction,
        isolation: Isolation,
    ) -> Result<SettingsRecord> {
        let stored = stored_settings(tr, &self.keys.settings(), isolation).await?;
        stored.ok_or_else(|| Error::NoQueue {
            queue: self.keys.queue.clone(),
        })
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

    /// Returns the bucket of a key.
    ///
    /// # Errors
    /// The codec's [`Encode`](combine::keyspace::Error::Encode).
    pub fn bucket(&self, key: &K) -> Result<Bucket> {
        let mut bytes = Vec::new();
        <C as Codec<K>>::encode(&self.codec, key, &mut bytes)?;
        Ok(self.keys.bucket(&bytes))
    }
}

impl<K, V, C: Clone> Clone for ExportQueue<K, V, C> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            settings: self.settings,
            codec: self.codec.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V, C> fmt::Debug for ExportQueue<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportQueue")
            .field("subspace", &queue_name(&self.keys.queue))
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
