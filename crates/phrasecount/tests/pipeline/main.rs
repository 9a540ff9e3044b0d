//! The program as its users run it: killed and started again, and held against an independent count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::too_many_lines, reason = "a table of cases is long")]

mod cluster;
mod console;
mod disks;
mod documents;
mod program;
mod reference;
mod refusals;
mod results;
mod waves;
