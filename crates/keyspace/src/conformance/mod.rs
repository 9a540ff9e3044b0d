//! The conformance suite: what every store must answer.

pub mod compare;
pub mod fuzz;
pub mod generate;
pub mod history;
pub mod model;
pub mod oracle;
pub mod plant;
pub mod program;
pub mod replay;
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
