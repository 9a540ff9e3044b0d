//! Consumers: the task that takes items for a session, and the items that it hands out.

pub(crate) mod consumer;
pub(crate) mod delivery;
mod dispatcher;
pub(crate) mod held_item;
pub(crate) mod holdings;
pub(crate) mod metrics;
mod policy;
pub(crate) mod shared_task;
mod span;
pub(crate) mod untyped;
