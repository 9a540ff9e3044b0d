//! The limits of groups, and their rows.

use std::collections::BTreeMap;

use futures::TryFutureExt;
use futures::future::try_join_all;
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes, Isolation, Transaction};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::rate::Rate;
use crate::items::record::Record;

const FORMAT: u8 = 1;

/// The largest [weight](GroupLimits::with_weight) of a group.
pub const MAX_WEIGHT: u32 = 1_000;

mod flag {
    pub(super) const LIMIT: u8 = 1;
    pub(super) const UNTIL_END: u8 = 2;
    pub(super) const DEAD_BLOCK: u8 = 4;
    pub(super) const RATE: u8 = 8;
    pub(super) const ALL: u8 = LIMIT | UNTIL_END | DEAD_BLOCK | RATE;
}

/// The limits of the items of one group, or the default limits of all groups.
///
/// ```
/// use hc_dequeue::GroupLimits;
///
/// // At most four items of a group are handled at a time.
/// let four = GroupLimits::new().with_limit(4);
/// // The next item of a group is handled after the one before it has left the queue.
/// let in_order = GroupLimits::ordered();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupLimits {
    limit: Option<u32>,
    until_end: bool,
    dead_letters_block: bool,
    rate: Option<Rate>,
    weight: u32,
}

impl Default for GroupLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupLimits {
    /// The limits instead of a row that does not decode: nothing starts, and no slot is given up.
    pub(crate) const UNREADABLE: Self = Self {
        limit: Some(0),
        until_end: true,
        dead_letters_block: true,
        rate: None,
        weight: 1,
    };

    const BYTES: usize = 26;

