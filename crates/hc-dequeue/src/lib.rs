//! Many consumers take from one queue without colliding.
//!
//! **This version of the crate is empty.** It reserves the name and the place in the order of the
//! layers, and re-exports the layer below.
//!
//! # What it will be
//!
//! FoundationDB's recipe for high-contention queues, mended where it loses items: consumers that
//! find the head of a [`microqueue`] contended register a dequeue request, itself an entry of a
//! microqueue, and whoever owns the first request fulfills a batch of them in one transaction.
//! Sessions stand for consumers, a dead session's items go back to the queue, and a delivery is
//! acknowledged in the application's own transaction: an item counts exactly once in the database,
//! or is delivered again.
//!
//! # What to use until then
//!
//! [`microqueue`] alone is correct with any number of consumers. Two that dequeue at the same time
//! conflict, and one of them retries.

pub use microqueue;
