//! Batches: their members, and what they wait for.

use serde::Serialize;

use super::Time;

/// A page of the batches of a queue that are not complete, in the order of their random ids.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Batches {
    /// The name of the queue.
    pub queue: String,
    /// The batches.
    pub batches: Vec<Batch>,
    /// The batch after which the next page begins. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Batch {
    /// The reference to the batch.
    pub batch: String,
    /// `open` until it is closed, then `closed`, and `complete` when it has ended; `cancelled`, or `unreadable` if its
    /// rows do not decode.
    pub state: String,
    /// What has to happen before it is complete. Missing if it has ended, or is unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// How many members have not ended. A batch in it counts as one.
    pub pending: u64,
    /// How many members were completed.
    pub completed: u64,
    /// How many members became dead letters, and so left the batch. If dead letters stay, it is how many of the pending
    /// members are dead letters.
    pub dead: u64,
    /// How many members were cancelled, purged or cleared.
    pub cancelled: u64,
    /// When it was opened, by the wall clock of that process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened: Option<Time>,
    /// How long ago that was, by the wall clock of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// Whether an item is enqueued when it is complete.
    pub has_callback: bool,
    /// When it ended, by the wall clock of the session that ended it. Missing if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// The reference to the item that was enqueued then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Whether dead letters stay members.
    pub dead_letters_stay: bool,
    /// The batch of which it is a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Why its rows do not decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
