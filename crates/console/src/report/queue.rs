//! Queues of any recipe, and how they stand.

use serde::Serialize;

use super::kind::unknown_text;

/// The queues of a store, in the order of their keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Queues {
    /// The queues.
    pub queues: Vec<Queue>,
    /// The name of the queue after which the next page begins. Missing on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A queue of any recipe.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Queue {
    /// Its name: the elements of its subspace, with slashes between them.
    pub name: String,
    /// The prefix of its keys, in hexadecimal digits.
    pub prefix: String,
    /// The names of its codecs. Of a combine queue those of keys, updates and values; of an export queue those of
    /// keys and values.
    pub codecs: Vec<String>,
    /// Its recipe, and how it stands.
    #[serde(flatten)]
    pub state: QueueState,
}

/// How a queue stands, by its recipe.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "recipe", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum QueueState {
    /// A microqueue.
    Microqueue(MicroqueueState),
    /// A queue with consumers.
    HcDequeue(DequeueState),
    /// A combine queue.
    Combine(CombineState),
    /// An export queue.
    ExportQueue(ExportState),
    /// A queue that cannot be read: its recipe is unknown to this version, or its settings do not decode.
    Unreadable {
        /// The name of the recipe as it was registered.
        registered: String,
        /// Why it cannot be read, and what to do.
        problem: String,
    },
}

/// How a microqueue stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MicroqueueState {
    /// How many items it has, counted up to 10,000.
    pub items: usize,
    /// Whether it has more.
    pub has_more: bool,
}

/// How a queue with consumers stands. The counts are exact at one version.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DequeueState {
    /// Whether nothing is granted until the queue is resumed.
    pub paused: bool,
    /// Items that wait to be granted.
    pub queued: u64,
    /// Items that wait for their time.
    pub delayed: u64,
    /// Items that sessions hold.
    pub held: u64,
    /// Dead letters.
    pub dead: u64,
    /// Items that were acknowledged or popped since the queue was created.
    pub completed: u64,
    /// Items that were cancelled since the queue was created.
    pub cancelled: u64,
    /// Items that were purged or cleared since the queue was created.
    pub removed: u64,
    /// The longest time since an item became ready, among the first 100 that wait, or among fewer if they are large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<f64>,
    /// Why the first item that waits does not decode. Sessions skip it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The kinds of items that no session takes: of those that wait, among the first 100 with groups and the first 100
    /// others, and among the first 100 delayed ones that are due. Fewer if they are large.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_kinds: Vec<String>,
    /// How many sessions live, as far as their heartbeats are younger than their leases.
    pub sessions: usize,
}

impl DequeueState {
    /// Returns which kinds no worker knows, in words, if items of such kinds wait.
    pub fn unknown_kinds_text(&self) -> Option<String> {
        unknown_text(&self.unknown_kinds)
    }
}

/// How a combine queue stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CombineState {
    /// How many buckets it has.
    pub buckets: u32,
    /// How many updates are not combined yet, as far as they were counted.
    pub pending_updates: usize,
    /// The bytes of the rows that have them.
    pub pending_bytes: usize,
    /// Whether there are more than were counted.
    pub has_more: bool,
    /// For how long the oldest update has waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    /// How many updates, blocks and keys are set aside, as far as they were counted.
    pub set_aside: usize,
    /// Whether more are set aside than were counted.
    pub has_more_set_aside: bool,
    /// The buckets with a row that does not decode: nothing of them is combined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged_buckets: Vec<u32>,
    /// How many worker sessions live.
    pub sessions: usize,
}

/// How an export queue stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExportState {
    /// How many buckets it has.
    pub buckets: u32,
    /// Its subscriptions, by name.
    pub subscriptions: Vec<Subscription>,
}

/// How a subscription of an export queue stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// Whether nothing is exported until it is resumed.
    pub paused: bool,
    /// For how long the oldest entry has waited that is not exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    /// How many entries are not exported yet, as far as they were counted.
    pub pending_entries: usize,
    /// The bytes of the rows that have them.
    pub pending_bytes: usize,
    /// Whether there are more than were counted.
    pub has_more: bool,
    /// How many dead letters it has, as far as they were counted.
    pub dead: usize,
    /// Whether it has more dead letters than were counted.
    pub has_more_dead: bool,
    /// Whether entries stay in the log that another subscription has exported and this one has not.
    pub holds_log_back: bool,
    /// The buckets whose positions do not decode: nothing of them is exported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged_buckets: Vec<u32>,
    /// How many worker sessions live.
    pub sessions: usize,
}
