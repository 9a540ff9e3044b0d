//! What a delivery leaves in the record of its item for the next one.
//!
//! Each function reads the row of the held item, which says by which delivery it is held, and writes the row again, in
//! the transaction of the caller. So a delivery that no longer holds the item leaves nothing, and of two transactions
//! that change the row at the same time, one fails. No other code writes a record that was read in another transaction.

use std::sync::atomic::Ordering;

use microqueue::keyspace::{Bytes, Transaction};

use super::HeldItem;
use crate::items::error::{Error, Result};
use crate::items::record::{
    MAX_CHECKPOINT_BYTES, MAX_PROGRESS_TEXT_BYTES, MAX_STEP_NAME_BYTES, MAX_STEPS, Progress, Record,
};
use crate::items::refusal::StepRefusal;

impl HeldItem {
    /// Stages the application's own bytes of the checkpoint; none of them if they are empty.
    ///
    /// # Conflicts
    /// As [`Delivery::set_checkpoint`](crate::Delivery::set_checkpoint).
    pub(crate) async fn set_checkpoint(&self, tr: &impl Transaction, own: &[u8]) -> Result<()> {
        let mut record = self.live_record(tr).await?;
        record.checkpoint.set_own(Bytes::copy_from_slice(own));
        let bytes = record.checkpoint.size();
        if bytes > MAX_CHECKPOINT_BYTES {
            return Err(Error::CheckpointTooLong {
                bytes,
                limit: MAX_CHECKPOINT_BYTES,
            });
        }
        self.rewrite(tr, &record)
    }

    /// Stages how far the work for the item is.
    ///
    /// # Conflicts
    /// As [`Delivery::set_progress`](crate::Delivery::set_progress).
    pub(crate) async fn set_progress(
        &self,
        tr: &impl Transaction,
        progress: Progress,
    ) -> Result<()> {
        let bytes = progress.text.len();
        if bytes > MAX_PROGRESS_TEXT_BYTES {
            return Err(Error::ProgressTextTooLong {
                bytes,
                limit: MAX_PROGRESS_TEXT_BYTES,
            });
        }
        let mut record = self.live_record(tr).await?;
        record.progress = Some(Box::new(progress));
        self.rewrite(tr, &record)
    }

    /// Begins a step. Until the result is dropped, and after it is marked as done, no other step of this delivery may
    /// have the name.
    pub(crate) fn begin_step<'a>(&'a self, name: &'a str) -> Result<RunningStep<'a>> {
        let refused = |reason| {
            // It may be of any length.
            let step = name.chars().take(MAX_STEP_NAME_BYTES).collect();
            Error::Step { step, reason }
        };
        let bytes = name.len();
        if !(1..=MAX_STEP_NAME_BYTES).contains(&bytes) {
            let limit = MAX_STEP_NAME_BYTES;
            return Err(refused(StepRefusal::Name { bytes, limit }));
        }
        if self.is_in_transaction.load(Ordering::Relaxed) {
            return Err(refused(StepRefusal::InTransaction));
        }
        let is_first = self.step_names.lock().insert(name.to_owned());
        if !is_first {
            return Err(refused(StepRefusal::Repeated));
        }
        Ok(RunningStep {
            item: self,
            name,
            is_done: false,
        })
    }

    /// Stages the record, which was read in this transaction.
    fn rewrite(&self, tr: &impl Transaction, record: &Record) -> Result<()> {
        self.held.insert(tr, &self.id, record)?;
        Ok(())
    }
}

/// A step that a delivery runs.
pub(crate) struct RunningStep<'a> {
    item: &'a HeldItem,
    name: &'a str,
    is_done: bool,
}

impl RunningStep<'_> {
    /// Returns the stored result if the step is done, in this or in an earlier delivery.
    ///
    /// # Conflicts
    /// Reads the item's row.
    pub(crate) async fn result(&self, tr: &impl Transaction) -> Result<Option<Bytes>> {
        let record = self.item.live_record(tr).await?;
        Ok(record.checkpoint.result_of(self.name).cloned())
    }

    /// Stages that the step is done.
    ///
    /// # Conflicts
    /// Reads and writes the item's row.
    pub(crate) async fn record(&self, tr: &impl Transaction, result: &[u8]) -> Result<()> {
        // Read again: the step may have set a checkpoint or progress.
        let mut record = self.item.live_record(tr).await?;
        let checkpoint = &mut record.checkpoint;
        if checkpoint.steps().len() >= MAX_STEPS {
            return Err(self.refused(StepRefusal::TooMany { limit: MAX_STEPS }));
        }
        let bytes = checkpoint.size_with(self.name, result);
        if bytes > MAX_CHECKPOINT_BYTES {
            let limit = MAX_CHECKPOINT_BYTES;
            return Err(self.refused(StepRefusal::NoRoom { bytes, limit }));
        }
        checkpoint.add_step(self.name, result);
        self.item.rewrite(tr, &record)
    }

    pub(crate) fn refused(&self, reason: StepRefusal) -> Error {
        Error::Step {
            step: self.name.to_owned(),
            reason,
        }
    }

    /// Marks the step as done: this delivery has no other one of its name.
    pub(crate) fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.item.step_names.lock().remove(self.name);
        }
    }
}
