//! Parked lanes: which of them are due.

use std::collections::BTreeMap;
use std::time::Duration;

use microqueue::keyspace::limits::time_between;
use microqueue::keyspace::{Bytes, KeyValue, Transaction};

use super::LaneMemory;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::scan::{ReadLimit, first_items};

/// The largest number of parked lanes at which one look looks.
const MAX_DUE_LANES: usize = 128;

/// The parked lanes, as far as a look needs them.
#[derive(Debug)]
pub(crate) struct Parked {
    /// The groups of the first lanes that are due, with the versions since when.
    pub(crate) due: BTreeMap<Bytes, i64>,
    /// Whether there are no others.
    pub(crate) is_complete: bool,
    /// In which time the first lane is due, if none is.
    pub(crate) next: Option<Duration>,
}

impl Parked {
    pub(crate) fn none() -> Self {
        Self {
            due: BTreeMap::new(),
            is_complete: true,
            next: None,
        }
    }
}

/// Reads the first parked lanes.
///
/// # Conflicts
/// Reads by snapshot: a look that changes a row of a parked lane writes the gate.
pub(crate) async fn first_parked(
    tr: &impl Transaction,
    keys: &Keys,
    memory: &LaneMemory,
) -> Result<Parked> {
    let now = memory.version_at(tr.read_version().await?, keys.env.now());
    let read = |range, items| {
        let max = ReadLimit {
            items,
            row_bytes: usize::MAX,
        };
        first_items(tr, range, max, |row: &KeyValue| {
            keys.parse_parked(row.key())
        })
    };
    let first = read(keys.part(Part::Parked), 1).await?;
    memory.note_parked(!first.is_empty());
    let mut parked = Parked::none();
    match first.first() {
        None => {}
        Some((until, _)) if *until > now => {
            parked.next = Some(time_between(now, *until));
        }
        Some(_) => {
            let due = read(keys.parked_up_to(now), MAX_DUE_LANES).await?;
            parked.is_complete = due.len() < MAX_DUE_LANES;
            parked.due = due
                .into_iter()
                .map(|(until, group)| (group, until))
                .collect();
        }
    }
    Ok(parked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::ring::Ring;

    #[test]
    fn a_version_that_is_read_again_is_as_old_as_its_first_read() {
        let memory = LaneMemory::new(Ring::beginning_at(0));
        let at = |version, millis| memory.version_at(version, Duration::from_millis(millis));
        assert_eq!(at(7, 1_000), 7);
        assert_eq!(at(7, 1_250), 250_007);
        // A commit shows that versions are slower than time.
        assert_eq!(at(9, 1_500), 9);
        assert_eq!(at(8, 1_501), 1_009);
        assert_eq!(at(i64::MAX, 1_502), i64::MAX);
        assert_eq!(at(0, 9_999), i64::MAX);
    }
}
