//! Many writers update the same keys without colliding.

mod aside;
mod combiner;
mod crew;
mod error;
mod initialize;
mod keys;
mod metrics;
mod observer;
mod pass;
mod queue;
mod read;
mod record;
mod settle;
mod take;
mod worker;

pub use crate::aside::SetAside;
pub use crate::combiner::{Combiner, LastWriter, Max, Min, Sum, Union};
pub use crate::error::{BoxError, Error, Result, Stored};
pub use crate::keys::Bucket;
pub use crate::observer::{Change, ChangeObserver, Unobserved};
pub use crate::queue::CombineQueue;
pub use crate::read::{Exact, Pending};
pub use crate::record::{MAX_UPDATE_BYTES, MAX_VALUE_BYTES, Settings};
pub use crate::worker::{Worker, WorkerOptions};
pub use hc_dequeue;
