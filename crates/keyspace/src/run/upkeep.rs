//! What a ledger's upkeep commits: the first record of a slot, the end of a ledger, and the sweep
//! of ledgers that were abandoned. All of it may happen twice, so none of it needs a receipt.

use std::ops::ControlFlow;

use super::Runner;
use crate::error::{Code, Error, Result};
use crate::ledger::{Ledger, MIN_SWEEP_AGE, Receipt, Slot, SlotRecord};
use crate::mutation::MutationOp;
use crate::selector::RangeQuery;
use crate::transaction::{Database, Isolation, Transaction, visit_rows};
use crate::version_clock::VersionClock;

impl<D: Database> Runner<D> {
    /// Returns the receipt of one operation, for a retry loop of somebody else's.
    ///
    /// Commits the first record of a slot if no slot is free.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Dropping it may leave a slot behind that nobody uses, until the ledger is closed or swept.
    pub async fn receipt(&self) -> Result<Receipt> {
        let ledger = self.ledger();
        let slot = ledger.take();
        if slot.operation == 0 {
            self.write_first_record(&slot).await?;
        }
        Ok(Receipt::new(ledger.clone(), slot))
    }

    /// Commits a slot's record for operation 0, before its first use.
    ///
    /// The serializable read refuses this write if it arrives late: the [module
    /// documentation](crate::ledger) tells the race.
    async fn write_first_record(&self, slot: &Slot) -> Result<()> {
        let ledger = self.ledger();
        let time = self.environment().now();
        let key = &slot.key;
        self.run_idempotent(|tr| async move {
            if tr.get(key, Isolation::Serializable).await?.is_none() {
                let template = SlotRecord::template(0, 0);
                tr.atomic(MutationOp::SetVersionstampedValue, key, &template);
            }
            Ok::<_, Error>(())
        })
        .await?;
        ledger.recorded_after(slot.ledger, time);
        Ok(())
    }

    /// Clears this handle's ledger. Call it when nothing is running any more; the handle can be
    /// used again, with a new ledger.
    ///
    /// Without it the ledger stays in the store until somebody [sweeps](Self::sweep) it.
    ///
    /// # Conflicts
    /// Writes the slots of the ledger. An operation that is still running, and in doubt, ends with
    /// [`Error::OutcomeUnknown`].
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Dropping it leaves the ledger cleared or to be swept.
    pub async fn close(&self) -> Result<()> {
        let id = self.ledger().lock().id;
        self.ledger().renew(id);
        let (begin, end) = &self.ledger().keys.slots(id);
        self.run_idempotent(|tr| async move {
            tr.clear_range(begin, end);
            Ok::<_, Error>(())
        })
        .await
    }

    /// Clears the ledgers, beside this handle's own, on which nothing has committed for the age of
    /// `clock`, and returns how many.
    ///
    /// Call it regularly, at least six times per age, from a process that lives long: each call lets
    /// the clock observe, and a clock that has not yet observed for an age clears nothing. Each ledger
    /// has a transaction of its own.
    ///
    /// # Conflicts
    /// Reads and writes the slots of the ledgers it clears, each ledger by itself, which aborts
    /// attempts in flight. An operation in doubt whose ledger was cleared ends with
    /// [`Error::OutcomeUnknown`]: choose an age beyond the longest time any operation may take.
    ///
    /// # Errors
    /// `invalid_option_value` if the clock's age is under [`MIN_SWEEP_AGE`]; [`Error::Corrupt`] at
    /// a key or a record that is no ledger's; otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Dropping it leaves the ledgers it has not come to; the next call begins from the first.
    pub async fn sweep(&self, clock: &VersionClock) -> Result<usize> {
        if clock.age() < MIN_SWEEP_AGE {
            return Err(Code::INVALID_OPTION_VALUE.into());
        }
        let (mut begin, end) = self.ledger().keys.all();
        let mut cleared_count = 0;
        loop {
            let (from, to) = (&begin, &end);
            let step = self
                .run_idempotent(|tr| sweep_next(tr, self.ledger(), clock, from, to))
                .await?;
            let Some(Swept { next, cleared }) = step else {
                return Ok(cleared_count);
            };
            cleared_count += usize::from(cleared);
            begin = next;
        }
    }
}

struct Swept {
    /// Where the next ledger begins at the earliest.
    next: Vec<u8>,
    cleared: bool,
}

/// Clears the first ledger of the range if it is old, `None` if there is no ledger.
///
/// The slots are read serializably: should the clear's outcome be unknown and should it arrive after
/// its ledger has come back to life, the new record refuses it.
async fn sweep_next<T: Transaction>(
    tr: T,
    ledger: &Ledger,
    clock: &VersionClock,
    begin: &[u8],
    end: &[u8],
) -> Result<Option<Swept>> {
    clock.observe(tr.read_version().await?);
    let first = RangeQuery::keys(begin.to_vec(), end.to_vec()).limit(1);
    // By snapshot: it only finds where to look. What is cleared is read again.
    let batch = tr.get_range(&first, Isolation::Snapshot).await?;
    let Some(row) = batch.rows.first() else {
        return Ok(None);
    };
    let id = ledger.keys.ledger_of(row.key())?;
    let (first_slot, last_slot) = ledger.keys.slots(id);
    let is_own = id == ledger.lock().id;
    let cleared = !is_own && is_abandoned(&tr, clock, &first_slot, &last_slot).await?;
    if cleared {
        tr.clear_range(&first_slot, &last_slot);
    }
    Ok(Some(Swept {
        next: last_slot,
        cleared,
    }))
}

/// Reads a ledger's slots as far as the first that was written less than an age ago.
async fn is_abandoned<T: Transaction>(
    tr: &T,
    clock: &VersionClock,
    begin: &[u8],
    end: &[u8],
) -> Result<bool> {
    let Some(version_ago) = clock.version_ago() else {
        return Ok(false);
    };
    let mut is_abandoned = true;
    let query = RangeQuery::keys(begin.to_vec(), end.to_vec());
    visit_rows(tr, query, Isolation::Serializable, |row| {
        let record = SlotRecord::decode(row.key(), row.value())?;
        is_abandoned = record.versionstamp.commit_version() <= version_ago;
        Ok::<_, Error>(match is_abandoned {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    })
    .await?;
    Ok(is_abandoned)
}
