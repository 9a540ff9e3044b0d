//! The first step of a pass: which updates it combines.

use std::ops::ControlFlow;

use hc_dequeue::keyspace::{
    self, Bytes, ConflictKind, Isolation, KeyValue, RangeQuery, StreamingMode, Subspace,
    Transaction, key_after, visit_rows,
};
use hc_dequeue::microqueue::ItemId;

use crate::error::{Error, Result};
use crate::keys::{Bucket, Keys, is_update_of};

/// The format of an update, microqueue's.
const FORMAT: u8 = 1;

/// What a key costs a transaction beside the bytes of its keys and values.
const OVERHEAD_PER_KEY: usize = 150;

/// Updates of one key, in the order of their commits.
#[derive(Debug)]
pub(crate) struct TakenUpdates {
    /// The codec's bytes.
    pub(crate) key: Bytes,
    /// Where they lie.
    updates: Subspace,
    rows: Vec<KeyValue>,
    /// What they cost of the budget.
    pub(crate) bytes: usize,
    /// Whether these are all updates of the key that there are.
    pub(crate) is_whole: bool,
}

/// What a pass takes from a bucket.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) taken: Vec<TakenUpdates>,
    /// The key at which the next pass goes on. `None`: the bucket has no more.
    pub(crate) next: Option<Bytes>,
    /// What it cost of the budget.
    pub(crate) bytes: usize,
}

impl TakenUpdates {
    /// Returns how many updates these are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the updates, as the codec wrote them, or why one is none.
    pub(crate) fn updates(&self) -> impl Iterator<Item = Result<Bytes, String>> {
        self.rows.iter().map(|row| match row.value().first() {
            Some(&FORMAT) => Ok(row.to_value().slice(1..)),
            found => Err(format!("expected format {FORMAT}, found {found:?}")),
        })
    }

    /// Returns the id of an update, and all bytes of its record.
    pub(crate) fn record(&self, index: usize) -> Result<(ItemId, Bytes)> {
        let row = &self.rows[index];
        let id = ItemId::of_commit(&self.updates, row.key())
            .ok_or_else(|| keyspace::Error::corrupt(row.key(), "expected the key of an update"))?;
        Ok((id, row.to_value()))
    }

    /// Stages that the updates are gone, and makes the commit fail if any of them, or one between
    /// them, was put there or taken away since the read.
    ///
    /// One range for all of them: no update can come to lie between two that were read, since its
    /// commit would have a larger stamp, but one that comes back from being set aside.
    ///
    /// # Conflicts
    /// Reads and writes the range from the first update to the last.
    pub(crate) fn remove(&self, tr: &impl Transaction) -> Result<()> {
        let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) else {
            return Ok(());
        };
        let end = key_after(last.key());
        // Before the clear: of a read conflict, what the transaction has written is left out.
        tr.add_conflict_range(ConflictKind::Read, first.key(), &end)?;
        tr.clear_range(first.key(), &end);
        Ok(())
    }
}

/// Reads updates of a bucket, from a key on, for a budget of bytes: those read, and those that
/// removing them takes in a transaction. At least one, if there is any.
///
/// # Conflicts
/// Reads by snapshot, so that no writer makes the pass fail. What is taken is protected by
/// [`TakenUpdates::remove`]; what is added meanwhile, by the notification.
pub(crate) async fn take(
    tr: &impl Transaction,
    keys: &Keys,
    bucket: Bucket,
    from: Option<&[u8]>,
    budget: usize,
) -> Result<Batch> {
    let (begin, end) = keys.updates(bucket).range();
    let begin = from.map_or(begin, |key| keys.updates_of(bucket, key).into_bytes());
    // Without a limit of rows: its end must not be taken for the end of the bucket.
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    let mut batch = Batch::default();
    visit_rows(tr, query, Isolation::Snapshot, |row| {
        Ok::<_, Error>(match batch.put(keys, bucket, row, budget)? {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    })
    .await?;
    Ok(batch)
}

impl Batch {
    /// Returns the update that comes first.
    pub(crate) fn first(&self) -> Option<&KeyValue> {
        self.taken.first().and_then(|taken| taken.rows.first())
    }

    /// Takes a row. False: that is over the budget.
    fn put(&mut self, keys: &Keys, bucket: Bucket, row: KeyValue, budget: usize) -> Result<bool> {
        let is_same = |last: &&mut TakenUpdates| is_update_of(row.key(), last.updates.bytes());
        let mut cost = row.key().len() + row.value().len();
        if let Some(last) = self.taken.last_mut().filter(is_same) {
            if self.bytes + cost > budget {
                last.is_whole = false;
                self.next = Some(last.key.clone());
                return Ok(false);
            }
            last.rows.push(row);
            last.bytes += cost;
            self.bytes += cost;
            return Ok(true);
        }
        let (updates, key) = keys.parse_update(bucket, row.key())?;
        // Two conflict ranges and the range to be cleared, each of two keys; the value's own.
        cost += 6 * row.key().len() + 6 * key.len() + OVERHEAD_PER_KEY;
        if !self.taken.is_empty() && self.bytes + cost > budget {
            self.next = Some(key.into());
            return Ok(false);
        }
        self.bytes += cost;
        self.taken.push(TakenUpdates {
            key: key.into(),
            updates,
            rows: vec![row],
            bytes: cost,
            is_whole: true,
        });
        Ok(true)
    }
}
