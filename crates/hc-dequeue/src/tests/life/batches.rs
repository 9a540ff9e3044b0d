//! The numbers that the batches of the model have.

use super::model::Model;
use super::{BATCH_OF_STAYING, BATCHES};
use crate::items::record::End;

/// Of each batch, how many members are pending, were completed, became dead letters, and were cancelled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Batches(pub(super) [[u64; 4]; BATCHES]);

impl Batches {
    /// An item becomes a member.
    pub(super) fn join(&mut self, batch: Option<usize>) {
        if let Some(batch) = batch {
            self.0[batch][0] += 1;
        }
    }

    /// An item becomes a dead letter. Returns the batch of which it is still a member.
    pub(super) fn die(&mut self, batch: Option<usize>) -> Option<usize> {
        let tallies = &mut self.0[batch?];
        tallies[2] += 1;
        if batch == Some(BATCH_OF_STAYING) {
            return batch;
        }
        tallies[0] -= 1;
        None
    }

    /// An item is no longer a dead letter.
    pub(super) fn leave_dead(&mut self, batch: Option<usize>) {
        if let Some(batch) = batch {
            self.0[batch][2] -= 1;
        }
    }

    /// An item ends.
    pub(super) fn end(&mut self, batch: Option<usize>, how: End) {
        if let Some(batch) = batch {
            self.0[batch][0] -= 1;
            self.0[batch][if how == End::Completed { 1 } else { 3 }] += 1;
        }
    }
}

impl Model {
    /// Returns whether an item is a member of another batch than the one that comes with a new value.
    pub(super) fn is_of_other_batch(&self, item: usize, batch: Option<usize>) -> bool {
        let own = self.items[item].batch;
        own.is_some() && batch.is_some() && own != batch
    }

    /// An item without a batch joins the one that comes with a new value.
    pub(super) fn join_again(&mut self, item: usize, batch: Option<usize>) {
        if self.items[item].batch.is_none() {
            self.batches.join(batch);
            self.items[item].batch = batch;
        }
    }
}
