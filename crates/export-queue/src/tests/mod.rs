//! Tests that need what is private to the crate.

mod conflicts;
mod positions;
