//! Checks the rows of a queue against each other.
//!
//! Every counter and every index key is written in the transaction that changes the rows it describes. An audit
//! should therefore never find anything. It is for cases in which another program has written into the queue's
//! subspace, a restore was incomplete, or there is a bug.
//!
//! Each kind of check has a file: rows of [`sessions`], the [`counters`], [`lanes`], [`batches`], and other [`rows`]
//! that must agree.

mod batches;
mod counters;
mod dedupe;
mod done;
mod finding;
pub(crate) mod lanes;
mod pointers;
mod rows;
mod schedules;
mod sessions;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::{Database, Runner, Store};

pub use self::finding::{Finding, Unchecked};
use self::rows::{AuditTransaction, check_rows, remove_row};
use crate::items::error::Result;
use crate::items::keys::{Counter, Keys};
use crate::items::part::Part;
use crate::items::settings::{Settings, current_settings};
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
    /// It compares counters, sessions and held items, keys and their items, items and their pointers, dedupe ids, done
    /// items and schedules with each other. Each counter is checked in one transaction with the items that it counts.
    /// The other rows are checked page by page, each page in one transaction together with the rows that it must agree
    /// with. Each check of a part of the queue lists at most a thousand findings. A row that does not decode is a
    /// finding. What takes more time than a transaction has is [not checked](Audit::unchecked).
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
    /// The audit writes nothing, so it never conflicts. Each repair reads the rows that it changes again, serializably,
    /// but for numbers, to which it adds.
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
        for counter in Counter::OF_ITEMS {
            found.extend(counters::check_counter(runner, keys, counter, &mut unchecked).await?);
        }
        found.extend(lanes::check_lanes(runner, keys, &mut unchecked).await?);
        found.extend(batches::check_batches(runner, keys, &mut unchecked).await?);
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
            match repair(runner, keys, settings, finding).await {
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
        findings.extend(check_rows(runner, keys, &pointers::Pointed(part)).await?);
    }
    findings.extend(check_rows(runner, keys, &pointers::Pointers).await?);
    findings.extend(check_rows(runner, keys, &lanes::ParkedLanes).await?);
    for part in Part::with_items() {
        findings.extend(check_rows(runner, keys, &dedupe::ItemsOf(part)).await?);
    }
    for part in [Part::DedupeIds, Part::DedupeItems] {
        findings.extend(check_rows(runner, keys, &dedupe::DedupeIds(part)).await?);
    }
    findings.extend(check_rows(runner, keys, &dedupe::RetainedIds).await?);
    findings.extend(check_rows(runner, keys, &done::DoneItems).await?);
    findings.extend(check_rows(runner, keys, &done::KeepTimes).await?);
    findings.extend(check_rows(runner, keys, &schedules::Schedules).await?);
    findings.extend(check_rows(runner, keys, &schedules::FireTimes).await?);
    Ok(findings)
}

async fn repair(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
    finding: &Finding,
) -> Result<()> {
    if let Finding::NoSession { session } | Finding::NoHeartbeat { session } = finding {
        return sessions::reclaim_lost(runner, keys, settings, *session).await;
    }
    let step = |tr| async move { repair_step(&tr, keys, settings, finding).await };
    runner.run(step).await
}

/// Stages the repair of a finding, if that takes a single transaction.
async fn repair_step(
    tr: &AuditTransaction,
    keys: &Keys,
    settings: &Settings,
    finding: &Finding,
) -> Result<()> {
    match finding {
        Finding::CounterOff {
            counter,
            stored,
            counted,
        } => counters::add(tr, keys, counter, counted - stored),
        Finding::StrayHeartbeat { session } => {
            sessions::remove_heartbeat(tr, keys, *session).await?;
        }
        Finding::StrayRequest { request } => sessions::remove_request(tr, keys, request).await?,
        Finding::BrokenGrant { session } => {
            sessions::return_broken_grants(tr, keys, settings, *session).await?;
        }
        Finding::StrayCancel { session } => {
            let key = keys.cancels(*session);
            remove_row(tr, keys, &sessions::CancelStamps, &key, finding).await?;
        }
        Finding::NoPointer { key, .. } => {
            pointers::set_pointer(tr, keys, finding, key).await?;
        }
        Finding::StrayPointer { item } => {
            let key = item.id().key_in(&keys.pointers());
            remove_row(tr, keys, &pointers::Pointers, &key, finding).await?;
        }
        Finding::SlotsOff { .. }
        | Finding::NoStamp { .. }
        | Finding::NotParked { .. }
        | Finding::StrayParked { .. } => lanes::repair(tr, keys, finding).await?,
        Finding::BatchOff { .. } | Finding::NoBatchStamp { .. } | Finding::StrayBatch { .. } => {
            batches::repair(tr, keys, finding).await?;
        }
        Finding::NoKeepTime { item, until_millis } => {
            done::set_keep_time(tr, keys, finding, &item.id(), *until_millis).await?;
        }
        Finding::StrayKeepTime { item, until_millis } => {
            let key = item.id().key_in(&keys.kept_until(*until_millis));
            remove_row(tr, keys, &done::KeepTimes, &key, finding).await?;
        }
        Finding::NoDedupe { item, dedupe } => {
            dedupe::set_rows(tr, keys, &item.id(), dedupe).await?;
        }
        Finding::StrayDedupe { dedupe, .. } => {
            dedupe::remove_rows(tr, keys, finding, dedupe).await?;
        }
        Finding::NoFireTime {
            schedule,
            time_millis,
        } => schedules::set_fire_time(tr, keys, finding, schedule, *time_millis).await?,
        Finding::StrayFireTime {
            schedule,
            time_millis,
        } => {
            let key = keys.fire_time(*time_millis, schedule);
            remove_row(tr, keys, &schedules::FireTimes, &key, finding).await?;
        }
        // These repairs take more than one transaction.
        Finding::NoSession { .. } | Finding::NoHeartbeat { .. } => {}
        Finding::Twice { .. }
        | Finding::StoppedSchedule { .. }
        | Finding::Undecodable { .. }
        | Finding::More { .. } => {}
    }
    Ok(())
}
