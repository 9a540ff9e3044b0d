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

#[cfg(test)]
mod tests {
    use conformance::documents::{root, shown, words};

    use super::*;

    #[test]
    fn the_commands_of_the_documents_run() {
        let mut names = Vec::new();
        for shown in shown() {
            let words = words(&shown.code);
            let name = words.get(2).cloned().unwrap_or_default();
            let is_ours =
                shown.code.starts_with("cargo xtask ") && (name == "replay" || name == "diff");
            if !is_ours || words.len() == 3 {
                continue;
            }
            let arguments = words[2..]
                .iter()
                .map(|word| match word.trim_matches(['[', ']']) {
                    "<path>" => root().join("crates/conformance/traces/known.jsonl.gz"),
                    path if path.starts_with("crates/") => root().join(path),
                    "A..B" => "0..2".into(),
                    "URL" => "memory:".into(),
                    word => word.into(),
                });
            let line = ["cargo xtask".into()].into_iter().chain(arguments);
            let ended = match Command::try_parse_from(line).unwrap() {
                Command::Diff(options) => diff::run(&options),
                Command::Replay(options) => replay::run(&options),
            };
            let ended = format!("{:?}", ended.unwrap());
            assert_eq!(ended, format!("{:?}", ExitCode::SUCCESS), "{shown:?}");
            names.push(name);
        }
        names.sort();
        names.dedup();
        assert_eq!(names, ["diff", "replay"]);
    }
}
