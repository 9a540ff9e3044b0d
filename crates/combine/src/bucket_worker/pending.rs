//! What waits in a bucket, and the gauges that tell it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use hc_dequeue::keyspace::Transaction;
use hc_dequeue::microqueue;
use hc_dequeue::microqueue::blocks::{BlockLogs, EntryId};
use metrics::{Label, gauge};
use parking_lot::{Mutex, MutexGuard};

use crate::bucket::Bucket;

/// How many bytes of blocks are read at most to count what is in them.
const MOST_COUNTED_BYTES: usize = 1 << 20;

/// How much waits in a bucket. Blocks are counted by their headers, from the first one that waits up to
/// the one that brings them to a mebibyte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pending {
    /// How many updates or entries wait in these blocks: of a block that is done in part, the others. A
    /// block without a header counts as one.
    pub count: usize,
    /// The bytes of these blocks with their keys. A block that is done in part counts as a whole.
    pub bytes: usize,
    /// Whether there are more blocks, which were not counted.
    pub has_more: bool,
}

impl Pending {
    /// Counts the entries of a log from a position on, by the headers of its blocks. Of the block of
    /// `next`, the entries before that are done.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
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
                // It is going to be set aside as a whole.
                Err(_) => 1,
            };
            pending.bytes += block.row.len() + block.bytes.len();
            Ok::<_, microqueue::Error>(ControlFlow::Continue(()))
        });
        visited.await?;
        Ok(pending)
    }
}

/// Tells what waits in the buckets of a worker, until nothing does.
#[derive(Debug)]
pub struct PendingGauges {
    count: &'static str,
    bytes: &'static str,
    labels: Vec<Label>,
    /// The buckets whose gauges are not at zero.
    told: Mutex<BTreeSet<Bucket>>,
}

impl PendingGauges {
    /// Names the gauges. They have the label `bucket` beside those that are given.
    #[must_use]
    pub fn new(count: &'static str, bytes: &'static str, labels: Vec<Label>) -> Self {
        Self {
            count,
            bytes,
            labels,
            told: Mutex::default(),
        }
    }

    /// Returns the buckets whose gauges are to be set: those that have work, and those that had.
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
