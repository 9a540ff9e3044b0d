//! Dead letters: items that were granted too often, or that nobody can read.

use microqueue::keyspace::Transaction;
use microqueue::keyspace::codec::Codec;
use microqueue::{Item, ItemId};

use crate::dedupe::retire_dedupe;
use crate::error::Result;
use crate::keys::Counter;
use crate::queue::HighContentionQueue;

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Returns a page of the dead letters: up to `limit` behind the item `after`, or from the first on.
    ///
    /// # Conflicts
    /// Reads from `after` to the last one returned; to the end if the page is the last.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if one does not decode.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn dead_letters(
        &self,
        tr: &impl Transaction,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Item<T>>> {
        let letters = self.keys.dead.items(tr, after, limit).await?;
        letters
            .into_iter()
            .map(|item| self.value_of(&self.keys.dead, item))
            .collect()
    }

    /// Stages that a dead letter goes back to its place in the queue, with all its attempts. False:
    /// there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn redrive(&self, tr: &impl Transaction, id: &ItemId) -> Result<bool> {
        let keys = &self.keys;
        let Some(mut record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        record.attempts = 0;
        keys.dead.remove(tr, id)?;
        keys.items.insert(tr, id, &record)?;
        keys.count(tr, Counter::Dead, -1);
        keys.count(tr, Counter::Queued, 1);
        keys.wake_all(tr);
        Ok(true)
    }

    /// Stages that a dead letter is removed. False: there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn purge(&self, tr: &impl Transaction, id: &ItemId) -> Result<bool> {
        let keys = &self.keys;
        let Some(record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        keys.dead.remove(tr, id)?;
        keys.count(tr, Counter::Dead, -1);
        retire_dedupe(tr, keys, &self.settings, &record);
        Ok(true)
    }
}
