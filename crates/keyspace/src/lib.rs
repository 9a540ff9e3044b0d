//! [durability]: ../../../docs/embedded.md#durability
//! [embedded]: ../../../docs/embedded.md
//! [foundationdb]: ../../../docs/foundationdb.md
//! [guarantees]: ../../../docs/guarantees.md
//! [schema]: ../../../docs/schema.md
//! [several-processes]: ../../../docs/embedded.md#several-processes
// Where the links of the README lead from the pages of `cargo doc`: the first definition of a link counts.
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod contract;
pub mod ledger;
pub mod map;
mod recipes;
pub mod run;
mod stores;
mod text;
mod values;

pub use crate::contract::env::Environment;
pub use crate::contract::error::{Code, Error, OpenError, Result, RunError};
pub use crate::contract::mutation::{MutationOp, Versionstamp};
pub use crate::contract::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery, StreamingMode};
pub use crate::contract::transaction::{
    Commit, ConflictKind, Database, DatabaseOption, Isolation, OwnedTransaction, RowCount,
    Transaction, TransactionOption, count_rows, key_after, read_all, visit_rows,
};
pub use crate::contract::version_clock::VersionClock;
pub use crate::contract::{
    env, error, foreign, limits, mutation, selector, transaction, version_clock,
};
pub use crate::ledger::Receipt;
pub use crate::map::Map;
pub use crate::recipes::ids::Ids;
pub use crate::recipes::recipe::{OpenOptions, SettingsDiffer};
pub use crate::recipes::{ids, parts, recipe};
pub use crate::run::{Attempt, RunOptions, Runner, Tx};
pub use crate::stores::embedded::Embedded;
#[cfg(feature = "fdb")]
pub use crate::stores::fdb;
pub use crate::stores::store::{Store, open, open_existing};
pub use crate::stores::{embedded, store, url};
pub use crate::text::{names, plain};
pub use crate::values::codec::{Codec, Json, MessagePack, Raw, Tuple};
pub use crate::values::listed::{Listed, Undecodable};
pub use crate::values::{codec, listed, record, typed};
pub use bytes::Bytes;
pub use foundationdb_tuple as tuple;
pub use foundationdb_tuple::Subspace;
