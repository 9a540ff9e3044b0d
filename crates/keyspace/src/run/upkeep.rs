//! The commits that maintain ledgers: the first record of a slot, closing a ledger, and sweeping abandoned
//! ones. Each of them may happen twice, so none needs a receipt.

use std::ops::ControlFlow;

use futures::future::BoxFuture;

use super::{Runner, RunnerShared};
use crate::contract::error::{Code, Error, Result};
use crate::contract::mutation::MutationOp;
use crate::contract::selector::RangeQuery;
use crate::contract::transaction::{Database, Isolation, Transaction, key_after, visit_rows};
use crate::contract::version_clock::VersionClock;
use crate::ledger::{Ledger, MIN_SWEEP_AGE, OwnedSlot, Receipt, SlotRecord};

impl<D: Database> Runner<D> {
    /// Returns the receipt of one operation, for use in a retry loop other than the runner's.
    ///
    /// If no slot is free, commits the first record of a new slot.
    ///
    /// # Cancel safety
    /// Dropping the future may leave an unused slot in the store until the ledger is closed or swept.
    pub async fn receipt(&self) -> Result<Receipt> {
        self.shared.receipt().await
    }

    /// Clears this runner's ledger. Call it when no operation of the runner is running. The runner can be
    /// used again, with a new ledger. A runner without operations commits nothing.
    ///
    /// Without this call, the ledger stays in the store until another runner [sweeps](Self::sweep) it.
    ///
    /// # Conflicts
    /// Writes the slots of the ledger. An operation that is running and in doubt ends with
    /// [`Error::OutcomeUnknown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the ledger either cleared or for a sweep to clear.
    ///
    /// # Examples
    /// ```
    /// use keyspace::{Error, Runner, Transaction};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// runner
    ///     .run(async |tr| {
    ///         tr.set(b"key", b"value");
    ///         Ok::<_, Error>(())
    ///     })
    ///     .await?;
    /// runner.close().await?; // The process is about to end.
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) -> Result<()> {
        self.shared.close().await
    }

    /// Clears the ledgers of other runners on which nothing has committed for the age of `clock`, and
    /// returns their number.
    ///
    /// Call it regularly from a long-running process, at least six times per age. Each call is an
    /// observation of the clock, and a clock clears nothing before its observations cover a whole age. Each
    /// ledger is cleared in a transaction of its own.
    ///
    /// # Conflicts
    /// Reads and writes the slots of the ledgers that it clears. This aborts attempts in flight on these
    /// ledgers, and an operation that is in doubt ends with [`Error::OutcomeUnknown`]. Choose an age that
    /// is longer than any operation may take.
    ///
    /// # Errors
    /// `invalid_option_value` if the clock's age is below [`MIN_SWEEP_AGE`]. [`Error::Corrupt`] with the first
    /// key or record that is not a ledger's; all other ledgers are swept nevertheless.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the remaining ledgers as they are. The next call starts from the first
    /// one.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use keyspace::{Environment, Runner, VersionClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let clock = VersionClock::new(Environment::system(), Duration::from_secs(24 * 60 * 60));
    /// // Repeat this call every few hours, with the same clock.
    /// let cleared_count = runner.sweep(&clock).await?;
    /// assert_eq!(cleared_count, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sweep(&self, clock: &VersionClock) -> Result<usize> {
        self.shared.sweep(clock).await
    }
}

