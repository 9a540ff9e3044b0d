//! The handle: what an application does with a combine queue inside its own transactions.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use hc_dequeue::keyspace::codec::{Codec, MessagePack};
use hc_dequeue::keyspace::{
    Bytes, Database, Environment, Isolation, OpenOptions, RangeQuery, Runner, StreamingMode,
    Subspace, Transaction, Versionstamp, visit_rows,
};
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::BlockBatch;

use crate::bucket::Bucket;
use crate::combiner::Combiner;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::record::{MAX_UPDATE_BYTES, PassState};
use crate::settings::{Settings, SettingsRecord};

/// Values of type `V` under keys of type `K`, changed by updates of type `U`, all in one subspace and
/// stored as the codec `C` writes them.
///
/// Its operations take a transaction, stage their work there and leave the commit to the
/// transaction's owner, whose retries repeat them. Combining updates is what a
/// [`Worker`](crate::Worker) does.
///
/// A codec for each type is a type of your own that implements [`Codec`] for all three.
///
/// A handle holds nothing of the store: clone it freely.
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
    /// Opens the queue in `subspace`, and creates it if there is none.
    ///
    /// All who read exact values or combine must bring the same combiner.
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if there are none.
    ///
    /// # Errors
    /// [`SettingsDiffer`](Error::SettingsDiffer) if the queue was created with others,
    /// [`InvalidSettings`](Error::InvalidSettings) if these cannot work,
    /// [`StampAhead`](hc_dequeue::microqueue::Error::StampAhead) if updates or passes come from a store whose
    /// version was larger, and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves a queue or none.
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        settings: Settings,
        combiner: impl Combiner<K, U, V>,
    ) -> Result<Self>
    where
        C: Default,
    {
        let options = OpenOptions::new().codec(C::default());
        Self::open_with(runner, subspace, settings, combiner, options).await
    }

    /// Opens the queue as [`open`](Self::open) does, with a codec and a registry of ids, where it is a
    /// `combine`.
    ///
    /// # Conflicts
    /// As [`open`](Self::open), and as
    /// [`Ids::register`](hc_dequeue::keyspace::ids::Ids::register).
    ///
    /// # Errors
    /// As [`open`](Self::open), and
    /// [`Overlap`](hc_dequeue::keyspace::Error::Overlap). Nothing was changed.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        settings: Settings,
        combiner: impl Combiner<K, U, V>,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        settings.check()?;
        let queue = Self {
            keys: Arc::new(Keys::new(
                subspace,
                settings.bucket_count,
                runner.environment().clone(),
            )),
            settings,
            combiner: Arc::new(combiner),
            env: runner.environment().clone(),
            codec: options.get_codec().clone(),
        };
        let record = SettingsRecord {
            settings: queue.settings,
            codecs: [
                <C as Codec<K>>::NAME,
                <C as Codec<U>>::NAME,
                <C as Codec<V>>::NAME,
            ]
            .map(str::to_owned),
        };
        let (subspace, key) = (queue.subspace(), queue.keys.settings());
        let opened: Result<_> = options.open(runner, subspace, &key, &record).await;
        opened?;
        let opened = &queue;
        let verify = |tr| async move { opened.verify_order(&tr).await };
        runner.run(verify).await?;
        Ok(queue)
    }

    /// Makes sure that what is added from now on stands after all updates, and is newer than all passes: of
    /// what is older than a complete pass, [`is_all_settled`](Self::is_all_settled) says that it is settled.
    async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        self.keys.logs.verify_order(tr).await?;
        // Safe as snapshot reads: what commits after the read version gets a stamp above it.
        let read_version = tr.read_version().await?;
        let (begin, end) = self.keys.passes();
        let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            // One that does not decode keeps its own bucket, and not the queue.
            let state = PassState::decode(row.key(), Some(row.value())).unwrap_or_default();
            match state.last {
                last if last > read_version => Err(microqueue::Error::StampAhead {
                    queue: self.keys.queue.clone(),
                    stamp: Versionstamp::new(last, 0),
                    read_version,
                }
                .into()),
                _ => Ok(ControlFlow::Continue(())),
            }
        })
        .await
    }

    /// Stages an update of a key: a row in the log of its bucket.
    ///
    /// # Conflicts
    /// Reads nothing, and so never conflicts, on any key. Writes the row and the wake stamp; only a
    /// serializable [`exact`](Self::exact) of a key in the same bucket reads the log serializably.
    ///
    /// # Retries
    /// A retry of the transaction stages it anew. How to commit it exactly once is the runner's.
    ///
    /// # Errors
    /// [`KeyTooLarge`](Error::KeyTooLarge), [`UpdateTooLarge`](Error::UpdateTooLarge) and the codec's
    /// [`Encode`](hc_dequeue::keyspace::Error::Encode), before anything is staged.
    ///
    /// # Cancel safety
    /// Is ready at the first poll; dropping it before stages nothing.
    pub async fn add(&self, tr: &impl Transaction, key: &K, update: &U) -> Result<()> {
        self.add_all(tr, [(key, update)]).await
    }

    /// Stages updates, in their order. All or nothing: if one does not fit, none is staged.
    ///
    /// Costs a row for each bucket that they fall into, or for each 16 KiB of updates of one bucket, and
    /// the wake stamp.
    ///
    /// # Conflicts
    /// As [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    ///
    /// # Cancel safety
    /// As [`add`](Self::add).
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
        let (mut key_bytes, mut update_bytes) = (Vec::new(), Vec::new());
        for (key, update) in updates {
            key_bytes.clear();
            update_bytes.clear();
            <C as Codec<K>>::encode(&self.codec, key, &mut key_bytes)?;
            <C as Codec<U>>::encode(&self.codec, update, &mut update_bytes)?;
            self.push(&mut batch, &key_bytes, &update_bytes)?;
        }
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

    /// Returns what the queue was created with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the bucket of a key.
    ///
    /// # Errors
    /// As [`add`](Self::add), for the key.
    pub fn bucket(&self, key: &K) -> Result<Bucket> {
        Ok(self.keys.bucket(&self.encode_key(key)?))
    }

    /// Returns keys of the store at which to split the queue, in order, so that each shard has
    /// `buckets_per_shard` buckets, at least one: the recipe's *buckets per tablet*.
    ///
    /// The first half are begins of buckets among the updates. The second half are begins of the same
    /// buckets among the values, which lie by the hashes of their keys.
    #[must_use]
    pub fn suggested_splits(&self, buckets_per_shard: u32) -> Vec<Vec<u8>> {
        let step = usize::try_from(buckets_per_shard.max(1)).unwrap_or(usize::MAX);
        let updates = self.keys.buckets().step_by(step);
        let values = self.keys.buckets().step_by(step);
        (updates.map(|bucket| self.keys.updates(bucket).into_bytes()))
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
            <C as Codec<V>>::decode(&self.codec, bytes).map_err(|error| error.at(row.to_vec()));
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
            .field("subspace", &self.keys.queue.to_string())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
