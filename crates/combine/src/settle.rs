//! Waits until updates have been combined and reported.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::recipe::wait_until_none;
use hc_dequeue::keyspace::{Database, Isolation, KeySelector, Runner, Transaction, Versionstamp};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::queue::CombineQueue;
use crate::record::{Current, PassState};

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns whether all updates of the given keys that were committed up to a versionstamp have been
    /// combined and reported. Updates that were set aside count as reported.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_settled(
        &self,
        tr: &impl Transaction,
        keys: &[K],
        up_to: Versionstamp,
    ) -> Result<bool> {
        Ok(self.first_unsettled(tr, keys, up_to).await?.is_none())
    }

    /// Returns whether all updates of the queue that were committed up to a versionstamp have been
    /// combined and reported. Updates that were set aside count as reported.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_all_settled(&self, tr: &impl Transaction, up_to: Versionstamp) -> Result<bool> {
        Ok(self.first_pending(tr, Some(up_to)).await?.is_none())
    }

    /// Waits until [`is_settled`](Self::is_settled) returns true. Workers must be running in some
    /// process.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
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
            Ok(bucket.map(|bucket| self.keys.pass(bucket)))
        })
        .await
    }

    /// Waits until [`is_all_settled`](Self::is_all_settled) returns true. Workers must be running in some
    /// process.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub async fn await_all_settled<D: Database>(
        &self,
        runner: &Runner<D>,
        up_to: Versionstamp,
    ) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            let bucket = self.first_pending(&tr, Some(up_to)).await?;
            Ok(bucket.map(|bucket| self.keys.pass(bucket)))
        })
        .await
    }

    /// Waits until there is nothing left to combine, for tests and for jobs that end.
    ///
    /// Workers must be running in some process. Updates that were set aside count as combined. If the
    /// observer adds to another queue, wait for this queue first and then for the other one.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub async fn wait_idle<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            let bucket = self.first_pending(&tr, None).await?;
            Ok(bucket.map(|bucket| self.keys.pass(bucket)))
        })
        .await
    }

    /// Returns the bucket of a key that is not settled: its log begins with an update that was committed
    /// up to the versionstamp, or one of the given keys has a value that is still to be reported.
    async fn first_unsettled(
        &self,
        tr: &impl Transaction,
        keys: &[K],
        up_to: Versionstamp,
    ) -> Result<Option<Bucket>> {
        let looks = keys.iter().map(|key| async move {
            let key = self.encode_key(key)?;
            let bucket = self.keys.bucket(&key);
            let row = self.keys.current(&key);
            let (current, first) = try_join!(
                tr.get(&row, Isolation::Snapshot).map_err(Error::from),
                self.keys
                    .logs
                    .first(tr, bucket.0, None)
                    .map_err(Error::from)
            )?;
            // A value that does not decode is not reported, like one whose key is withheld.
            let is_to_report = current.is_some_and(|stored| {
                Current::decode(&row, &stored).is_ok_and(|current| !current.is_withheld)
            });
            let is_pending = first.is_some_and(|first| first.versionstamp <= up_to);
            Ok::<_, Error>((is_to_report || is_pending).then_some(bucket))
        });
        Ok(try_join_all(looks).await?.into_iter().flatten().next())
    }

    /// Returns a bucket that has work, other than those whose last complete pass covers every update up
    /// to the versionstamp.
    async fn first_pending(
        &self,
        tr: &impl Transaction,
        up_to: Option<Versionstamp>,
    ) -> Result<Option<Bucket>> {
        for bucket in self.pending_buckets(tr).await? {
            let Some(up_to) = up_to else {
                return Ok(Some(bucket));
            };
            if self.pass_state(tr, bucket).await?.complete < up_to.commit_version() {
                return Ok(Some(bucket));
            }
        }
        Ok(None)
    }

    /// Returns the buckets that have work: updates in the log, or values to report.
    ///
    /// This costs one read for each bucket that has work, and two more. Additions write nothing for it
    /// except the updates themselves.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) async fn pending_buckets(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        let (logs, to_report) = try_join!(
            self.keys.logs.non_empty(tr).map_err(Error::from),
            self.buckets_to_report(tr)
        )?;
        let buckets: BTreeSet<_> = logs.into_iter().map(Bucket).chain(to_report).collect();
        Ok(buckets.into_iter().collect())
    }

    /// Returns the buckets with values to report, going from one bucket that has current values to the
    /// next.
    async fn buckets_to_report(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        let mut found = Vec::new();
        let (mut begin, end) = self.keys.currents();
        loop {
            let selector = KeySelector::first_greater_or_equal(begin);
            let row = tr.get_key(&selector, Isolation::Snapshot).await?;
            if *row >= end[..] {
                return Ok(found);
            }
            let bucket = self.keys.bucket_of_current(&row)?;
            match self.pass_state(tr, bucket).await {
                Ok(state) if !state.has_to_report => {}
                Ok(_) => found.push(bucket),
                // Only the passes over this bucket fail.
                Err(error) if error.is_corrupt() => found.push(bucket),
                Err(error) => return Err(error),
            }
            begin = self.keys.currents_of(bucket).1;
        }
    }

    pub(crate) async fn pass_state(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
    ) -> Result<PassState> {
        let key = self.keys.pass(bucket);
        let state = tr.get(&key, Isolation::Snapshot).await?;
        Ok(PassState::decode(&key, state.as_deref())?)
    }
}
