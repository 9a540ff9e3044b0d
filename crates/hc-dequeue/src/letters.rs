//! Dead letters: items that cost too much, or that were rejected.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Bytes, Transaction, Undecodable};
use microqueue::{ItemId, Listed};

use crate::done::end;
use crate::error::Result;
use crate::item_ref::ItemRef;
use crate::keys::Counter;
use crate::queue::HighContentionQueue;
use crate::record::{End, Failure, Record};

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter<T> {
    /// The item.
    pub item: ItemRef,
    /// What was enqueued, or why it does not decode.
    pub value: Result<T, Undecodable>,
    /// How often it failed. Zero, as the other numbers, if nothing of its record can be read.
    pub attempts: u64,
    /// With how many sessions it died.
    pub deaths: u64,
    /// How often it was granted.
    pub deliveries: u64,
    /// Why it is a dead letter, and since when.
    pub failure: Option<Failure>,
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Returns a page of the dead letters: up to `limit` after the item `after`, or from the first on.
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
                deliveries: record.deliveries,
                failure: record.failure.as_ref().map(Failure::from),
                value: self.parse_listed(part, listed).value,
            }
        };
        Ok(letters.map(letter).collect())
    }

    /// Stages that a dead letter goes back to its place in the queue, with all its attempts and deaths. Its
    /// last failure stays with it, and so does the number of its deliveries: a dead letter that was granted too
    /// often is granted once more. False: there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter.
    ///
    /// # Errors
    /// [`Error::ForeignRef`](crate::Error::ForeignRef); [`Corrupt`](microqueue::keyspace::Error::Corrupt) if it
    /// is of no known format. Its payload is not decoded.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn redrive(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let (keys, id) = (&self.keys, &item.id_in(&self.keys)?);
        let Some(mut record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        record.begin_anew();
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
