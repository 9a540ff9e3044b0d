//! The task of a worker: which buckets it works on, and when. For this layer and those above it.
//!
//! What it does next is decided by its agenda, a state machine without a store, a clock or a task.
//!
//! A [`BucketWorker`] reads which buckets have something to do and which sessions live, works on those
//! that it owns, and sleeps on a watch of a wake stamp. What comes while it works changes the stamp, so
//! that it reads again when it is done.
//!
//! What there is to do is a [`Job`], which must be right whichever session works on a bucket: sessions
//! may disagree about which of them live, so that two work on the same bucket.

mod agenda;
mod handle;
mod job;
mod options;
mod pending;
mod roster;
mod worker;

pub use self::handle::WorkerHandle;
pub use self::job::{Assignment, Job, Next};
pub use self::options::BucketWorkerOptions;
pub use self::pending::{Pending, PendingGauges};
pub use self::worker::BucketWorker;
