//! Drives the tests, the checks, the benchmarks and the recorded traces: `cargo xtask <command>`.

mod bench;
mod ci;
mod compare;
mod dependencies;
mod fdb;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Everything about this workspace that cargo alone cannot do.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Command {
    /// Runs a benchmark, with the servers that it needs
    Bench(bench::Options),
    /// Checks everything that a change must satisfy: formatting, tidiness, dependencies, packages, lints, docs,
    /// tests
    Ci,
    /// Runs random programs on two stores, and prints the smallest programs on which they differ
    Diff(compare::Options),
    /// Starts and stops a private FoundationDB cluster on this machine
    #[command(subcommand)]
    Fdb(fdb::Action),
    /// Replays recorded traces on a store, and prints each difference and `N passed, N failed`
    Replay(compare::Options),
    /// Runs every test of the workspace, and ends with `N passed, N failed, N skipped`
    Test(test::Options),
    /// Checks the rules that no compiler and no lint knows
    Tidy,
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Bench(options) => bench::run(&options),
        Command::Ci => ci::run(),
        Command::Diff(options) => compare::run("diff", &options),
        Command::Fdb(action) => fdb::run(&action),
        Command::Replay(options) => compare::run("replay", &options),
        Command::Test(options) => Ok(test::run(&options)?.report()),
        Command::Tidy => tidy::run().map(|()| ExitCode::SUCCESS),
    }
}