    /// Returns the limits of groups for which nothing was configured: none, and a weight of 1.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: None,
            until_end: false,
            dead_letters_block: false,
            rate: None,
            weight: 1,
        }
    }

    /// Returns the limits that keep the items of a group in order: one slot, which its item keeps until it ends. An
    /// item that fails or is snoozed keeps the ones after it waiting.
    #[must_use]
    pub const fn ordered() -> Self {
        Self::new().with_limit(1).with_until_end()
    }

    /// Sets how many items of a group may have a slot. An item gets one when it is granted, and frees it when no
    /// session holds it any more. With zero, none starts: [`pause_group`](crate::Queue::pause_group) does that and
    /// keeps the limit.
    #[must_use]
    pub const fn with_limit(mut self, items: u32) -> Self {
        self.limit = Some(items);
        self
    }

    /// Lets any number of items of a group have a slot. Then none keeps its slot until it ends, and no dead letter
    /// keeps one.
    #[must_use]
    pub const fn without_limit(self) -> Self {
        let mut limits = self.without_until_end();
        limits.limit = None;
        limits
    }

    /// Makes an item keep its slot until it ends: until it is completed, cancelled or a dead letter.
    #[must_use]
    pub const fn with_until_end(mut self) -> Self {
        self.until_end = true;
        self
    }

    /// Makes an item free its slot when no session holds it any more. Then no dead letter keeps its slot, either.
    #[must_use]
    pub const fn without_until_end(self) -> Self {
        let mut limits = self.without_dead_letters_blocking();
        limits.until_end = false;
        limits
    }

    /// Makes a dead letter keep its slot until it is redriven, and then until it ends, or until it is purged or
    /// cancelled. This applies when an item becomes a dead letter: other limits free no slot that a dead letter has,
    /// and give none to it.
    #[must_use]
    pub const fn with_dead_letters_blocking(mut self) -> Self {
        self.dead_letters_block = true;
        self
    }

    /// Makes an item free its slot when it becomes a dead letter. Dead letters that have slots keep them: redrive or
    /// purge these.
    #[must_use]
    pub const fn without_dead_letters_blocking(mut self) -> Self {
        self.dead_letters_block = false;
        self
    }

    /// Sets the rate at which items of a group start. An item counts each time that a handler gets it.
    #[must_use]
    pub const fn with_rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Lets items of a group start at any rate.
    #[must_use]
    pub const fn without_rate(mut self) -> Self {
        self.rate = None;
        self
    }

    /// Sets how many items a group is granted when it is its turn, from 1 to [`MAX_WEIGHT`]. The default is 1.
    #[must_use]
    pub const fn with_weight(mut self, items: u32) -> Self {
        self.weight = items;
        self
    }

    /// Returns how many items of a group may have a slot, or `None` if that is not limited.
    #[must_use]
    pub const fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// Returns whether an item keeps its slot until it ends.
    #[must_use]
    pub const fn is_until_end(&self) -> bool {
        self.until_end
    }

    /// Returns whether each item waits for the end of the one before it.
    pub(crate) fn are_ordered(&self) -> bool {
        self.limit == Some(1) && self.until_end
    }

    /// Returns whether a dead letter keeps its slot.
    #[must_use]
    pub const fn dead_letters_block(&self) -> bool {
        self.dead_letters_block
    }

    /// Returns the rate at which items of a group start, or `None` if it is not limited.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns how many items a group is granted when it is its turn.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        self.weight
    }

    /// Returns whether starts of items of the group conflict with one another.
    pub(crate) const fn have_gate(&self) -> bool {
        self.limit.is_some() || self.rate.is_some()
    }

    /// # Errors
    /// [`Error::GroupLimits`].
    pub(crate) fn check(&self) -> Result<()> {
        let reason = if !(1..=MAX_WEIGHT).contains(&self.weight) {
            "the weight is out of range: set one from 1 to 1,000"
        } else if self.until_end && self.limit.is_none() {
            "items keep slots until they end, but there is no limit: set one"
        } else if self.dead_letters_block && !self.until_end {
            "dead letters keep slots, but failing items do not: also set `with_until_end`"
        } else if let Some(reason) = self.rate.and_then(|rate| rate.fault()) {
            reason
        } else {
            return Ok(());
        };
        Err(Error::GroupLimits { reason })
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = FORMAT;
        for (is_set, flag) in [
            (self.limit.is_some(), flag::LIMIT),
            (self.until_end, flag::UNTIL_END),
            (self.dead_letters_block, flag::DEAD_BLOCK),
            (self.rate.is_some(), flag::RATE),
        ] {
            bytes[1] |= if is_set { flag } else { 0 };
        }
        bytes[2..6].copy_from_slice(&self.limit.unwrap_or(0).to_be_bytes());
        if let Some(rate) = self.rate {
            bytes[6..10].copy_from_slice(&rate.starts.to_be_bytes());
            bytes[10..18].copy_from_slice(&rate.period_millis.to_be_bytes());
            bytes[18..22].copy_from_slice(&rate.burst.to_be_bytes());
        }
        bytes[22..].copy_from_slice(&self.weight.to_be_bytes());
        bytes
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> keyspace::Result<Self> {
        parse(value).map_err(|reason| keyspace::Error::corrupt(key, reason))
    }

    /// Returns the limits in a row. If it does not decode, the group is paused.
    pub(crate) fn parse_or_pause(value: &[u8]) -> Self {
        parse(value).unwrap_or(Self::UNREADABLE)
    }
}

fn parse(value: &[u8]) -> Result<GroupLimits, String> {
    let mut fields = Fields::new(value);
    fields.format(FORMAT)?;
    let [flags] = fields.array()?;
    if flags > flag::ALL {
        return Err(format!("flags {flags:#x} are unknown"));
    }
    let limit = fields.u32()?;
    let rate = Rate {
        starts: fields.u32()?,
        period_millis: fields.u64()?,
        burst: fields.u32()?,
    };
    let has_rate = flags & flag::RATE != 0;
    let limits = GroupLimits {
        limit: (flags & flag::LIMIT != 0).then_some(limit),
        until_end: flags & flag::UNTIL_END != 0,
        dead_letters_block: flags & flag::DEAD_BLOCK != 0,
        rate: has_rate.then_some(rate),
        weight: fields.u32()?,
    };
    fields.end()?;
    limits.check().map_err(|error| error.to_string())?;
    if limits.to_bytes() != value {
        return Err("expected zeros instead of a limit or a rate".to_owned());
    }
    Ok(limits)
}

/// The limits of some groups, as a transaction has read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownLimits(BTreeMap<Bytes, GroupLimits>);

impl KnownLimits {
    /// Reads the limits of those groups of which items have slots.
    ///
    /// # Conflicts
    /// Reads the limits of these groups, and the default ones.
    pub(crate) async fn of_slots<'a>(
        tr: &impl Transaction,
        keys: &Keys,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<Self> {
        let mut known = Self::default();
        known.read(tr, keys, records).await?;
        Ok(known)
    }

