//! Judges a store that is to answer as FoundationDB does: recorded traces, a reference model, conflict
//! oracles, and a replay of concurrent transactions in commit order.
//!
//! A store is any [`Database`](keyspace::Database): the embedded one, a cluster, a wrapper around
//! either, or one that is written elsewhere. It is judged through that contract alone.
//!
//! # What it guarantees
//!
//! - A [`trace`] is a program of interleaved transactions with the answers that a FoundationDB cluster
//!   gave. [`replay`] runs it on a store and reports every answer that differs: results, conflicts,
//!   error codes, and the rows at the end.
//! - [`compare`] runs [random programs](generate) on a store and on the reference [`model`], or on
//!   another store, and makes a program on which the two differ as small as it can. A run depends on
//!   its seed alone.
//! - [`oracle`] judges the verdict of a commit by reading again: a transaction that was refused read
//!   something that changed, and one that committed read nothing that did.
//! - [`history`] records what concurrent transactions read and wrote, and reports a run that was not
//!   strictly serializable. Its documentation says which reads it cannot check.
//! - What judges is judged: [`plant`] breaks a promise of a store, and tests prove that the tools above
//!   report it.
//!
//! For the tests of what is built on a store, [`stores`] runs one test on every store, and a [`part`]
//! of a store is a store for one test alone; a [`process`] and a [`server`] are programs and a cluster
//! that a test may kill; [`fuzz`] holds what must be true of any bytes that are decoded.
//!
//! # Example
//!
//! A wrapper around a store loses conflicts, and the program that shows it has a few steps:
//!
//! ```
//! use conformance::compare::{self, Modeled};
//! use conformance::plant::{Plant, Planted};
//! use conformance::replay::Replay;
//! use keyspace::Environment;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = keyspace::open("memory:")?;
//! let store = Replay::new(memory.clone(), Environment::system());
//! for seed in 0..50 {
//!     assert!(compare::check(&Modeled, &store, seed).await?.is_none());
//! }
//!
//! let broken = Planted::new(memory, Plant::ReadsWithoutConflicts);
//! let broken = Replay::new(broken, Environment::system());
//! let mut found = None;
//! for seed in 0..200 {
//!     found = compare::check(&Modeled, &broken, seed).await?;
//!     if found.is_some() {
//!         break;
//!     }
//! }
//! let counterexample = found.expect("one of the programs needs a read's conflict range");
//! println!("{counterexample}");
//! # Ok(())
//! # }
//! ```
//!
//! # What the caller must do
//!
//! - Give [`replay`] a store that holds nothing else, or a prefix of its own: it clears the range of
//!   its programs, and programs read whatever is around it.
//! - Give [`history`] a store, or a [`part`] of one, that nothing else writes while it records.
//! - Run inside a tokio runtime with time enabled, as for every store. [`fuzz::slot`] is the exception.
//!
//! # What it never does
//!
//! - It never looks inside a store, and the model shares nothing with one but the contract.
//! - It never knows of a recipe.
//! - It is no dependency of a recipe or an application, except of their tests.
//!
//! # Limits
//!
//! - Programs have one thread: what depends on timing is for [`history`] and for tests that kill
//!   processes. Neither proves that a store is right; each finds what it happens to meet.
//! - A program whose answers depend on version numbers has no one answer: [`compare`] skips it.
//! - The model copies all rows for each version: use it for programs, not for amounts of data.
//!
//! # Further reading
//!
//! The folder `traces` beside the sources holds recorded programs; its README says how they were
//! chosen. `cargo xtask replay` and `cargo xtask diff` in the repository run these tools from the
//! command line.

pub mod compare;
pub mod fuzz;
pub mod generate;
pub mod history;
pub mod model;
pub mod oracle;
pub mod part;
pub mod plant;
pub mod process;
pub mod program;
pub mod replay;
pub mod server;
pub mod stores;
pub mod trace;

pub use keyspace;

use std::panic::Location;
use std::time::Duration;

use keyspace::Environment;

/// Chooses how often a repeating test repeats: `long` if the environment variable `TEST_RUN` is
/// `long`, else `short`.
#[must_use]
pub fn scale(short: usize, long: usize) -> usize {
    if std::env::var_os("TEST_RUN").is_some_and(|run| run == "long") {
        long
    } else {
        short
    }
}

/// Waits for what a test needs in order to go on, and panics if it takes longer than `limit`: a test that
/// would hang fails instead. How long it took is no part of the test.
///
/// # Panics
/// If the future is not ready within `limit`. The message names the place of the call.
#[track_caller]
pub fn timeout<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    // So that the test's own future does not grow by it.
    let future = Box::pin(future);
    async move {
        let output = Environment::system().timeout(limit, future).await;
        output.unwrap_or_else(|| panic!("not ready within {limit:?}, at {caller}"))
    }
}

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_future_that_is_ready_in_time_passes_its_output_on() {
        assert_eq!(timeout(Duration::from_secs(60), ready(7)).await, 7);
    }

    #[tokio::test]
    #[should_panic(expected = "not ready within 1ms, at crates/conformance/src/lib.rs")]
    async fn a_future_that_is_never_ready_fails_the_test() {
        timeout(Duration::from_millis(1), pending::<()>()).await;
    }
}
