//! Decides which transactions commit, and applies their writes to the window.

use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use bytes::Bytes;

use super::atomic;
use super::history::History;
use super::pipeline::{Batch, Verdict};
use super::queue::{Mutation, PendingCommit};
use super::shared::{EngineShared, PANICKED};
use crate::contract::error::{Code, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::transaction::Commit;
use crate::stores::embedded::collections::ranges::KeyRange;
use crate::stores::embedded::layers::Window;
use crate::stores::embedded::log::effect::Effect;
use crate::stores::embedded::log::frame::Record;
use crate::stores::embedded::runs::damage::FileError;

/// Owns the conflict history and the newest state of the rows.
pub(super) struct Resolver {
    shared: Arc<EngineShared>,
    history: History,
    window: Window,
}

impl Resolver {
    pub(super) fn new(shared: Arc<EngineShared>, history: History, window: Window) -> Self {
        Self {
            shared,
            history,
            window,
        }
    }

    /// Closes the pipeline, and passes it the last part of the window.
    pub(super) fn finish(self) {
        let Self {
            shared, mut window, ..
        } = self;
        let last_part = window.freeze();
        // The window reads the runs, which must have no readers when the checkpointer closes the file.
        drop(window);
        shared.pipeline.close(Some(last_part));
    }

    /// Resolves the waiting commits into the open batch.
    pub(super) fn step(&mut self) -> Result<()> {
        let commits = self.shared.queue.take();
        self.resolve_taken(commits)
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &EngineShared {
        &self.shared
    }

    /// Resolves commits that were taken from the queue.
    pub(super) fn resolve_taken(&mut self, commits: Vec<PendingCommit>) -> Result<()> {
        if commits.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        if let Some(runs) = shared.timeline.newest_runs() {
            self.window.rebase(&runs);
        }
        let failed = {
            let mut open = shared.pipeline.open();
            let batch = open.get_or_insert_with(|| self.begin_batch());
            let resolve = AssertUnwindSafe(|| self.resolve_all(commits, batch));
            let panicked = |_| Err(io::Error::other(PANICKED).into());
            let resolved = panic::catch_unwind(resolve).unwrap_or_else(panicked);
            // The batch may contain half a transaction, so the publisher must not find it.
            resolved.err().map(|cause| (cause, open.take()))
        };
        if let Some((cause, batch)) = failed {
            let error = shared.fail(cause);
            if let Some(batch) = batch {
                batch.answer_unknown();
            }
            return Err(error);
        }
        // If the store has ended since the commits were taken, nothing else takes the batch.
        if shared.timeline.check().is_err()
            && let Some(batch) = shared.pipeline.take()
        {
            batch.answer_unknown();
        }
        Ok(())
    }

    fn begin_batch(&mut self) -> Batch {
        let version = self.shared.timeline.begin_commit();
        self.history.age(version);
        let is_due = self.shared.pipeline.takes_end_of_part() || self.window.is_due();
        Batch {
            version,
            record: Record::batch(version),
            parts: None,
            verdicts: Vec::new(),
            frozen: if is_due {
                Some(self.window.freeze())
            } else {
                None
            },
            part_bytes: 0,
        }
    }

    fn resolve_all(
        &mut self,
        commits: Vec<PendingCommit>,
        batch: &mut Batch,
    ) -> Result<(), FileError> {
        // While a snapshot exists, each write copies the nodes of the window that it changes.
        let mut has_writes = batch.parts.take().is_some();
        for mut commit in commits {
            // Rejected transactions are counted too.
            let index = u16::try_from(batch.verdicts.len()).expect("a batch is far smaller");
            let stamp = Versionstamp::new(batch.version, index);
            let verdict = self.resolve(&mut commit, stamp);
            has_writes |= verdict.is_ok();
            // Add the result before applying the writes, so that the transaction gets one with the batch
            // even if a write fails.
            let waiting = commit.verdict;
            batch.verdicts.push(Verdict { waiting, verdict });
            if verdict.is_ok() {
                let request = &commit.request;
                batch
                    .record
                    .reserve(request.mutations.len(), request.operand_bytes());
                for mutation in commit.request.mutations {
                    self.apply(mutation, &mut batch.record)?;
                }
            }
        }
        if has_writes {
            batch.parts = Some(self.window.parts());
            batch.part_bytes = self.window.movable_bytes();
        }
        Ok(())
    }

    /// Decides on a transaction of a batch. If it may commit, adds its writes to the history and fills in
    /// its versionstamps.
    ///
    /// The batch's version is later than every read version. Writes of earlier transactions in the batch
    /// therefore conflict in the same way as those of earlier batches.
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

    /// Applies a mutation to the newest state, and adds its effect to the record. The effect does not
    /// depend on the values of rows.
    fn apply(&mut self, mutation: Mutation, record: &mut Record) -> Result<(), FileError> {
        let new;
        let effect = match &mutation {
            Mutation::Set { key, value } => Effect::Set { key, value },
            Mutation::Clear { key } => Effect::Clear { key },
            Mutation::ClearRange { begin, end } => Effect::ClearRange { begin, end },
            Mutation::Atomic { op, key, param } => {
                let old = self.window.get(key)?;
                new = atomic::apply(*op, old.as_deref(), param).map(|new| new.into_owned());
                match &new {
                    Some(value) => Effect::Set { key, value },
                    None => Effect::Clear { key },
                }
            }
        };
        record.push(effect);
        self.window.apply(effect)
    }
}

/// Fills the versionstamp into a versionstamped operation, which makes it a plain set. Returns the key if
/// the stamp is part of the key.
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

/// Replaces ten bytes of a template with the stamp. The template ends with their little-endian offset.
fn filled(template: &[u8], stamp: Versionstamp) -> Bytes {
    let (bytes, offset) = template
        .split_last_chunk()
        .expect("a template was checked when it was staged");
    let offset = u32::from_le_bytes(*offset) as usize;
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + 10].copy_from_slice(stamp.as_bytes());
    bytes.into()
}
