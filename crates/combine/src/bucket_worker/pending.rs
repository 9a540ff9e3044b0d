//! The backlog of a bucket, and the gauges that report it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use hc_dequeue::keyspace::error::corrupt_key;
use hc_dequeue::keyspace::limits::time_between;
use hc_dequeue::keyspace::{self, Transaction};
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::{BlockLogs, EntryId};
use metrics::{Label, gauge};
use parking_lot::{Mutex, MutexGuard};

use crate::bucket::Bucket;

/// The most bytes of blocks of a bucket that are read to count the entries in them.
const MAX_BUCKET_BYTES: usize = 1 << 20;

/// The most bytes of blocks that are read to count the entries of all buckets of a queue. A transaction
/// reads that much long before it is too old.
pub const MAX_BACKLOG_BYTES: usize = 8 << 20;

/// The number of buckets that are counted at the same time.
pub(crate) const MAX_CONCURRENT_BUCKETS: usize = 64;

/// The number of entries that wait in a bucket, or in several together.
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

/// The part of a bucket's log that waits.
#[derive(Debug, Clone, Copy)]
pub struct WaitingLog {
    /// The bucket.
    pub bucket: Bucket,
    /// The first block that waits, if it is known.
    pub first: Option<EntryId>,
    /// The position after which all blocks wait, or `None` for the start of the log.
    pub after: Option<EntryId>,
    /// The first entry that waits, if other entries of its block are done.
    pub next: Option<EntryId>,
    /// Whether the state of the bucket, or the first key of its log, does not decode.
    pub is_damaged: bool,
}

impl WaitingLog {
    /// Counts the entries that wait.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of [`BlockLogs::visit`].
    pub async fn count(
        &self,
        tr: &impl Transaction,
        logs: &BlockLogs,
    ) -> microqueue::Result<Pending> {
        let left = AtomicUsize::new(MAX_BUCKET_BYTES);
        let (pending, visited) = self.count_within(tr, logs, &left).await;
        visited.map(|()| pending)
    }

    /// Counts the entries that wait until no bytes are left, up to the first error.
    async fn count_within(
        &self,
        tr: &impl Transaction,
        logs: &BlockLogs,
        left: &AtomicUsize,
    ) -> (Pending, microqueue::Result<()>) {
        let mut pending = Pending::default();
        // A range read would return a batch of blocks before the first one is counted.
        if left.load(Ordering::Relaxed) == 0 {
            pending.has_more = true;
            return (pending, Ok(()));
        }
        let visited = logs
            .visit(tr, self.bucket.0, self.after, |block| {
                if pending.bytes >= MAX_BUCKET_BYTES || left.load(Ordering::Relaxed) == 0 {
                    pending.has_more = true;
                    return Ok(ControlFlow::Break(()));
                }
                let done = match self.next {
                    Some(next) if next.block() == block.id.block() => next.index,
                    _ => 0,
                };
                pending.count += match block.entry_count() {
                    Ok(count) => usize::from(count.saturating_sub(done)),
                    Err(_) => 1,
                };
                let bytes = block.row.len() + block.bytes.len();
                pending.bytes += bytes;
                let spend = |left: usize| Some(left.saturating_sub(bytes));
                let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
                Ok::<_, microqueue::Error>(ControlFlow::Continue(()))
            })
            .await;
        (pending, visited)
    }
}

/// What waits in all buckets of a queue or a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Backlog {
    /// The updates or entries that wait, counted in up to about 1 MiB of blocks per bucket.
    pub pending: Pending,
    /// How long the oldest of them has waited, derived from the versions of the store, so it is too large
    /// after a recovery of the store. `None` if there are none.
    pub lag: Option<Duration>,
    /// The buckets whose state does not decode, or whose logs contain a key that is not the key of a
    /// block. Without a state, the whole log counts as waiting. The blocks after such a key are not counted.
    pub damaged: Vec<Bucket>,
}

impl Backlog {
    /// Reads what waits in several logs, in up to about `max_bytes` bytes of blocks. Several logs are read
    /// at the same time.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(
        tr: &impl Transaction,
        logs: &BlockLogs,
        waiting: Vec<WaitingLog>,
        max_bytes: usize,
    ) -> microqueue::Result<Self> {
        let firsts = waiting.iter().filter_map(|log| log.first);
        let mut backlog = Self {
            lag: lag_of(tr, firsts).await?,
            ..Self::default()
        };
        let left = &AtomicUsize::new(max_bytes);
        let count = |log: WaitingLog| async move { (log, log.count_within(tr, logs, left).await) };
        let mut counts =
            stream::iter(waiting.into_iter().map(count)).buffered(MAX_CONCURRENT_BUCKETS);
        while let Some((log, (counted, visited))) = counts.next().await {
            let has_foreign_key = match visited {
                Ok(()) => false,
                Err(error) if corrupt_key(&error).is_some() => true,
                Err(error) => return Err(error),
            };
            backlog.pending.count += counted.count;
            backlog.pending.bytes += counted.bytes;
            backlog.pending.has_more |= counted.has_more || has_foreign_key;
            if log.is_damaged || has_foreign_key {
                backlog.damaged.push(log.bucket);
            }
        }
        Ok(backlog)
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
    Ok(Some(time_between(oldest.commit_version(), now)))
}

/// Reports the backlogs of a worker's buckets until they are zero.
#[derive(Debug)]
pub struct PendingGauges {
    count: &'static str,
    bytes: &'static str,
    labels: Vec<Label>,
    /// The buckets whose gauges are not zero.
    nonzero: Mutex<BTreeSet<Bucket>>,
}

impl PendingGauges {
    /// Creates the gauges, with the given labels and the label `bucket`.
    #[must_use]
    pub fn new(count: &'static str, bytes: &'static str, labels: Vec<Label>) -> Self {
        Self {
            count,
            bytes,
            labels,
            nonzero: Mutex::default(),
        }
    }

    /// Returns the buckets whose gauges must be set: those that have work, and those that had work
    /// before.
    pub fn to_set(&self, work: Vec<Bucket>) -> BTreeSet<Bucket> {
        self.nonzero().iter().copied().chain(work).collect()
    }

    /// Sets the gauges of a bucket.
    pub fn set(&self, bucket: Bucket, pending: &Pending) {
        let mut labels = self.labels.clone();
        labels.push(Label::new("bucket", bucket.to_string()));
        gauge!(self.count, labels.clone()).set(pending.count as f64);
        gauge!(self.bytes, labels).set(pending.bytes as f64);
        if pending.count == 0 {
            self.nonzero().remove(&bucket);
        } else {
            self.nonzero().insert(bucket);
        }
    }

    fn nonzero(&self) -> MutexGuard<'_, BTreeSet<Bucket>> {
        self.nonzero.lock()
    }
}
