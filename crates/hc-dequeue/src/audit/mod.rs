//! Checks the rows of a queue against each other.
//!
//! Every counter and every index key is written in the transaction that changes the rows it describes. An audit
//! should therefore never find anything. It is for cases in which another program has written into the queue's
//! subspace, a restore was incomplete, or there is a bug.
//!
//! - [`rows`]: checks rows that must agree with others, page by page.
//! - [`sessions`], [`pointers`], [`dedupe`], [`done`]: these checks; those of lanes, batches and schedules stand beside
//!   them.
//! - [`counters`]: checks counters against what they count.
//! - [`repair`]: repairs what was found.

mod counters;
mod dedupe;
mod done;
mod pointers;
mod repair;
mod rows;
mod sessions;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::{Database, Runner, Store};

use self::rows::{RowCheck, check_rows};
use crate::batches::audit::{check_batches, has_batches};
use crate::items::error::Result;
use crate::items::finding::{Finding, Unchecked};
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::settings_row::current_settings;
use crate::lanes::audit::check_lanes;
use crate::queue::handle::Queue;

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
#[non_exhaustive]
pub struct Audit {
    /// The contradictions that were found.
    pub findings: Vec<Finding>,
    /// What was not checked.
    pub unchecked: Vec<Unchecked>,
}

impl Audit {
    /// Returns whether nothing was found. A large queue may have parts that were [not checked](Self::unchecked).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Checks the queue for contradictions and changes nothing. It may run while the queue is in use.
    ///
    /// It compares counters, sessions and held items, groups and their items, items and their pointers, dedupe ids,
    /// done items and schedules with each other. Each counter is checked in one transaction with the items that it
    /// counts. The other rows are checked page by page, each page in one transaction together with the rows that it
    /// must agree with. Each check of a part of the queue lists at most a thousand findings. A row that does not decode
    /// is a finding. What takes more time than a transaction has is [not checked](Audit::unchecked).
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub async fn audit<D: Database>(&self, runner: &Runner<D>) -> Result<Audit> {
        audit(&runner.on_store(), &self.keys).await
    }

    /// Runs an [`audit`](Self::audit), repairs the findings where possible, and returns them. A repair that needs a
    /// row that does not decode is left out.
    ///
    /// Run only one repair at a time: two that find the same wrong counter would both correct it. If a request is
    /// removed, a session that waits after it notices this at its next poll.
    ///
    /// # Conflicts
    /// The audit writes nothing. Each repair reads the rows that it changes, except numbers, to which it adds.
    ///
    /// # Errors
    /// As [`audit`](Self::audit), and [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the settings do not decode.
    /// In that case nothing was repaired.
    ///
    /// # Cancel safety
    /// If the future is dropped, completed repairs stay.
    pub async fn repair<D: Database>(&self, runner: &Runner<D>) -> Result<Audit> {
        repair_all(&runner.on_store(), &self.keys).await
    }
}

/// Checks a queue for contradictions.
fn audit<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<Audit>> {
    Box::pin(async move {
        let mut unchecked = Vec::new();
        let mut found = sessions::check_sessions(runner, keys, &mut unchecked).await?;
        for counter in Counter::of_items() {
            found.extend(counters::check_counter(runner, keys, counter, &mut unchecked).await?);
        }
        found.extend(check_lanes(runner, keys, &mut unchecked).await?);
        found.extend(check_batches(runner, keys, &mut unchecked).await?);
        found.extend(check_all_rows(runner, keys).await?);
        let mut findings: Vec<Finding> = Vec::new();
        for finding in found {
            if !findings.iter().any(|cause| finding.follows_from(cause)) {
                findings.push(finding);
            }
        }
        Ok(Audit {
            findings,
            unchecked,
        })
    })
}

/// Checks a queue for contradictions, and repairs what it finds.
fn repair_all<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<Audit>> {
    Box::pin(async move {
        let audit = audit(runner, keys).await?;
        let read = |tr| async move { current_settings(&tr, keys).await };
        let settings = &runner.run(read).await?;
        for finding in &audit.findings {
            tracing::warn!(queue = %keys.name, ?finding, "repairing");
            match repair::repair(runner, keys, settings, finding).await {
                // A row that does not decode stops one repair, and not the others.
                Err(error) if error.corrupt_key().is_some() => {
                    tracing::warn!(queue = %keys.name, error = %chain(&error), "not repaired");
                }
                repaired => repaired?,
            }
        }
        Ok(audit)
    })
}

/// Checks all rows that must agree with others. Findings that cause others come first.
async fn check_all_rows(runner: &Runner<Store>, keys: &Keys) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for part in Part::with_pointers() {
        findings.extend(check_rows(runner, keys, RowCheck::Items(part)).await?);
    }
    for check in [RowCheck::Pointers, RowCheck::Parked] {
        findings.extend(check_rows(runner, keys, check).await?);
    }
    for part in Part::with_items() {
        findings.extend(check_rows(runner, keys, RowCheck::Tokens(part)).await?);
    }
    if has_batches(runner, keys).await? {
        for part in Part::with_items() {
            findings.extend(check_rows(runner, keys, RowCheck::Memberships(part)).await?);
        }
    }
    for check in [
        RowCheck::DedupeIds(Part::DedupeIds),
        RowCheck::DedupeIds(Part::DedupeItems),
        RowCheck::RetainedIds,
        RowCheck::Done,
        RowCheck::KeepTimes,
        RowCheck::Members,
        RowCheck::EndedBatches,
        RowCheck::Schedules,
        RowCheck::FireTimes,
        RowCheck::ScheduleOwners,
        RowCheck::OwnedSchedules,
    ] {
        findings.extend(check_rows(runner, keys, check).await?);
    }
    Ok(findings)
}