    /// Reads the limits of more groups, as [`of_slots`](Self::of_slots) does.
    pub(crate) async fn read<'a>(
        &mut self,
        tr: &impl Transaction,
        keys: &Keys,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<()> {
        let with_slots = records.into_iter().filter(|record| record.has_slot);
        let mut unknown: Vec<_> = with_slots
            .map(|record| &record.group)
            .filter(|group| !self.0.contains_key(*group))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        let no_group = Bytes::new();
        let rows = [&no_group].into_iter().chain(unknown.iter().copied());
        let reads = rows.map(|group| {
            let row = tr.get(&keys.group_limits(group), Isolation::Serializable);
            row.map_err(Error::from)
        });
        let rows = try_join_all(reads).await?;
        let of_row = |row: &Option<Bytes>| row.as_deref().map(GroupLimits::parse_or_pause);
        let default = of_row(&rows[0]).unwrap_or_default();
        for (group, row) in unknown.into_iter().zip(&rows[1..]) {
            self.0.insert(group.clone(), of_row(row).unwrap_or(default));
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, group: Bytes, limits: GroupLimits) {
        self.0.insert(group, limits);
    }

    /// Returns the limits of a group. They must have been read.
    pub(crate) fn of(&self, group: &Bytes) -> &GroupLimits {
        self.0.get(group).unwrap_or(&GroupLimits::UNREADABLE)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn limits_have_the_bytes_of_the_schema() {
        let all = GroupLimits::ordered()
            .with_limit(258)
            .with_dead_letters_blocking()
            .with_weight(3);
        let rate = Rate::new(7, Duration::from_secs(60)).with_burst(258);
        let zeros = [0; 16];
        for (limits, bytes) in [
            (
                all,
                [&[1, 7, 0, 0, 1, 2][..], &zeros, &[0, 0, 0, 3]].concat(),
            ),
            (
                GroupLimits::new(),
                [&[1, 0, 0, 0, 0, 0][..], &zeros, &[0, 0, 0, 1]].concat(),
            ),
            (
                GroupLimits::new().with_limit(0),
                [&[1, 1, 0, 0, 0, 0][..], &zeros, &[0, 0, 0, 1]].concat(),
            ),
            (
                GroupLimits::new().with_rate(rate),
                vec![
                    1, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0xea, 0x60, 0, 0, 1, 2, 0, 0,
                    0, 1,
                ],
            ),
        ] {
            assert_eq!(&limits.to_bytes()[..], bytes);
            assert_eq!(GroupLimits::parse(b"key", &bytes).unwrap(), limits);
            assert!(GroupLimits::parse(b"key", &bytes[1..]).is_err());
            let longer = [&bytes[..], &[0]].concat();
            assert!(GroupLimits::parse(b"key", &longer).is_err());
        }
    }

    #[test]
    fn each_limit_has_a_way_back_to_limits_that_are_valid() {
        let rate = Rate::new(7, Duration::from_secs(60));
        let ordered = GroupLimits::ordered();
        let all = ordered.with_dead_letters_blocking().with_rate(rate);
        let of_rate = GroupLimits::new().with_rate(rate);
        for (limits, expected) in [
            (all.without_dead_letters_blocking(), ordered.with_rate(rate)),
            (all.without_until_end(), of_rate.with_limit(1)),
            (all.without_limit(), of_rate),
            (all.without_rate(), ordered.with_dead_letters_blocking()),
            (all.without_limit().without_rate(), GroupLimits::new()),
        ] {
            assert_eq!(limits, expected);
            limits.check().unwrap();
        }
    }

    #[test]
    fn limits_that_are_not_as_they_are_written_pause_the_group() {
        let good = GroupLimits::ordered().to_bytes();
        for (place, byte) in [
            (0, 2),
            (1, 16),
            (1, 8),
            (1, 2),
            (1, 5),
            (10, 1),
            (25, 0),
            (23, 9),
        ] {
            let mut bytes = good;
            bytes[place] = byte;
            assert!(GroupLimits::parse(b"key", &bytes).is_err(), "{place}");
            assert_eq!(GroupLimits::parse_or_pause(&bytes).limit(), Some(0));
        }
    }
}
