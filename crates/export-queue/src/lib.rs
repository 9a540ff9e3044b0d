#![doc = include_str!("../README.md")]

mod batch;
mod error;
mod exporter;
mod exporting;
mod inspect;
mod keys;
mod letters;
mod metrics;
mod options;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod positions;
mod queue;
mod record;
mod sequence;
mod subscribe;
mod subscription;
mod worker;

pub use crate::error::{Error, Result};
pub use crate::exporter::{Exporter, SequencedExport};
pub use crate::inspect::SubscriptionState;
pub use crate::letters::DeadLetter;
pub use crate::options::ExportOptions;
pub use crate::queue::ExportQueue;
pub use crate::record::{MAX_ENTRY_BYTES, SettingsRecord};
pub use crate::sequence::{SEQUENCE_BYTES, Sequence, SequenceError};
pub use crate::subscribe::Start;
pub use crate::subscription::Subscription;
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
