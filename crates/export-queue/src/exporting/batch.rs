//! The two transactions of a batch: one before the exporter is called, and one afterwards.
//!
//! 1. [`claim_batch`](Subscription::claim_batch) claims the bucket for a session that is alive, and reads
//!    the entries after the position.
//! 2. The exporter is called, outside of any transaction.
//! 3. [`advance`](Subscription::advance) sets the position if the session still holds the claim and is
//!    still alive, and clears the entries that all subscriptions have passed.
//!
//! If a worker dies between steps 2 and 3, its batch is exported again. If it hangs there until another
//! worker has the claim, it can no longer set the position.
//!
//! A batch may start and end inside a block. The position is then the last entry exported, and the block
//! stays until every subscription has exported all of it.
//!
//! # Reads, writes and conflicts
//!
//! Letters are the parts of the layout in `keys.rs`.
//!
//! | step | reads | reads by snapshot | writes | conflicts with a transaction that |
//! |---|---|---|---|---|
//! | 1, claim and read a batch | `c` and `p` of the bucket; `m`; `s` of the own session and of the one that has the claim | `o`, `e` | `c`, unless the session already has the claim | claimed the bucket or set its position; created or removed a subscription; wrote one of these `s` |
//! | 3, set the position | `c` of the bucket; `m`; `s` of the own session | `p` of the other subscriptions | `p`; `d` of entries that are given up; clears `c`, if the worker leaves the bucket; clears the `e` that every subscription has passed | claimed the bucket; created or removed a subscription; wrote this `s` |
//!
//! Additions, pauses and the batches of other subscriptions make no batch fail. Creating or removing a subscription
//! changes
//! `m`, so transactions of batches that run at that moment fail and are retried.

use std::ops::ControlFlow;

use combine::Bucket;
use combine::hc_dequeue::session::{Life, SessionId};
use combine::keyspace::codec::{Codec, DecodeError};
use combine::keyspace::{Bytes, Isolation, Transaction};
use combine::microqueue::blocks::{Entry, EntryId, StoredBlock};
use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};

use crate::error::{Error, Result};
use crate::record::{
    DeadLetterRecord, decode_claim, decode_position, encode_claim, encode_position,
};
use crate::sequence::{SEQUENCE_BYTES, Sequence};
use crate::subscription::Subscription;

/// The limits of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    /// The most entries. A broken block counts as one.
    pub(crate) entries: usize,
    /// The most bytes of keys, values and sequences. At least one entry is read.
    pub(crate) bytes: usize,
}

/// The entries after the position of a bucket.
#[derive(Debug)]
pub(crate) struct Batch {
    /// In commit order.
    pub(crate) entries: Vec<(Sequence, Entry)>,
    /// Blocks that do not decode.
    pub(crate) broken: Vec<BrokenBlock>,
    /// The position after all of them are exported or given up.
    pub(crate) end: Sequence,
    pub(crate) bytes: usize,
    pub(crate) has_more: bool,
}

/// A block that does not decode.
#[derive(Debug)]
pub(crate) struct BrokenBlock {
    pub(crate) sequence: Sequence,
    pub(crate) bytes: Bytes,
    /// How many of its first entries are exported.
    pub(crate) exported: u16,
    pub(crate) error: DecodeError,
}

impl Batch {
    fn new(end: Sequence) -> Self {
        Self {
            entries: Vec::new(),
            broken: Vec::new(),
            end,
            bytes: 0,
            has_more: false,
        }
    }

    /// Returns the number of entries and broken blocks. It is 0 if the position is past the last entry of
    /// its block: then only the position moves.
    pub(crate) fn count(&self) -> usize {
        self.entries.len() + self.broken.len()
    }

    /// Takes the entries of a block that are not exported yet, skipping the first `exported` ones.
    fn take(&mut self, block: &StoredBlock, exported: u16, portion: Portion) -> ControlFlow<()> {
        let entries = match block.entries() {
            Ok(entries) => entries,
            Err(error) => return self.take_broken(block, exported, error, portion),
        };
        for (index, entry) in (0..).zip(entries).skip(exported.into()) {
            self.make_room(entry_bytes(&entry), portion)?;
            self.end = Sequence::of(EntryId { index, ..block.id });
            self.entries.push((self.end, entry));
        }
        self.end = Sequence::of(block.id);
        ControlFlow::Continue(())
    }

