//! What came of a change, and of a check.

use serde::Serialize;

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Change {
    /// The name of the queue.
    pub queue: String,
    /// What was asked for: `cancel`, `clear`, `expedite`, `redrive`, `purge`, `pause`, `resume`, `configure`,
    /// `release-dedupe`, `prioritize`, `limit`, `pause-group`, `resume-group`, `close-batch`, `cancel-batch` or
    /// `reschedule`.
    pub action: String,
    /// How many items it has changed.
    pub changed: u64,
    /// What happened, in words.
    pub outcome: String,
}

impl Change {
    pub(crate) fn new(queue: &str, action: &str, changed: u64, outcome: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            action: action.to_owned(),
            changed,
            outcome: outcome.to_owned(),
        }
    }
}

/// What a check of a store's files has read and found in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreCheck {
    /// How many rows are in the store's file.
    pub rows: u64,
    /// How many bytes their keys and values have.
    pub bytes: u64,
    /// How many batches of commits are only in the log.
    pub log_batches: u64,
}
