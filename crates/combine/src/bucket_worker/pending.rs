//! What waits in a bucket, and the gauges that tell it.

use std::collections::BTreeSet;

use hc_dequeue::keyspace::{self, Isolation, RangeQuery, StreamingMode, Transaction, read_all};
use metrics::{Label, gauge};
use parking_lot::{Mutex, MutexGuard};

use crate::keys::Bucket;

/// How many rows are counted at most.
const MOST_COUNTED: usize = 10_000;

/// How much waits in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pending {
    /// How many rows wait, up to 10,000.
    pub count: usize,
    /// The bytes of their keys and values.
    pub bytes: usize,
    /// Whether there are more, which were not counted.
    pub has_more: bool,
}

impl Pending {
    /// Counts the rows of a range.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn of_range(
        tr: &impl Transaction,
        (begin, end): (Vec<u8>, Vec<u8>),
    ) -> keyspace::Result<Self> {
        let query = RangeQuery::keys(begin, end).limit(MOST_COUNTED + 1);
        let rows = read_all(tr, query.mode(StreamingMode::WantAll), Isolation::Snapshot).await?;
        let counted = &rows[..rows.len().min(MOST_COUNTED)];
        let bytes = counted
            .iter()
            .map(|row| row.key().len() + row.value().len());
        Ok(Self {
            count: counted.len(),
            bytes: bytes.sum(),
            has_more: counted.len() < rows.len(),
        })
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
