//! Dead letters: items that were granted too often, or that nobody can read.

use microqueue::keyspace::Transaction;
use microqueue::keyspace::codec::Codec;
use microqueue::{ItemId, Listed};

use crate::dedupe::retire_dedupe;
use crate::error::Result;
use crate::keys::Counter;
use crate::queue::HighContentionQueue;

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Returns a page of the dead letters: up to `limit` behind the item `after`, or from the first on.
    /// Each has its id, and its value or why that does not decode.
    ///
    /// # Conflicts
    /// Reads from `after` to the last one returned; to the end if the page is the last.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a key is none of a dead letter's.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn dead_letters(
        &self,
        tr: &impl Transaction,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Listed<T>>> {
        self.page_of(&self.keys.dead, tr, after, limit).await
    }

    /// Stages that a dead letter goes back to its place in the queue, with all its attempts. False:
    /// there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if it is of no known format. Its payload is
    /// not decoded.
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
    /// As [`redrive`](Self::redrive).
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
