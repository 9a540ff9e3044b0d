//! Groups of items: their limits, their slots, and what waits.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Item, Time};

/// A page of the groups of a queue's items, in the order of their bytes: those that have limits of their own, or items
/// that wait or have slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Groups {
    /// The name of the queue.
    pub queue: String,
    /// The limits of groups that have none of their own. Missing if they do not decode: these groups are unreadable
    /// then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_limits: Option<Limits>,
    /// The groups.
    pub groups: Vec<Group>,
    /// The group after which the next page begins. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A group of items, and how it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Group {
    /// The group, as text or as `0x` and hexadecimal digits.
    pub group: String,
    /// `idle` if no item waits in the queue, `ready` if the next one may start, `at its limit` if all slots are in use,
    /// `waits for its rate` if that does not let the next one start yet, `paused` if it was paused or its limit is
    /// zero, or `unreadable` if its limits or the number of its slots do not decode: then it starts no items.
    pub state: String,
    /// About when the rate lets the next item start, by the wall clock of this process. Missing if the group does not
    /// wait for its rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_start: Option<Time>,
    /// How many items have a slot.
    pub slots: u64,
    /// How many items wait in the queue, as far as they were counted. Delayed items do not count.
    pub waiting: usize,
    /// Whether more wait than were counted.
    pub has_more: bool,
    /// The limits that apply to the group. Missing if the group is unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Whether these are its own. Otherwise, they are the default ones.
    pub own_limits: bool,
    /// Whether it was paused, whatever its limits are.
    pub paused: bool,
    /// Which item waits because no session takes its kind: the first queued one, or one that has a slot. Missing if
    /// there is none, and in a listing of groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    /// The items that have its slots, up to 100, as far as they were found. Missing in a listing of groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Item>,
}

impl Group {
    /// Returns how many of its slots are in use, such as `2 of 4` or `2, no limit`. Empty if the group is unreadable.
    pub fn slots_text(&self) -> String {
        let Some(limits) = &self.limits else {
            return String::new();
        };
        match limits.limit {
            Some(limit) => format!("{} of {limit}", self.slots),
            None => format!("{}, no limit", self.slots),
        }
    }
}

/// The limits of the items of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limits {
    /// How many items may have a slot. Missing if that is not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Whether an item keeps its slot until it ends.
    pub until_end: bool,
    /// Whether a dead letter keeps its slot.
    pub dead_letters_block: bool,
    /// At which rate items of the group start. Missing if that is not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// How many items a group is granted when it is its turn.
    pub weight: u32,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            None if self.rate.is_some() => f.write_str("no limit of slots")?,
            None => f.write_str("no limit")?,
            Some(limit) => write!(f, "at most {limit}")?,
        }
        if self.until_end {
            f.write_str(", until end")?;
        }
        if self.dead_letters_block {
            f.write_str(", dead letters block")?;
        }
        if let Some(rate) = &self.rate {
            write!(f, ", {rate}")?;
        }
        if self.weight != 1 {
            write!(f, ", weight {}", self.weight)?;
        }
        Ok(())
    }
}

/// The rate at which items of a group start.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rate {
    /// How many items may start in each period.
    pub starts: u32,
    /// The period.
    pub period_seconds: f64,
    /// How many items may start at once.
    pub burst: u32,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A period is a whole number of milliseconds.
        let millis = (self.period_seconds * 1_000.0).round() as u64;
        let period = humantime::format_duration(Duration::from_millis(millis));
        write!(f, "{} per {period}", self.starts)?;
        if self.burst != 1 {
            write!(f, ", burst {}", self.burst)?;
        }
        Ok(())
    }
}
