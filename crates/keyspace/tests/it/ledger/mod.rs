//! The ledger on a store that fails. Whatever happens to a commit, an operation that reports success has
//! happened exactly once, and one that reports an error has not happened. Only "outcome unknown" leaves
//! this open.

mod dropped;
mod log;
mod protocol;
mod random;
mod receipt;
mod runner;
mod saboteur;
mod upkeep;
mod world;
