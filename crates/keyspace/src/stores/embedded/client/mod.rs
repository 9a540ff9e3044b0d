//! The client's side of the store: a transaction computes here what FoundationDB's client computes.

mod fetched;
pub(super) mod read;
mod reads;
pub(super) mod seat;
pub(super) mod state;
pub(super) mod store_reads;
mod suspended;
pub(super) mod transaction;
pub(super) mod view;
pub(super) mod write_map;
mod writes;
