//! Reads the item in a row of any part, and where it is.

use microqueue::keyspace::{self, KeyValue};
use microqueue::{Item, Listed};

use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::{ListedGrantPart, Record, is_signal};

/// Returns the item in a row of a part, and where it is. Returns `None` if the row holds none.
///
/// # Errors
/// [`Corrupt`](keyspace::Error::Corrupt) if the row does not say which item it holds.
pub(crate) fn parse_item(
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<(Location, Listed<Record>)>> {
    let (location, records) = match part {
        Part::Lanes if keys.is_lane_state(row.key()) => return Ok(None),
        Part::QueuedAbove | Part::Queued | Part::QueuedBelow | Part::Lanes => {
            let spot = keys.parse_queued(row.key())?;
            let records = keys.items_at(&spot).into_owned();
            (Location::Queued(spot), records)
        }
        Part::Delayed => {
            let ready = keys.parse_ready(row)?;
            (Location::Delayed(ready), keys.delayed(ready))
        }
        Part::Held => {
            let session = keys.parse_holder(row.key())?;
            (Location::Held(session), keys.held(session))
        }
        Part::Grants if is_signal(row.value()) => return Ok(None),
        Part::Grants => return parse_granted(keys, row).map(Some),
        Part::Dead => (Location::Dead, keys.dead.clone()),
        Part::Done => (Location::Done, keys.done.clone()),
        Part::Batches
        | Part::EndedBatches
        | Part::Members
        | Part::BatchNotices
        | Part::CancelStamps
        | Part::Heartbeats
        | Part::Counters
        | Part::Schedules
        | Part::OwnedSchedules
        | Part::FireTimes
        | Part::Parked
        | Part::Notices
        | Part::DedupeIds
        | Part::Settings
        | Part::DedupeItems
        | Part::Pointers
        | Part::Pause
        | Part::Requests
        | Part::KindRequests
        | Part::Sessions
        | Part::SessionKinds
        | Part::Wake
        | Part::RetainedIds
        | Part::KeepTimes => return Ok(None),
    };
    Ok(Some((location, records.parse_listed(row)?)))
}

/// Returns the item in a row of a part, with what the key of the row says of it. Returns `None` if the row holds
/// none.
///
/// # Errors
/// [`Corrupt`](keyspace::Error::Corrupt) if the row does not decode, or contradicts its key.
pub(crate) fn decode_item(
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<(Location, Item<Record>)>> {
    let Some((location, listed)) = parse_item(keys, part, row)? else {
        return Ok(None);
    };
    let mut item = Item::try_from(listed).map_err(keyspace::Error::from)?;
    if let Location::Queued(spot) = &location {
        spot.apply(row.key(), &mut item.value)?;
    }
    Ok(Some((location, item)))
}

/// Returns the item in a row of a grant.
fn parse_granted(keys: &Keys, row: &KeyValue) -> Result<(Location, Listed<Record>)> {
    let (session, _) = keys.parse_grant(row.key())?;
    let ListedGrantPart { parts, item } = ListedGrantPart::decode(row.key(), row.to_value())?;
    let location = Location::Granted {
        session,
        key: row.key().to_vec(),
        parts,
    };
    Ok((location, item))
}
