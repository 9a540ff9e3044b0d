//! The queue of commits between the transactions and the resolver.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::contract::error::{Code, Result};
use crate::contract::mutation::{MutationOp, op_number};
use crate::contract::transaction::Commit;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};

/// The number of transactions at which a batch is full.
pub(super) const FULL_BATCH_TRANSACTIONS: usize = 1024;

/// The size at which a batch is full, in bytes.
pub(super) const FULL_BATCH_BYTES: usize = 4 << 20;

/// The largest number of commits that are resolved on the caller's thread.
const MAX_SHORT_COMMITS: usize = 4;

/// The largest size of these commits together, in bytes.
const MAX_SHORT_BYTES: usize = 16 << 10;

/// A write of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mutation {
    /// Sets a key.
    Set { key: Bytes, value: Bytes },
    /// Clears a key.
    Clear { key: Bytes },
    /// Clears the keys `begin <= key < end`.
    ClearRange { begin: Bytes, end: Bytes },
    /// Applies an atomic operation to the latest value. For a versionstamped operation, `key` or `param` is
    /// the template with its offset.
    Atomic {
        #[serde(with = "op_number")]
        op: MutationOp,
        key: Bytes,
        param: Bytes,
    },
}

impl Mutation {
    /// Returns the total length of the keys and values.
    pub(crate) fn operand_bytes(&self) -> usize {
        match self {
            Self::Set { key, value } => key.len() + value.len(),
            // FoundationDB sends a clear of one key as a clear of a range.
            Self::Clear { key } => 2 * key.len() + 1,
            Self::ClearRange { begin, end } => begin.len() + end.len(),
            Self::Atomic { key, param, .. } => key.len() + param.len(),
        }
    }
}

/// A transaction that is sent to the engine to be committed.
///
/// A versionstamped key has no write conflict range here. The resolver adds it when it knows the key.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommitRequest {
    /// The read version of the transaction. If it has not read anything, it gets the version at which
    /// commit is called, and this is `None`.
    pub(crate) read_version: Option<i64>,
    pub(crate) read_conflicts: RangeSet,
    pub(crate) write_conflicts: RangeSet,
    /// In the order in which they are applied.
    pub(crate) mutations: Vec<Mutation>,
}

impl CommitRequest {
    /// Returns the total length of the mutations' keys and values.
    pub(crate) fn operand_bytes(&self) -> usize {
        self.mutations.iter().map(Mutation::operand_bytes).sum()
    }

    /// Returns the approximate memory of the request.
    pub(crate) fn bytes(&self) -> usize {
        let mutations = self.operand_bytes();
        let sets = [&self.read_conflicts, &self.write_conflicts];
        let ranges: usize = sets
            .map(|set| set.bounds_bytes() + set.len() * size_of::<KeyRange>())
            .iter()
            .sum();
        ranges + mutations + self.mutations.len() * size_of::<Mutation>()
    }
}

/// A commit under way.
pub(super) struct PendingCommit {
    pub(super) request: CommitRequest,
    pub(super) read_version: i64,
    pub(super) verdict: oneshot::Sender<Result<Commit>>,
}

/// The commits that wait for the resolver.
pub(super) struct Queue {
    waiting: Mutex<WaitingCommits>,
    /// Notified when a commit arrives while the resolver is idle, and when the queue closes.
    wake: Condvar,
    limit_bytes: usize,
}

