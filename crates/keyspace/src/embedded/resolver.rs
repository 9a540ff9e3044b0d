//! Judges commits and applies them to the window.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::atomic;
use super::engine::Shared;
use super::history::History;
use super::layers::Window;
use super::log::effect::Effect;
use super::log::frame::Record;
use super::pipeline::{Batch, Verdict};
use super::queue::{Mutation, PendingCommit};
use super::ranges::KeyRange;
use super::tree::guarded;
use crate::error::{Code, Result};
use crate::mutation::{MutationOp, Versionstamp};
use crate::transaction::Commit;

/// Owns the conflict history and the newest state of the rows.
pub(super) struct Resolver {
    shared: Arc<Shared>,
    history: History,
    window: Window,
}

impl Resolver {
    pub(super) fn new(shared: Arc<Shared>, history: History, window: Window) -> Self {
        Self {
            shared,
            history,
            window,
        }
    }

    /// Closes the pipeline, with what is in the window.
    pub(super) fn finish(self) {
        let Self {
            shared, mut window, ..
        } = self;
        let last_part = window.freeze();
        // It reads the tree, which nothing may do once the checkpointer makes the file shorter.
        drop(window);
        shared.pipeline().close(Some(last_part));
    }

    /// Resolves the commits that wait, into the open batch.
    pub(super) fn step(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let commits = shared.queue().take();
        if commits.is_empty() {
            return Ok(());
        }
        if let Some(tree) = shared.timeline().tree() {
            self.window.rebase(&tree);
        }
        let failed = {
            let mut open = shared.pipeline().open();
            let batch = open.get_or_insert_with(|| self.begin_batch());
            let resolved = guarded(|| self.resolve_all(commits, batch));
            // Half a transaction may be in it: the publisher must not find it.
            resolved.err().map(|cause| (cause, open.take()))
        };
        if let Some((cause, batch)) = failed {
            let error = shared.poison(cause);
            batch.into_iter().for_each(Batch::answer_unknown);
            return Err(error);
        }
        shared.pipeline().offer();
        Ok(())
    }

    fn begin_batch(&mut self) -> Batch {
        let version = self.shared.timeline().begin_commit();
        self.history.age(version);
        let is_due = self.shared.pipeline().takes_end_of_part() || self.window.is_due();
        Batch {
            version,
            record: Record::batch(version),
            parts: None,
            verdicts: Vec::new(),
            frozen: is_due.then(|| self.window.freeze()),
        }
    }

    fn resolve_all(
        &mut self,
        commits: Vec<PendingCommit>,
        batch: &mut Batch,
    ) -> Result<(), redb::Error> {
        let mut has_writes = false;
        for mut commit in commits {
            // Rejected transactions are counted too.
            let index = u16::try_from(batch.verdicts.len()).expect("a batch is far smaller");
            let stamp = Versionstamp::new(batch.version, index);
            let verdict = self.resolve(&mut commit, stamp);
            has_writes |= verdict.is_ok();
            // Before its writes: if one fails, the transaction is answered with the batch.
            let waiting = commit.verdict;
            batch.verdicts.push(Verdict { waiting, verdict });
            if verdict.is_ok() {
                for mutation in commit.request.mutations {
                    self.apply(mutation, &mut batch.record)?;
                }
            }
        }
        if has_writes {
            batch.parts = Some(self.window.parts());
        }
        Ok(())
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

    /// Applies a mutation to the newest state. What it does to the rows, whatever they hold, goes into
    /// the record.
    fn apply(&mut self, mutation: Mutation, record: &mut Record) -> Result<(), redb::Error> {
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
        Ok(self.window.apply(effect)?)
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
