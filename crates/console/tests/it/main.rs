//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::too_many_lines, reason = "a table of cases is long")]

mod batches;
mod browser;
mod changes;
mod cli;
mod common;
mod deaths;
mod documents;
mod extremes;
mod hostile;
mod items_of;
mod keys;
mod kinds;
mod limits;
mod look;
mod maps;
mod paging;
mod rates;
mod refusals;
#[cfg(unix)]
mod signals;
mod terminal;
#[cfg(unix)]
mod viewers;
mod web;
