//! Changing queues.
//!
//! - `action` is what an operator does to an item; `items` changes single ones, `selection` all that match a filter,
//!   `items_of` all of a group, a batch or a kind.
//! - `groups` and `batches` change these, and `queues` the queues themselves.

mod action;
mod batches;
mod groups;
mod items;
mod items_of;
mod queues;
mod selection;

pub use self::action::Action;
pub use self::groups::Limit;
pub use self::items_of::ItemsAction;
pub use self::selection::{Filter, Selection};
