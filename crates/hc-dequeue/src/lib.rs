//! Many consumers take from one queue without colliding, and nothing is lost, whatever dies when: the
//! high-contention dequeue of FoundationDB's *Queues* recipe.
//!
//! # What it guarantees
//!
//! - No item is lost. A consumer that dies, hangs or loses its answer loses an item to another one.
//! - Each item is delivered at least once, and effective exactly once if it is acknowledged in the
//!   transaction that does its work. An acknowledgement that comes too late is refused.
//! - Items are granted in the order of their first enqueue. One that comes back comes first, as soon as
//!   it is seen.
//! - Enqueues never conflict, and dequeues hardly ever: consumers of one process are served together,
//!   and processes queue up instead of colliding.
//! - How many items are queued, delayed, held and dead is known exactly at every version.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use hc_dequeue::keyspace::{self, Runner, Subspace};
//! use hc_dequeue::{ConsumerOptions, Error, HighContentionQueue, Settings};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("jobs");
//! let jobs = HighContentionQueue::<String>::open(&runner, subspace, Settings::default()).await?;
//!
//! let queue = &jobs;
//! runner
//!     .run(|tr| async move { queue.enqueue(&tr, &"resize 17.png".to_owned()).await })
//!     .await?;
//!
//! // One consumer for each process, cloned for each task.
//! let consumer = jobs.consumer(&runner, ConsumerOptions::default()).await?;
//! if let Some(job) = consumer.dequeue_within(Duration::from_secs(1)).await? {
//!     let job = &job;
//!     runner
//!         .run(|tr| async move {
//!             // What else this transaction does happens if, and only if, the job is done.
//!             job.ack(&tr).await?;
//!             Ok::<_, Error>(())
//!         })
//!         .await?;
//! }
//! consumer.shut_down().await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Worker`] is the loop around that, with retries. The example `payments` acknowledges, changes data
//! and enqueues into another queue in one transaction.
//!
//! # How it works
//!
//! A [`Consumer`] is a session: a task that takes for all of its clones. It takes items by the *fast
//! path*, a transaction that conflicts with others of its kind alone. Once it met a conflict, it goes
//! by the *registry* for a while: it registers a request, and whoever is the first in the registry
//! answers many requests in one transaction. An item is then *held* by a session until it is
//! acknowledged, given back, or the session is found dead. The module [`registry`] has the steps.
//!
//! Sessions show that they live by a heartbeat, which others judge by what they observe of the store: a
//! session that is silent for a lease of their observations is declared dead, and its items go back to
//! their places. A store that is away for an hour costs no session, and one that is slow delays the
//! judgment.
//!
//! # What the caller must do
//!
//! - Acknowledge in the transaction that does the work. What is done beside the store happens at least
//!   once: make it idempotent by the item's [id](Delivery::id).
//! - Let acknowledging transactions be committed by [`Runner::run`](microqueue::keyspace::Runner::run).
//!   One whose outcome stays unknown may leave an item that is done and comes back.
//! - Keep one [`Consumer`] for each process and queue, and clone it. Many sessions work, and are slower.
//! - Open a queue with the settings that it was created with.
//! - Keep the wall clocks of processes together if items are delayed: a delay is as exact as they are.
//!   Nothing else depends on them.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `enqueue`, `enqueue_all` | nothing | never |
//! | `enqueue_with` | the dedupe id, if there is one | the same id was enqueued or completed |
//! | fast path | the pause, its session, the first request, the items it takes | another took one of these items, somebody registered, the queue was paused |
//! | `ack` | the item that is held | the item went back: its time or its session was over |
//! | `redrive`, `purge` | the dead letter | another did the same |
//! | `stats`, `len`, `oldest_age` | counters and the first item, by snapshot | never |
//! | `peek`, `items`, `dead_letters` | as those of [`MicroQueue`](microqueue::MicroQueue) | as those |
//! | `pause`, `resume` | nothing | never |
//!
//! All of these but the fast path run in the caller's transaction. What a consumer does by itself is
//! retried by its runner.
//!
//! `pop` completes an item with the commit that takes it: fastest, and at most once.
//!
//! # Limits
//!
//! - A payload takes up to [`MAX_PAYLOAD_BYTES`], so that the item fits everywhere with any envelope.
//! - A transaction grants up to 512 items or 1,000,000 bytes; a call takes up to 512 items.
//! - A dedupe id takes up to [`MAX_DEDUPE_BYTES`]. Sessions remove those that were kept for long enough
//!   after completion, some at each heartbeat.
//! - One key, the wake stamp, is written by every enqueue, and the counters are added to: on a large
//!   cluster the storage servers that have them bound the rate of one queue. Split it over several
//!   subspaces where order is not needed.
//!
//! # Observing
//!
//! Dispatchers and workers tell what they do to [`tracing`], under the span `dispatcher` with queue
//! and session, and count it for the [`metrics`](https://docs.rs/metrics) facade: `hc_dequeue_depth`,
//! `_held`, `_dead`, `_age_seconds` at each heartbeat; `_dequeues`, `_conflicts`, `_fulfilled`,
//! `_patience_expiries`, `_reclaimed`, `_lost` as they happen, all with the label `queue`.
//!
//! # Further reading
//!
//! - [Queues](https://apple.github.io/foundationdb/queues.html), whose high-contention version this
//!   extends.
//! - [Versionstamps](https://apple.github.io/foundationdb/developer-guide.html#versionstamps) and
//!   conflict ranges in FoundationDB's developer guide.

mod audit;
mod clear;
mod command;
mod consumer;
mod counters;
mod dedupe;
mod delivery;
mod dispatcher;
mod enqueue;
mod error;
mod give_back;
mod keys;
mod letters;
mod metrics;
mod options;
#[cfg(test)]
mod pairs;
mod queue;
mod read;
mod reclaim;
mod record;
pub mod registry;
pub mod session;
mod settings;
mod wall;
mod worker;

pub use crate::audit::{Audit, Finding};
pub use crate::consumer::Consumer;
pub use crate::delivery::{Delivery, ack_all};
pub use crate::enqueue::{Enqueue, Enqueued};
pub use crate::error::{Error, Result};
pub use crate::options::{Backoff, ConsumerOptions, WorkerOptions};
pub use crate::queue::HighContentionQueue;
pub use crate::read::Stats;
pub use crate::record::{MAX_DEDUPE_BYTES, MAX_PAYLOAD_BYTES};
pub use crate::settings::{MIN_LEASE, Settings};
pub use crate::worker::Worker;
pub use microqueue::{self, keyspace};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/hc-dequeue.md")]
mod guide {}
