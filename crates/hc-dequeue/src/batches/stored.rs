//! Reads batches.

use std::time::SystemTime;

use microqueue::keyspace::{Isolation, KeyValue, RangeQuery, Transaction, read_all};

use crate::items::batch::{BatchCounts, BatchId, Tally};
use crate::items::batch_row::BatchRow;
use crate::items::counters::parse_count;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::session::wall::unix_time;

/// A batch as a transaction has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    pub(crate) row: BatchRow,
    pub(crate) is_open: bool,
    tallies: [i64; Tally::ALL.len()],
}

impl StoredBatch {
    pub(crate) fn tally(&self, tally: Tally) -> i64 {
        self.tallies[tally as usize]
    }

    /// Returns a number that cannot be negative.
    pub(crate) fn count(&self, tally: Tally) -> u64 {
        u64::try_from(self.tally(tally)).unwrap_or(0)
    }

    /// Returns whether it is closed and nothing is pending.
    pub(crate) fn is_complete(&self) -> bool {
        !self.is_open && self.tally(Tally::Pending) == 0
    }

    pub(crate) fn counts(&self) -> BatchCounts {
        BatchCounts {
            completed: self.count(Tally::Completed),
            dead: self.count(Tally::Dead),
            cancelled: self.count(Tally::Cancelled),
        }
    }

    pub(crate) fn opened(&self) -> SystemTime {
        unix_time(self.row.opened_millis)
    }
}

/// Reads a batch by snapshot.
pub(crate) async fn read_batch(
    tr: &impl Transaction,
    keys: &Keys,
    batch: BatchId,
) -> Result<Option<StoredBatch>> {
    let (begin, end) = keys.batch(batch);
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    parse_batch(keys, batch, &rows)
}

/// Returns the batch that has these rows, if one of them is the row of a batch.
pub(crate) fn parse_batch(
    keys: &Keys,
    batch: BatchId,
    rows: &[KeyValue],
) -> Result<Option<StoredBatch>> {
    let Some((first, others)) = rows.split_first() else {
        return Ok(None);
    };
    if first.key() != keys.batch_row(batch) {
        return Ok(None);
    }
    let mut stored = StoredBatch {
        row: BatchRow::parse(first.key(), &first.to_value())?,
        is_open: false,
        tallies: [0; Tally::ALL.len()],
    };
    for row in others {
        if row.key() == keys.batch_open(batch) {
            stored.is_open = true;
            continue;
        }
        let tally = Tally::ALL
            .into_iter()
            .find(|tally| row.key() == keys.tally(batch, *tally));
        if let Some(tally) = tally {
            stored.tallies[tally as usize] = parse_count(row.key(), row.value())?;
        }
    }
    Ok(Some(stored))
}
