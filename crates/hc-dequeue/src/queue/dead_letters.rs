//! Dead letters: items that reached one of their limits or were discarded.

use microqueue::keyspace::Transaction;
use microqueue::keyspace::codec::Codec;

use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::item_ref::ItemRef;
use crate::items::places::{Destination, relocate};
use crate::items::record::End;
use crate::queue::handle::Queue;

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages the return of a dead letter to its place in the queue, with all its limits as if it were new: its
    /// attempts, deaths and deliveries count from zero. Returns `false` if there is no such dead letter.
    ///
    /// The item keeps its last failure, and what its handlers have left: its
    /// [checkpoint](crate::Delivery::set_checkpoint), and the [steps](crate::Delivery::step) that are done, so that
    /// they do not run again. To let it begin anew, [`replace`](Self::replace) its value before, by the same one or
    /// another.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{PlaceKind, Queue, Result};
    /// /// Gives the first hundred dead letters another try.
    /// async fn redrive_some(tr: &impl Transaction, jobs: &Queue<String>) -> Result<()> {
    ///     for letter in jobs.list(tr, PlaceKind::Dead, None, 100).await?.items {
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
    pub async fn redrive(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let keys = &self.keys;
        let id = &item.id_in(keys)?;
        let Some(mut record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        record.reset_counts();
        relocate(tr, keys, id, &Location::Dead, record, Destination::Queued)?;
        Ok(true)
    }

    /// Stages the removal of a dead letter, which frees its dedupe id. Returns `false` if there is no such dead letter.
    ///
    /// # Conflicts
    /// Reads the dead letter and, if it has a slot, the limits of its group and the default ones.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn purge(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let keys = &self.keys;
        let id = &item.id_in(keys)?;
        let Some(record) = keys.dead.get(tr, id).await? else {
            return Ok(false);
        };
        self.end_waiting(tr, id, &Location::Dead, record, End::Removed)
            .await?;
        Ok(true)
    }
}
