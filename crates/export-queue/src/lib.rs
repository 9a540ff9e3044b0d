//! Committed changes leave for an external system: at least once, in commit order per key.
//!
//! **This version of the crate is empty.** It reserves the name and the place in the order of the
//! layers, and re-exports the layer below.
//!
//! # What it will be
//!
//! A transaction adds exports beside its own changes; workers hand them to an exporter outside any
//! transaction and record how far they came. What committed is exported at least once, what did
//! not commit never, and every export carries a sequence by which a receiver recognizes a repeat.
//! Its buckets and its workers will be those of [`combine`].
//!
//! # What to use until then
//!
//! A queue of the lowest recipe, [`microqueue`](combine::hc_dequeue::microqueue), filled in the
//! transaction that makes the change and emptied by one exporting process: peek, export, then
//! dequeue.

pub use combine;
