//! Committed changes leave for an external system: at least once, in commit order per key.

pub use combine;
