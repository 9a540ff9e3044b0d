//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod common;
mod extremes;
mod foreign;
mod guarantees;
mod inspect;
mod limits;
mod metrics;
mod model;
mod operations;
mod pressure;
mod processes;
mod refusals;
mod shrinking;
mod testing;
mod workers;
