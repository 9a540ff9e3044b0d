//! `cargo xtask tidy`: the rules that no compiler and no lint knows.
//!
//! Every check is a function from the files of the workspace to violations, so that a test can plant a violation in its
//! own tree.

mod conflicts;
mod documents;
mod examples;
mod layers;
mod modules;
mod packages;
mod schema;
mod sources;
mod top_level;
mod tree;

use std::fmt;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command};

pub(crate) use self::layers::{JUDGE, LAYERS, PACKAGES};
use self::tree::Tree;
use crate::workspace;

const CHECKS: [fn(&Tree) -> Vec<Violation>; 8] = [
    top_level::check,
    layers::check,
    packages::check,
    sources::check,
    modules::check_circles,
    documents::check,
    schema::check,
    examples::check,
];

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    line: Option<usize>,
    message: String,
}

impl Violation {
    fn new(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: None,
            message: message.into(),
        }
    }

    fn at(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            ..Self::new(path, message)
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// Describes the command.
pub(crate) fn command() -> Command {
    Command::new("tidy")
        .about("Checks the rules that no compiler and no lint knows")
        .arg(
            Arg::new("write")
                .long("write")
                .action(ArgAction::SetTrue)
                .help(format!("First write {}, which is generated", schema::PAGE)),
        )
}

/// Carries out the command.
pub(crate) fn execute(arguments: &ArgMatches) -> anyhow::Result<ExitCode> {
    if arguments.get_flag("write") {
        write()?;
    }
    run()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page that is generated.
fn write() -> anyhow::Result<()> {
    let root = workspace::root()?;
    let page = schema::generate(&Tree::read(&root)?);
    fs::write(root.join(schema::PAGE), page).context("cannot write the page")
}

/// Checks the workspace and prints every violation.
pub(crate) fn run() -> anyhow::Result<()> {
    let tree = Tree::read(&workspace::root()?)?;
    let violations: Vec<_> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    for violation in &violations {
        println!("{violation}");
    }
    ensure!(violations.is_empty(), "{} violations", violations.len());
    println!("tidy: {} files, no violation", tree.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_workspace_is_tidy() {
        super::run().unwrap();
    }
}
