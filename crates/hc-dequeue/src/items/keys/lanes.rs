//! The keys of lanes and of their notices.

use microqueue::MicroQueue;
use microqueue::keyspace::tuple::Versionstamp as TupleVersionstamp;
use microqueue::keyspace::{
    self, Bytes, Isolation, RangeQuery, Result, Subspace, Transaction, key_after,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Keys, Records};
use crate::items::error;
use crate::items::part::{LanePart, Part};
use crate::items::priority::Priority;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::MAX_GROUP_BYTES;

/// What the key of a row of a lane says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneRow {
    /// The group of the lane.
    pub(crate) group: Bytes,
    /// The rank of the item in the row. `None` if the row contains state of the lane.
    pub(crate) rank: Option<u8>,
}

/// Returns an error unless the group of an item has a valid length.
pub(crate) fn check_group(group: &[u8]) -> error::Result<()> {
    if (1..=MAX_GROUP_BYTES).contains(&group.len()) {
        return Ok(());
    }
    Err(error::Error::Group {
        bytes: group.len(),
        limit: MAX_GROUP_BYTES,
    })
}

/// Returns a rank, if items of a lane can have it.
fn rank_in_lane(rank: u64) -> Option<u8> {
    let rank = u8::try_from(rank).ok()?;
    if rank != RANK_OF_SLOT {
        Priority::of_rank(rank)?;
    }
    Some(rank)
}

/// Returns the hash by which lanes follow one another, so that no group's turn depends on its name, and notices are
/// spread.
pub(crate) fn lane_hash(group: &[u8]) -> u16 {
    let [first, second, ..] = xxh3_64(group).to_be_bytes();
    u16::from_be_bytes([first, second])
}

impl Keys {
    /// Returns the subspace of a lane.
    pub(crate) fn lane(&self, group: &[u8]) -> Subspace {
        self.queue.subspace(&(Part::Lanes, group))
    }

    /// Returns the part with the items of a rank in a lane.
    pub(crate) fn lane_items(&self, group: &[u8], rank: u8) -> Records {
        let items = self.queue.subspace(&(Part::Lanes, group, u64::from(rank)));
        MicroQueue::new(items).with_environment(self.env.clone())
    }

