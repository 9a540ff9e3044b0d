//! Sets and maps of keys, and the direction and the limits of a read, which the transactions and the engine use.

pub(super) mod arena;
pub(super) mod direction;
pub(super) mod ranges;
pub(super) mod read_limits;
pub(super) mod sorted_map;
