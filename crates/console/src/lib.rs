//! Sees and changes every queue of a store, from a terminal and from a page.

// What a program prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod change;
mod error;
mod look;
pub mod report;
#[cfg(feature = "terminal")]
pub mod terminal;
mod web;

pub use crate::change::{Action, Filter, ItemsAction, Limit, Selection};
pub use crate::error::{Error, Result};
pub use crate::look::{Combiner, Console, MAX_QUEUES, MAX_ROWS, parse_items_of, parse_place};
pub use crate::web::{Mounted, WebOptions, mount, router, serve};
