//! Closing and cancelling batches.

use export_queue::keyspace::Tx;

use crate::error::{Error, Result};
use crate::look::{BATCHES, Console, missing_batch, parse_batch};
use crate::report::Change;

impl Console {
    /// Closes a batch, which is what the application does after it has added the last member.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Missing`] if the batch is complete or never existed, a
    /// malformed reference or one of another queue, rows that do not decode, and those of the store.
    pub async fn close_batch(&self, name: &str, batch: &str) -> Result<Change> {
        let found = &self.find_dequeue(name, BATCHES).await?;
        let reference = &parse_batch(batch)?;
        let close = |tr: Tx<_>| async move {
            let before = found.queue.batch_status(&tr, reference).await?;
            let Some(before) = before.filter(|before| before.end.is_none()) else {
                return Ok(None);
            };
            found.queue.close_batch(&tr, reference)?;
            Ok::<_, Error>(Some(before.is_open))
        };
        match self.runner.run(close).await? {
            None => Err(missing_batch(batch)),
            Some(true) => Ok(Change::new(
                name,
                "close-batch",
                0,
                "it is complete when no member is left",
            )),
            Some(false) => Ok(Change::new(name, "close-batch", 0, "it was closed before")),
        }
    }

    /// Cancels a batch: it takes no more members, and its callback is not enqueued.
    ///
    /// # Errors
    /// As [`close_batch`](Self::close_batch).
    pub async fn cancel_batch(&self, name: &str, batch: &str) -> Result<Change> {
        let found = &self.find_dequeue(name, BATCHES).await?;
        let reference = &parse_batch(batch)?;
        let cancel = |tr| async move { found.queue.cancel_batch(&tr, reference).await };
        if self.runner.run(cancel).await? {
            let outcome = "no callback comes, and its members go on";
            return Ok(Change::new(name, "cancel-batch", 0, outcome));
        }
        Err(missing_batch(batch))
    }
}
