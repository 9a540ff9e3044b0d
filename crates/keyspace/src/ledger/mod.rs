//! The ledger: how a commit with an unknown outcome happens exactly once.
//!
//! A commit can end without an answer: with `commit_unknown_result`, `cluster_version_changed` or
//! `transaction_timed_out`, or because its future was dropped. It may have happened, it may not have
//! happened, or it may *still* happen. Running the closure again could do its work twice, and giving up
//! could lose it. A [`Runner`](crate::Runner) therefore keeps a ledger in the store. Every transaction that
//! writes also records, in the same commit, which attempt of which operation it is.
//!
//! A ledger is a random id and a pool of *slots*, one key each. An operation takes a free slot and gives
//! itself the slot's next number. `keys.rs` and `docs/schema.md` describe the bytes.
//!
//! # The order of steps
//!
//! These are the steps of one attempt of operation *n*. A [`Receipt`] does all of them except running the
//! closure and committing:
//!
//! 1. Get the read version.
//! 2. If an earlier attempt is in doubt, read the slot serializably. If the slot holds *(n, a)*, attempt
//!    *a* has committed, and the value that its closure returned is the answer. If the slot is missing, the
//!    ledger was swept: the outcome stays unknown, and the closure does not run again.
//! 3. Add a read conflict on the slot.
//! 4. Run the closure.
//! 5. If the closure wrote anything, or an attempt is in doubt, set the slot to *(n, attempt,
//!    versionstamp)*.
//! 6. Commit.
//!
//! An error of the closure is also an answer that has to be certain. If an attempt is in doubt when the
//! closure fails, the runner first commits a new transaction that writes the slot and nothing else. Then it
//! returns the error. None of the closure's writes are committed.
//!
//! # Why the steps come in this order
//!
//! Two attempts of one operation must never both commit. In the following cases, attempt 1 is in doubt.
//!
//! *Attempt 1 lands after attempt 2 has read the slot.*
//! 1. Attempt 2 reads the slot and does not find attempt 1.
//! 2. Attempt 1 lands and writes the slot.
//! 3. Attempt 2 calls commit. Its read conflict on the slot meets the write of attempt 1: `not_committed`.
//!    Attempt 3 finds attempt 1 in the slot.
//!
//! A read conflict that is added after the write of the slot would be dropped, because a transaction does
//! not conflict with its own writes. So step 3 comes before step 5. It also comes before step 4, because
//! the closure may clear the range that contains the ledger.
//!
//! *Attempt 1 lands after attempt 2 has committed.*
//! 1. Attempt 2 commits, including its write of the slot.
//! 2. Attempt 1 arrives. Its read conflict on the slot meets that write, and the store refuses it.
//!
//! This works only if attempt 1 got its read version before attempt 2 committed. A transaction without a
//! read version gets one inside the commit, however late that is. It would see the slot of attempt 2 as an
//! old write and commit a second time. Hence step 1. It also works only if attempt 2 writes the slot, even
//! if its closure changed nothing or failed. Hence the second condition of step 5.
//!
//! *The first record of a slot lands late.* Before its first use, a slot is written once, as operation 0.
//! That write must not reset a slot that is in use:
//! 1. The first write is in doubt. Its retry reads the slot, finds nothing, and commits its own write.
//! 2. Operation 1 commits *(1, 1)*, and its outcome is unknown.
//! 3. The first write arrives. It has read the slot too, at a read version before the retry's commit. That
//!    read conflicts, and the store refuses the write.
//!
//! A blind write would have landed. Attempt 2 of operation 1 would then have found operation 0 in the slot,
//! concluded that attempt 1 had not committed, and run the closure again.
//!
//! *The ledger is swept.* A sweep clears a ledger on which nothing has committed for a long time, in one
//! range clear. So a missing slot says nothing about a commit:
//! 1. Attempt 1 commits, and its outcome is unknown.
//! 2. A sweep clears the ledger.
//! 3. Attempt 2 finds no slot. The closure must not run again: `OutcomeUnknown`.
//!
//! A sweep whose own commit is in doubt cannot erase newer records, because it has read the slots
//! serializably. A runner that finds its ledger idle for half of [`MIN_SWEEP_AGE`] takes a new id before it
//! uses the ledger again.
//!
//! *The caller stops waiting.* The future is dropped during the commit, or a limit is reached while an
//! attempt is in doubt. The slot then returns to the pool, marked as in doubt, and the pool hands out slots
//! in doubt first. The next operation on the slot always writes it. If the old commit has not happened by
//! then, that write makes the store refuse it. With a new slot instead, the old commit could still land:
//! 1. An operation gives up while its commit is under way.
//! 2. The caller reads the state that the operation would have written, finds nothing, and repeats the
//!    work.
//! 3. The old commit arrives, and no write of its slot makes the store refuse it.
//!
//! # Without a ledger
//!
//! In another retry loop, or with [`RunOptions::with_exactly_once`](crate::RunOptions::with_exactly_once) disabled, a
//! closure may run again after an earlier attempt has committed. A counter is then incremented twice, or an
//! item is enqueued twice. A closure that removes something finds it already gone and reports a failure,
//! although its removal succeeded. A [`Receipt`] brings the ledger to other retry loops.

