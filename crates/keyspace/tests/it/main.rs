//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod bad_input;
mod crash;
mod damage;
mod damaged_store;
#[cfg(unix)]
mod ends;
mod exactly_once;
mod extremes;
#[cfg(unix)]
mod herd;
mod ids;
mod ledger;
mod life_cycle;
mod log_files;
mod maps;
mod model;
#[cfg(unix)]
mod openings;
mod oracle;
#[cfg(unix)]
mod places;
#[cfg(unix)]
mod processes;
mod recipe;
#[cfg(unix)]
mod sharing;
mod uuids;
mod verify;
mod version_clock;
mod versions;
#[cfg(unix)]
mod viewers;
mod window;
