//! Many writers update the same keys without colliding.
//!
//! **This version of the crate is empty.** It reserves the name and the place in the order of the
//! layers, and re-exports the layer below.
//!
//! # What it will be
//!
//! Updates of a key queue in buckets, so that writers never conflict, on any key. Workers fold the
//! updates of a key, in commit order, into its value and report the old and the new value to an
//! observer in the same transaction. The sessions of [`hc_dequeue`] will say which workers live.
//!
//! # What to use until then
//!
//! Where an update is an addition, a minimum, a maximum or a bit operation on bytes, an atomic op
//! of [`keyspace`](hc_dequeue::microqueue::keyspace) does not conflict either.

pub use hc_dequeue;
