//! The client's side of the store: a transaction computes here what FoundationDB's client computes.

pub(super) mod read;
pub(super) mod state;
pub(super) mod store_reads;
pub(super) mod transaction;
pub(super) mod view;
pub(super) mod write_map;
