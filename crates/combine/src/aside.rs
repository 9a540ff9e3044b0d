//! What was set aside: updates and blocks that do not decode, updates that the combiner refuses, and keys
//! whose reports are withheld.

use hc_dequeue::keyspace::codec::{Codec, DecodeError};
use hc_dequeue::keyspace::{
    Bytes, Isolation, Listed, RangeQuery, Transaction, Undecodable, key_after, read_all,
};
use hc_dequeue::microqueue::blocks::{EntryId, WHOLE_BLOCK, decode_block};

use crate::bucket::Bucket;
use crate::error::Result;
use crate::keys::AsideKey;
use crate::queue::CombineQueue;
use crate::record::{AsideRecord, Current, PassState};

/// What was set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AsideId {
    /// The reports of a key: its updates go on being folded, and its change is not reported, since it does
    /// not decode or does not fit a transaction.
    Key(Bytes),
    /// An update, or a whole block of updates.
    Update {
        /// The bucket.
        bucket: Bucket,
        /// The place of the update. With the index [`WHOLE_BLOCK`] it is a block.
        id: EntryId,
    },
}

/// What is kept of what was set aside. Updates count as if they had not been added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// Why.
    pub reason: String,
    /// The encoded key. Empty for a block.
    pub key: Bytes,
    /// The encoded update, or the bytes of the block. Empty for a key.
    pub update: Bytes,
}

impl AsideId {
    fn decode(&self, stored: &Bytes) -> Result<SetAside, DecodeError> {
        let record = AsideRecord::decode(stored)?;
        let (key, update) = match self {
            Self::Key(key) => (key.clone(), Bytes::new()),
            Self::Update { id, .. } if id.index == WHOLE_BLOCK => (Bytes::new(), record.rest),
            Self::Update { .. } => record.update()?,
        };
        Ok(SetAside {
            reason: record.reason,
            key,
            update,
        })
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns a page of what was set aside: up to `limit` after `after`, or from the first. Fewer are the
    /// last page. Each has its id, and its record or why that does not decode.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a key is none of what was set aside.
    ///
    /// # Cancel safety
    /// Reads only.
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
            let value = id.decode(&row.to_value());
            let value =
                value.map_err(|error| Undecodable::new(row.to_key(), row.to_value(), error));
            Ok(Listed { id, value })
        });
        decode.collect()
    }

    /// Stages that what was set aside is tried again. False: it is not aside any more.
    ///
    /// An update is added anew, at the end of the log, and so are the updates of a block if it decodes by
    /// now. The reports of a key are withheld no longer.
    ///
    /// # Conflicts
    /// Reads and writes the record that is aside. For a key also its current value and the state of its
    /// bucket's passes: of this and a pass over the bucket at the same time one fails.
    ///
    /// # Errors
    /// Those of the store; [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if the record, or the block in
    /// it, does not decode.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn redrive(&self, tr: &impl Transaction, aside: &AsideId) -> Result<bool> {
        let row = self.aside_row(aside);
        let Some(record) = tr.get(&row, Isolation::Serializable).await? else {
            return Ok(false);
        };
        let at_row = |error: DecodeError| error.at(row.clone());
        let SetAside { key, update, .. } = aside.decode(&record).map_err(at_row)?;
        let mut batch = self.keys.logs.batch();
        match aside {
            AsideId::Key(key) => self.report_again(tr, key).await?,
            AsideId::Update { id, .. } if id.index == WHOLE_BLOCK => {
                for entry in decode_block(&update).map_err(at_row)? {
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

    /// Stages that the reports of a key are withheld no longer.
    async fn report_again(&self, tr: &impl Transaction, key: &Bytes) -> Result<()> {
        let row = self.keys.current(key);
        let current = tr.get(&row, Isolation::Serializable).await?;
        let pass = self.keys.pass(self.keys.bucket(key));
        let state = tr.get(&pass, Isolation::Serializable).await?;
        let state = PassState::decode(&pass, state.as_deref())?;
        // One that does not decode is looked at again, and is set aside again unless it was put right.
        if let Some(current) = current.and_then(|stored| Current::decode(&row, &stored).ok()) {
            let is_withheld = false;
            let current = Current {
                is_withheld,
                ..current
            };
            tr.set(&row, &current.encode());
        }
        let state = PassState {
            has_current: true,
            has_to_report: true,
            ..state
        };
        tr.set(&pass, &state.encode());
        Ok(())
    }

    /// Stages that the record of what was set aside is gone for good. False: it is not aside any more.
    ///
    /// That removes an update or a block. The reports of a key stay withheld: they come back with
    /// [`redrive`](Self::redrive) only, or when the key's value is again as it was last reported. So this
    /// returns false for a key.
    ///
    /// # Conflicts
    /// Reads and writes the record that is aside.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
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
