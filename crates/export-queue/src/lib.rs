//! [composition]: ../../../docs/composition.md
//! [console]: ../../../docs/console.md
//! [export-queue]: ../../../docs/schema.md#export-queue
//! [features]: ../keyspace/index.html#features
//! [guarantees-export-queue]: ../../../docs/guarantees.md#export-queue
//! [phrasecount]: ../../../crates/phrasecount
//! [restoring-a-backup]: ../../../docs/foundationdb.md#restoring-a-backup
//! [shutting-down]: ../../../docs/guarantees.md#shutting-down
//! [tuning]: ../combine/index.html#tuning
// Where the links of the README lead from the pages of `cargo doc`: the first definition of a link counts.
#![doc = include_str!("../README.md")]

mod error;
mod exporter;
mod keys;
mod record;
mod sequence;

mod queue;
mod subscription;

mod exporting;
pub mod testing;
mod worker;

#[cfg(test)]
mod tests;

pub use crate::error::{Error, Result};
pub use crate::exporter::{Exporter, SequencedExport};
pub use crate::keys::describe_key;
pub use crate::queue::ExportQueue;
pub use crate::record::{MAX_ENTRY_BYTES, SettingsRecord};
pub use crate::sequence::{SEQUENCE_BYTES, Sequence, SequenceError};
pub use crate::subscription::Subscription;
pub use crate::subscription::dead_letters::DeadLetter;
pub use crate::subscription::inspect::SubscriptionState;
pub use crate::subscription::subscribe::Start;
pub use crate::worker::Worker;
pub use async_trait::async_trait;
pub use combine::{
    self, Backoff, BoxError, InvalidSettings, MIN_LEASE, NotEnded, Pending, Settings,
    ShutdownReport, WorkerOptions, hc_dequeue, keyspace, microqueue,
};

/// Compiles the example of the page on composition.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/composition.md")]
mod composition {}
