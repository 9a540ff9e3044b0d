//! Many consumers take from one queue without colliding: a staged registry of dequeue requests.

pub use microqueue;
