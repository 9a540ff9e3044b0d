#![doc = include_str!("../README.md")]
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
pub mod parts;
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
