//! Changing queues.
//!
//! - `action` is what an operator does to an item; `items` changes single ones, `selection` all that match a filter.
//! - `limits` and `batches` change these, and `queues` the queues themselves.

mod action;
mod batches;
mod items;
mod limits;
mod queues;
mod selection;

pub use self::action::Action;
pub use self::limits::LimitChange;
pub use self::selection::{Filter, Selection};
