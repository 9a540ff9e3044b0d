//! Tests of several modules together.

mod conflicts;
mod life;
