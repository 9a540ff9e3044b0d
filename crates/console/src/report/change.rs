//! What came of a change.

use schemars::JsonSchema;
use serde::Serialize;

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    /// The name of the queue.
    pub queue: String,
    /// What was asked for: `cancel`, `expedite`, `redrive`, `purge`, `pause`, `resume` or `configure`.
    pub action: String,
    /// How many items it has changed.
    pub changed: u64,
    /// What happened, in words.
    pub outcome: String,
}
