//! Sessions, schedules, settings, audits, and what combine queues keep of keys.

use std::fmt;

use serde::Serialize;

use super::{Failure, Payload, Time, as_text, is_zero};

/// A page of the sessions of a queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sessions {
    /// The name of the queue.
    pub queue: String,
    /// The sessions.
    pub sessions: Vec<Session>,
    /// The session after which the next page begins. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The processes that share the store, if it is a file: the owner first. Missing if it is only this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
}

/// A process that has the store open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    /// `owner` or `client`.
    pub role: String,
    /// The name of its program.
    pub program: String,
    /// Its number, as it sees it.
    pub pid: u32,
}

/// A session of a process that takes items, combines or exports.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Session {
    /// Its id, in hexadecimal digits.
    pub session: String,
    /// The subscription for which it exports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// `alive`, `silent` if it has shown no sign of life for its lease but is not declared dead yet, `dead` or
    /// `ended` while what it held is being returned, or `unreadable` if its state or its heartbeat does not decode.
    #[serde(serialize_with = "as_text")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub life: Life,
    /// Within which time it promises a sign of life.
    pub lease_seconds: f64,
    /// For how long it has shown none, by the store's versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
    /// What its process's wall clock showed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<Time>,
    /// How many items it holds, as far as they were counted. Missing for workers of combine and export queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<usize>,
    /// How many of them its worker has taken ahead of its handlers, and has not handed out as far as the store knows:
    /// an item that was handed out since counts for some seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reserve: Option<usize>,
    /// Whether it holds more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
    /// When the item was granted that it has held for the longest time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_grant: Option<Time>,
    /// How many items it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
    /// Why its state or its heartbeat does not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether a session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Life {
    /// It has shown a sign of life within its lease.
    Alive,
    /// It has shown none for its lease, and is not declared dead yet.
    Silent,
    /// It was declared dead, and what it held is being returned.
    Dead,
    /// It has ended, and what it held is being returned.
    Ended,
    /// Its state or its heartbeat does not decode.
    #[default]
    Unreadable,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Dead => "dead",
            Self::Ended => "ended",
            Self::Unreadable => "unreadable",
        })
    }
}

impl Session {
    /// Returns how many of the items that it holds were handed out.
    pub fn handed_out(&self) -> Option<usize> {
        Some(self.held? - self.in_reserve.unwrap_or(0))
    }
}

/// A page of the schedules of a queue, by name.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Schedules {
    /// The name of the queue.
    pub queue: String,
    /// The schedules.
    pub schedules: Vec<Schedule>,
    /// The name after which the next page begins. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// The owner that it was set by. Missing if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Its time zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What becomes of missed times: `skip`, `latest`, or `all` up to a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// The options of its enqueues, as `kind report, after 5s, max attempts 3`. Missing if they are the default ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
    /// The next time at which it fires. Missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Time>,
    /// The next time that its cron expression allows, if `next` is later because a wall clock was ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Time>,
    /// The newest time that has fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Time>,
    /// What it enqueues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// Why its record does not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The settings of a queue with consumers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Settings {
    /// The name of the queue.
    pub queue: String,
    /// How long a session lives without a sign of life.
    pub lease_seconds: f64,
    /// How many attempts an item has before it becomes a dead letter.
    pub max_attempts: u32,
    /// With how many sessions an item may die before it becomes a dead letter.
    pub max_deaths: u32,
    /// How often an item may be granted in all before it becomes a dead letter.
    pub max_deliveries: u32,
    /// How long a dedupe id goes on refusing repetitions after its item was completed.
    pub dedupe_retention_seconds: f64,
    /// How long items that are done are kept. Zero: they are not.
    pub keep_done_seconds: f64,
    /// The queue that gets the deaths of this one's items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deaths: Option<String>,
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Audit {
    /// The name of the queue.
    pub queue: String,
    /// Whether what can be repaired was repaired.
    pub repaired: bool,
    /// The findings. None: all that was checked agrees.
    pub findings: Vec<Finding>,
    /// What was not checked, because the queue has too many items.
    pub unchecked: Vec<String>,
}

/// Something in a queue that contradicts something else in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finding {
    /// What kind of contradiction it is.
    pub kind: String,
    /// What contradicts what.
    pub detail: String,
}

/// A page of what a combine queue has set aside.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SetAsidePage {
    /// The name of the queue.
    pub queue: String,
    /// What was set aside.
    pub set_aside: Vec<SetAside>,
    /// What to ask for to see the next page. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An update, a block of updates, or the reports of a key that a combine queue has set aside.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SetAside {
    /// What to name it by, to redrive or purge it.
    pub id: String,
    /// `update`, `block` or `key`.
    pub kind: String,
    /// How many of the first updates of a block were combined before it was set aside. A redrive adds the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub folded: u16,
    /// Why it was set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Payload>,
    /// The update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<Payload>,
    /// Why the record does not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a combine queue knows of a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CombineKey {
    /// The name of the queue.
    pub queue: String,
    /// The key.
    pub key: Payload,
    /// Its value as it was last reported. Missing if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<Payload>,
    /// Its value after the updates that are combined. Missing if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub combined: Option<Payload>,
    /// Whether its value after every update is known. It is not if there are updates that are not combined, and no
    /// combiner was named, there are more than were read, or they cannot be read.
    pub exact_known: bool,
    /// Its value after every update. Missing if it has none or it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<Payload>,
    /// The updates that are not combined yet, in their order. None if they cannot be read.
    pub pending: Vec<Payload>,
    /// Why the updates that are not combined cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether there are more than were read.
    pub has_more: bool,
    /// Why the reports of the key are withheld.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}
