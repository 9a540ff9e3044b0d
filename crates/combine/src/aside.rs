//! Updates that could not be combined: kept aside with the reason, so that the bucket goes on.

use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{
    Bytes, Isolation, Listed, RangeQuery, Transaction, Undecodable, key_after, read_all,
};
use hc_dequeue::microqueue::ItemId;

use crate::error::Result;
use crate::queue::CombineQueue;
use crate::record::decode_aside;

/// Which update was set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AsideId {
    /// The encoded key.
    pub key: Bytes,
    /// The update's place among those of the key.
    pub id: ItemId,
}

/// An update that was set aside: its value is as if it had not been added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// Why.
    pub reason: String,
    /// The update as stored: a format byte, then the codec's bytes.
    pub update: Bytes,
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns a page of the updates that were set aside: up to `limit` behind `after`, or from the
    /// first. Fewer are the last page. Each has its id, and its record or why that does not decode.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if a key is none of an update set aside.
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
        let begin = after.map_or(begin, |after| {
            key_after(&self.keys.aside(&after.key, &after.id))
        });
        let query = RangeQuery::keys(begin, end).limit(limit);
        let rows = read_all(tr, query, Isolation::Snapshot).await?;
        let decode = rows.iter().map(|row| {
            let (key, id) = self.keys.parse_aside(row.key())?;
            let aside = match decode_aside(&row.to_value()) {
                Ok((reason, update)) => Ok(SetAside { reason, update }),
                Err(error) => Err(Undecodable::new(row.to_key(), row.to_value(), error)),
            };
            Ok(Listed {
                id: AsideId {
                    key: key.into(),
                    id,
                },
                value: aside,
            })
        });
        decode.collect()
    }

    /// Stages that an update goes back to its place, to be combined after all: behind those of its key
    /// that have been folded since, and before the others. False: it is not aside any more.
    ///
    /// # Conflicts
    /// Reads the update that is aside, and writes its place: a pass that takes the updates around that
    /// place at the same time fails.
    ///
    /// # Errors
    /// Those of the store; [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt) if its record does not
    /// decode.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn redrive(&self, tr: &impl Transaction, aside: &AsideId) -> Result<bool> {
        let row = self.keys.aside(&aside.key, &aside.id);
        let Some(record) = tr.get(&row, Isolation::Serializable).await? else {
            return Ok(false);
        };
        let decoded = decode_aside(&record);
        let (_reason, update) = decoded.map_err(|error| error.at(row.clone()))?;
        tr.clear(&row);
        tr.set(&self.keys.update(&aside.key, &aside.id), &update);
        self.keys.notify(tr, self.keys.bucket(&aside.key));
        self.keys.wake_all(tr);
        Ok(true)
    }

    /// Stages that an update that was set aside is gone for good. False: it is not aside any more.
    ///
    /// # Conflicts
    /// Reads and writes the update that is aside.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn purge(&self, tr: &impl Transaction, aside: &AsideId) -> Result<bool> {
        let row = self.keys.aside(&aside.key, &aside.id);
        let is_there = tr.get(&row, Isolation::Serializable).await?.is_some();
        if is_there {
            tr.clear(&row);
        }
        Ok(is_there)
    }
}
