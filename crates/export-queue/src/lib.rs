//! Committed changes leave for an external system: at least once, in commit order per key.

mod batch;
mod error;
mod exporter;
mod exporting;
mod keys;
mod letters;
mod metrics;
mod queue;
mod record;
mod sequence;
mod subscription;
mod worker;

pub use crate::error::{Error, Result};
pub use crate::exporter::{Exporter, SequencedExport};
pub use crate::letters::DeadLetter;
pub use crate::queue::{ExportQueue, Start};
pub use crate::record::MAX_ENTRY_BYTES;
pub use crate::sequence::{SEQUENCE_BYTES, Sequence, SequenceError};
pub use crate::subscription::{Backlog, Subscription};
pub use crate::worker::{Worker, WorkerOptions};
pub use async_trait::async_trait;
pub use combine;
pub use combine::{BoxError, Settings};
