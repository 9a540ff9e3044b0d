//! Workers: the loop around a consumer that calls a handler for each item.

pub(crate) mod calls;
mod metrics;
pub(crate) mod outcome;
pub(crate) mod process;
mod slots;
pub(crate) mod worker;
