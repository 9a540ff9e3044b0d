//! The ledger: how a commit with an unknown outcome happens exactly once.
//!
//! A commit can end without news: `commit_unknown_result`, `cluster_version_changed`,
//! `transaction_timed_out`, or because its future was dropped. It may have happened, it may not,
//! and it may *still* happen. Running the work again could do it twice, giving up could lose it.
//! So a [`Runner`](crate::Runner) keeps a ledger in the store, and every transaction that writes
//! also writes, in the same commit, which attempt of which operation it is.
//!
//! A ledger is a random id and a pool of *slots*, one key each. An operation takes a free slot for
//! its own and gives it the next number. The bytes are in `keys.rs` and in `docs/schema.md`.
//!
//! # The order of steps
//!
//! One attempt of an operation with number *n* ([`Receipt`] is all of it but the commit):
//!
//! 1. Get the read version.
//! 2. If an earlier attempt is in doubt, read the slot serializably. If it holds *(n, a)*, attempt
//!    *a* has committed: its kept result is the answer. If it is missing, somebody swept the
//!    ledger: the outcome stays unknown, and nothing runs again.
//! 3. Add a read conflict on the slot.
//! 4. Run the closure.
//! 5. If it wrote anything, or something is in doubt, set the slot to *(n, attempt, versionstamp)*.
//! 6. Commit.
//!
//! An error for an answer is an answer like any other: while something is in doubt it counts only
//! once a fresh transaction with the slot alone has committed, so that nothing the closure staged
//! goes with it.
//!
//! # Why each step is where it is
//!
//! What must never happen is that two attempts of one operation commit. Let attempt 1 be in doubt.
//!
//! *It lands after attempt 2 has looked.*
//! 1. Attempt 2 reads the slot and does not find attempt 1.
//! 2. Attempt 1 lands and writes the slot.
//! 3. Attempt 2 commits: its conflict on the slot meets that write, `not_committed`. Attempt 3
//!    finds attempt 1.
//!
//! A conflict that is added after the slot was set would have been dropped, because a transaction
//! does not conflict with what it has written itself. Hence 3 before 5, and before 4, where the
//! closure may clear the range that the ledger lies in.
//!
//! *It lands after attempt 2 has committed.*
//! 1. Attempt 2 commits, and with it the slot.
//! 2. Attempt 1 arrives: its own conflict on the slot meets that write, and it is refused.
//!
//! That holds only if attempt 1 got its read version before attempt 2 committed. A transaction
//! that has none when it calls commit gets it inside the commit, however late: it would see the
//! slot of attempt 2 as an old write and commit again. Hence 1. And it holds only if attempt 2
//! writes the slot, also when its closure changed nothing and when its closure failed. Hence 5.
//!
//! *The slot's first record lands late.* A slot is written once, as operation 0, before its first
//! use. That write must not reset a slot in use:
//! 1. The first write is in doubt; its retry reads the slot, finds nothing, and commits its own.
//! 2. Operation 1 commits *(1, 1)* without news.
//! 3. The first write arrives. It too has read the slot, at a read version from before its retry,
//!    and that read conflicts: it is refused.
//!
//! A blind write would have landed, and attempt 2 of operation 1 would have found "operation 0",
//! taken it for "not committed" and run again.
//!
//! *The ledger is swept.* A sweep clears a ledger that nothing has committed on for a long time, in
//! one range clear, so a missing slot says nothing about a commit:
//! 1. Attempt 1 commits without news.
//! 2. A sweep clears the ledger.
//! 3. Attempt 2 finds no slot. It must not run again: `OutcomeUnknown`.
//!
//! A sweep whose clear is itself in doubt cannot wipe out newer records: it has read the slots
//! serializably. A ledger that has been idle for half of [`MIN_SWEEP_AGE`] takes a new id by itself.
//!
//! *Nobody asks any more.* The future is dropped at the commit, or the limits run out while an
//! attempt is in doubt. The slot goes back to the pool marked as in doubt, and slots in doubt are
//! taken first. The next operation on it writes the slot in any case, which refuses the old commit
//! if it has not happened by then. A new id would leave it free to land:
//! 1. An operation gives up; its commit is on its way.
//! 2. The caller reads what it would have written, finds nothing, and repeats the work.
//! 3. The commit arrives, and no slot refuses it.
//!
//! # Without a ledger
//!
//! In somebody else's retry loop, or with [`RunOptions::exactly_once`](crate::RunOptions) turned
//! off, an attempt runs again although an earlier one has committed: a counter counts twice, an item
//! is enqueued twice, and a call that checks what it is about to remove finds it gone and reports
//! failure although it has succeeded: right effect, wrong news. A [`Receipt`] brings the ledger
//! into a foreign loop.

