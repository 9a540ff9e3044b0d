//! What all recipes share.

pub mod ids;
pub mod parts;
pub mod recipe;
