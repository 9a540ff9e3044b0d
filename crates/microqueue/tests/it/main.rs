//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod block;
mod blocks;
mod by_id;
mod common;
mod concurrency;
mod conflicts;
mod exactly_once;
mod ids;
mod inspect;
mod model;
mod processes;
mod python;
mod read_after_write;
mod recipe;
mod record;
mod refusals;
mod restore;
