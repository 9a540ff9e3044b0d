//! Tests of several modules together.

mod conflicts;
mod lane_conflicts;
mod life;
