//! Repairs what an audit has found.

use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::{Runner, Store, Transaction};

use super::rows::{AuditTransaction, RowCheck, is_still};
use super::{counters, dedupe, pointers, sessions};
use crate::batches;
use crate::items::error::Result;
use crate::items::finding::Finding;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::settings::Settings;
use crate::lanes;

/// Repairs what was found, if it is still true and can be repaired.
pub(super) async fn repair(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
    finding: &Finding,
) -> Result<()> {
    // This takes more than one transaction.
    if let Finding::NoSession { session } | Finding::NoHeartbeat { session } = finding {
        return sessions::reclaim_lost(runner, keys, settings, *session).await;
    }
    let step = |tr| async move { repair_step(&tr, keys, settings, finding).await };
    runner.run(step).await
}

/// Stages the repair of a finding.
async fn repair_step(
    tr: &AuditTransaction,
    keys: &Keys,
    settings: &Settings,
    finding: &Finding,
) -> Result<()> {
    if let Some((check, key)) = checked_row(keys, finding) {
        if is_still(tr, keys, check, &key, finding).await? {
            repair_row(tr, keys, finding, &key).await?;
        }
        return Ok(());
    }
    match finding {
        Finding::CounterOff {
            counter,
            stored,
            counted,
        } => counters::add(tr, keys, counter, counted - stored),
        Finding::StrayHeartbeat { session } => {
            sessions::remove_heartbeat(tr, keys, *session).await?;
        }
        Finding::StrayRequest { request, registry } => {
            let keys = &keys.in_registry(*registry);
            sessions::remove_request(tr, keys, request).await?;
        }
        Finding::BrokenGrant { session } => {
            sessions::return_broken_grants(tr, keys, settings, *session).await?;
        }
        Finding::NoDedupe { item, dedupe } => {
            dedupe::set_rows(tr, keys, &item.id(), dedupe).await?;
        }
        Finding::StrayDedupe { dedupe, .. } => {
            dedupe::remove_rows(tr, keys, finding, dedupe).await?;
        }
        Finding::SlotsOff { .. } | Finding::NoNotice { .. } | Finding::NotParked { .. } => {
            lanes::audit::repair(tr, keys, finding).await?;
        }
        Finding::BatchOff { .. } | Finding::NoBatchNotice { .. } | Finding::StrayBatch { .. } => {
            batches::audit::repair(tr, keys, finding).await?;
        }
        // Repaired before this, if it names a row of the queue.
        Finding::NoSession { .. }
        | Finding::NoHeartbeat { .. }
        | Finding::StrayCancel { .. }
        | Finding::StrayKinds { .. }
        | Finding::NoPointer { .. }
        | Finding::StrayPointer { .. }
        | Finding::StrayParked { .. }
        | Finding::NoMember { .. }
        | Finding::StrayMember { .. }
        | Finding::NoKeepTime { .. }
        | Finding::StrayKeepTime { .. }
        | Finding::NoFireTime { .. }
        | Finding::StrayFireTime { .. }
        | Finding::NoOwnedSchedule { .. }
        | Finding::StrayOwnedSchedule { .. } => {}
        // Not repaired.
        Finding::Twice { .. }
        | Finding::StoppedSchedule { .. }
        | Finding::Undecodable { .. }
        | Finding::More { .. } => {}
    }
    Ok(())
}

/// Returns the row that a finding is about, and its check, if a change of one row repairs it.
fn checked_row(keys: &Keys, finding: &Finding) -> Option<(RowCheck<'static>, Vec<u8>)> {
    Some(match finding {
        Finding::StrayCancel { session } => {
            let key = keys.cancels(*session);
            (RowCheck::CancelStamps, key)
        }
        Finding::StrayKinds { session } => (RowCheck::SessionKinds, keys.session_kinds(*session)),
        Finding::NoPointer { key, .. } => {
            let part = pointers::part_of(keys, key)?;
            (RowCheck::Items(part), key.to_vec())
        }
        Finding::StrayPointer { item } => {
            let key = item.id().key_in(&keys.pointers());
            (RowCheck::Pointers, key)
        }
        Finding::StrayParked { group, until } => (RowCheck::Parked, keys.parked(*until, group)),
        Finding::NoMember { key, .. } => {
            let part = Part::of(&keys.queue, key)?;
            (RowCheck::Memberships(part), key.to_vec())
        }
        Finding::StrayMember { batch, item } => {
            let key = item.id().key_in(&keys.members(batch.id()));
            (RowCheck::Members, key)
        }
        Finding::NoKeepTime { item, .. } => {
            let key = item.id().key_in(keys.done.subspace());
            (RowCheck::Done, key)
        }
        Finding::StrayKeepTime { item, until_millis } => {
            let key = item.id().key_in(&keys.kept_until(*until_millis));
            (RowCheck::KeepTimes, key)
        }
        Finding::NoFireTime { schedule, .. } => (RowCheck::Schedules, keys.schedule(schedule)),
        Finding::StrayFireTime {
            schedule,
            time_millis,
        } => {
            let key = keys.fire_time(*time_millis, schedule);
            (RowCheck::FireTimes, key)
        }
        Finding::NoOwnedSchedule { schedule, .. } => {
            (RowCheck::ScheduleOwners, keys.schedule(schedule))
        }
        Finding::StrayOwnedSchedule { schedule, owner } => {
            let key = keys.schedules_of(owner).pack(schedule);
            (RowCheck::OwnedSchedules, key)
        }
        _ => return None,
    })
}

/// Stages what the row of a finding lacks, or the removal of the row.
async fn repair_row(
    tr: &AuditTransaction,
    keys: &Keys,
    finding: &Finding,
    key: &[u8],
) -> Result<()> {
    match finding {
        Finding::NoPointer { .. } => pointers::set_pointer(tr, keys, key).await?,
        Finding::NoMember { batch, item, .. } => {
            tr.set(&item.id().key_in(&keys.members(batch.id())), b"");
        }
        Finding::NoKeepTime { item, until_millis } => {
            tr.set(&item.id().key_in(&keys.kept_until(*until_millis)), b"");
        }
        Finding::NoFireTime {
            schedule,
            time_millis,
        } => {
            tr.set(&keys.fire_time(*time_millis, schedule), b"");
            // Sessions that sleep must learn when the schedule fires.
            keys.wake_all(tr);
        }
        Finding::NoOwnedSchedule { schedule, owner } => {
            tr.set(&keys.schedules_of(owner).pack(schedule), b"");
        }
        Finding::StrayCancel { .. }
        | Finding::StrayKinds { .. }
        | Finding::StrayPointer { .. }
        | Finding::StrayParked { .. }
        | Finding::StrayKeepTime { .. }
        | Finding::StrayMember { .. }
        | Finding::StrayFireTime { .. }
        | Finding::StrayOwnedSchedule { .. } => tr.clear(key),
        _ => {}
    }
    Ok(())
}
