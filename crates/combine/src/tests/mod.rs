//! Tests that need what is private to the crate.

mod conflicts;
mod model;
mod sizes;
mod staging;
