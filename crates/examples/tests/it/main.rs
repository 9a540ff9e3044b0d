//! The integration tests, as one program: it is compiled in a fraction of the time that a program for each file takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod console;
mod documents;
mod examples;
mod programs;
#[cfg(unix)]
mod several_processes;