mod keys;
mod receipt;

use std::time::Duration;

use foundationdb_tuple::Subspace;
use parking_lot::{Mutex, MutexGuard};

use self::keys::LedgerId;
pub(crate) use self::keys::{LedgerKeys, SlotRecord};
pub use self::receipt::{EarlierCommit, Receipt};
use crate::env::Environment;

/// The youngest age at which a sweep may take a ledger for abandoned.
pub const MIN_SWEEP_AGE: Duration = Duration::from_secs(60 * 60);

/// A ledger idle for longer takes a new id: half of what a sweep needs, for clocks that drift and
/// operations that take their time.
const MAX_IDLE: Duration = Duration::from_secs(30 * 60);

/// A ledger: an id and the slots under it that no operation is using.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) keys: LedgerKeys,
    environment: Environment,
    pool: Mutex<Pool>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) id: LedgerId,
    /// How many slots this id has had.
    slot_count: u64,
    clean: Vec<Slot>,
    /// Slots on which a commit may still land.
    in_doubt: Vec<Slot>,
    /// A time before the newest record that is known to be committed under this id.
    recorded: Option<Duration>,
}

/// A slot in the hands of one operation or of the pool.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) ledger: LedgerId,
    pub(crate) key: Vec<u8>,
    /// The number of the last operation on it, 0 if there was none.
    pub(crate) operation: u64,
    /// Whether a commit of that operation may still land.
    pub(crate) in_doubt: bool,
}

impl Pool {
    fn new(environment: &Environment) -> Self {
        Self {
            id: LedgerId::random(environment),
            slot_count: 0,
            clean: Vec::new(),
            in_doubt: Vec::new(),
            recorded: None,
        }
    }
}

impl Ledger {
    pub(crate) fn new(ledgers: Subspace, environment: Environment) -> Self {
        Self {
            keys: LedgerKeys::new(ledgers),
            pool: Mutex::new(Pool::new(&environment)),
            environment,
        }
    }

    /// Takes a slot for one operation: one in doubt before a clean one before a new one.
    pub(crate) fn take(&self) -> Slot {
        let now = self.environment.now();
        let mut pool = self.lock();
        if (pool.recorded).is_some_and(|recorded| now.saturating_sub(recorded) > MAX_IDLE) {
            *pool = Pool::new(&self.environment);
        }
        let free = pool.in_doubt.pop().or_else(|| pool.clean.pop());
        free.unwrap_or_else(|| {
            let key = self.keys.slot(pool.id, pool.slot_count);
            pool.slot_count += 1;
            Slot {
                ledger: pool.id,
                key,
                operation: 0,
                in_doubt: false,
            }
        })
    }

    /// Takes a slot back, unless the ledger has a new id by now.
    fn give_back(&self, slot: Slot) {
        let mut pool = self.lock();
        if slot.ledger != pool.id {
            return;
        }
        if slot.in_doubt {
            pool.in_doubt.push(slot);
        } else {
            pool.clean.push(slot);
        }
    }

    /// Takes note that a record written after `time` is committed under `id`.
    pub(crate) fn recorded_after(&self, id: LedgerId, time: Duration) {
        let mut pool = self.lock();
        if pool.id == id {
            pool.recorded = pool.recorded.max(Some(time));
        }
    }

    /// Takes a new id, unless that has happened already.
    pub(crate) fn renew(&self, id: LedgerId) {
        let mut pool = self.lock();
        if pool.id == id {
            *pool = Pool::new(&self.environment);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock()
    }
}
