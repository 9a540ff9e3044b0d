//! Many consumers take from one queue without colliding.

mod audit;
mod clear;
mod consumer;
mod delivery;
mod dispatcher;
mod enqueue;
mod error;
mod keys;
mod letters;
mod metrics;
#[cfg(test)]
mod pairs;
mod queue;
mod read;
mod reclaim;
mod record;
mod registry;
mod session;
mod worker;

pub use crate::audit::{Audit, Finding};
pub use crate::consumer::{Consumer, ConsumerOptions};
pub use crate::delivery::{Delivery, ack_all};
pub use crate::enqueue::{Enqueue, Enqueued};
pub use crate::error::{Error, Result};
pub use crate::queue::HighContentionQueue;
pub use crate::read::Stats;
pub use crate::record::{MAX_DEDUPE_BYTES, MAX_PAYLOAD_BYTES, Settings};
pub use crate::worker::{Backoff, Worker, WorkerOptions};
pub use microqueue;
