//! Tests of several modules together.

mod batch_conflicts;
mod conflicts;
pub(crate) mod flights;
mod held;
mod kinds;
mod lane_conflicts;
mod life;
mod ref_conflicts;

use microqueue::keyspace::{self, Store};

pub(crate) fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}
