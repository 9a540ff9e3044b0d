#![doc = include_str!("../README.md")]
//!
//! A store is any [`Database`](keyspace::Database): the embedded store, a cluster, a wrapper around either,
//! or another implementation. The tests use nothing but that trait.
//!
//! ## What it guarantees
//!
//! - A [`trace`] is a program of interleaved transactions with the answers of a FoundationDB cluster.
//!   [`replay`] runs it on a store and reports every answer that differs: results, conflicts, error codes,
//!   and the rows at the end.
//! - [`compare`] runs [random programs](generate) on a store and on the reference [`model`] or another
//!   store. If the two differ on a program, it reduces the program as far as it can. A run depends only on
//!   its seed.
//! - [`oracle`] checks whether a commit was decided correctly by repeating its reads: if the transaction
//!   was refused, a read must have changed, and if it committed, none may have changed.
//! - [`history`] records the reads and writes of concurrent transactions, and reports a run that was not
//!   strictly serializable. Its documentation lists the reads that it cannot check.
//! - These tools are themselves tested: [`plant`] breaks a promise of a store, and tests prove that the
//!   tools above report it.
//!
//! Other modules help to test code that is built on a store. [`stores`] runs one test on every store. A
//! [`part`] of a store acts as a whole store for one test. A [`process`] and a [`server`] are programs and
//! a cluster that a test can kill. [`chaos`] makes a store fail as FoundationDB does. [`fuzz`] checks
//! properties of decoders for any bytes. [`hostile`] is code that panics wherever it can.
//! [`checker_store`] is a store whose rows are a value, for models of recipes. [`documents`] finds the commands that
//! documents of the repository show.
//! [`second_fails`] says whether one of two transactions makes the other one fail. [`with_warnings`] returns what code
//! warns of in its log.
//! A test waits with [`until`] and [`timeout`], whose bound, [`HANG`], is reached only by what hangs.
//!
//! ## Example
//!
//! This wrapper around a store loses conflicts. The program that shows the difference has only a few steps:
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
//! let planted = Planted::new(memory, Plant::ReadsWithoutConflicts);
//! let broken = Replay::new(planted, Environment::system());
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
//! ## What the caller must do
//!
//! - Give [`replay`] an empty store or a prefix of its own. It clears the range of its programs, and
//!   programs read the keys around that range.
//! - Give [`history`] a store, or a [`part`] of one, that only the recorded transactions write to.
//! - Run inside a tokio runtime with time enabled, as for every store. [`fuzz::slot`] is the exception.
//!
//! ## What it never does
//!
//! - It never looks inside a store, and the model shares only the contract with the stores.
//! - It knows nothing about recipes.
//! - Recipes and applications depend on it only in their tests.
//!
//! ## Limits
//!
//! - Programs run in one thread. Use [`history`], and tests that kill processes, for behavior that depends
//!   on timing. Neither proves that a store is correct: each finds only the errors that it happens to meet.
//! - [`compare`] skips programs whose answers depend on version numbers, because these have no single right
//!   answer.
//! - The model copies all rows for each version. Use it for programs, not for large amounts of data.
//!
//! ## Further reading
//!
//! In the repository, `cargo xtask replay` and `cargo xtask diff` run these tools from the command line.

pub mod by_hand;
pub mod chaos;
pub mod checker_store;
pub mod compare;
mod conflict;
pub mod documents;
pub mod fuzz;
pub mod generate;
pub mod history;
pub mod hostile;
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
mod wait;
mod warnings;

pub use self::conflict::second_fails;
pub use self::wait::{HANG, let_pass, timeout, until};
pub use self::warnings::{logged_warnings, with_warnings};
pub use keyspace;

/// Chooses how often a test repeats: `long` if the environment variable `TEST_RUN` is `long`, otherwise
/// `short`.
#[must_use]
pub fn scale(short: usize, long: usize) -> usize {
    if std::env::var_os("TEST_RUN").is_some_and(|run| run == "long") {
        long
    } else {
        short
    }
}
