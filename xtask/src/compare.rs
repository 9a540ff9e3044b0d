//! `cargo xtask replay` and `cargo xtask diff`: the program of `crates/compare`, built with FoundationDB if a URL
//! needs it. It is a program of its own, so that the other commands need not compile a store.

use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::{Arg, ArgMatches};

use crate::fdb::{Installation, Served};
use crate::workspace::{exit_code, program, root};

const ARGUMENTS: &str = "arguments";

/// Describes a command, which passes its arguments on.
pub(crate) fn command(name: &'static str, about: &'static str) -> clap::Command {
    let arguments = Arg::new(ARGUMENTS)
        .help("What to compare; `--help` lists it")
        .num_args(0..)
        .trailing_var_arg(true)
        .allow_hyphen_values(true);
    clap::Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .arg(arguments)
}

/// Runs a command of the program. `fdb:` is the cluster that the environment names, or else a private one.
pub(crate) fn run(name: &str, arguments: &ArgMatches) -> anyhow::Result<ExitCode> {
    let arguments = given(arguments);
    let urls: Vec<_> = arguments.iter().map(|argument| url(argument)).collect();
    // The files to compare are named from the folder of the caller, which is why this does not run at the root.
    let mut command = Command::new(program());
    command.args(["run", "--package", "compare", "--manifest-path"]);
    command.arg(root()?.join("Cargo.toml"));
    if urls.iter().any(|url| url.starts_with("fdb:")) {
        Installation::find_library()?;
        command.args(["--features", Installation::find()?.feature()?]);
    }
    let served = Served::for_urls(&urls)?;
    command.args(["--", name]);
    for (argument, url) in arguments.into_iter().zip(urls) {
        let option = &argument[..argument.len() - url.len()];
        command.arg(option.to_owned() + &served.resolve(url));
    }
    let status = command.status().context("cannot run cargo")?;
    Ok(exit_code(status))
}

/// Returns the arguments that are passed on.
fn given(arguments: &ArgMatches) -> Vec<&str> {
    let arguments = arguments.get_many::<String>(ARGUMENTS);
    arguments
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect()
}

/// Returns what may be a URL in an argument: all of it, or what follows `--db=`.
fn url(argument: &str) -> &str {
    argument.strip_prefix("--db=").unwrap_or(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_are_passed_on_and_may_be_urls() {
        let line = [
            "diff",
            "--seeds",
            "0..9",
            "--db",
            "memory:",
            "--db=fdb:",
            "--help",
        ];
        let command = command("diff", "Compares stores");
        let parsed = command.try_get_matches_from(line).unwrap();
        let arguments = given(&parsed);
        assert_eq!(arguments, line[1..]);
        let urls: Vec<_> = arguments.into_iter().map(url).collect();
        let expected = ["--seeds", "0..9", "--db", "memory:", "fdb:", "--help"];
        assert_eq!(urls, expected);
    }
}
