//! The conformance suite: what every store must answer.
//!
//! All of it runs on any [`Database`](keyspace::Database), and the [`model`] is one.
//!
//! - [`program`]s of interleaved transactions are the common language. A [`trace`] is a program with
//!   the answers that FoundationDB gave; [`replay`] runs programs and compares answers.
//! - [`generate`] makes random programs, [`compare`] runs them on a store and on the model and makes
//!   those smaller on which they differ, [`oracle`] judges the verdict of each commit by reading
//!   again.
//! - [`stores`] runs one test on every store, and a [`part`] of one is a store for it
//!   alone; a [`server`] is a cluster that a test may kill, and a [`process`] a program.
//! - [`history`] records what concurrent transactions did and replays it in commit order.
//! - [`plant`] breaks a promise of a store, to prove that a test sees it; [`fuzz`] holds what must be
//!   true of any bytes that are decoded.

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
