//! The thread that commits: batches of transactions in, one state of the store after the other out.

use std::sync::Arc;
use std::time::Duration;
use std::{io, mem, thread};

use bytes::Bytes;

use super::effect::{Effect, effects, needed_key};
use super::engine::Shared;
use super::history::History;
use super::queue::{Mutation, PendingCommit};
use super::ranges::KeyRange;
use super::store::{Flush, Store};
use super::tree::Rows;
use super::{Durability, Options};
use crate::error::{Code, Result};
use crate::mutation::{MutationOp, Versionstamp};
use crate::transaction::Commit;

/// Owns the store and the conflict history.
pub(super) struct Committer {
    shared: Arc<Shared>,
    store: Store,
    history: History,
    durability: Durability,
    /// When the first batch was applied that was acknowledged and is not flushed, on the environment's
    /// clock.
    unflushed_since: Option<Duration>,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, store: Store, options: &Options) -> Self {
        Self {
            history: History::new(store.last_version(), options.history_bytes),
            shared,
            store,
            durability: options.durability,
            unflushed_since: None,
        }
    }

    /// Commits until the queue is closed and empty, or the store fails; then ends the store.
    pub(super) fn run(mut self) -> Result<()> {
        let ended = self.serve().and_then(|()| self.shared.timeline().check());
        let closed = || Code::TRANSACTION_CANCELLED.into();
        self.shared.end(ended.clone().err().unwrap_or_else(closed));
        ended
    }

    fn serve(&mut self) -> Result<()> {
        while self.step()? {}
        self.flush()?;
        let closed = self.store.close();
        closed.map_err(|cause| self.shared.poison(cause))
    }

    /// Waits for a batch and commits it, or flushes what may not wait longer. Returns false once
    /// the queue is closed and empty.
    pub(super) fn step(&mut self) -> Result<bool> {
        match self.shared.queue().take_batch(self.idle_limit()) {
            Some(batch) if batch.is_empty() => self.flush()?,
            Some(batch) => self.commit(batch)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Commits a batch: the steps that the [engine](super::engine) lists.
    fn commit(&mut self, mut batch: Vec<PendingCommit>) -> Result<()> {
        let version = self.shared.timeline().begin_commit();
        self.history.age(version);
        let verdicts: Vec<_> = (0..)
            .zip(&mut batch)
            .map(|(index, commit)| self.resolve(commit, Versionstamp::new(version, index)))
            .collect();

        let mut outcome = Ok(());
        if verdicts.iter().any(Result::is_ok) {
            let commits = batch.iter_mut().zip(&verdicts);
            let committed = commits.filter(|(_, verdict)| verdict.is_ok());
            let mutations = committed.map(|(commit, _)| mem::take(&mut commit.request.mutations));
            outcome = self.apply(version, mutations.collect());
        } else {
            self.shared.timeline().abandon_commit();
        }

        for (commit, verdict) in batch.into_iter().zip(verdicts) {
            let verdict = match outcome {
                Err(_) if verdict.is_ok() => Err(Code::COMMIT_UNKNOWN_RESULT),
                _ => verdict,
            };
            // Who has stopped waiting does not hear of it.
            let _ = commit.verdict.send(verdict.map_err(Into::into));
        }
        outcome?;
        let checkpoint = self.store.checkpoint_if_due();
        checkpoint.map_err(|cause| self.shared.poison(cause))
    }

    /// Judges a transaction of a batch. If it may commit, its writes enter the history and its
    /// versionstamps are filled in.
    ///
    /// The batch's version is later than every read version, so the writes of earlier transactions
    /// of the batch conflict like those of earlier batches.
    fn resolve(&mut self, commit: &mut PendingCommit, stamp: Versionstamp) -> Result<Commit, Code> {
        let read_version = commit.read_version;
        let request = &mut commit.request;
        if self.history.is_too_old(read_version) {
            return Err(Code::TRANSACTION_TOO_OLD);
        }
        let mut reads = request.read_conflicts.iter();
        if reads.any(|range| self.history.written_after(&range, read_version)) {
            return Err(Code::NOT_COMMITTED);
        }
        let version = stamp.commit_version();
        for range in mem::take(&mut request.write_conflicts).into_ranges() {
            self.history.add(&range, version);
        }
        for mutation in &mut request.mutations {
            if let Some(key) = fill_in(mutation, stamp) {
                self.history.add(&KeyRange::key(key.clone()), version);
            }
        }
        Ok(Commit {
            version,
            versionstamp: Some(stamp),
        })
    }

    /// Applies the mutations of a batch's transactions, publishes the state that they leave, and
    /// tells watches of it.
    fn apply(&mut self, version: i64, transactions: Vec<Vec<Mutation>>) -> Result<()> {
        let flush = self.next_flush();
        let (effects, rows) = self
            .change(version, transactions, flush)
            .map_err(|cause| self.shared.poison(cause))?;
        if flush != Flush::Later {
            self.shared.timeline().flushed(version);
        }
        self.shared.timeline().publish(version, rows);
        self.tell_watches(&effects);
        Ok(())
    }

    fn change(
        &mut self,
        version: i64,
        transactions: Vec<Vec<Mutation>>,
        flush: Flush,
    ) -> Result<(Vec<Effect>, Rows), redb::Error> {
        let mutations = transactions.iter().flatten();
        let values = self.store.values(mutations.filter_map(needed_key))?;
        let effects = effects(transactions.into_iter().flatten(), values);
        self.store.apply(version, &effects, flush)?;
        Ok((effects, self.store.rows()?))
    }

    fn tell_watches(&self, effects: &[Effect]) {
        let registry = self.shared.registry();
        for key in registry.watched(effects) {
            // After a failure to read, the store has ended and its watches know.
            if let Ok(value) = self.shared.newest().and_then(|newest| newest.get(&key)) {
                registry.tell(&key, value.as_ref());
            }
        }
    }

    /// Decides whether the next batch is flushed.
    fn next_flush(&mut self) -> Flush {
        let Durability::Relaxed { interval } = self.durability else {
            return Flush::Now;
        };
        let now = self.shared.timeline().environment().now();
        let since = *self.unflushed_since.get_or_insert(now);
        if now.saturating_sub(since) < interval {
            return Flush::Later;
        }
        self.unflushed_since = None;
        Flush::Now
    }

    /// Returns how long the batches that are not flushed may wait for another one.
    fn idle_limit(&self) -> Option<Duration> {
        let Durability::Relaxed { interval } = self.durability else {
            return None;
        };
        let now = self.shared.timeline().environment().now();
        let since = self.unflushed_since?;
        Some(interval.saturating_sub(now.saturating_sub(since)))
    }

    /// Flushes what was acknowledged and not flushed.
    fn flush(&mut self) -> Result<()> {
        if self.unflushed_since.take().is_some() {
            let flushed = self.store.flush();
            flushed.map_err(|cause| self.shared.poison(cause))?;
            self.shared.timeline().flushed(self.store.last_version());
        }
        Ok(())
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared
                .poison(io::Error::other("the committer panicked"));
        }
    }
}

/// Puts the versionstamp into a versionstamped operation, which is a plain set then. Returns the
/// key if the stamp is in it.
fn fill_in(mutation: &mut Mutation, stamp: Versionstamp) -> Option<&Bytes> {
    let Mutation::Atomic { op, key, param } = mutation else {
        return None;
    };
    let is_key = match op {
        MutationOp::SetVersionstampedKey => true,
        MutationOp::SetVersionstampedValue => false,
        _ => return None,
    };
    let (key, value) = if is_key {
        (filled(key, stamp), param.clone())
    } else {
        (key.clone(), filled(param, stamp))
    };
    *mutation = Mutation::Set { key, value };
    match mutation {
        Mutation::Set { key, .. } if is_key => Some(key),
        _ => None,
    }
}

/// Replaces ten bytes of a template, which ends in their little-endian offset, by the stamp.
fn filled(template: &[u8], stamp: Versionstamp) -> Bytes {
    let (bytes, offset) = template
        .split_last_chunk()
        .expect("a template was checked when it was staged");
    let offset = u32::from_le_bytes(*offset) as usize;
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + 10].copy_from_slice(stamp.as_bytes());
    bytes.into()
}
