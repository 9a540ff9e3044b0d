//! Checks schedules against the indexes by next time and by owner.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Isolation, KeyValue, Transaction};

use crate::items::error::Result;
use crate::items::finding::Finding;
use crate::items::keys::Keys;
use crate::schedule::operations::{stored_schedule, why_stopped};
use crate::schedule::record::{ScheduleCodec, ScheduleRecord};
use crate::session::wall::wall_millis;

/// Returns the name and the record of a schedule.
fn decode(keys: &Keys, row: &KeyValue) -> Result<(String, ScheduleRecord)> {
    let schedule = keys.parse_schedule(row.key())?;
    let record = ScheduleCodec.decode(row.to_value());
    let record = record.map_err(|error| error.at(row.key().to_vec()))?;
    Ok((schedule, record))
}

/// Checks that a schedule that fires again is in the index, and that it has not stopped if it should fire.
pub(crate) async fn check_schedule(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (schedule, record) = decode(keys, row)?;
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

/// Checks that an entry of the index is the next time of a schedule.
pub(crate) async fn check_fire_time(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (time_millis, schedule) = keys.parse_fire_time(row.key())?;
    let stored = stored_schedule(tr, keys, &schedule).await?;
    if stored.is_some_and(|stored| stored.next_millis == Some(time_millis)) {
        return Ok(None);
    }
    Ok(Some(Finding::StrayFireTime {
        schedule,
        time_millis,
    }))
}

/// Checks that a schedule with an owner is among those of its owner.
pub(crate) async fn check_owner(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (schedule, record) = decode(keys, row)?;
    let Some(owner) = record.owner else {
        return Ok(None);
    };
    let key = keys.schedules_of(&owner).pack(&schedule);
    if tr.get(&key, Isolation::Serializable).await?.is_some() {
        return Ok(None);
    }
    Ok(Some(Finding::NoOwnedSchedule { schedule, owner }))
}

/// Checks that an entry of the index by owner names a schedule of this owner.
pub(crate) async fn check_owned(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (owner, schedule) = keys.parse_owned_schedule(row.key())?;
    let stored = stored_schedule(tr, keys, &schedule).await?;
    if stored.is_some_and(|stored| stored.owner.as_ref() == Some(&owner)) {
        return Ok(None);
    }
    Ok(Some(Finding::StrayOwnedSchedule { schedule, owner }))
}
