//! The client's side of the store: a transaction computes here what FoundationDB's client computes.

mod fetched_rows;
pub(super) mod range_read;
mod read_calls;
pub(super) mod read_your_writes;
pub(super) mod seat;
mod shared_writes;
pub(super) mod snapshot_cache;
mod suspended_reads;
pub(super) mod transaction;
pub(super) mod transaction_state;
pub(super) mod write_map;
