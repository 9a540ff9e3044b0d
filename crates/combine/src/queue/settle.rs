//! Waits until updates have been combined and reported.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::recipe::wait_until_none;
use hc_dequeue::keyspace::{Database, Isolation, KeySelector, Runner, Transaction, Versionstamp};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::queue::CombineQueue;
use crate::record::{Current, PassState};

/// How many ranges of buckets are searched at the same time for values to report.
const MAX_CONCURRENT_SEARCHES: u32 = 64;

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
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the first key in the log of one of these keys is not the
    /// key of a block; those of the store.
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
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if only buckets are left in which a row is damaged;
    /// those of the store.
    pub async fn is_all_settled(&self, tr: &impl Transaction, up_to: Versionstamp) -> Result<bool> {
        Ok(self.first_pending(tr, Some(up_to)).await?.is_none())
    }

    /// Waits until [`is_settled`](Self::is_settled) returns true. Workers must be running in some
    /// process.
    ///
    /// # Errors
    /// As [`is_settled`](Self::is_settled), and those of [`Runner::run`].
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

    /// Waits until there is nothing left to combine, for tests and for jobs that end.
    ///
    /// Workers must be running in some process. Updates that were set aside count as combined. If the
    /// observer adds to another queue, wait for this queue first and then for the other one.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// As [`is_all_settled`](Self::is_all_settled), and those of [`Runner::run`].
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
        let reads = keys.iter().map(|key| async move {
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
            if !is_to_report && !is_pending {
                return Ok::<_, Error>(None);
            }
            Ok(Some(bucket))
        });
        Ok(try_join_all(reads).await?.into_iter().flatten().next())
    }

    /// Returns a bucket that has work, other than those whose last complete pass covers every update up
    /// to the versionstamp.
    ///
    /// A bucket of which a row is damaged counts last: if there is no other bucket with work, the result is the
    /// error of that row.
    async fn first_pending(
        &self,
        tr: &impl Transaction,
        up_to: Option<Versionstamp>,
    ) -> Result<Option<Bucket>> {
        let mut damaged = Ok(None);
        for (bucket, first) in self.buckets_with_work(tr).await? {
            match self.pass_state(tr, bucket).await {
                Ok(state)
                    if up_to.is_some_and(|up_to| state.complete >= up_to.commit_version()) => {}
                Ok(_) => match first {
                    Ok(()) => return Ok(Some(bucket)),
                    Err(error) => damaged = Err(error),
                },
                Err(error) if error.is_corrupt() => damaged = Err(error),
                Err(error) => return Err(error),
            }
        }
        damaged
    }

    /// Returns the buckets that have work: updates in the log, or values to report. This includes buckets in
    /// which a row is damaged: only their own passes fail.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) async fn pending_buckets(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        Ok(self.buckets_with_work(tr).await?.into_keys().collect())
    }

    /// Returns the buckets that have work, each with the error of the first key of its log, if that is not the
    /// key of a block.
    ///
    /// This costs one read for each bucket that has work, and a few more. Additions write nothing for it
    /// except the updates themselves. It reads by snapshot: the first `u` of each bucket, `c` and `x`. A worker also
    /// reads `s`.
    async fn buckets_with_work(
        &self,
        tr: &impl Transaction,
    ) -> Result<BTreeMap<Bucket, Result<()>>> {
        let (logs, to_report) = try_join!(
            self.keys.logs.firsts(tr).map_err(Error::from),
            self.buckets_to_report(tr)
        )?;
        let mut buckets = BTreeMap::new();
        for (log, first) in logs {
            buckets.insert(Bucket(log), first.map(drop).map_err(Error::from));
        }
        for bucket in to_report {
            buckets.entry(bucket).or_insert(Ok(()));
        }
        Ok(buckets)
    }

    /// Returns the buckets with values to report.
    ///
    /// If there are current values, this searches several ranges of buckets at the same time, so that few reads
    /// follow one another however many buckets are busy: about 33 with 1,009 busy buckets. On an idle queue, the search
    /// takes the time of two.
    async fn buckets_to_report(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        let (begin, end) = self.keys.currents();
        let first = KeySelector::first_greater_or_equal(begin);
        let row = tr.get_key(&first, Isolation::Snapshot).await?;
        if *row >= end[..] {
            return Ok(Vec::new());
        }
        let Some(Bucket(first)) = self.keys.bucket_at_or_after(&row) else {
            return Ok(Vec::new());
        };
        let end = self.keys.bucket_count;
        let step = (end - first).div_ceil(MAX_CONCURRENT_SEARCHES).max(1);
        let searches = (first..end).step_by(step as usize).map(|first| {
            let last = Bucket(first.saturating_add(step).min(end) - 1);
            self.to_report_in(tr, Bucket(first), last)
        });
        Ok(try_join_all(searches)
            .await?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Goes from one bucket that has a row among its current values to the next, up to the last one.
    async fn to_report_in(
        &self,
        tr: &impl Transaction,
        first: Bucket,
        last: Bucket,
    ) -> Result<Vec<Bucket>> {
        let mut found = Vec::new();
        let (mut begin, _) = self.keys.currents_of(first);
        let (_, end) = self.keys.currents_of(last);
        while begin < end {
            let selector = KeySelector::first_greater_or_equal(begin);
            let row = tr.get_key(&selector, Isolation::Snapshot).await?;
            // The bucket is found by the place of the row. A row that is not the key of a current value must not
            // keep other buckets from being found.
            if *row >= end[..] {
                break;
            }
            let Some(bucket) = self.keys.bucket_at_or_after(&row) else {
                break;
            };
            match self.pass_state(tr, bucket).await {
                Ok(state) if !state.has_to_report => {}
                Ok(_) => found.push(bucket),
                // Only the passes over this bucket fail.
                Err(error) if error.is_corrupt() => found.push(bucket),
                Err(error) => return Err(error),
            }
            begin = self.keys.currents_of(bucket).1;
        }
        Ok(found)
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
