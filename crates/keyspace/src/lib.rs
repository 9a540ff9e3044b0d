//! Subspaces, tuples and codecs; one transaction contract with an embedded store and FoundationDB
//! behind it; commits that happen exactly once.
//!
//! # Guarantees
//!
//! - Transactions are strictly serializable: each one sees every commit acknowledged before it
//!   began, and commits only if what it read serializably has not changed since.
//! - A commit happens whole or not at all. On the embedded store an acknowledged one survives a
//!   power loss, unless its [durability](embedded::Durability) was relaxed.
//! - What the closure of a [`Runner`] does to the store happens exactly once, also when the outcome
//!   of a commit was unknown. If that cannot be made certain, the error says so
//!   ([`Error::OutcomeUnknown`]), and nothing is run again.
//! - [Versionstamps](Versionstamp) sort like the commits, across restarts too.
//! - A store answers as FoundationDB does: results, conflicts, limits, codes. The embedded store is
//!   held to recorded answers of a cluster, program by program, and to a live one where there is
//!   one.
//!
//! # Key schema
//!
//! This crate writes the slots of a [ledger], under a subspace that [`RunOptions::ledger_subspace`]
//! chooses, and for who asks it a registry of [ids]. `docs/schema.md` in the repository has the bytes.
//!
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
//! - Write closures that may run several times, and make ids outside of them.
//! - Keep the ledger's subspace free of other keys, and now and then
//!   [sweep](Runner::sweep) what runners that ended without [`close`](Runner::close) left there.
//! - Give one process at a time an embedded store, on a local file system.
//! - Run inside a tokio runtime with time enabled: backoff and timeouts wait there.
//! - For FoundationDB, turn on the feature of one API version (`fdb-7_1`, `fdb-7_3`, `fdb-7_4`) and
//!   install the client library. `docs/foundationdb.md` in the repository says how.
//!
//! # What it never does
//!
//! - It never knows of queues: recipes are built above it, on the [`Transaction`] trait.
//! - It never commits in a function that takes `&impl Transaction`.
//! - It never looks at wall time to decide anything, nor takes time or randomness from anywhere but
//!   an [`Environment`].
//! - It never uses keys from `\xff` on, FoundationDB's own.
//!
//! # Limits
//!
//! FoundationDB's, as constants in [`limits`]: keys up to 10,000 bytes, values up to 100,000 bytes,
//! transactions up to 10,000,000 bytes and five seconds.
//!
//! # Further reading
//!
//! - [`transaction`] states the contract; [`embedded`] and `fdb` the stores behind it, and [`store`]
//!   either of them by its URL; [`run`] the retry loop; [`ledger`]
//!   why a commit happens once; [`version_clock`] how liveness is judged without clocks that agree.
//! - [FoundationDB's developer guide](https://apple.github.io/foundationdb/developer-guide.html).

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod chaos;
pub mod codec;
pub mod embedded;

pub mod env;
pub mod error;
#[cfg(feature = "fdb")]
pub mod fdb;
pub mod ids;
pub mod ledger;
pub mod limits;
pub mod listed;
pub mod mutation;
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
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, Transaction,
    TransactionOption, key_after, read_all, visit_rows,
};
pub use crate::version_clock::VersionClock;
pub use bytes::Bytes;
pub use foundationdb_tuple as tuple;
pub use foundationdb_tuple::Subspace;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
