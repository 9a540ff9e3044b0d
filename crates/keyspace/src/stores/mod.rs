//! The stores, and either one by its URL.

pub mod embedded;
#[cfg(feature = "fdb")]
pub mod fdb;
pub mod store;
pub mod url;
