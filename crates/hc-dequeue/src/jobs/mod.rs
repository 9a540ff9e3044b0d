//! Jobs of several types in one queue.
//!
//! - `job`: the trait of a type of jobs.
//! - `queue`: the queue of jobs.
//! - `handlers`: the handlers of a worker.

pub(crate) mod handlers;
pub(crate) mod job;
pub(crate) mod queue;
