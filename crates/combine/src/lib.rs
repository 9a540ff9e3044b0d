//! Many writers update the same keys without colliding, and whoever observes the keys learns of each
//! change exactly: the *Combine Queue* recipe of Apache Fluo, on FoundationDB's transactions.
//!
//! # What it guarantees
//!
//! - **The new value of a report covers every update of the key that was committed before the pass
//!   began**, in as many passes as it takes: keys are reported by a pass that reaches the end of their
//!   bucket's log.
//! - **The old value of a report is the new value of the report before.** Reports of a key are a chain
//!   without a gap. A value that ends where it was is not reported.
//! - Adding an update never conflicts, on any key, however many do it at the same time.
//! - Updates of a key are folded in the order of their commits, and of calls within a commit, each one
//!   once, even if processes die at any moment.
//! - What an observer does with the changes happens in the transaction that makes them, or not at all.
//!
//! # Key schema
//!
//! Everything lies under the queue's subspace; `docs/schema.md` in the repository has the bytes. An
//! update waits in the log of its *bucket*, a range of the hashes of keys. What one call adds to a bucket
//! is one row there, a [block](hc_dequeue::microqueue::blocks).
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use combine::keyspace::{self, Isolation, Runner, Subspace};
//! use combine::{CombineOptions, CombineQueue, Settings, Sum, Unobserved};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("words");
//! let words = CombineQueue::<String, i64>::open(&runner, subspace, Settings::default(), Sum).await?;
//!
//! // Any number of transactions may do this at the same time, none fails.
//! let (queue, word) = (&words, &"fish".to_owned());
//! for _ in 0..3 {
//!     runner.run(|tr| async move { queue.add(&tr, word, &1).await }).await?;
//! }
//!
//! // One worker or many, in any process.
//! let worker = words.work(&runner, CombineOptions::default(), Unobserved).await?;
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
//! The examples in the repository: `word_count`, documents that are added, changed and removed;
//! `rollup`, a tree of combine queues; `inverted_index`, an observer that keeps an index in step; and
//! `append`, a combiner that depends on the order.
//!
//! # What the caller must do
//!
//! - Give each queue a subspace of its own, and open it with the settings that it was created with.
//!   A registry of [ids](hc_dequeue::keyspace::ids) finds subspaces that overlap.
//! - Bring the same [`Combiner`] everywhere. It must not matter to it how updates are divided into
//!   portions.
//! - Commit additions exactly once, as [`Runner::run`] does: a repeated addition counts twice.
//! - Let an observer do what it does through its transaction alone, since it may run several times for
//!   one commit, and in less than [its time](WorkerOptions::time_limit).
//! - Run enough workers for the rate of updates. A bucket that gets more of them than its passes take goes
//!   on folding, and reports nothing until it has caught up.
//! - Look at what was [set aside](CombineQueue::set_aside).
//!
//! # What it never does
//!
//! - It never touches a key outside the queue's subspace, except in the registry of ids that `open_with` is
//!   given and in the ledger of a runner.
//! - It never reads what writers write in a way that would make them, or itself, fail.
//! - It never drops an update: one that cannot be combined is set aside with the reason.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `add`, `add_all` | nothing | never |
//! | `settled`, `values` | values, by snapshot or not | if not: a value that it read was reported anew |
//! | `exact`, `exact_many` | values and the pending updates of their buckets, by snapshot or not | if not: the bucket was added to, or a key changed |
//! | `is_settled`, `pending`, `set_aside` | by snapshot | never |
//! | `initialize` | the value and the current value | a pass has combined the key |
//! | `redrive`, `purge` | the record that is aside; of a key also the state of the bucket's passes | another did the same; of a key also if a pass was made over the bucket |
//! | a pass | the state of the bucket's passes; all values of the bucket; its log up to the last block taken | another pass was made over the bucket, a key of it was initialized or redriven |
//!
//! A cascade of queues is exact at every level once each has been idle in turn. What is added by the
//! transaction that the observer runs in counts as committed after that pass.
//!
//! # Limits
//!
//! - An update takes up to [`MAX_UPDATE_BYTES`] and a value up to [`MAX_VALUE_BYTES`], as encoded,
//!   an update together with its key. A combiner that goes beyond sets the updates aside.
//! - A pass stays within its [budget](CombineOptions::bytes_per_pass) and a transaction's limits,
//!   whatever the observer adds: when it was too large or took too long, it is tried with fewer changes. A
//!   change that alone does not fit is not reported: the reports of its key are withheld until `redrive`.
//! - [`exact`](CombineQueue::exact) reads the whole log of a bucket, up to eight mebibytes by default.
//! - One key, the wake stamp, is written by every addition: on a large cluster the storage server that has
//!   it bounds the rate of one queue.
//!
//! # Observing
//!
//! Workers tell what they do to [`tracing`], under the span `combine` with queue and session, and for
//! each pass `pass` with its bucket, and count it for the [`metrics`](https://docs.rs/metrics) facade:
//! `combine_pending_updates` and `_pending_bytes` for each bucket, and `_lag_seconds`, at each
//! heartbeat; `_passes`, `_updates`, `_changes`, `_set_aside`, `_conflicts`, `_failures`, `_takeovers`,
//! and the histograms `_pass_updates`, `_pass_bytes`, `_pass_seconds` as they happen, all with the
//! label `queue`.
//!
//! # Further reading
//!
//! - [Combine Queue](https://fluo.apache.org/docs/fluo-recipes/1.2/combine-queue/) of Apache Fluo's
//!   recipes, which this follows. There updates are in the order in which their transactions began.
//! - [Rendezvous hashing](https://en.wikipedia.org/wiki/Rendezvous_hashing), by which workers divide the
//!   buckets.
//!
//! [`Runner::run`]: hc_dequeue::keyspace::Runner::run

mod aside;
mod bucket;
pub mod bucket_worker;
mod combiner;
mod combining;
mod decide;
mod error;
mod fold;
mod initialize;
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
pub use crate::bucket_worker::Pending;
pub use crate::combiner::{Combiner, LastWriter, Max, Min, Sum, Union};
pub use crate::error::{Error, Result};
pub use crate::observer::{Change, ChangeObserver, Unobserved};
pub use crate::options::CombineOptions;
pub use crate::queue::CombineQueue;
pub use crate::read::Exact;
pub use crate::record::{MAX_UPDATE_BYTES, MAX_VALUE_BYTES};
pub use crate::settings::{InvalidSettings, Settings, SettingsRecord};
pub use crate::worker::Worker;
pub use hc_dequeue::{self, Backoff, BoxError, MIN_LEASE, WorkerOptions, keyspace, microqueue};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
