//! One operation's entry in the ledger.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{Ledger, Slot, SlotRecord};
use crate::error::{Error, Result};
use crate::mutation::{MutationOp, Versionstamp};
use crate::transaction::{ConflictKind, Isolation, Transaction};

/// One operation's entry in the ledger, for a retry loop of somebody else's.
///
/// [`Runner::run`](crate::Runner::run) does all of this by itself. Inside another loop, such as
/// `foundationdb::Database::run`, get one receipt per *operation*, outside the loop, and in every
/// attempt call [`resolve`](Self::resolve) before anything else and [`stage`](Self::stage) after
/// everything else, also when the attempt changes nothing. The receipt counts attempts by itself:
/// it needs no "maybe committed" flag, and trusts none.
///
/// When the loop has returned success, call [`complete`](Self::complete). A receipt that is dropped
/// without it, because the loop failed or its future was dropped, leaves its slot marked as in doubt.
///
/// What the loop cannot give is certainty after an error: if an attempt in doubt is followed by
/// one that fails for good, the loop ends without news of the first.
///
/// The [module documentation](crate::ledger) says why the steps come in this order.
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
    slot: Slot,
    progress: Mutex<Progress>,
}

/// How far the operation has come.
#[derive(Debug, Clone, Copy)]
struct Progress {
    attempt: u32,
    doubt: Doubt,
    /// What was in doubt when the attempt began.
    earlier_doubt: Doubt,
    /// When the attempt staged its record, if it did.
    staged: Option<Duration>,
}

/// Which commit may still land on the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Nothing,
    /// One of the operation that had the slot before.
    Predecessor,
    /// One of this operation's attempts, and perhaps one of its predecessor.
    Attempt,
}

/// The attempt that has committed although its commit reported an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierCommit {
    /// Its number: how many times [`Receipt::resolve`] had been called by then, itself included.
    pub attempt: u32,
    /// The versionstamp of its commit.
    pub versionstamp: Versionstamp,
}

impl Receipt {
    /// Begins the next operation on a slot whose first record is committed.
    pub(crate) fn new(ledger: Arc<Ledger>, mut slot: Slot) -> Self {
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

    /// Begins an attempt: gets the read version, and returns the attempt that has committed already,
    /// if there is one. Then nothing must run again: that attempt's result is the answer.
    ///
    /// # Conflicts
    /// Reads the operation's own slot.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if an attempt is in doubt and the slot is missing: the ledger was
    /// swept. Otherwise as [`Transaction::get`]; [`Error::Corrupt`].
    ///
    /// # Cancel safety
    /// Dropping it counts as an attempt that ended here.
    pub async fn resolve<T: Transaction>(&self, tr: &T) -> Result<Option<EarlierCommit>> {
        let attempt_in_doubt = self.next_attempt();
        // In hand before the commit: one that the commit gets itself may be newer than a later
        // attempt's commit, and then that does not refuse this one.
        tr.read_version().await?;
        let earlier = if attempt_in_doubt {
            self.find_commit(tr).await?
        } else {
            None
        };
        tr.add_conflict_key(ConflictKind::Read, &self.slot.key)?;
        Ok(earlier)
    }

    /// Ends an attempt: stages the record that says it has committed. The commit comes next.
    ///
    /// # Conflicts
    /// Writes the operation's own slot.
    ///
    /// # Errors
    /// As [`Transaction::add_conflict_range`].
    pub fn stage<T: Transaction>(&self, tr: &T) -> Result<()> {
        let mut progress = self.progress();
        // The set alone would do, but for a closure that ended with the option that takes the
        // write conflict from the next write: then it would refuse nothing.
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

    /// Ends the operation: its last attempt is known to have committed, so that none before it can.
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

    /// Takes note that the attempt has certainly not committed and will not.
    pub(crate) fn not_committed(&self) {
        let mut progress = self.progress();
        progress.doubt = progress.earlier_doubt;
    }

    /// Returns true if an attempt must write the slot before its answer counts.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.progress().doubt != Doubt::Nothing
    }

    /// Returns true if it is unknown whether this operation has committed.
    pub(crate) fn is_outcome_in_doubt(&self) -> bool {
        self.progress().doubt == Doubt::Attempt
    }

    /// Counts an attempt; returns true if an earlier one is in doubt.
    fn next_attempt(&self) -> bool {
        let mut progress = self.progress();
        progress.attempt += 1;
        progress.earlier_doubt = progress.doubt;
        progress.staged = None;
        progress.doubt == Doubt::Attempt
    }

    /// Reads from the slot which attempt has committed.
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
        // It has a newer record than every other attempt has seen: none of them can commit now.
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
        self.ledger.give_back(Slot {
            ledger: self.slot.ledger,
            key: mem::take(&mut self.slot.key),
            operation: self.slot.operation,
            in_doubt: self.is_in_doubt(),
        });
    }
}
