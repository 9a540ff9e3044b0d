//! One operation's entry in the ledger.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{Ledger, OwnedSlot, SlotRecord};
use crate::contract::error::{Error, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::transaction::{ConflictKind, Isolation, Transaction};

/// One operation's entry in the ledger, for use in retry loops other than the runner's.
///
/// [`Runner::run`](crate::Runner::run) handles receipts itself. In another loop, such as
/// `foundationdb::Database::run`:
///
/// 1. Before the loop, get one receipt for the whole operation from
///    [`Runner::receipt`](crate::Runner::receipt).
/// 2. In every attempt, call [`resolve`](Self::resolve) before anything else, and [`stage`](Self::stage)
///    after everything else, even if the attempt changes nothing.
/// 3. After the loop has succeeded, call [`complete`](Self::complete).
///
/// The receipt counts attempts itself and ignores the loop's "maybe committed" flag, if it has one. A
/// receipt that is dropped without `complete`, because the loop failed or its future was dropped, leaves
/// its slot marked as in doubt.
///
/// Such a loop cannot be certain after an error. If an attempt is in doubt and the next one fails for good,
/// the loop ends without knowing whether the first one committed.
///
/// The [module documentation](crate::ledger) explains the order of the steps.
///
/// # Examples
///
/// ```
/// use keyspace::{Database, OwnedTransaction, Runner, Transaction};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = keyspace::open("memory:")?;
/// let runner = Runner::new(db.clone());
///
/// let receipt = runner.receipt().await?;
/// let mut tr = db.begin()?;
/// loop {
///     if receipt.resolve(&tr).await?.is_some() {
///         break; // An earlier attempt has committed, although its commit reported an error.
///     }
///     tr.set(b"greeting", b"hello");
///     receipt.stage(&tr)?;
///     match tr.commit().await {
///         Ok(_) => break,
///         Err(error) => tr.on_error(error).await?,
///     }
/// }
/// receipt.complete();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Receipt {
    ledger: Arc<Ledger>,
    slot: OwnedSlot,
    progress: Mutex<Progress>,
}

/// The progress of the operation.
#[derive(Debug, Clone, Copy)]
struct Progress {
    attempt: u32,
    doubt: Doubt,
    /// The doubt at the begin of the attempt.
    earlier_doubt: Doubt,
    /// When the attempt staged its record, if it has.
    staged: Option<Duration>,
}

/// The commit that may still land on the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Nothing,
    /// A commit of the operation that had the slot before.
    Predecessor,
    /// A commit of one of this operation's attempts, and perhaps one of the predecessor.
    Attempt,
}

/// An attempt that has committed although its commit reported an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierCommit {
    /// The number of the attempt. [`Receipt::resolve`] counts attempts, from 1.
    pub attempt: u32,
    /// The versionstamp of its commit.
    pub versionstamp: Versionstamp,
}

impl Receipt {
    /// Begins the next operation on a slot whose first record is committed.
    pub(crate) fn new(ledger: Arc<Ledger>, mut slot: OwnedSlot) -> Self {
        slot.operation += 1;
        let doubt = if slot.in_doubt {
            Doubt::Predecessor
        } else {
            Doubt::Nothing
        };
        Self {
            ledger,
            slot,
            progress: Mutex::new(Progress {
                attempt: 0,
                doubt,
                earlier_doubt: doubt,
                staged: None,
            }),
        }
    }

    /// Begins an attempt: gets the read version, and returns the earlier attempt that has committed, if
    /// there is one. In that case the work must not run again: the result of the earlier attempt is the
    /// answer.
    ///
    /// # Conflicts
    /// A serializable read of the operation's own slot.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if an attempt is in doubt and the slot is missing because the ledger was
    /// swept. [`Error::Corrupt`] if the slot does not decode. Otherwise as for [`Transaction::get`].
    ///
    /// # Cancel safety
    /// A dropped call counts as an attempt that ended there.
    pub async fn resolve<T: Transaction>(&self, tr: &T) -> Result<Option<EarlierCommit>> {
        let attempt_in_doubt = self.next_attempt();
        // The read version must be older than a later attempt's commit, which could otherwise not make the store refuse
        // this attempt. One that is obtained inside the commit may be newer.
        tr.fix_read_version().await?;
        let earlier = if attempt_in_doubt {
            self.find_commit(tr).await?
        } else {
            None
        };
        tr.add_conflict_key(ConflictKind::Read, &self.slot.key)?;
        Ok(earlier)
    }

    /// Ends an attempt: stages the record of its commit. Commit right after this call.
    ///
    /// # Conflicts
    /// Writes the operation's own slot.
    ///
    /// # Errors
    /// As for [`Transaction::add_conflict_range`].
    pub fn stage<T: Transaction>(&self, tr: &T) -> Result<()> {
        let mut progress = self.progress();
        // The write itself adds this conflict, unless the closure's last call set the option that makes the
        // next write add none. Without the conflict, the write would not refuse late attempts.
        tr.add_conflict_key(ConflictKind::Write, &self.slot.key)?;
        tr.atomic(
            MutationOp::SetVersionstampedValue,
            &self.slot.key,
            &SlotRecord::template(self.slot.operation, progress.attempt),
        );
        progress.staged = Some(self.ledger.environment.now());
        progress.doubt = Doubt::Attempt;
        Ok(())
    }

    /// Ends the operation. Call it once the last attempt has certainly committed: no earlier attempt can
    /// commit after that.
    pub fn complete(self) {
        let staged = {
            let mut progress = self.progress();
            progress.doubt = Doubt::Nothing;
            progress.staged
        };
        if let Some(time) = staged {
            self.ledger.recorded_after(self.slot.ledger, time);
        }
    }

    /// Records that the attempt has not committed and never will.
    pub(crate) fn not_committed(&self) {
        let mut progress = self.progress();
        progress.doubt = progress.earlier_doubt;
    }

    /// Returns true if an attempt must write the slot before the operation can return its result.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.progress().doubt != Doubt::Nothing
    }

    /// Returns true if it is unknown whether this operation has committed.
    pub(crate) fn is_outcome_in_doubt(&self) -> bool {
        self.progress().doubt == Doubt::Attempt
    }

    /// Begins a new attempt, and returns true if an earlier one is in doubt.
    fn next_attempt(&self) -> bool {
        let mut progress = self.progress();
        progress.attempt += 1;
        progress.earlier_doubt = progress.doubt;
        progress.staged = None;
        progress.doubt == Doubt::Attempt
    }

    /// Reads the slot to find the attempt that has committed.
    async fn find_commit<T: Transaction>(&self, tr: &T) -> Result<Option<EarlierCommit>> {
        let Some(value) = tr.get(&self.slot.key, Isolation::Serializable).await? else {
            self.ledger.renew(self.slot.ledger);
            return Err(Error::OutcomeUnknown {
                attempts: self.progress().attempt - 1,
                cause: None,
            });
        };
        let record = SlotRecord::decode(&self.slot.key, &value)?;
        if record.operation != self.slot.operation {
            return Ok(None);
        }
        // The record is newer than the read version of every other attempt, so none of them can commit any
        // more.
        self.progress().doubt = Doubt::Nothing;
        Ok(Some(EarlierCommit {
            attempt: record.attempt,
            versionstamp: record.versionstamp,
        }))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.ledger.give_back(OwnedSlot {
            ledger: self.slot.ledger,
            key: mem::take(&mut self.slot.key),
            operation: self.slot.operation,
            in_doubt: self.is_in_doubt(),
        });
    }
}
