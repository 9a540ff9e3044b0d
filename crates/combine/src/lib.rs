//! [a-search-over-many-busy-buckets]: ../../../docs/benchmarks.md#a-search-over-many-busy-buckets
//! [combine]: ../../../docs/schema.md#combine
//! [console]: ../../../docs/console.md
//! [features]: ../keyspace/index.html#features
//! [guarantees-combine]: ../../../docs/guarantees.md#combine
//! [index]: ../../../crates/examples/src/inverted_index.rs
//! [pass]: ../../../docs/diagrams/pass.svg
//! [phrasecount]: ../../../crates/phrasecount
//! [restoring-a-backup]: ../../../docs/foundationdb.md#restoring-a-backup
//! [shutting-down]: ../../../docs/guarantees.md#shutting-down
// Where the links of the README lead from the pages of `cargo doc`: the first definition of a link counts.
#![doc = include_str!("../README.md")]

mod bucket;
pub mod bucket_logs;
mod combiner;
mod error;
mod keys;
mod record;
mod settings;

mod queue;

pub mod bucket_worker;

mod pass;
pub mod testing;
mod worker;

#[cfg(test)]
mod tests;

pub use crate::bucket::Bucket;
pub use crate::bucket_worker::{Backlog, Pending};
pub use crate::combiner::{Combiner, LastWriter, Max, Min, Sum, Union};
pub use crate::error::{Error, Result};
pub use crate::keys::describe_key;
pub use crate::pass::observer::{Change, ChangeObserver, Unobserved};
pub use crate::queue::CombineQueue;
pub use crate::queue::aside::{AsideId, SetAside};
pub use crate::queue::inspect::KeyState;
pub use crate::queue::read::Exact;
pub use crate::record::{MAX_UPDATE_BYTES, MAX_VALUE_BYTES};
pub use crate::settings::{InvalidSettings, Settings, SettingsRecord};
pub use crate::worker::Worker;
pub use hc_dequeue::{
    self, Backoff, BoxError, MIN_LEASE, NotEnded, ShutdownReport, WorkerOptions, keyspace,
    microqueue,
};
