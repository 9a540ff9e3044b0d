//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod common;
mod extremes;
mod foreign;
mod inspect;
mod metrics;
mod operations;
mod planted_bugs;
mod refusals;
mod testing;
mod workers;