    /// Returns the key of the number of slots in use.
    pub(crate) fn slots(&self, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, group, LanePart::Slots))
    }

    /// Returns the key of the limits of a group or, for the empty one, of the default limits.
    pub(crate) fn group_limits(&self, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, group, LanePart::Limits))
    }

    /// Returns the key of the row that exists while a group is paused.
    pub(crate) fn group_pause(&self, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, group, LanePart::Pause))
    }

    /// Returns the range of the limits and the pause of a group, in which there is nothing else.
    pub(crate) fn limits_and_pause(&self, group: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let pause = self.group_pause(group);
        (self.group_limits(group), key_after(&pause))
    }

    pub(crate) fn gate(&self, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, group, LanePart::Gate))
    }

    /// Returns the key of the tokens of a group's rate.
    pub(crate) fn level(&self, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, group, LanePart::Tokens))
    }

    /// Returns the key of the version until which a lane is parked.
    pub(crate) fn parked_until(&self, group: &[u8]) -> Vec<u8> {
        self.queue
            .pack(&(Part::Lanes, group, LanePart::ParkedUntil))
    }

    /// Returns the key of a lane among those that are parked.
    pub(crate) fn parked(&self, until: i64, group: &[u8]) -> Vec<u8> {
        self.queue.pack(&(Part::Parked, until, group))
    }

    /// Returns the version and the lane's group in the key of a parked lane.
    pub(crate) fn parse_parked(&self, key: &[u8]) -> Option<(i64, Bytes)> {
        let (until, lane): (i64, Vec<u8>) = self.queue.subspace(&Part::Parked).unpack(key).ok()?;
        Some((until, lane.into()))
    }

    /// Returns the range of the lanes that are parked until this version or an earlier one.
    pub(crate) fn parked_up_to(&self, version: i64) -> (Vec<u8>, Vec<u8>) {
        let (begin, _) = self.part(Part::Parked);
        let (_, end) = self.queue.subspace(&(Part::Parked, version)).range();
        (begin, end)
    }

    /// Returns the key of the mark that the default limits have changed.
    pub(crate) fn mark(&self) -> Vec<u8> {
        self.queue.pack(&(Part::Lanes, &b""[..], LanePart::Mark))
    }

    /// Returns the group of a lane, and the rank of an item in it, from the key of a row of the lane.
    pub(crate) fn parse_lane(&self, key: &[u8]) -> Result<LaneRow> {
        let lanes = self.queue.subspace(&Part::Lanes);
        let item: Result<(Vec<u8>, u64, TupleVersionstamp, u64), _> = lanes.unpack(key);
        let row = match item {
            Ok((lane, rank, ..)) => rank_in_lane(rank).map(|rank| (lane, Some(rank))),
            Err(_) => {
                let state: Option<(Vec<u8>, String)> = lanes.unpack(key).ok();
                state.map(|(lane, _)| (lane, None))
            }
        };
        let no_row = || keyspace::Error::corrupt(key, "expected a key of a lane");
        let (group, rank) = row.ok_or_else(no_row)?;
        let group = group.into();
        Ok(LaneRow { group, rank })
    }

    /// Returns the group of the first lane after another one, by snapshot.
    pub(crate) async fn next_lane(
        &self,
        tr: &impl Transaction,
        after: Option<&Bytes>,
    ) -> Result<Option<Bytes>> {
        let (first, end) = self.part(Part::Lanes);
        let begin = after.map_or(first, |group| self.lane(group).range().1);
        let query = RangeQuery::keys(begin, end).limit(1);
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        let row = batch.rows.first();
        Ok(row
            .map(|row| self.parse_lane(row.key()))
            .transpose()?
            .map(|row| row.group))
    }

    /// Returns the groups of up to `limit` lanes after another one, by snapshot.
    pub(crate) async fn lanes_after(
        &self,
        tr: &impl Transaction,
        after: Option<&Bytes>,
        limit: usize,
    ) -> Result<Vec<Bytes>> {
        let mut lanes = Vec::new();
        while lanes.len() < limit {
            let Some(lane) = self.next_lane(tr, lanes.last().or(after)).await? else {
                break;
            };
            lanes.push(lane);
        }
        Ok(lanes)
    }

    /// Returns the range of the items in a lane, without its state.
    pub(crate) fn items_of_lane(&self, group: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let first = self
            .lane_items(group, RANK_OF_SLOT)
            .subspace()
            .bytes()
            .to_vec();
        (first, self.lane(group).range().1)
    }

    /// Returns whether the row of a key contains state of a lane and no item.
    pub(crate) fn is_lane_state(&self, key: &[u8]) -> bool {
        matches!(self.parse_lane(key), Ok(LaneRow { rank: None, .. }))
    }

    pub(crate) fn notice(&self, rank: u8, group: &[u8]) -> Vec<u8> {
        self.notice_at(rank, lane_hash(group), group)
    }

    /// Returns the key that the notice of a lane with this hash and group has.
    pub(crate) fn notice_at(&self, rank: u8, hash: u16, group: &[u8]) -> Vec<u8> {
        self.queue
            .pack(&(Part::Notices, u64::from(rank), u64::from(hash), group))
    }

    /// Returns the range of the notices of a rank.
    pub(crate) fn notices(&self, rank: u8) -> (Vec<u8>, Vec<u8>) {
        self.queue
            .subspace(&(Part::Notices, u64::from(rank)))
            .range()
    }

    /// Returns the rank and the lane's group in the key of a notice.
    pub(crate) fn parse_notice(&self, key: &[u8]) -> Option<(u8, Bytes)> {
        let notices = self.queue.subspace(&Part::Notices);
        let (rank, _, lane): (u64, u64, Vec<u8>) = notices.unpack(key).ok()?;
        Some((rank_in_lane(rank)?, lane.into()))
    }
}
