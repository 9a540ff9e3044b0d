//! FoundationDB's transactions for Rust, on a FoundationDB cluster or an embedded store: subspaces, tuples,
//! codecs, and a retry loop whose commits happen exactly once.
//!
//! # Guarantees
//!
//! - Transactions are strictly serializable. A transaction sees every commit that was acknowledged before
//!   it began. It commits only if nothing that it read serializably has changed since.
//! - A commit happens whole or not at all. On the embedded store, an acknowledged commit survives a power
//!   loss, unless its [durability](embedded::Durability) was relaxed.
//! - The writes of a closure run by a [`Runner`] happen exactly once, even if the outcome of a commit was
//!   unknown. If the runner cannot establish the outcome, it does not run the closure again and returns
//!   [`Error::OutcomeUnknown`].
//! - [Versionstamps](Versionstamp) sort in commit order, across restarts too.
//! - Both stores give the same results, conflicts, limits and error codes. The tests replay recorded
//!   answers of a cluster on the embedded store, and compare the store with a live cluster where there is
//!   one.
//!
//! # Key schema
//!
//! This crate writes the slots of a [ledger], under the subspace that [`RunOptions::ledger_subspace`] sets.
//! Recipes that are opened through [`OpenOptions`] also register their subspaces in a registry of [ids].
//! `docs/schema.md` in the repository describes the bytes of both.
//! # Example
//!
//! ```
//! use keyspace::{Error, Isolation, Runner, Subspace, Transaction};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runner = Runner::new(keyspace::open("memory:")?);
//! let accounts = &Subspace::from("accounts");
//! runner
//!     .run(|tr| async move {
//!         tr.set(&accounts.pack(&"ada"), b"100");
//!         Ok::<_, Error>(())
//!     })
//!     .await?;
//! let balance = runner
//!     .run(|tr| async move {
//!         Ok::<_, Error>(tr.get(&accounts.pack(&"ada"), Isolation::Serializable).await?)
//!     })
//!     .await?;
//! assert_eq!(balance.as_deref(), Some(&b"100"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What the caller must do
//!
//! - Write closures that can run several times, and make ids outside of them.
//! - Write no other keys into the ledger's subspace. Call [sweep](Runner::sweep) regularly: it clears the
//!   ledgers of runners that ended without [`close`](Runner::close).
//! - Open an embedded store from one process at a time, on a local file system.
//! - Run inside a tokio runtime with time enabled. Backoff and timeouts use its timer.
//! - For FoundationDB, enable the feature of one API version (`fdb-7_1`, `fdb-7_3` or `fdb-7_4`) and
//!   install the client library. `docs/foundationdb.md` in the repository explains how.
//!
//! # What it never does
//!
//! - It knows nothing about queues. Recipes are built on top of it, on the [`Transaction`] trait.
//! - A function that takes `&impl Transaction` never commits.
//! - It never decides anything by wall time. Time and randomness come from an [`Environment`] and from
//!   nowhere else.
//! - It never touches keys that begin with `\xff`, which FoundationDB reserves.
//!
//! # Limits
//!
//! FoundationDB's limits, as constants in [`limits`]: keys up to 10,000 bytes, values up to 100,000 bytes,
//! transactions up to 10,000,000 bytes and five seconds.
//!
//! # Further reading
//!
//! - [`transaction`]: the contract that every store keeps
//! - [`embedded`] and `fdb`: the two stores; [`store`]: opening either of them by its URL
//! - [`run`]: the retry loop; [`ledger`]: why a closure commits once
//! - [`version_clock`]: how to detect dead processes without synchronized clocks
//! - [FoundationDB's developer guide](https://apple.github.io/foundationdb/developer-guide.html)

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod codec;
pub mod embedded;

pub mod env;
pub mod error;
#[cfg(feature = "fdb")]
pub mod fdb;
pub mod foreign;
pub mod ids;
pub mod ledger;
pub mod limits;
pub mod listed;
pub mod mutation;
pub mod names;
pub mod plain;
pub mod recipe;
pub mod record;
pub mod run;
pub mod selector;
pub mod store;
pub mod transaction;
pub mod typed;
pub mod url;
pub mod version_clock;

pub use crate::codec::{Codec, Json, MessagePack, Raw, Tuple};
pub use crate::embedded::Embedded;
pub use crate::env::Environment;
pub use crate::error::{Code, Error, OpenError, Result, RunError};
pub use crate::ids::Ids;
pub use crate::ledger::Receipt;
pub use crate::listed::{Listed, Undecodable};
pub use crate::mutation::{MutationOp, Versionstamp};
pub use crate::recipe::{OpenOptions, SettingsDiffer};
pub use crate::run::{Attempt, RunOptions, Runner, Tx};
pub use crate::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery, StreamingMode};
pub use crate::store::{Store, open, open_existing};
pub use crate::transaction::{
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, RowCount,
    Transaction, TransactionOption, count_rows, key_after, read_all, visit_rows,
};
pub use crate::version_clock::VersionClock;
pub use bytes::Bytes;
pub use foundationdb_tuple as tuple;
pub use foundationdb_tuple::Subspace;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
