//! The two transactions of a batch: one before the exporter is called, and one afterwards.
//!
//! 1. [`claim_batch`](Subscription::claim_batch) claims the bucket for a session that lives, and reads
//!    the entries after the position.
//! 2. The exporter is called, outside of any transaction.
//! 3. [`advance`](Subscription::advance) sets the position, if the claim still holds and the session
//!    still lives, and clears what all subscriptions have passed.
//!
//! A worker that dies between 2 and 3 leaves a batch that is exported again. One that hangs there until
//! another one has the claim cannot set the position any more.

use std::ops::ControlFlow;

use combine::Bucket;
use combine::hc_dequeue::session::{Life, SessionId};
use combine::keyspace::codec::Codec;
use combine::keyspace::transaction::key_after;
use combine::keyspace::{Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, visit_rows};
use combine::microqueue::Item;
use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};

use crate::error::{Error, Result};
use crate::record::{Entry, Letter, decode_claim, decode_position, encode_claim, encode_position};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// How much to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    pub(crate) entries: usize,
    /// Of keys and values in the store. At least one entry is read.
    pub(crate) bytes: usize,
}

/// Entries behind the position of a bucket.
#[derive(Debug)]
pub(crate) struct Batch {
    /// At least one, in commit order.
    pub(crate) entries: Vec<Item<Entry>>,
    pub(crate) bytes: usize,
    pub(crate) has_more: bool,
}

/// Who has a bucket, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    by: SessionId,
    position: Option<Sequence>,
}

/// What claiming a batch came to.
#[derive(Debug)]
pub(crate) enum ClaimOutcome {
    Batch(Batch),
    /// There is nothing to export, or nothing is exported for now, or ever: the subscription is removed.
    Nothing,
    /// Another session, which lives, has the claim.
    Claimed(Claim),
    /// The session is dead.
    SessionLost,
}

impl<K, V, C> Subscription<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Claims a bucket and reads entries behind its position. A session that lives loses its claim only
    /// if that is `stalled`: it has not moved since.
    ///
    /// # Conflicts
    /// Reads the claim, the position, the settings, and the states of the own session and of the one
    /// that has the claim. Writes the claim, unless it is the session's already.
    pub(crate) async fn claim_batch(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        bucket: Bucket,
        portion: Portion,
        stalled: Option<Claim>,
    ) -> Result<ClaimOutcome> {
        let (keys, sessions) = (&self.queue.keys, self.sessions());
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
            if stalled != Some(claimed) && sessions.life(tr, by).await? == Some(Life::Alive) {
                return Ok(ClaimOutcome::Claimed(claimed));
            }
        }
        if is_paused {
            return Ok(ClaimOutcome::Nothing);
        }
        let batch = self.read(tr, bucket, position, portion).await?;
        if batch.entries.is_empty() {
            return Ok(ClaimOutcome::Nothing);
        }
        if claim != Some(session) {
            tr.set(&claim_key, &encode_claim(session));
        }
        Ok(ClaimOutcome::Batch(batch))
    }

    /// Reads entries behind a position.
    ///
    /// By snapshot: nobody adds before what is there, since a later commit has a larger stamp, and only
    /// what every subscription has passed is cleared.
    async fn read(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        position: Option<Sequence>,
        portion: Portion,
    ) -> Result<Batch> {
        let log = self.queue.keys.log(bucket);
        let (begin, end) = self.behind(bucket, position);
        let mut batch = Batch {
            entries: Vec::new(),
            bytes: 0,
            has_more: false,
        };
        let limit = portion.entries.saturating_add(1);
        let query = RangeQuery::keys(begin, end).limit(limit);
        let query = query.mode(StreamingMode::WantAll);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            let bytes = batch.bytes + row.key().len() + row.value().len();
            let is_full = batch.entries.len() == portion.entries || bytes > portion.bytes;
            if is_full && !batch.entries.is_empty() {
                batch.has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            batch.entries.push(log.decode(&row)?);
            batch.bytes = bytes;
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
        Ok(batch)
    }

    /// Sets the position to the last entry that was exported, keeps those that were not as dead
    /// letters, gives up the claim if told to, and clears what all subscriptions have passed. False: another
    /// session has the claim, or the session is dead.
    ///
    /// # Conflicts
    /// Reads the claim, the state of the own session, and the settings, so that no subscription is made
    /// meanwhile that needs what is cleared. The positions of others by snapshot: they only grow.
    pub(crate) async fn advance(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        bucket: Bucket,
        advance: &Advance,
    ) -> Result<bool> {
        let (keys, sessions) = (&self.queue.keys, self.sessions());
        let claim_key = keys.claim(&self.name, bucket);
        let claim = tr.get(&claim_key, Isolation::Serializable);
        let (claim, life, stored) = try_join!(
            claim.map_err(Error::from),
            sessions.life(tr, session).map_err(Error::from),
            self.queue.stored(tr),
        )?;
        let claim = decode_claim(&claim_key, claim.as_deref())?;
        if claim != Some(session) || life != Some(Life::Alive) {
            return Ok(false);
        }
        let position_key = keys.position(&self.name, bucket);
        tr.set(&position_key, &encode_position(&advance.position));
        if advance.gives_up {
            tr.clear(&claim_key);
        }
        for (sequence, letter) in &advance.dead {
            tr.set(&keys.letter(&self.name, sequence), &letter.encode()?);
        }
        let others = stored
            .subscriptions
            .iter()
            .filter(|name| **name != *self.name);
        let others = others.map(|name| {
            let key = keys.position(name, bucket);
            async move {
                let position = tr.get(&key, Isolation::Snapshot).await?;
                decode_position(&key, position.as_deref())
            }
        });
        let others = try_join_all(others).await?;
        // One that has exported nothing yet has passed nothing.
        let passed = (others.into_iter()).fold(Some(advance.position), Option::min);
        if let Some(passed) = passed {
            let log = keys.log(bucket);
            let end = key_after(&passed.id().key_in(log.subspace()));
            tr.clear_range(log.subspace().bytes(), &end);
        }
        Ok(true)
    }

    /// The range of the entries behind a position.
    pub(crate) fn behind(&self, bucket: Bucket, position: Option<Sequence>) -> (Vec<u8>, Vec<u8>) {
        let log = self.queue.keys.log(bucket);
        let (begin, end) = log.subspace().range();
        let begin = position.map_or(begin, |position| {
            key_after(&position.id().key_in(log.subspace()))
        });
        (begin, end)
    }

    /// Reads the first entry behind the position of a bucket.
    pub(crate) async fn first(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
    ) -> Result<Option<KeyValue>> {
        let position = self.position(tr, bucket, Isolation::Snapshot).await?;
        let (begin, end) = self.behind(bucket, position);
        let first = RangeQuery::keys(begin, end).limit(1);
        let batch = tr.get_range(&first, Isolation::Snapshot).await?;
        Ok(batch.rows.into_iter().next())
    }

    /// Reads up to where a bucket is exported.
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

/// How far a batch moves the position, and what else becomes of it.
#[derive(Debug)]
pub(crate) struct Advance {
    /// The last entry of it.
    pub(crate) position: Sequence,
    /// Which of its entries were not exported, and are not tried again.
    pub(crate) dead: Vec<(Sequence, Letter)>,
    /// Whether another session may have the bucket.
    pub(crate) gives_up: bool,
}