// The futures that a runner awaits are in boxes: the code of an `async fn` would be compiled in every crate that awaits
// it.
impl RunnerShared {
    fn receipt(&self) -> BoxFuture<'_, Result<Receipt>> {
        Box::pin(self.take_receipt())
    }

    pub(super) async fn take_receipt(&self) -> Result<Receipt> {
        let ledger = &self.ledger;
        let slot = ledger.take();
        if slot.operation == 0 {
            // Rare, and its future is as large as that of an operation.
            Box::pin(self.write_first_record(&slot)).await?;
        }
        Ok(Receipt::new(ledger.clone(), slot))
    }

    /// Commits a slot's record of operation 0, before its first use.
    ///
    /// If this write arrives late, its serializable read makes the store refuse it. The [module
    /// documentation](crate::ledger) describes the race.
    async fn write_first_record(&self, slot: &OwnedSlot) -> Result<()> {
        let ledger = &self.ledger;
        let time = self.options.environment.now();
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

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (id, is_unused) = {
                let pool = self.ledger.lock();
                (pool.id, pool.is_unused())
            };
            if is_unused {
                return Ok(());
            }
            self.ledger.renew(id);
            let (begin, end) = &self.ledger.keys.slots(id);
            self.run_idempotent(|tr| async move {
                tr.clear_range(begin, end);
                Ok::<_, Error>(())
            })
            .await
        })
    }

    fn sweep<'a>(&'a self, clock: &'a VersionClock) -> BoxFuture<'a, Result<usize>> {
        Box::pin(async move {
            if clock.age() < MIN_SWEEP_AGE {
                return Err(Code::INVALID_OPTION_VALUE.into());
            }
            let (mut begin, end) = self.ledger.keys.all();
            let mut cleared_count = 0;
            let mut damaged = None;
            loop {
                let from = &begin;
                let to = &end;
                let step = self
                    .run_idempotent(|tr| sweep_next(tr, &self.ledger, clock, from, to))
                    .await?;
                let Some(swept) = step else {
                    return damaged.map_or(Ok(cleared_count), Err);
                };
                match swept.cleared {
                    Ok(cleared) => cleared_count += usize::from(cleared),
                    Err(error) => damaged = damaged.or(Some(error)),
                }
                begin = swept.next;
            }
        })
    }
}

struct Swept {
    /// The first key after the ledger that was examined.
    next: Vec<u8>,
    /// Whether it was cleared, or the error of a key or a record that does not decode.
    cleared: Result<bool>,
}

/// Clears the first ledger of the range if it is old. Returns `None` if there is no ledger.
///
/// The slots are read serializably. If the clear lands late, after the ledger has been used again, the new
/// record makes the store refuse it.
async fn sweep_next<T: Transaction>(
    tr: T,
    ledger: &Ledger,
    clock: &VersionClock,
    begin: &[u8],
    end: &[u8],
) -> Result<Option<Swept>> {
    clock.observe(tr.read_version().await?);
    let first = RangeQuery::keys(begin.to_vec(), end.to_vec()).limit(1);
    // A snapshot read is safe: it only finds the first ledger. The slots are read again before they are
    // cleared.
    let batch = tr.get_range(&first, Isolation::Snapshot).await?;
    let Some(row) = batch.rows.first() else {
        return Ok(None);
    };
    let id = match ledger.keys.ledger_of(row.key()) {
        Ok(id) => id,
        Err(error) => {
            let next = key_after(row.key());
            let cleared = Err(error);
            return Ok(Some(Swept { next, cleared }));
        }
    };
    let (first_slot, last_slot) = ledger.keys.slots(id);
    let is_own = id == ledger.lock().id;
    let is_abandoned = async {
        if is_own {
            return Ok(false);
        }
        is_abandoned(&tr, clock, &first_slot, &last_slot).await
    };
    let cleared = match is_abandoned.await {
        // A ledger with a damaged record stays: nothing says when it was last used.
        Err(error @ Error::Corrupt { .. }) => Err(error),
        is_abandoned => Ok(is_abandoned?),
    };
    if let Ok(true) = cleared {
        tr.clear_range(&first_slot, &last_slot);
    }
    Ok(Some(Swept {
        next: last_slot,
        cleared,
    }))
}

/// Reads a ledger's slots until the first one that was written less than an age ago.
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
        Ok::<_, Error>(if is_abandoned {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    })
    .await?;
    Ok(is_abandoned)
}
