//! Batches that have ended, and are kept for some time.
//!
//! The row is written by the commit that ends the batch. If that enqueues a callback, the commit completes the id of
//! the callback in the row. Sessions remove rows whose time is over at their heartbeats.

use microqueue::keyspace::record::Fields;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    self, ConflictKind, Isolation, MutationOp, RangeQuery, StreamingMode, Transaction, Versionstamp,
};
use microqueue::{ItemId, StagedId};

use crate::batches::members::clear_members;
use crate::items::batch::{BatchCounts, BatchId};
use crate::items::error::Result;
use crate::items::expiry::ExpiryPage;
use crate::items::item_ref::{id_from_bytes, id_to_bytes};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::session::wall::wall_millis;

const FORMAT: u8 = 1;

mod flag {
    pub(super) const CALLBACK: u8 = 1;
    pub(super) const DEAD_STAY: u8 = 2;
    pub(super) const CANCELLED: u8 = 4;
    pub(super) const ALL: u8 = CALLBACK | DEAD_STAY | CANCELLED;
}

/// The place of the callback's versionstamp in the row.
const CALLBACK_AT: usize = 66;

/// The largest number of rows that one transaction checks for their times.
const MAX_CHECKED_BATCHES: usize = 1_000;

/// What is kept of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndedBatch {
    pub(crate) is_cancelled: bool,
    pub(crate) dead_letters_stay: bool,
    pub(crate) parent: Option<BatchId>,
    pub(crate) opened_millis: u64,
    pub(crate) ended_millis: u64,
    pub(crate) until_millis: u64,
    pub(crate) counts: BatchCounts,
    pub(crate) callback: Option<ItemId>,
}

