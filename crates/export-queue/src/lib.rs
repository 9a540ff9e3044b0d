//! Delivers committed changes to an external system: at least once, in commit order per key, and never
//! inside a transaction.
//!
//! A transaction adds *entries*, which are pairs of key and value. Workers read them after the commit and
//! pass them to the *exporter* of each *subscription*, which writes them to the *receiver*, the external
//! system.
//!
//! # What it guarantees
//!
//! - An entry is exported if and only if the transaction that added it committed.
//! - Every entry is passed to the exporter of every subscription at least once, even if processes die at
//!   any moment, or is kept as a dead letter with the reason.
//! - Adding an entry never conflicts.
//! - The entries of a key are exported in the order of their [sequences](Sequence), which is the order of
//!   their commits, then of calls within a commit. Entries that are exported again are also exported in
//!   this order.
//! - An entry is removed only after every subscription has passed it.
//!
//! # Key schema
//!
//! All keys lie under the queue's subspace; `docs/schema.md` in the repository describes the bytes. A
//! *bucket* is a range of the hashes of keys, with a log in commit order. The rows of a log are *blocks*:
//! each call of `add_all` adds one block to each bucket of its entries, or one for each 16 KiB. Each
//! subscription has a position in each log, which is the last entry exported. A position may be inside a
//! block.
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
//!     BoxError, ExportQueue, Exporter, Sequence, SequencedExport, Settings, Start,
//!     WorkerOptions, async_trait,
//! };
//!
//! /// An external table. A deleted row stays, as a sequence without a value.
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
//!             // An entry that comes again or late changes nothing.
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
//! let worker = table.work(&runner, WorkerOptions::default(), receiver.clone()).await?;
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
//! # When an entry is exported again
//!
//! A worker exports a batch first, and then sets the position under its claim of the bucket. Between
//! these two steps, the receiver has the batch, but the store does not know this. The batch is exported
//! again, starting with its first entry, if
//!
//! - the worker dies or is dropped before the position is committed;
//! - the exporter fails, panics or exceeds its time limit, whatever it has written by then;
//! - the worker's session is declared dead, or another session takes over the bucket because it makes no
//!   progress. The first worker can then no longer set the position.
//!
//! An entry that became a dead letter is exported again whenever it is redriven.
//!
//! # When an older entry arrives after a newer one
//!
//! This can happen to a key in three cases:
//!
//! - After a crash, the entries after the position are exported in order once more, so the receiver gets
//!   older entries that it already has.
//! - A call of an exporter that exceeded its time limit, or whose worker lost its claim, writes late.
//! - A dead letter is redriven.
//!
//! # What the receiver must do
//!
//! The receiver stores the [sequence](Sequence) with each value, as its 20 bytes or as its text, and
//! rejects every entry that is not newer:
//!
//! ```sql
//! INSERT INTO counts (key, value, sequence) VALUES (?, ?, ?)
//! ON CONFLICT (key) DO UPDATE SET value = excluded.value, sequence = excluded.sequence
//! WHERE excluded.sequence > sequence;
//! ```
//!
//! **The receiver must also keep the sequences of deleted keys**, as rows without a value or in a table
//! of tombstones. Otherwise it takes an older value that arrives late for a new row, and keeps it
//! forever. A tombstone may be removed when no older entry can arrive any more.
//!
//! # What the caller must do
//!
//! - Give each queue a subspace of its own, and open it with the settings that it was created with.
//! - Commit additions exactly once, as [`Runner::run`] does.
//! - Add all entries of a transaction in one call of `add_all`. It writes one row per bucket, while each
//!   call of `add` writes a row of its own.
//! - [Remove](ExportQueue::unsubscribe) subscriptions that have no worker: they keep entries from being
//!   removed. Without any subscription, entries wait for the first one.
//! - Check the [dead letters](Subscription::dead_letters) regularly. An entry that does not decode
//!   becomes a dead letter immediately, and so does a whole block that does not decode. An entry that the
//!   exporter refuses becomes one only if the worker is [configured](WorkerOptions::with_dead_letter_after) to
//!   give up.
//!
//! # What it never does
//!
//! - It never calls an exporter inside a transaction.
//! - It never touches a key outside the queue's subspace, except in the registry of ids, where `open` and
//!   `open_with` register the queue, and in the ledger of a runner.
//! - It never removes an entry that some subscription has not passed. A block therefore stays until every
//!   subscription has passed its last entry.
//!
//! # Ordering and delivery
//!
//! | operation | reads | fails with a conflict if, since its read version, |
//! |---|---|---|
//! | `add`, `add_all` | nothing | never |
//! | `subscribe`, `unsubscribe` | the settings | another call created or removed a subscription |
//! | `pause`, `resume` | nothing | never |
//! | `pending`, `lag`, `dead_letters`, `subscription_states` | by snapshot | never |
//! | `purge` | the dead letter | another call removed it |
//! | a worker claims a batch | claim, position and pause of the bucket, the settings, two sessions | any of these changed, except the pause |
//! | a worker sets a position | claim, settings, its session | the claim or the session was lost, or a subscription was created or removed |
//!
//! # Limits
//!
//! - The encoded key and value of an entry have up to [`MAX_ENTRY_BYTES`] together.
//! - A worker that exports small batches reads the block at its position once for each batch.
//! - There is no order between buckets. Their number limits how many calls of an exporter run at the same
//!   time.
//! - Every addition writes one key, the wake stamp.
//!
//! # Observing
//!
//! Workers emit [`tracing`] events in the span `export`, which has the fields queue, subscription and
//! session. They also report metrics to the [`metrics`](https://docs.rs/metrics) facade, all with the
//! labels `queue` and `subscription`:
//!
//! - at each heartbeat: `export_queue_lag_seconds` for every subscription, including those without a
//!   worker, and `export_queue_pending_entries` and `export_queue_pending_bytes` for each bucket
//! - as they happen: the counters `export_queue_exported`, `_repeats`, `_failures`, `_dead` and `_lost`,
//!   and the histograms `_batch_entries`, `_batch_bytes` and `_export_seconds`
//!
//! # Further reading
//!
//! - [Export Queue](https://fluo.apache.org/docs/fluo-recipes/1.2/export-queue/) of Apache Fluo's
//!   recipes, which this crate follows. In Fluo, the exporter is called inside the transaction.
//!
//! [`Runner::run`]: combine::keyspace::Runner::run

mod error;
mod exporter;
mod keys;
mod record;
mod sequence;

mod queue;
mod subscription;

mod exporting;
mod worker;

#[cfg(test)]
mod tests;

pub use crate::error::{Error, Result};
pub use crate::exporter::{Exporter, SequencedExport};
pub use crate::queue::ExportQueue;
pub use crate::record::{MAX_ENTRY_BYTES, SettingsRecord};
pub use crate::sequence::{SEQUENCE_BYTES, Sequence, SequenceError};
pub use crate::subscription::Subscription;
pub use crate::subscription::dead_letters::DeadLetter;
pub use crate::subscription::inspect::SubscriptionState;
pub use crate::subscription::subscribe::Start;
pub use crate::worker::Worker;
pub use async_trait::async_trait;
pub use combine::{
    self, Backoff, BoxError, InvalidSettings, MIN_LEASE, NotEnded, Pending, Settings,
    ShutdownReport, WorkerOptions, hc_dequeue, keyspace, microqueue,
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
