//! Workers: the loop around a consumer that calls a handler for each item.

pub(crate) mod calls;
pub(crate) mod handler;
mod metrics;
pub(crate) mod outcome;
pub(crate) mod process;
pub(crate) mod slots;
mod steps;
pub(crate) mod worker;
