//! The verbs of dedupe ids.

use microqueue::keyspace::Transaction;
use microqueue::keyspace::codec::Codec;

use crate::items::dedupe::{self, Repeated, check_dedupe, repeated};
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::queue::handle::Queue;

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the item that has a dedupe id; if several items were enqueued with it, the latest one. Returns `None`
    /// if there is no such item or it is done.
    ///
    /// # Conflicts
    /// Reads the row of the dedupe id.
    ///
    /// # Errors
    /// [`Error::ReadAfterWrite`](crate::Error::ReadAfterWrite) in the transaction that enqueues the item.
    pub async fn find_deduped(
        &self,
        tr: &impl Transaction,
        dedupe: &[u8],
    ) -> Result<Option<ItemRef>> {
        let holder = dedupe::holder(tr, &self.keys, dedupe).await?;
        Ok(holder.map(|id| self.keys.item_ref(id)))
    }

    /// Stages that a dedupe id that is [retained](crate::Settings::dedupe_retention) after the completion of its item
    /// can be enqueued again. Returns `false` if the id is not retained.
    ///
    /// It also returns `false` while an item has the id: [`cancel`](Self::cancel) that item, which frees the id, or
    /// [`purge`](Self::purge) it if it is a dead letter. [`find_deduped`](Self::find_deduped) returns the item.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Queue, Result};
    /// /// Sends an invoice again, although it was sent recently.
    /// async fn send_again(tr: &impl Transaction, invoices: &Queue<u64>, invoice: u64) -> Result<()> {
    ///     let id = format!("invoice {invoice}");
    ///     invoices.release_dedupe(tr, id.as_bytes()).await?;
    ///     let _ = invoices.enqueue_with(tr, &invoice, &Enqueue::new().with_dedupe(id)).await?;
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// Reads the rows of the id and, if it is retained, writes one and reads the settings by snapshot.
    ///
    /// # Errors
    /// [`Error::DedupeId`](crate::Error::DedupeId); [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the row of an
    /// item's claim to the id or the settings do not decode. A time of completion that does not decode is released.
    pub async fn release_dedupe(&self, tr: &impl Transaction, dedupe: &[u8]) -> Result<bool> {
        check_dedupe(dedupe)?;
        let row = self.keys.retained(dedupe);
        let is_retained = match repeated(tr, &self.keys, dedupe).await {
            Ok(repeated) => repeated == Some(Repeated::IsRetained),
            Err(error) if error.corrupt_key().is_some_and(|key| **key == *row) => true,
            Err(error) => return Err(error),
        };
        if is_retained {
            tr.clear(&row);
        }
        Ok(is_retained)
    }
}
