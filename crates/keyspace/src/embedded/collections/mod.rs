//! Sets and maps of keys, which the transactions and the engine use.

pub(super) mod arena;
pub(super) mod ranges;
pub(super) mod sorted_map;
