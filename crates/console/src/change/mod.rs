//! Changing queues.
//!
//! - `action` is what an operator does to an item; `items` changes single ones, `selection` all that match a filter.
//! - `groups` and `batches` change these, and `queues` the queues themselves.

mod action;
mod batches;
mod groups;
mod items;
mod queues;
mod selection;

pub use self::action::Action;
pub use self::selection::{Filter, Selection};