impl EndedBatch {
    fn to_bytes(&self) -> Vec<u8> {
        let mut flags = 0;
        for (is_set, flag) in [
            (self.callback.is_some(), flag::CALLBACK),
            (self.dead_letters_stay, flag::DEAD_STAY),
            (self.is_cancelled, flag::CANCELLED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut bytes = vec![FORMAT, flags];
        bytes.extend_from_slice(&self.parent.map_or([0; BatchId::BYTES], |parent| parent.0));
        for time in [self.opened_millis, self.ended_millis, self.until_millis] {
            bytes.extend_from_slice(&time.to_be_bytes());
        }
        bytes.extend_from_slice(&self.counts.to_bytes());
        debug_assert_eq!(bytes.len(), CALLBACK_AT);
        if let Some(callback) = &self.callback {
            bytes.extend_from_slice(&id_to_bytes(callback));
        }
        bytes
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> keyspace::Result<Self> {
        parse(value).map_err(|reason| keyspace::Error::corrupt(key, reason))
    }

    /// Stages that the batch is kept, with the callback that the transaction enqueues, unless its time is over at once.
    pub(super) fn keep(
        mut self,
        tr: &impl Transaction,
        keys: &Keys,
        batch: BatchId,
        callback: Option<StagedId>,
    ) {
        if self.until_millis <= self.ended_millis {
            clear_members(tr, keys, batch);
            return;
        }
        let key = keys.ended_batch(batch);
        let Some(callback) = callback else {
            tr.set(&key, &self.to_bytes());
            return;
        };
        self.callback = Some(callback.at(Versionstamp::INCOMPLETE));
        let mut value = self.to_bytes();
        value.extend_from_slice(&(CALLBACK_AT as u32).to_le_bytes());
        tr.atomic(MutationOp::SetVersionstampedValue, &key, &value);
    }
}

fn parse(value: &[u8]) -> Result<EndedBatch, String> {
    let mut fields = Fields::new(value);
    fields.format(FORMAT)?;
    let [flags] = fields.array()?;
    if flags > flag::ALL {
        return Err(format!("flags {flags:#x} are unknown"));
    }
    let parent = BatchId(fields.array()?);
    let no_parent = parent.0 == [0; BatchId::BYTES];
    let opened_millis = fields.u64()?;
    let ended_millis = fields.u64()?;
    let until_millis = fields.u64()?;
    let counts: [u8; BatchCounts::BYTES] = fields.array()?;
    let callback = if flags & flag::CALLBACK == 0 {
        None
    } else {
        Some(id_from_bytes(fields.array()?))
    };
    fields.end()?;
    Ok(EndedBatch {
        is_cancelled: flags & flag::CANCELLED != 0,
        dead_letters_stay: flags & flag::DEAD_STAY != 0,
        parent: if no_parent { None } else { Some(parent) },
        opened_millis,
        ended_millis,
        until_millis,
        counts: BatchCounts::parse(&counts)?,
        callback,
    })
}

/// Reads a batch that has ended by snapshot.
pub(crate) async fn read_ended(
    tr: &impl Transaction,
    keys: &Keys,
    batch: BatchId,
) -> Result<Option<EndedBatch>> {
    let key = keys.ended_batch(batch);
    let row = tr.get(&key, Isolation::Snapshot).await?;
    let ended = row.map(|row| EndedBatch::parse(&key, &row));
    Ok(ended.transpose()?)
}

/// Removes batches whose time is over among the next ones after the key `after`: one page.
///
/// # Conflicts
/// Reads the rows that it removes.
pub(crate) async fn expire_batches(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<ExpiryPage> {
    let (begin, end) = keys.part(Part::EndedBatches);
    let query = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(MAX_CHECKED_BATCHES)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: the key of each removed row is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let now = wall_millis(&keys.env);
    let mut removed = 0;
    for row in &batch.rows {
        // The time of a row that does not decode is not known.
        let ended = EndedBatch::parse(row.key(), row.value());
        if ended.is_ok_and(|ended| ended.until_millis <= now) {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
            removed += 1;
            if let Ok(batch) = keys.parse_ended_batch(row.key()) {
                clear_members(tr, keys, batch);
            }
        }
    }
    let last = batch.next_after().map(<[u8]>::to_vec);
    Ok(ExpiryPage { last, removed })
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Database, Environment, Subspace};

    use super::*;
    use crate::items::expiry::Expiry;
    use crate::tests::memory;

    const PLAIN: EndedBatch = EndedBatch {
        is_cancelled: false,
        dead_letters_stay: false,
        parent: None,
        opened_millis: 1,
        ended_millis: 2,
        until_millis: 3,
        counts: BatchCounts {
            completed: 4,
            dead: 5,
            cancelled: 6,
        },
        callback: None,
    };

    /// Ended batches, which a session checks at its heartbeats.
    struct Rows<Tr> {
        tr: Tr,
        keys: Keys,
        count: u128,
        expiry: Expiry,
    }

    impl<Tr: Transaction> Rows<Tr> {
        fn new(tr: Tr) -> Self {
            Self {
                tr,
                keys: Keys::new(Subspace::from_bytes(b"Q"), Environment::system()),
                count: 0,
                expiry: Expiry::default(),
            }
        }

        /// Adds rows behind the others.
        fn add(&mut self, count: usize, is_kept: bool) {
            for _ in 0..count {
                self.set(self.count, is_kept);
                self.count += 1;
            }
        }

        fn set(&self, number: u128, is_kept: bool) {
            let ended = EndedBatch {
                until_millis: if is_kept { u64::MAX } else { 3 },
                ..PLAIN
            };
            let key = self.keys.ended_batch(BatchId(number.to_be_bytes()));
            self.tr.set(&key, &ended.to_bytes());
        }

        /// Checks pages as at a heartbeat. Returns how many pages, and how many rows were removed.
        async fn heartbeat(&mut self) -> (usize, usize) {
            self.expiry.begin();
            let mut pages = 0;
            let mut removed = 0;
            loop {
                let after = self.expiry.after();
                let page = expire_batches(&self.tr, &self.keys, after).await.unwrap();
                pages += 1;
                removed += page.removed;
                if !self.expiry.note(page) {
                    return (pages, removed);
                }
            }
        }
    }

    const PAGE: usize = MAX_CHECKED_BATCHES;

    #[tokio::test]
    async fn a_heartbeat_removes_what_is_over_at_the_front_and_checks_one_page_of_the_others() {
        let mut rows = Rows::new(memory().begin().unwrap());
        rows.add(2 * PAGE, false);
        rows.add(4 * PAGE, true);
        rows.add(PAGE, false);
        assert_eq!(rows.heartbeat().await.1, 2 * PAGE);
        // The first page and one of the round, until the round comes to what is over.
        let mut heartbeats = 0;
        let removed = loop {
            match rows.heartbeat().await {
                (2, 0) => heartbeats += 1,
                (_, removed) => break removed,
            }
        };
        assert!(heartbeats > 1);
        assert_eq!(removed, PAGE);
    }

    #[tokio::test]
    async fn what_is_over_at_the_front_never_waits_for_a_round() {
        let mut rows = Rows::new(memory().begin().unwrap());
        rows.add(3 * PAGE, true);
        let mut over = 0;
        for _ in 0..3 {
            assert_eq!(rows.heartbeat().await, (2, 0));
            // Rows are added faster than the round goes on.
            rows.add(3 * PAGE, true);
            for number in over..over + PAGE + 1 {
                rows.set(number as u128, false);
            }
            over += PAGE + 1;
            assert_eq!(rows.heartbeat().await.1, PAGE + 1);
        }
    }

    #[test]
    fn a_batch_that_has_ended_has_the_bytes_of_the_schema() {
        let counts = BatchCounts {
            completed: 4,
            dead: 5,
            cancelled: 6,
        };
        let all = EndedBatch {
            is_cancelled: true,
            dead_letters_stay: true,
            parent: Some(BatchId([7; 16])),
            opened_millis: 1,
            ended_millis: 2,
            until_millis: 3,
            counts,
            callback: Some(id_from_bytes([8; 18])),
        };
        let plain = EndedBatch {
            is_cancelled: false,
            dead_letters_stay: false,
            parent: None,
            callback: None,
            ..all.clone()
        };
        let numbers: Vec<_> = (1..=6_u64).flat_map(u64::to_be_bytes).collect();
        for (ended, bytes) in [
            (all, [&[1, 7][..], &[7; 16], &numbers, &[8; 18]].concat()),
            (plain, [&[1, 0][..], &[0; 16], &numbers].concat()),
        ] {
            assert_eq!(ended.to_bytes(), bytes);
            assert_eq!(EndedBatch::parse(b"key", &bytes).unwrap(), ended);
            assert!(EndedBatch::parse(b"key", &bytes[..bytes.len() - 1]).is_err());
            let longer = [&bytes[..], &[0]].concat();
            assert!(EndedBatch::parse(b"key", &longer).is_err());
        }
        for (place, byte) in [(0, 2), (1, 8), (1, 1)] {
            let mut bytes = [&[1, 0][..], &[0; 64]].concat();
            bytes[place] = byte;
            assert!(EndedBatch::parse(b"key", &bytes).is_err(), "{place}");
        }
    }
}
