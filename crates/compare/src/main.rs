//! Compares stores: the program that `cargo xtask replay` and `cargo xtask diff` run.

mod diff;
mod replay;

use std::process::ExitCode;

use clap::Parser;

/// Compares stores
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Command {
    /// Runs random programs on two stores, and prints the smallest programs on which they differ
    Diff(diff::DiffOptions),
    /// Replays recorded traces on a store, and prints each difference and `N passed, N failed`
    Replay(replay::ReplayOptions),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Diff(options) => diff::run(&options),
        Command::Replay(options) => replay::run(&options),
    }
}
