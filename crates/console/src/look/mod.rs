//! Looking at the queues of a store.
//!
//! - `console` is the store; `found` finds a queue by its name.
//! - `sessions`: sessions of all recipes; `payload`: values by their codecs.
//! - `dequeue`: items, schedules and settings of queues with consumers; `groups`: groups of their items;
//!   `batches`: their batches; `audit` checks them.
//! - `combine`, `export`: combine queues and export queues.
//! - `queues`: how queues of all recipes stand; `maps`: how maps do; `keys`: keys of the store, by the schema.

mod audit;
mod batches;
mod combine;
mod console;
mod dequeue;
mod export;
mod found;
mod groups;
mod keys;
mod maps;
mod payload;
mod queues;
mod sessions;

pub(crate) use self::batches::{BATCHES, missing_batch, parse_batch};
pub use self::combine::Combiner;
pub(crate) use self::combine::parse_aside;
pub use self::console::{Console, MAX_QUEUES, MAX_ROWS};
pub(crate) use self::dequeue::{count_of, missing_item, parse_item};
pub use self::dequeue::{parse_items_of, parse_place};
pub(crate) use self::export::parse_sequence;
pub(crate) use self::found::{Combine, Dequeue, Found};
pub(crate) use self::groups::{GROUPS, limits_of, read_default_limits};
pub(crate) use self::payload::decode;
