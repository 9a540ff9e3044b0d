//! Checks schedules against the index by next time.

use async_trait::async_trait;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, KeyValue, Transaction};

use super::Finding;
use super::rows::{AuditTransaction, RowCheck, is_still};
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::schedule::operations::{stored_schedule, why_stopped};
use crate::schedule::record::ScheduleCodec;
use crate::session::wall::wall_millis;

/// Checks that each schedule that fires again is in the index, and that none has stopped that should fire.
pub(super) struct Schedules;

#[async_trait]
impl RowCheck for Schedules {
    fn part(&self) -> Part {
        Part::Schedules
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let schedule = keys.parse_schedule(row.key())?;
        let record = ScheduleCodec
            .decode(row.to_value())
            .map_err(|error| error.at(row.key().to_vec()))?;
        if let Some(time_millis) = record.next_millis {
            let key = keys.fire_time(time_millis, &schedule);
            if tr.get(&key, Isolation::Serializable).await?.is_none() {
                return Ok(Some(Finding::NoFireTime {
                    schedule,
                    time_millis,
                }));
            }
        }
        let reason = why_stopped(&record, wall_millis(&keys.env));
        Ok(reason.map(|reason| Finding::StoppedSchedule { schedule, reason }))
    }
}

/// Checks that each entry of the index is the next time of a schedule.
pub(super) struct FireTimes;

#[async_trait]
impl RowCheck for FireTimes {
    fn part(&self) -> Part {
        Part::FireTimes
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let (time_millis, schedule) = keys.parse_fire_time(row.key())?;
        let stored = stored_schedule(tr, keys, &schedule).await?;
        let next = stored.and_then(|stored| stored.next_millis);
        let stray = Finding::StrayFireTime {
            schedule,
            time_millis,
        };
        Ok((next != Some(time_millis)).then_some(stray))
    }
}

/// Stages the missing entry of a schedule.
pub(super) async fn set_fire_time(
    tr: &AuditTransaction,
    keys: &Keys,
    finding: &Finding,
    schedule: &str,
    time_millis: u64,
) -> Result<()> {
    let row = keys.schedule(schedule);
    if is_still(tr, keys, &Schedules, &row, finding).await? {
        tr.set(&keys.fire_time(time_millis, schedule), b"");
        // Sessions that sleep must learn when the schedule fires.
        keys.wake_all(tr);
    }
    Ok(())
}
