//! Committed changes leave for an external system: at least once, in commit order per key, and never
//! inside a transaction.
//!
//! # What it guarantees
//!
//! - An entry leaves if, and only if, the transaction that added it committed.
//! - Every entry is given to the exporter of every subscription at least once, even if processes
//!   die at any moment, or is kept as a dead letter with the reason.
//! - Adding an entry never conflicts.
//! - Entries of a key are given in the order of their [sequences](Sequence), which is that of their
//!   commits, and of calls within a commit; what is given again is given in that order, too.
//! - Nothing is removed before every subscription has passed it.
//!
//! # Key schema
//!
//! Everything lies under the queue's subspace; `docs/schema.md` in the repository has the bytes. A
//! bucket, a range of hashes of keys, is a log in commit order, whose rows are *blocks*: what one call of
//! `add_all` adds to a bucket is one block, up to about 16 KiB. A subscription has a position in each log:
//! the last entry that is exported, which may stand inside of a block.
//!
//! # Example
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use export_queue::keyspace::{self, Runner, Subspace};
//! use export_queue::{
//!     BoxError, ExportOptions, ExportQueue, Exporter, SequencedExport, Sequence, Settings, Start,
//!     async_trait,
//! };
//!
//! /// An external table. What was deleted stays, as a sequence without a value.
//! #[derive(Clone, Default)]
//! struct Table(Arc<Mutex<BTreeMap<String, (Sequence, Option<u64>)>>>);
//!
//! #[async_trait]
//! impl Exporter<String, Option<u64>> for Table {
//!     async fn export(&self, batch: &[SequencedExport<String, Option<u64>>]) -> Result<(), BoxError> {
//!         let mut rows = self.0.lock().unwrap();
//!         for export in batch {
//!             let new = (export.sequence, export.value);
//!             let row = rows.entry(export.key.clone()).or_insert(new);
//!             // What comes again, or late, changes nothing.
//!             if new.0 > row.0 {
//!                 *row = new;
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let subspace = Subspace::from("changes");
//! let queue = ExportQueue::<String, Option<u64>>::open(&runner, subspace, Settings::default());
//! let changes = &queue.await?;
//! let table = changes.subscribe(&runner, "table", Start::Oldest).await?;
//!
//! let key = &"fish".to_owned();
//! runner.run(|tr| async move { changes.add(&tr, key, &Some(3)).await }).await?;
//!
//! let receiver = Table::default();
//! let worker = table.work(&runner, ExportOptions::default(), receiver.clone()).await?;
//! table.wait_idle(&runner).await?;
//! worker.shut_down(Duration::from_secs(5)).await?;
//! assert_eq!(receiver.0.lock().unwrap()["fish"].1, Some(3));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The application `phrasecount` in the repository exports to SQLite.
//!
//! # When an entry comes again
//!
//! A batch is exported first, and its position set afterwards, under a claim. In between the batch is
//! out, and the store does not know. It comes again, from its first entry,
//!
//! - if the worker dies, or is dropped, before the position is committed;
//! - if the exporter fails, panics or takes longer than it may, whatever it has written by then;
//! - if the worker's session is found dead meanwhile, or another session takes over a claim that stands
//!   still: the position of the first one is refused;
//! - as a dead letter that is redriven, at any time afterwards.
//!
//! # When an older entry comes after a newer one
//!
//! Of a key only if something comes again: after a crash, the entries since the position are given in
//! their order once more. And from a call of an exporter whose time was over, or whose worker lost its
//! claim, and that writes late; and as a redriven dead letter.
//!
//! # What the receiver does
//!
//! It keeps the [sequence](Sequence) with each value, as its 20 bytes or as its text, and takes nothing that
//! is not newer:
//!
//! ```sql
//! INSERT INTO counts (key, value, sequence) VALUES (?, ?, ?)
//! ON CONFLICT (key) DO UPDATE SET value = excluded.value, sequence = excluded.sequence
//! WHERE excluded.sequence > sequence;
//! ```
//!
//! **It keeps the sequence of what was deleted, too**: a row without a value, or a table of tombstones.
//! Otherwise an older value that comes late is taken for a new row, and stays forever. A tombstone may
//! go when nothing older can come any more.
//!
//! # What the caller must do
//!
//! - Give each queue a subspace of its own, and open it with the settings that it was created with.
//! - Commit additions exactly once, as [`Runner::run`] does.
//! - Add what a transaction adds in one call of `add_all`: it costs a row for each bucket, and each call of
//!   `add` a row of its own.
//! - [Remove](ExportQueue::unsubscribe) subscriptions without a worker: they hold the log back.
//!   Without any subscription entries wait for the first one.
//! - Look at [dead letters](Subscription::dead_letters): an entry that does not decode becomes one at once,
//!   a block of entries that does not decode becomes one as a whole, and an entry that fails becomes one if
//!   the worker is [configured](ExportOptions::dead_letter_after) to give it up.
//!
//! # What it never does
//!
//! - It never calls an exporter inside a transaction.
//! - It never touches a key outside the queue's subspace, except in the registry of ids that `open_with` is
//!   given and in the ledger of a runner.
//! - It never removes an entry that some subscription has not passed. So a block stays until every
//!   subscription has passed its last entry.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `add`, `add_all` | nothing | never |
//! | `subscribe`, `unsubscribe` | the settings | a subscription came or went |
//! | `pause`, `resume` | nothing | never |
//! | `pending`, `lag`, `dead_letters` | by snapshot | never |
//! | `purge` | the dead letter | another did the same |
//! | a worker takes a batch | claim, position and pause of the bucket, the settings, two sessions | any of these changed |
//! | a worker sets a position | claim, settings, its session | the claim or the session was lost, a subscription came or went |
//!
//! # Limits
//!
//! - Key and value of an entry take up to [`MAX_ENTRY_BYTES`] together, as encoded.
//! - A worker that exports in small batches reads the block that it is inside of once for each batch.
//! - Between buckets there is no order. Their number bounds how many calls of an exporter run at once.
//! - One key, the wake stamp, is written by every addition.
//!
//! # Observing
//!
//! Workers tell what they do to [`tracing`], under the span `export` with queue, subscription and
//! session, and count it for the [`metrics`](https://docs.rs/metrics) facade: `export_queue_lag_seconds`
//! of every subscription, also of those without a worker; `_pending_entries` and `_pending_bytes` of
//! each bucket; `_exported`, `_repeats`, `_failures`, `_dead`, `_lost`, and the histograms
//! `_batch_entries`, `_batch_bytes`, `_export_seconds`, with the labels `queue` and `subscription`.
//!
//! # Further reading
//!
//! - [Export Queue](https://fluo.apache.org/docs/fluo-recipes/1.2/export-queue/) of Apache Fluo's recipes,
//!   which this follows. There the exporter is called inside of the transaction.
//!
//! [`Runner::run`]: combine::keyspace::Runner::run

mod batch;
mod error;
mod exporter;
mod exporting;
mod keys;
mod letters;
mod metrics;
mod options;
#[cfg(test)]
mod pairs;
#[cfg(test)]
mod positions;
mod queue;
mod record;
mod sequence;
mod subscribe;
mod subscription;
mod worker;

pub use crate::error::{Error, Result};
pub use crate::exporter::{Exporter, SequencedExport};
pub use crate::letters::DeadLetter;
pub use crate::options::ExportOptions;
pub use crate::queue::ExportQueue;
pub use crate::record::{MAX_ENTRY_BYTES, SettingsRecord};
pub use crate::sequence::{SEQUENCE_BYTES, Sequence, SequenceError};
pub use crate::subscribe::Start;
pub use crate::subscription::Subscription;
pub use crate::worker::Worker;
pub use async_trait::async_trait;
pub use combine::{
    self, Backoff, BoxError, InvalidSettings, MIN_LEASE, Pending, Settings, WorkerOptions,
    hc_dequeue, keyspace, microqueue,
};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/export-queue.md")]
mod guide {}

/// Compiles the example of the page on composition.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/composition.md")]
mod composition {}
