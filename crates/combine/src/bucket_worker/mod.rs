//! The task of a worker: which buckets it works on, and when. This layer and the layers above it use it.
//!
//! A [`BucketWorker`] reads which buckets have work and which sessions are alive, and works on the
//! buckets that its session holds. Then it sleeps on a watch of a wake stamp. Work that arrives in the
//! meantime changes the stamp, so the worker reads again when it is done. Its agenda, a state machine
//! without a store, a clock or a task, decides what it does next.
//!
//! The work is a [`Job`]. A job must be correct whichever session works on a bucket: sessions may
//! disagree about which of them are alive, so two of them may work on the same bucket.
//!
//! # Reads, writes and conflicts
//!
//! | step | reads | writes | conflicts with a transaction that |
//! |---|---|---|---|
//! | a worker begins, ends, or removes dead sessions | `s` of the sessions that it removes | `s` and `b`; `w` | wrote one of these `s` |
//!
//! Heartbeats, and declaring a session dead, are as in hc-dequeue.

mod agenda;
mod handle;
mod job;
mod options;
mod pending;
mod roster;
mod worker;

pub use self::handle::WorkerHandle;
pub use self::job::{Assignment, Job, Next, WorkerTransaction};
pub use self::options::{BucketWorkerOptions, DEFAULT_BACKOFF, DEFAULT_POLL_INTERVAL};
pub(crate) use self::pending::MAX_CONCURRENT_BUCKETS;
pub use self::pending::{Backlog, MAX_BACKLOG_BYTES, Pending, PendingGauges, WaitingLog, lag_of};
pub use self::worker::BucketWorker;