    fn take_broken(
        &mut self,
        block: &StoredBlock,
        exported: u16,
        error: DecodeError,
        portion: Portion,
    ) -> ControlFlow<()> {
        self.make_room(block.bytes.len(), portion)?;
        self.end = Sequence::of(block.id);
        self.broken.push(BrokenBlock {
            sequence: self.end,
            bytes: block.bytes.clone(),
            exported,
            error,
        });
        ControlFlow::Continue(())
    }

    /// Reserves bytes for an entry. Breaks if the batch has no room for them.
    fn make_room(&mut self, bytes: usize, portion: Portion) -> ControlFlow<()> {
        let bytes = self.bytes + bytes;
        let is_full = self.count() >= portion.entries || bytes > portion.bytes;
        if is_full && self.count() > 0 {
            self.has_more = true;
            return ControlFlow::Break(());
        }
        self.bytes = bytes;
        ControlFlow::Continue(())
    }
}

/// Returns the number of bytes that an entry takes in a batch.
fn entry_bytes(entry: &Entry) -> usize {
    entry.key.len() + entry.value.len() + SEQUENCE_BYTES
}

/// The session that has claimed a bucket, and the position of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    by: SessionId,
    position: Option<Sequence>,
}

/// The result of claiming a batch.
#[derive(Debug)]
pub(crate) enum ClaimOutcome {
    Batch(Batch),
    /// There is nothing to export, the subscription is paused, or it has been removed.
    Nothing,
    /// Another session, which is alive, has the claim.
    Claimed(Claim),
    /// The session is dead.
    SessionLost,
}

