//! Subspaces, tuples and codecs; one transaction contract with an embedded store and FoundationDB
//! behind it; commits that happen exactly once.

pub mod chaos;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod embedded;
pub mod env;
pub mod error;
pub mod ledger;
pub mod limits;
pub mod mutation;
pub mod run;
pub mod selector;
pub mod transaction;
pub mod url;
pub mod version_clock;

pub use crate::embedded::{Embedded, open};
pub use crate::env::Environment;
pub use crate::error::{Code, Error, Result};
pub use crate::ledger::Receipt;
pub use crate::mutation::{MutationOp, Versionstamp};
pub use crate::run::{Attempt, RunOptions, Runner, Tx};
pub use crate::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery, StreamingMode};
pub use crate::transaction::{
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, Transaction,
    TransactionOption, key_after, read_all,
};
pub use crate::version_clock::VersionClock;
pub use bytes::Bytes;
pub use foundationdb_tuple as tuple;
pub use foundationdb_tuple::Subspace;
