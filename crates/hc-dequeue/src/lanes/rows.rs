//! Reads the rows of lanes.

use microqueue::Item;
use microqueue::keyspace::{
    self, Bytes, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, key_after, read_all,
};

use super::bucket::{Level, RateState};
use crate::items::counters::parse_count;
use crate::items::error::Result;
use crate::items::group_limits::GroupLimits;
use crate::items::keys::Keys;
use crate::items::record::Record;

/// The number of rows with state in a lane.
pub(super) const STATE_ROWS: usize = 5;

/// The rows with the state of a lane. They come before its items.
#[derive(Default)]
pub(super) struct StoredState {
    pub(super) rows: usize,
    pub(super) slots: i64,
    pub(super) limits: Option<GroupLimits>,
    pub(super) is_paused: bool,
    pub(super) rate: RateState,
}

/// Returns the level in a row with the tokens of a rate.
pub(crate) fn parse_level(row: &KeyValue) -> keyspace::Result<Level> {
    let level = Level::parse(row.value());
    level.ok_or_else(|| keyspace::Error::corrupt(row.key(), "expected the level of a rate"))
}

/// Returns the level in a row with the tokens of a rate. If it does not decode, no token is left.
pub(crate) fn level_in(row: &KeyValue) -> Level {
    parse_level(row).unwrap_or(Level::new(i64::MAX))
}

/// Returns the version in a row which says until when a lane is parked.
pub(crate) fn parse_parked_until(row: &KeyValue) -> keyspace::Result<i64> {
    let version = row.value().try_into().map(i64::from_be_bytes);
    version.map_err(|_| keyspace::Error::corrupt(row.key(), "expected a version"))
}

impl StoredState {
    pub(super) fn read(keys: &Keys, group: &Bytes, rows: &[KeyValue]) -> Self {
        let (first_item, _) = keys.items_of_lane(group);
        let mut state = Self {
            rows: rows.partition_point(|row| *row.key() < *first_item),
            ..Self::default()
        };
        let slots = keys.slots(group);
        let limits = keys.group_limits(group);
        let pause = keys.group_pause(group);
        let level = keys.level(group);
        let parked = keys.parked_until(group);
        for row in &rows[..state.rows] {
            if row.key() == slots {
                // A number that does not decode is as if all slots were in use.
                let slots = parse_count(row.key(), row.value());
                state.slots = slots.unwrap_or(i64::from(u32::MAX));
            } else if row.key() == limits {
                state.limits = Some(GroupLimits::parse_or_pause(row.value()));
            } else if row.key() == pause {
                state.is_paused = true;
            } else if row.key() == level {
                state.rate.level = Some(level_in(row));
            } else if row.key() == parked {
                // As if the lane were not parked.
                state.rate.parked = parse_parked_until(row).ok();
            }
        }
        state
    }
}

/// What a session may take of some rows of a lane.
pub(super) struct LaneRows {
    pub(super) items: Vec<Item<Record>>,
    pub(super) has_more: bool,
    /// Where the next page begins.
    pub(super) next: Vec<u8>,
    /// Whether one of the rows that were skipped is that of an item that has a slot.
    pub(super) skips_slot: bool,
    /// How many rows were skipped.
    pub(super) skipped: usize,
}

/// Some rows of a lane.
pub(super) struct Page {
    pub(super) rows: Vec<KeyValue>,
    pub(super) has_more: bool,
    /// Where the next page begins.
    pub(super) next: Vec<u8>,
}

/// Reads this many rows, or as many as there are. One batch of a range may have fewer, and then a limit could be
/// missed.
pub(super) async fn page(
    tr: &impl Transaction,
    begin: Vec<u8>,
    end: Vec<u8>,
    limit: usize,
) -> Result<Page> {
    let query = RangeQuery::keys(begin, end.clone())
        .limit(limit)
        .mode(StreamingMode::WantAll);
    let rows = read_all(tr, query, Isolation::Snapshot).await?;
    let has_more = rows.len() == limit;
    let next = match rows.last() {
        Some(last) if has_more => key_after(last.key()),
        _ => end,
    };
    Ok(Page {
        rows,
        has_more,
        next,
    })
}