impl<K, V, C> Subscription<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Claims a bucket and reads entries after its position. A session that is alive loses its claim only
    /// if the claim is `stalled`, so that it has not changed since.
    ///
    /// # Conflicts
    /// Reads the claim, the position, the settings, and the states of this session and of the one that
    /// has the claim. Writes the claim, unless this session already has it.
    pub(crate) async fn claim_batch(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        bucket: Bucket,
        portion: Portion,
        stalled: Option<Claim>,
    ) -> Result<ClaimOutcome> {
        let keys = &self.queue.keys;
        let sessions = self.sessions();
        let claim_key = keys.claim(&self.name, bucket);
        let claim = tr.get(&claim_key, Isolation::Serializable);
        let own_life = sessions.life(tr, session).map_err(Error::from);
        let (claim, position, is_paused, is_there, own_life) = try_join!(
            claim.map_err(Error::from),
            self.position(tr, bucket, Isolation::Serializable),
            self.is_paused(tr),
            self.is_there(tr),
            own_life,
        )?;
        if !is_there {
            return Ok(ClaimOutcome::Nothing);
        }
        if own_life != Some(Life::Alive) {
            return Ok(ClaimOutcome::SessionLost);
        }
        let claim = decode_claim(&claim_key, claim.as_deref())?;
        if let Some(by) = claim.filter(|by| *by != session) {
            let claimed = Claim { by, position };
            if stalled != Some(claimed) && sessions.may_be_alive(tr, by).await? {
                return Ok(ClaimOutcome::Claimed(claimed));
            }
        }
        if is_paused {
            return Ok(ClaimOutcome::Nothing);
        }
        let Some(batch) = self.read(tr, bucket, position, portion).await? else {
            return Ok(ClaimOutcome::Nothing);
        };
        if claim != Some(session) {
            tr.set(&claim_key, &encode_claim(session));
        }
        Ok(ClaimOutcome::Batch(batch))
    }

    /// Reads entries after a position. Returns `None` if there is no block.
    ///
    /// A block that a newer version of the library has written, and a key that is not the key of a block, end the
    /// batch. Without an entry before it, the read fails: the bucket waits until the library is upgraded or the key
    /// is cleared.
    ///
    /// Reads by snapshot. No entry can land before the existing ones, since a later commit has a larger
    /// versionstamp, and only entries that every subscription has passed are cleared.
    async fn read(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        position: Option<Sequence>,
        portion: Portion,
    ) -> Result<Option<Batch>> {
        let position = position.map(|position| position.id());
        let mut batch: Option<Batch> = None;
        let visited = (self.queue.keys.logs).visit(tr, bucket.0, position, |block| {
            let last = position.filter(|position| position.block() == block.id.block());
            let exported = last.map_or(0, |last| last.index.saturating_add(1));
            block.refuse_newer()?;
            let batch = batch.get_or_insert_with(|| Batch::new(Sequence::of(block.id)));
            Ok::<_, Error>(batch.take(&block, exported, portion))
        });
        match (visited.await, &mut batch) {
            (Ok(()), _) => {}
            // The entries before that row are exported first.
            (Err(error), Some(batch)) if error.is_corrupt() => batch.has_more = true,
            (Err(error), _) => return Err(error),
        }
        Ok(batch)
    }

    /// Sets the position to the last entry exported, stores the entries that were given up as dead
    /// letters, releases the claim if `advance` requests it, and clears the entries that all
    /// subscriptions have passed. Returns false if another session has the claim or this session is dead.
    ///
    /// # Conflicts
    /// Reads the claim, the state of this session, and the settings, so that no subscription that needs
    /// the cleared entries can be created at the same time. Reads the positions of other subscriptions by
    /// snapshot, since they only grow.
    pub(crate) async fn advance(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        bucket: Bucket,
        advance: &Advance,
    ) -> Result<bool> {
        let keys = &self.queue.keys;
        let sessions = self.sessions();
        let claim_key = keys.claim(&self.name, bucket);
        let (stored_claim, life, settings) = try_join!(
            tr.get(&claim_key, Isolation::Serializable)
                .map_err(Error::from),
            sessions.life(tr, session).map_err(Error::from),
            self.queue.stored(tr, Isolation::Serializable),
        )?;
        let claim = decode_claim(&claim_key, stored_claim.as_deref())?;
        if claim != Some(session) || life != Some(Life::Alive) {
            return Ok(false);
        }
        let position_key = keys.position(&self.name, bucket);
        tr.set(&position_key, &encode_position(&advance.position));
        if advance.releases_claim {
            tr.clear(&claim_key);
        }
        for (sequence, letter) in &advance.dead {
            tr.set(&keys.dead_letter(&self.name, sequence), &letter.encode());
        }
        let others = settings.subscriptions.iter();
        let reads = others.filter(|name| **name != *self.name).map(|name| {
            let key = keys.position(name, bucket);
            async move {
                let stored = tr.get(&key, Isolation::Snapshot).await?;
                // A position that does not decode keeps entries from being removed, but does not stop the
                // other subscriptions.
                let position = decode_position(&key, stored.as_deref()).unwrap_or_default();
                Ok::<_, Error>(position)
            }
        });
        let positions = try_join_all(reads).await?;
        // A subscription that has exported nothing yet has passed nothing.
        let passed = (positions.into_iter()).fold(Some(advance.position), Option::min);
        if let Some(passed) = passed {
            // Up to the block that contains the slowest position, or including it if that subscription
            // has exported all of it.
            let (begin, _) = keys.logs.after(bucket.0, None);
            let (end, _) = keys.logs.after(bucket.0, Some(passed.id()));
            tr.clear_range(&begin, &end);
        }
        Ok(true)
    }

    /// Reads the position of a bucket.
    pub(crate) async fn position(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        isolation: Isolation,
    ) -> Result<Option<Sequence>> {
        let key = self.queue.keys.position(&self.name, bucket);
        let position = tr.get(&key, isolation).await?;
        Ok(decode_position(&key, position.as_deref())?)
    }
}

/// The changes that a finished batch makes.
#[derive(Debug)]
pub(crate) struct Advance {
    /// The last entry of the batch, or the end of its block.
    pub(crate) position: Sequence,
    /// The entries and blocks that were not exported and are not retried.
    pub(crate) dead: Vec<(Sequence, DeadLetterRecord)>,
    /// Whether the claim is released, so that another session may claim the bucket.
    pub(crate) releases_claim: bool,
}
