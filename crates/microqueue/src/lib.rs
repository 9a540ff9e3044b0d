//! [composition]: ../../../docs/composition.md
//! [guarantees-microqueue]: ../../../docs/guarantees.md#microqueue
//! [keyspace]: ../keyspace/index.html
//! [limits]: ../../../docs/embedded.md#limits
//! [microqueue]: ../../../docs/schema.md#microqueue
//! [own-transactions]: ../../../crates/examples/examples/own_transactions.rs
//! [restoring-a-backup]: ../../../docs/foundationdb.md#restoring-a-backup
// Where the links of the README lead from the pages of `cargo doc`: the first definition of a link counts.
#![doc = include_str!("../README.md")]

pub mod blocks;
mod by_id;
mod dequeue;
mod enqueue;
mod error;
mod item;
mod keys;
mod order;
mod queue;
mod read;
mod verify;

pub use crate::error::{Error, Result};
pub use crate::item::{Item, ItemId, Listed, SUFFIX_BYTES, StagedId};
pub use crate::keys::{MAX_PREFIX_BYTES, describe_key};
pub use crate::order::Order;
pub use crate::queue::MicroQueue;
pub use keyspace;
