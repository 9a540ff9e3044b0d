//! Waiting until updates have been combined and reported.

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::recipe::wait_until_none;
use hc_dequeue::keyspace::{
    Database, Isolation, RangeQuery, Runner, Transaction, Versionstamp, read_all,
};
use hc_dequeue::microqueue::{Item, ItemId};

use crate::error::{Error, Result};
use crate::keys::Bucket;
use crate::queue::CombineQueue;
use crate::record::{Sweep, Value};

/// Returns whether an update was committed up to a versionstamp.
fn is_up_to(update: &ItemId, up_to: Versionstamp) -> bool {
    match update {
        ItemId::Commit { versionstamp, .. } => *versionstamp <= up_to,
        // No update has such an id.
        ItemId::Index { .. } => false,
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns whether the updates of some keys that were committed up to a versionstamp have all been
    /// combined and reported. Those that were set aside count as if they had.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn is_settled(
        &self,
        tr: &impl Transaction,
        keys: &[K],
        up_to: Versionstamp,
    ) -> Result<bool> {
        Ok(self.first_unsettled(tr, keys, up_to).await?.is_none())
    }

    /// Returns whether all updates of the queue that were committed up to a versionstamp have been
    /// combined and reported. Those that were set aside count as if they had.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn is_all_settled(&self, tr: &impl Transaction, up_to: Versionstamp) -> Result<bool> {
        Ok(self.first_unswept(tr, Some(up_to)).await?.is_none())
    }

    /// Waits until [`is_settled`](Self::is_settled). Workers must be running somewhere.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn await_settled<D: Database>(
        &self,
        runner: &Runner<D>,
        keys: &[K],
        up_to: Versionstamp,
    ) -> Result<()>
    where
        K: Sync,
    {
        wait_until_none(runner, |tr| async move {
            let bucket = self.first_unsettled(&tr, keys, up_to).await?;
            Ok(bucket.map(|bucket| self.keys.sweep(bucket)))
        })
        .await
    }

    /// Waits until [`is_all_settled`](Self::is_all_settled). Workers must be running somewhere.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn await_all_settled<D: Database>(
        &self,
        runner: &Runner<D>,
        up_to: Versionstamp,
    ) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            let bucket = self.first_unswept(&tr, Some(up_to)).await?;
            Ok(bucket.map(|bucket| self.keys.sweep(bucket)))
        })
        .await
    }

    /// Waits until there is nothing to combine: for tests, and for jobs that end. Workers must be
    /// running somewhere. An update that was set aside counts as combined. With an observer that adds
    /// to another queue, wait for this one first.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn wait_idle<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            let bucket = self.first_unswept(&tr, None).await?;
            Ok(bucket.map(|bucket| self.keys.sweep(bucket)))
        })
        .await
    }

    /// Returns the bucket of a key that is not settled.
    async fn first_unsettled(
        &self,
        tr: &impl Transaction,
        keys: &[K],
        up_to: Versionstamp,
    ) -> Result<Option<Bucket>> {
        let looks = keys.iter().map(|key| async move {
            let key = self.encode_key(key)?;
            let bucket = self.keys.bucket(&key);
            let row = self.keys.value(bucket, &key);
            let updates = self.updates_of(bucket, &key);
            let (value, pending) = try_join!(
                tr.get(&row, Isolation::Snapshot).map_err(Error::from),
                updates.snapshot(tr, 1, usize::MAX).map_err(Error::from)
            )?;
            // What is folded and not reported waits for the updates that are pending; if there are
            // none, for one that was set aside.
            let is_outdated = Value::decode(&row, value)?.is_outdated;
            let is_pending = |first: &Item<_>| is_outdated || is_up_to(&first.id, up_to);
            Ok::<_, Error>(pending.first().is_some_and(is_pending).then_some(bucket))
        });
        Ok(try_join_all(looks).await?.into_iter().flatten().next())
    }

    /// Returns a bucket with a notification, but for those whose last complete sweep has seen
    /// everything up to a versionstamp.
    async fn first_unswept(
        &self,
        tr: &impl Transaction,
        up_to: Option<Versionstamp>,
    ) -> Result<Option<Bucket>> {
        let (begin, end) = self.keys.notifications();
        let notified = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
        for row in &notified {
            let bucket = self.keys.parse_notification(row.key())?;
            let Some(up_to) = up_to else {
                return Ok(Some(bucket));
            };
            let key = self.keys.sweep(bucket);
            let sweep = Sweep::decode(&key, tr.get(&key, Isolation::Snapshot).await?)?;
            if sweep.completed < up_to.commit_version() {
                return Ok(Some(bucket));
            }
        }
        Ok(None)
    }
}
