//! The keys of batches and of their notices.

use microqueue::ItemId;
use microqueue::keyspace::tuple::Versionstamp;
use microqueue::keyspace::{self, Result, Subspace};

use super::Keys;
use crate::items::batch::{BatchId, Tally};
use crate::items::part::{BatchPart, Part};

impl Keys {
    fn batches(&self) -> Subspace {
        self.queue.subspace(&Part::Batches)
    }

    /// Returns the range of the rows of a batch. Its own row comes first.
    pub(crate) fn batch(&self, batch: BatchId) -> (Vec<u8>, Vec<u8>) {
        let rows = self.queue.subspace(&(Part::Batches, batch.0.as_slice()));
        let (_, end) = rows.range();
        (rows.bytes().to_vec(), end)
    }

    pub(crate) fn batch_row(&self, batch: BatchId) -> Vec<u8> {
        self.queue.pack(&(Part::Batches, batch.0.as_slice()))
    }

    /// Returns the key of the row that exists while a batch is open.
    pub(crate) fn batch_open(&self, batch: BatchId) -> Vec<u8> {
        self.queue
            .pack(&(Part::Batches, batch.0.as_slice(), BatchPart::Open))
    }

    pub(crate) fn tally(&self, batch: BatchId, tally: Tally) -> Vec<u8> {
        self.queue
            .pack(&(Part::Batches, batch.0.as_slice(), tally.part()))
    }

    /// Returns the batch in the key of one of its rows.
    pub(crate) fn parse_batch(&self, key: &[u8]) -> Result<BatchId> {
        let batches = self.batches();
        let row: Option<Vec<u8>> = batches.unpack(key).ok();
        let part = || {
            let part: Option<(Vec<u8>, String)> = batches.unpack(key).ok();
            part.map(|(batch, _)| batch)
        };
        batch_id(key, row.or_else(part))
    }

    /// Returns the key of a batch that has ended.
    pub(crate) fn ended_batch(&self, batch: BatchId) -> Vec<u8> {
        self.queue.pack(&(Part::EndedBatches, batch.0.as_slice()))
    }

    /// Returns the batch in the key of one that has ended.
    pub(crate) fn parse_ended_batch(&self, key: &[u8]) -> Result<BatchId> {
        batch_id(
            key,
            self.queue.subspace(&Part::EndedBatches).unpack(key).ok(),
        )
    }

    /// Returns the subspace of the members of a batch, by id.
    pub(crate) fn members(&self, batch: BatchId) -> Subspace {
        self.queue.subspace(&(Part::Members, batch.0.as_slice()))
    }

    /// Returns the batch and the member in a key of it.
    pub(crate) fn parse_member(&self, key: &[u8]) -> Result<(BatchId, ItemId)> {
        type Member = (Vec<u8>, Versionstamp, u64);
        let unpacked: Option<Member> = self.queue.subspace(&Part::Members).unpack(key).ok();
        let batch = batch_id(key, unpacked.map(|(batch, ..)| batch))?;
        let no_member = || keyspace::Error::corrupt(key, "expected the key of a member");
        let id = ItemId::of_commit(&self.members(batch), key).ok_or_else(no_member)?;
        Ok((batch, id))
    }

    /// Returns the key of the notice of a batch that may be complete.
    pub(crate) fn batch_notice(&self, batch: BatchId) -> Vec<u8> {
        self.queue.pack(&(Part::BatchNotices, batch.0.as_slice()))
    }

    /// Returns the batch in the key of a notice.
    pub(crate) fn parse_batch_notice(&self, key: &[u8]) -> Result<BatchId> {
        batch_id(
            key,
            self.queue.subspace(&Part::BatchNotices).unpack(key).ok(),
        )
    }
}

fn batch_id(key: &[u8], bytes: Option<Vec<u8>>) -> Result<BatchId> {
    let id = bytes.and_then(|bytes| bytes.try_into().ok());
    let no_batch = || keyspace::Error::corrupt(key, "expected the key of a batch");
    id.map(BatchId).ok_or_else(no_batch)
}
