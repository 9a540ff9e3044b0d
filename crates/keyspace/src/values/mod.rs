//! Values as bytes.

pub mod codec;
pub mod listed;
pub mod record;
pub mod typed;