mod keys;
mod receipt;

use std::time::Duration;

use foundationdb_tuple::Subspace;
use parking_lot::{Mutex, MutexGuard};

use self::keys::LedgerId;
pub(crate) use self::keys::{LedgerKeys, SlotRecord};
pub use self::receipt::{EarlierCommit, Receipt};
use crate::contract::env::Environment;

/// The minimum age of a ledger that a sweep may clear.
pub const MIN_SWEEP_AGE: Duration = Duration::from_secs(60 * 60);

/// A ledger that was idle for longer takes a new id. Half of the sweep's minimum leaves room for clocks
/// that drift and for slow operations.
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
    /// The number of slots that were created under this id.
    slot_count: u64,
    clean: Vec<OwnedSlot>,
    /// Slots on which a commit may still land.
    in_doubt: Vec<OwnedSlot>,
    /// A time before the commit of the newest record under this id.
    recorded: Option<Duration>,
}

/// A slot that an operation or the pool owns.
#[derive(Debug)]
pub(crate) struct OwnedSlot {
    pub(crate) ledger: LedgerId,
    pub(crate) key: Vec<u8>,
    /// The number of the last operation on the slot, 0 if there was none.
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

    /// Returns whether no operation has begun under this id, so that the ledger has no rows.
    pub(crate) fn is_unused(&self) -> bool {
        self.slot_count == 0
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

    /// Takes a slot for one operation: preferably one in doubt, else a clean one, else a new one.
    pub(crate) fn take(&self) -> OwnedSlot {
        let now = self.environment.now();
        let mut pool = self.lock();
        if (pool.recorded).is_some_and(|recorded| now.saturating_sub(recorded) > MAX_IDLE) {
            *pool = Pool::new(&self.environment);
        }
        let free = pool.in_doubt.pop().or_else(|| pool.clean.pop());
        free.unwrap_or_else(|| {
            let key = self.keys.slot(pool.id, pool.slot_count);
            pool.slot_count += 1;
            OwnedSlot {
                ledger: pool.id,
                key,
                operation: 0,
                in_doubt: false,
            }
        })
    }

    /// Returns a slot to the pool, unless the ledger has a new id by now.
    fn give_back(&self, slot: OwnedSlot) {
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

    /// Records that a record written after `time` was committed under `id`.
    pub(crate) fn recorded_after(&self, id: LedgerId, time: Duration) {
        let mut pool = self.lock();
        if pool.id == id {
            pool.recorded = pool.recorded.max(Some(time));
        }
    }

    /// Takes a new id, unless the ledger has one already.
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
