//! Dead letters: items that reached one of their limits or were rejected.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Bytes, Transaction, Undecodable};
use microqueue::{ItemId, Listed};

use crate::items::end::end;
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Counter;
use crate::items::record::{End, Failure, Record};
use crate::queue::handle::Queue;
use crate::session::wall::wall_millis;

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter<T> {
    /// The item.
    pub item: ItemRef,
    /// The value that was enqueued, or why it does not decode.
    pub value: Result<T, Undecodable>,
    /// How often it failed since it was enqueued or redriven. This and the other numbers are zero if the record cannot
    /// be read.
    pub attempts: u64,
    /// How many sessions died with it since then.
    pub deaths: u64,
    /// How often it was granted since then.
    pub deliveries: u64,
    /// Why and when it became a dead letter.
    pub failure: Option<Failure>,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns a page of up to `limit` dead letters: those after the item `after`, or the first ones.
    ///
    /// # Conflicts
    /// Reads from `after` to the last returned dead letter, or to the end if the page is the last one.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a key is not that of a dead letter.
    pub async fn dead_letters(
        &self,
        tr: &impl Transaction,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter<T>>> {
        let part = &self.keys.dead;
        let letters = part.items(tr, after, limit).await?.into_iter();
        let letter = |listed: Listed<Record>| {
            let none = Record::default();
            let record = listed.value.as_ref().unwrap_or(&none);
            DeadLetter {
                item: ItemRef::new(&self.keys, listed.id),
                attempts: record.attempts,
                deaths: record.deaths,
                deliveries: record.recent_deliveries(),
                failure: record.failure.as_ref().map(Failure::from),
                value: self.parse_listed(part, listed).value,
            }
        };
        Ok(letters.map(letter).collect())
    }

    /// Stages the return of a dead letter to its place in the queue, with all its limits as if it were new: its
    /// attempts, deaths and deliveries count from zero. Returns `false` if there is no such dead letter.
    ///
    /// The item keeps its last failure.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Queue, Result};
    /// /// Gives the first hundred dead letters another try.
    /// async fn redrive_some(tr: &impl Transaction, jobs: &Queue<String>) -> Result<()> {
    ///     for letter in jobs.dead_letters(tr, None, 100).await? {
    ///         jobs.redrive(tr, &letter.item).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// [`Error::ForeignRef`](crate::Error::ForeignRef); [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the
    /// record has no known format. The payload is not decoded.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn redrive(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let (keys, id) = (&self.keys, &item.id_in(&self.keys)?);
        let Some(mut record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        record.reset_counts();
        record.become_ready(wall_millis(&keys.env));
        keys.dead.remove(tr, id)?;
        keys.items.insert(tr, id, &record)?;
        keys.count(tr, Counter::Dead, -1);
        keys.count(tr, Counter::Queued, 1);
        keys.wake_all(tr);
        Ok(true)
    }

    /// Stages the removal of a dead letter, which frees its dedupe id. Returns `false` if there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn purge(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let (keys, id) = (&self.keys, &item.id_in(&self.keys)?);
        let Some(record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        keys.dead.remove(tr, id)?;
        keys.count(tr, Counter::Dead, -1);
        let (settings, none) = (self.settings(tr).await?, Bytes::new());
        end(tr, keys, &settings, id, &record, End::Removed, none)?;
        Ok(true)
    }
}
