//! What applications, recipes and stores agree on: transactions in FoundationDB's terms, and what a run depends on
//! besides its input.

pub mod env;
pub mod error;
pub mod foreign;
pub mod limits;
pub mod mutation;
pub mod selector;
pub mod transaction;
pub mod version_clock;
