//! The backlog of a bucket, and the gauges that report it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::TryStreamExt;
use futures::stream::{self, StreamExt};
use hc_dequeue::keyspace::limits::VERSIONS_PER_SECOND;
use hc_dequeue::keyspace::{self, Transaction};
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::{BlockLogs, EntryId};
use metrics::{Label, gauge};
use parking_lot::{Mutex, MutexGuard};

use crate::bucket::Bucket;

/// The most bytes of blocks that are read to count the entries in them.
const MOST_COUNTED_BYTES: usize = 1 << 20;

/// The number of buckets that are counted at the same time.
const BUCKETS_AT_ONCE: usize = 64;

/// The backlog of a bucket, or of several together.
///
/// The blocks of a bucket are counted by their headers, from the first one that waits up to the one with
/// which they reach 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pending {
    /// The number of updates or entries that wait in the counted blocks. If part of a block is done, only
    /// the rest counts. A block without a valid header counts as one.
    pub count: usize,
    /// The bytes of the counted blocks with their keys. A block of which a part is done counts as a
    /// whole.
    pub bytes: usize,
    /// Whether there are more blocks, which were not counted.
    pub has_more: bool,
}

impl Pending {
    /// Counts the entries of a log after a position, by the headers of its blocks. In the block of
    /// `next`, the entries before `next` are done.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn of_log<E>(
        tr: &impl Transaction,
        logs: &BlockLogs,
        bucket: Bucket,
        position: Option<EntryId>,
        next: Option<EntryId>,
    ) -> Result<Self, E>
    where
        E: From<microqueue::Error>,
    {
        let mut pending = Self::default();
        let visited = logs.visit(tr, bucket.0, position, |block| {
            if pending.bytes >= MOST_COUNTED_BYTES {
                pending.has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            let done = next.filter(|next| next.block() == block.id.block());
            let done = done.map_or(0, |next| next.index);
            pending.count += match block.entry_count() {
                Ok(count) => usize::from(count.saturating_sub(done)),
                // A pass will set it aside as a whole.
                Err(_) => 1,
            };
            pending.bytes += block.row.len() + block.bytes.len();
            Ok::<_, microqueue::Error>(ControlFlow::Continue(()))
        });
        visited.await?;
        Ok(pending)
    }

    /// Adds up the backlogs of several buckets, which `count` returns one by one. Several are counted at
    /// the same time.
    ///
    /// # Errors
    /// The first error of `count`.
    pub async fn total<E, Fut>(
        buckets: impl IntoIterator<Item = Bucket>,
        count: impl Fn(Bucket) -> Fut,
    ) -> Result<Self, E>
    where
        Fut: Future<Output = Result<Self, E>>,
    {
        let counts = stream::iter(buckets.into_iter().map(count)).buffered(BUCKETS_AT_ONCE);
        let add = |total: Self, pending: Self| async move {
            Ok(Self {
                count: total.count + pending.count,
                bytes: total.bytes + pending.bytes,
                has_more: total.has_more || pending.has_more,
            })
        };
        counts.try_fold(Self::default(), add).await
    }
}

/// Returns how long the oldest of the given blocks has waited, or `None` if there are none. The time is
/// derived from the versions of the store, so it is too large after a recovery of the store.
///
/// # Errors
/// Those of the store.
pub async fn lag_of(
    tr: &impl Transaction,
    blocks: impl IntoIterator<Item = EntryId>,
) -> keyspace::Result<Option<Duration>> {
    let stamps = blocks.into_iter().map(|block| block.versionstamp);
    let Some(oldest) = stamps.min() else {
        return Ok(None);
    };
    let now = tr.read_version().await?;
    let versions = now.saturating_sub(oldest.commit_version()).max(0);
    let seconds = versions as f64 / VERSIONS_PER_SECOND as f64;
    Ok(Some(Duration::from_secs_f64(seconds)))
}

/// Reports the backlogs of a worker's buckets until they are zero.
#[derive(Debug)]
pub struct PendingGauges {
    count: &'static str,
    bytes: &'static str,
    labels: Vec<Label>,
    /// The buckets whose gauges are not zero.
    told: Mutex<BTreeSet<Bucket>>,
}

impl PendingGauges {
    /// Creates the gauges, with the given labels and the label `bucket`.
    #[must_use]
    pub fn new(count: &'static str, bytes: &'static str, labels: Vec<Label>) -> Self {
        Self {
            count,
            bytes,
            labels,
            told: Mutex::default(),
        }
    }

    /// Returns the buckets whose gauges must be set: those that have work, and those that had work
    /// before.
    pub fn to_tell(&self, work: Vec<Bucket>) -> BTreeSet<Bucket> {
        self.told().iter().copied().chain(work).collect()
    }

    /// Sets the gauges of a bucket.
    pub fn set(&self, bucket: Bucket, pending: &Pending) {
        let mut labels = self.labels.clone();
        labels.push(Label::new("bucket", bucket.to_string()));
        gauge!(self.count, labels.clone()).set(pending.count as f64);
        gauge!(self.bytes, labels).set(pending.bytes as f64);
        match pending.count {
            0 => self.told().remove(&bucket),
            _ => self.told().insert(bucket),
        };
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<Bucket>> {
        self.told.lock()
    }
}
