//! Keeps values that many transactions update at the same time without conflicts, and reports every
//! change to an observer: the *Combine Queue* recipe of Apache Fluo, on FoundationDB's transactions.
//!
//! A transaction adds *updates* of keys. Workers fold the updates of a key into its value in *passes*,
//! and each pass reports the changed values to an *observer* in its own transaction.
//!
//! # What it guarantees
//!
//! - **The new value of a report covers every update of the key that was committed before the reporting
//!   pass began.** Folding those updates may take several passes: only a pass that reaches the end of the
//!   bucket's log reports.
//! - **The old value of a report is the new value of the previous report.** The reports of a key form a
//!   chain without a gap. A value that has returned to the one last reported is not reported again.
//! - Adding an update never conflicts, on any key, no matter how many transactions add at the same time.
//! - Updates of a key are folded in the order of their commits, then of calls within a commit. Each is
//!   folded exactly once, even if processes die at any moment.
//! - Writes that an observer stages for the changes commit together with them, or not at all.
//!
//! # Key schema
//!
//! All keys lie under the queue's subspace; `docs/schema.md` in the repository describes the bytes. An
//! update waits in the log of its *bucket*, which is a range of the hashes of keys. Each call that adds
//! to a bucket writes one row to its log, a [block](hc_dequeue::microqueue::blocks).
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use combine::keyspace::{self, Isolation, Runner, Subspace};
//! use combine::{CombineQueue, Settings, Sum, Unobserved, WorkerOptions};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("words");
//! let words = CombineQueue::<String, i64>::open(&runner, subspace, Settings::default(), Sum).await?;
//!
//! // Any number of transactions may do this at the same time, and none of them conflicts.
//! let queue = &words;
//! let word = &"fish".to_owned();
//! for _ in 0..3 {
//!     runner.run(|tr| async move { queue.add(&tr, word, &1).await }).await?;
//! }
//!
//! // There may be one worker or many, in any process.
//! let worker = words.work(&runner, WorkerOptions::default(), Unobserved).await?;
//! words.wait_idle(&runner).await?;
//! let count = runner
//!     .run(|tr| async move { queue.settled(&tr, word, Isolation::Snapshot).await })
//!     .await?;
//! assert_eq!(count, Some(3));
//! worker.shut_down(Duration::from_secs(5)).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The examples in the repository, in `crates/examples`:
//!
//! - `word_count`: documents that are added, changed and removed
//! - `rollup`: a tree of combine queues
//! - `inverted_index`: an observer that maintains an index
//! - `append`: a combiner that depends on the order of updates
//!
//! # What the caller must do
//!
//! - Give each queue a subspace of its own, and open it with the settings that it was created with.
//!   Opening a queue registers its subspace in the registry of [ids](hc_dequeue::keyspace::ids), and fails
//!   if the subspace overlaps another one.
//! - Use the same [`Combiner`] in every process. Its result must not depend on how updates are divided
//!   into portions.
//! - Commit additions exactly once, as [`Runner::run`] does. An addition that is committed twice counts
//!   twice.
//! - Write observers that act only through their transaction, since they may run several times for one
//!   commit, and that finish within [their time limit](WorkerOptions::with_time_limit).
//! - Run enough workers for the rate of updates. If updates of a bucket arrive faster than passes take
//!   them, the workers keep folding that bucket, but report nothing until they have caught up.
//! - Check regularly what was [set aside](CombineQueue::set_aside).
//!
//! # What it never does
//!
//! - It never touches a key outside the queue's subspace, except in the registry of ids, where `open` and
//!   `open_with` register the queue, and in the ledger of a runner.
//! - Its passes never read the rows of writers in a way that would make a writer or the pass conflict.
//! - It never drops an update. An update that cannot be combined is set aside with the reason.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `add`, `add_all` | nothing | never |
//! | `settled`, `values` | values, by snapshot or serializably | serializable: a value that it read was reported anew |
//! | `exact`, `exact_many` | values and the pending updates of their buckets, by snapshot or serializably | serializable: updates were added to the bucket, or the key's value changed |
//! | `is_settled`, `pending`, `backlog`, `key_state`, `set_aside` | by snapshot | never |
//! | `initialize` | the value and the current value | a pass combined the key |
//! | `redrive`, `purge` | the record that was set aside; for a key also the state of the bucket's passes | another call redrove or purged it; for a key also if a pass over the bucket committed |
//! | a pass | the state of the bucket's passes; all values of the bucket; its log up to the last block taken | another pass over the bucket committed, or a key of the bucket was initialized or redriven |
//!
//! In a cascade of queues, wait until each queue is idle, starting with the first: then the values of all
//! levels are exact. Updates that an observer adds in the transaction of a pass count as committed after
//! that pass.
//!
//! # Limits
//!
//! - An encoded update, together with its key, has up to [`MAX_UPDATE_BYTES`], and an encoded value up to
//!   [`MAX_VALUE_BYTES`]. If a combiner returns a larger value, the updates are set aside.
//! - A pass stays within its [budget](WorkerOptions::with_max_batch_bytes) and the limits of a transaction,
//!   whatever the observer stages. If a pass was too large or took too long, it is repeated with fewer
//!   changes. If a single change does not fit a transaction, it is not reported: the reports of its key
//!   are withheld until `redrive`.
//! - [`exact`](CombineQueue::exact) reads the whole log of a bucket, up to 8 MiB by default.
//! - Every addition writes one key, the wake stamp. On a large cluster, the storage server of that key
//!   limits the rate of one queue.
//!
//! # Observing
//!
//! Workers emit [`tracing`] events in the span `combine`, which has the fields queue and session; each
//! pass has a span `pass` with its bucket. They also report metrics to the
//! [`metrics`](https://docs.rs/metrics) facade, all with the label `queue`:
//!
//! - at each heartbeat: `combine_pending_updates` and `combine_pending_bytes` for each bucket, and
//!   `combine_lag_seconds`
//! - as they happen: the counters `combine_passes`, `_updates`, `_changes`, `_set_aside`, `_conflicts`,
//!   `_failures` and `_takeovers`, and the histograms `_pass_updates`, `_pass_bytes` and `_pass_seconds`
//!
//! # Further reading
//!
//! - [Combine Queue](https://fluo.apache.org/docs/fluo-recipes/1.2/combine-queue/) of Apache Fluo's
//!   recipes, which this crate follows. In Fluo, updates are ordered by the start of their transactions.
//! - [Rendezvous hashing](https://en.wikipedia.org/wiki/Rendezvous_hashing), by which workers divide the
//!   buckets among themselves.
//!
//! [`Runner::run`]: hc_dequeue::keyspace::Runner::run

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
mod worker;

#[cfg(test)]
mod tests;

pub use crate::bucket::Bucket;
pub use crate::bucket_worker::{Backlog, Pending};
pub use crate::combiner::{Combiner, LastWriter, Max, Min, Sum, Union};
pub use crate::error::{Error, Result};
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

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
