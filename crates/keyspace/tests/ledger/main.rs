//! The ledger on a store that fails: whatever becomes of a commit, an operation that reports success
//! has happened exactly once, one that reports an error has not happened, and only "outcome unknown"
//! leaves both open.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dropped;
mod log;
mod protocol;
mod random;
mod receipt;
mod runner;
mod saboteur;
mod upkeep;
mod world;
