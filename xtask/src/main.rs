//! Drives the tests, the checks, the benchmarks and the recorded traces: `cargo xtask <command>`.

mod bench;
mod busy;
mod ci;
mod compare;
mod dependencies;
mod fdb;
mod folder;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Command;

/// Describes the commands. Without derived parsers, this program is built in half the time.
fn commands() -> Command {
    Command::new("xtask")
        .bin_name("cargo xtask")
        .about("Everything about this workspace that cargo alone cannot do")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            bench::command(),
            Command::new("ci").about(
                "Checks everything that a change must satisfy: formatting, tidiness, dependencies, packages, lints, \
                 docs, tests",
            ),
            compare::command(
                "diff",
                "Runs random programs on two stores, and prints the smallest programs on which they differ",
            ),
            fdb::command(),
            compare::command(
                "replay",
                "Replays recorded traces on a store, and prints each difference and `N passed, N failed`",
            ),
            test::command(),
            tidy::command(),
        ])
}

fn main() -> anyhow::Result<ExitCode> {
    let parsed = commands().get_matches();
    let (name, arguments) = parsed.subcommand().expect("a command is required");
    match name {
        "bench" => bench::run(&bench::BenchOptions::from(arguments)),
        "ci" => ci::run(),
        "fdb" => fdb::run(arguments),
        "test" => Ok(test::run(&test::TestOptions::from(arguments))?.report()),
        "tidy" => tidy::execute(arguments),
        name => compare::run(name, arguments),
    }
}

#[cfg(test)]
mod tests {
    mod documents;

    use super::*;

    fn parse(line: &str) -> clap::ArgMatches {
        let words = line.split(' ');
        commands().try_get_matches_from(words).unwrap()
    }

    #[test]
    fn commands_are_well_formed() {
        commands().debug_assert();
    }

    #[test]
    fn options_are_read() {
        let parsed = parse("xtask bench peers --long --db fdb: -- handle --plot");
        let options = bench::BenchOptions::from(parsed.subcommand().unwrap().1);
        let expected = "BenchOptions { name: \"peers\", db: Some(\"fdb:\"), long: true, \
                        arguments: [\"handle\", \"--plot\"] }";
        assert_eq!(format!("{options:?}"), expected);

        let parsed = parse("xtask test --require-fdb --db memory: --busy 6");
        let options = test::TestOptions::from(parsed.subcommand().unwrap().1);
        let expected = "TestOptions { long: false, require_fdb: true, require_browser: false, db: Some(\"memory:\"), \
                        busy: 6 }";
        assert_eq!(format!("{options:?}"), expected);
        for line in [
            "xtask",
            "xtask test --db disk:",
            "xtask test --busy",
            "xtask fdb up --processes 0",
        ] {
            assert!(
                commands().try_get_matches_from(line.split(' ')).is_err(),
                "{line}"
            );
        }
    }
}
