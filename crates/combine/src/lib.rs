//! Many writers update the same keys without colliding: updates queue in buckets, workers combine them.

pub use hc_dequeue;
