//! Text that can be shown.

pub mod names;
pub mod plain;