#[derive(Default)]
struct WaitingCommits {
    /// The commits, each with its size.
    commits: VecDeque<(PendingCommit, usize)>,
    bytes: usize,
    resolver_is_idle: bool,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            wake: Condvar::new(),
            limit_bytes,
        }
    }

    /// Adds a commit, unless the waiting commits already take too much memory.
    pub(super) fn push(&self, commit: PendingCommit) -> Result<()> {
        let bytes = commit.request.bytes();
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(Code::TRANSACTION_CANCELLED.into());
        }
        if waiting.bytes >= self.limit_bytes && !waiting.commits.is_empty() {
            return Err(Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED.into());
        }
        waiting.bytes += bytes;
        waiting.commits.push_back((commit, bytes));
        Ok(())
    }

    /// Wakes the resolver's thread if it is waiting for commits.
    pub(super) fn wake(&self) {
        if std::mem::take(&mut self.waiting().resolver_is_idle) {
            self.wake.notify_one();
        }
    }

    /// Returns whether the waiting commits can be resolved quickly.
    pub(super) fn is_short(&self) -> bool {
        let waiting = self.waiting();
        waiting.commits.len() <= MAX_SHORT_COMMITS && waiting.bytes <= MAX_SHORT_BYTES
    }

    /// Waits for commits. Returns false once the queue is closed and empty.
    pub(super) fn wait(&self) -> bool {
        let mut waiting = self.waiting();
        while waiting.commits.is_empty() && !waiting.is_closed {
            waiting.resolver_is_idle = true;
            self.wake.wait(&mut waiting);
        }
        waiting.resolver_is_idle = false;
        !waiting.commits.is_empty()
    }

    /// Takes waiting commits, up to the size of a batch.
    pub(super) fn take(&self) -> Vec<PendingCommit> {
        let mut waiting = self.waiting();
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        while taken.len() < FULL_BATCH_TRANSACTIONS
            && taken_bytes < FULL_BATCH_BYTES
            && let Some((commit, bytes)) = waiting.commits.pop_front()
        {
            waiting.bytes -= bytes;
            taken_bytes += bytes;
            taken.push(commit);
        }
        taken
    }

    /// Accepts no more commits. Those that wait can still be taken.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.wake.notify_one();
    }

    /// Takes all waiting commits.
    pub(super) fn take_all(&self) -> Vec<PendingCommit> {
        let mut waiting = self.waiting();
        waiting.bytes = 0;
        let commits = std::mem::take(&mut waiting.commits);
        commits.into_iter().map(|(commit, _)| commit).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingCommits> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(value_bytes: usize) -> PendingCommit {
        let set = Mutation::Set {
            key: "k".into(),
            value: vec![0; value_bytes].into(),
        };
        let (verdict, _) = oneshot::channel();
        PendingCommit {
            request: CommitRequest {
                mutations: vec![set],
                ..CommitRequest::default()
            },
            read_version: 0,
            verdict,
        }
    }

    fn code(result: Result<()>) -> i32 {
        result.unwrap_err().code().unwrap().number()
    }

    #[test]
    fn a_batch_ends_at_its_number_of_transactions_or_at_its_size() {
        let queue = Queue::new(usize::MAX);
        for _ in 0..FULL_BATCH_TRANSACTIONS + 1 {
            queue.push(commit(0)).unwrap();
        }
        assert_eq!(queue.take().len(), FULL_BATCH_TRANSACTIONS);
        assert_eq!(queue.take().len(), 1);
        for _ in 0..3 {
            queue.push(commit(FULL_BATCH_BYTES / 2)).unwrap();
        }
        assert_eq!(queue.take().len(), 2);
        assert_eq!(queue.take().len(), 1);
    }

    #[test]
    fn a_queue_over_its_limit_refuses_commits_until_the_resolver_has_taken_some() {
        let queue = Queue::new(1000);
        queue.push(commit(600)).unwrap();
        queue.push(commit(600)).unwrap();
        assert_eq!(code(queue.push(commit(0))), 1042);
        queue.take();
        queue.push(commit(0)).unwrap();
    }

    #[test]
    fn conflict_ranges_take_up_memory_in_the_queue() {
        let queue = Queue::new(1000);
        let mut reader = commit(0);
        let key = vec![0; 600];
        let range = KeyRange::new(key.clone().into(), [&key[..], b"\x01"].concat().into());
        reader.request.read_conflicts.insert(range);
        queue.push(reader).unwrap();
        assert_eq!(code(queue.push(commit(0))), 1042);
    }

    #[test]
    fn a_queue_takes_one_commit_whatever_its_limit() {
        let queue = Queue::new(0);
        queue.push(commit(0)).unwrap();
        assert_eq!(code(queue.push(commit(0))), 1042);
    }

    #[test]
    fn a_closed_queue_gives_what_it_holds_and_takes_nothing() {
        let queue = Queue::new(1000);
        queue.push(commit(0)).unwrap();
        queue.close();
        assert_eq!(code(queue.push(commit(0))), 1025);
        assert_eq!(queue.take().len(), 1);
        assert!(!queue.wait());
    }
}
