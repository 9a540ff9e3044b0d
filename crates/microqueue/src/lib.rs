//! Ordered items in a subspace: enqueues that never conflict, FIFO dequeue (FoundationDB's Queues recipe).

pub use keyspace;
