#![doc = include_str!("../README.md")]

mod aside;
mod bucket;
pub mod bucket_worker;
mod combiner;
mod combining;
mod decide;
mod error;
mod fold;
mod initialize;
mod inspect;
mod keys;
mod log;
mod metrics;
#[cfg(test)]
mod model;
mod observer;
mod options;
mod pass;
#[cfg(test)]
mod plants;
mod queue;
mod read;
mod record;
mod settings;
mod settle;
#[cfg(test)]
mod sizes;
mod values;
mod worker;

pub use crate::aside::{AsideId, SetAside};
pub use crate::bucket::Bucket;
pub use crate::bucket_worker::{Backlog, Pending};
pub use crate::combiner::{Combiner, LastWriter, Max, Min, Sum, Union};
pub use crate::error::{Error, Result};
pub use crate::inspect::KeyState;
pub use crate::observer::{Change, ChangeObserver, Unobserved};
pub use crate::options::CombineOptions;
pub use crate::queue::CombineQueue;
pub use crate::read::Exact;
pub use crate::record::{MAX_UPDATE_BYTES, MAX_VALUE_BYTES};
pub use crate::settings::{InvalidSettings, Settings, SettingsRecord};
pub use crate::worker::Worker;
pub use hc_dequeue::{
    self, Backoff, BoxError, MIN_LEASE, NotEnded, ShutdownReport, WorkerOptions, keyspace,
    microqueue,
};
