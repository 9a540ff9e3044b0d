//! Updates and keys that were set aside: updates and blocks that do not decode, updates that the combiner
//! refuses, and keys whose reports are withheld.

use hc_dequeue::keyspace::codec::{Codec, DecodeError};
use hc_dequeue::keyspace::{
    self, Bytes, Isolation, Listed, RangeQuery, RowCount, Transaction, Undecodable, count_rows,
    key_after, read_all,
};
use hc_dequeue::microqueue::blocks::{EntryId, WHOLE_BLOCK, decode_block};

use crate::bucket::Bucket;
use crate::error::Result;
use crate::keys::AsideKey;
use crate::queue::CombineQueue;
use crate::record::{AsideRecord, Current, PassState};

/// The most bytes of records that are read to count them.
const MAX_COUNTED_BYTES: usize = 1 << 20;

/// The id of an update, a block or a key that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AsideId {
    /// A key whose reports are withheld, because its change does not decode or does not fit a
    /// transaction. Its updates are still folded.
    Key(Bytes),
    /// An update, or a whole block of updates.
    Update {
        /// The bucket.
        bucket: Bucket,
        /// The place of the update. The index [`WHOLE_BLOCK`] means a block.
        id: EntryId,
    },
}

/// The record of an update, a block or a key that was set aside. Updates that were set aside count as if
/// they had not been added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// Why it was set aside.
    pub reason: String,
    /// The encoded key. Empty for a block.
    pub key: Bytes,
    /// The encoded update, or the bytes of the block. Empty for a key.
    pub update: Bytes,
    /// How many of the first updates of a block were folded before it was set aside. Zero for an update and for
    /// a key. A [redrive](CombineQueue::redrive) adds only the updates after them.
    pub folded: u16,
}

impl AsideId {
    fn decode(&self, stored: &Bytes) -> Result<SetAside, DecodeError> {
        let record = AsideRecord::decode(stored)?;
        let mut folded = 0;
        let (key, update) = match self {
            Self::Key(key) => (key.clone(), Bytes::new()),
            Self::Update { id, .. } if id.index == WHOLE_BLOCK => {
                let block;
                (folded, block) = record.block()?;
                (Bytes::new(), block)
            }
            Self::Update { .. } => record.update()?,
        };
        Ok(SetAside {
            reason: record.reason,
            key,
            update,
            folded,
        })
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns a page of what was set aside: up to `limit` records after `after`, or from the first.
    ///
    /// A page with fewer than `limit` records is the last one. Each entry has its id, and either the
    /// record or the reason why it does not decode.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a key of the store is not the key of such a
    /// record.
    pub async fn set_aside(
        &self,
        tr: &impl Transaction,
        after: Option<&AsideId>,
        limit: usize,
    ) -> Result<Vec<Listed<AsideId, SetAside>>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let (begin, end) = self.keys.all_aside();
        let begin = after.map_or(begin, |after| key_after(&self.aside_row(after)));
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Snapshot).await?;
        let decode = rows.iter().map(|row| {
            let id = match self.keys.parse_aside(row.key())? {
                AsideKey::Key(key) => AsideId::Key(key.into()),
                AsideKey::Update(bucket, id) => AsideId::Update { bucket, id },
            };
            let value = id
                .decode(&row.to_value())
                .map_err(|error| Undecodable::new(row.to_key(), row.to_value(), error));
            Ok(Listed { id, value })
        });
        decode.collect()
    }

    /// Counts what was set aside, up to the record with which the rows reach 1 MiB.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn count_set_aside(&self, tr: &impl Transaction) -> Result<RowCount> {
        let (begin, end) = self.keys.all_aside();
        Ok(count_rows(tr, begin, end, MAX_COUNTED_BYTES).await?)
    }

    /// Stages another attempt at an update, a block or a key that was set aside. Returns false if it is
    /// no longer set aside.
    ///
    /// An update is added again, at the end of the log. The updates of a block are added again if the
    /// block decodes by now, except for those that were [folded](SetAside::folded) before it was set aside. The
    /// changes of a key are reported again.
    ///
    /// # Conflicts
    /// Reads and writes the record. For a key it also reads and writes the current value and the state of
    /// the bucket's passes, so it conflicts with a pass over the bucket.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the record, or the block in it, does not
    /// decode; those of the store.
    pub async fn redrive(&self, tr: &impl Transaction, aside: &AsideId) -> Result<bool> {
        let row = self.aside_row(aside);
        let Some(record) = tr.get(&row, Isolation::Serializable).await? else {
            return Ok(false);
        };
        let at_row = |error: DecodeError| error.at(row.clone());
        let SetAside {
            key,
            update,
            folded,
            ..
        } = aside.decode(&record).map_err(at_row)?;
        let mut batch = self.keys.logs.batch();
        match aside {
            AsideId::Key(key) => self.report_again(tr, key).await?,
            AsideId::Update { id, .. } if id.index == WHOLE_BLOCK => {
                let entries = decode_block(&update).map_err(at_row)?;
                let count = entries.len();
                if usize::from(folded) >= count {
                    // No pass leaves such a block: adding all of it, or nothing, might be wrong.
                    let reason = format!("{folded} of {count} updates are said to be folded");
                    return Err(keyspace::Error::corrupt(&row, reason).into());
                }
                for entry in entries.into_iter().skip(folded.into()) {
                    self.push(&mut batch, &entry.key, &entry.value)?;
                }
            }
            AsideId::Update { .. } => self.push(&mut batch, &key, &update)?,
        }
        tr.clear(&row);
        self.stage(tr, &batch)?;
        self.keys.wake_all(tr);
        Ok(true)
    }

    /// Stages that the changes of a key are reported again.
    async fn report_again(&self, tr: &impl Transaction, key: &Bytes) -> Result<()> {
        let row = self.keys.current(key);
        let current = tr.get(&row, Isolation::Serializable).await?;
        let pass = self.keys.pass(self.keys.bucket(key));
        let stored = tr.get(&pass, Isolation::Serializable).await?;
        let state = PassState::decode(&pass, stored.as_deref())?;
        // A pass examines a value that does not decode again, and withholds its key again unless the
        // value has been repaired.
        if let Some(current) = current.and_then(|stored| Current::decode(&row, &stored).ok()) {
            let released = Current {
                is_withheld: false,
                ..current
            };
            tr.set(&row, &released.encode());
        }
        let to_report = PassState {
            has_current: true,
            has_to_report: true,
            ..state
        };
        tr.set(&pass, &to_report.encode());
        Ok(())
    }

    /// Stages the permanent removal of an update or a block that was set aside. Returns false if it is no
    /// longer set aside.
    ///
    /// For a key this does nothing and returns false. Its reports stay withheld until
    /// [`redrive`](Self::redrive), or until its value is again the one last reported.
    ///
    /// # Conflicts
    /// Reads and writes the record.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn purge(&self, tr: &impl Transaction, aside: &AsideId) -> Result<bool> {
        let AsideId::Update { .. } = aside else {
            return Ok(false);
        };
        let row = self.aside_row(aside);
        let is_there = tr.get(&row, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&row);
        }
        Ok(is_there)
    }

    fn aside_row(&self, aside: &AsideId) -> Vec<u8> {
        match aside {
            AsideId::Key(key) => self.keys.withheld(key),
            AsideId::Update { bucket, id } => self.keys.aside(*bucket, id),
        }
    }
}
