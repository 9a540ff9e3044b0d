//! The dependencies: licenses, sources and banned crates by `cargo deny`, and the dependencies of a layer's default
//! features.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::tidy::PACKAGES;
use crate::workspace::{cargo, root};

/// The version of `cargo-deny` to install if there is none.
const DENY_VERSION: &str = "0.20.2";

/// Crates that only a feature may bring in. `bincode` is no longer maintained, `foundationdb` needs a client library,
/// and each version of `opentelemetry` is incompatible with the one before.
const ONLY_BY_FEATURE: [&str; 3] = ["bincode", "foundationdb", "opentelemetry"];

/// Runs `cargo deny check` with the rules of `deny.toml`. If the program is missing and cannot be installed, prints
/// that the check is skipped.
pub(crate) fn check_rules() -> anyhow::Result<()> {
    let program = match find_or_install() {
        Ok(program) => program,
        Err(error) => {
            println!("skipped: cargo deny: {error:#}");
            return Ok(());
        }
    };
    let mut command = Command::new(program);
    // Advisories come from the network and change at any time, so they say nothing about a change of the code.
    command.args([
        "--log-level",
        "error",
        "check",
        "licenses",
        "bans",
        "sources",
    ]);
    let status = command.current_dir(root()?).status();
    ensure!(
        status.context("cannot run cargo-deny")?.success(),
        "`deny.toml` is violated"
    );
    Ok(())
}

/// Finds `cargo-deny`, or installs it among the build's own files, which takes a minute.
fn find_or_install() -> anyhow::Result<PathBuf> {
    let tools = root()?.join("target/tools");
    let installed = tools
        .join("bin")
        .join(format!("cargo-deny{}", std::env::consts::EXE_SUFFIX));
    for program in [PathBuf::from("cargo-deny"), installed.clone()] {
        let version = Command::new(&program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if version.is_ok_and(|status| status.success()) {
            return Ok(program);
        }
    }
    let package = format!("cargo-deny@{DENY_VERSION}");
    let options = [
        "install",
        &package,
        "--locked",
        "--debug",
        "--no-default-features",
        "--quiet",
    ];
    let mut install = cargo(&options)?;
    install
        .arg("--root")
        .arg(&tools)
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    let status = install.status();
    ensure!(
        status.context("cannot run cargo")?.success(),
        "it is not installed, and `cargo install {package}` failed"
    );
    Ok(installed)
}

/// Checks that no layer with its default features brings in a crate that only a feature may bring in.
pub(crate) fn check_defaults() -> anyhow::Result<()> {
    for package in PACKAGES {
        let options = [
            "tree",
            "--quiet",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--package",
        ];
        let output = cargo(&options)?
            .arg(package)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "cargo tree failed: {}",
            output.status
        );
        let tree = String::from_utf8_lossy(&output.stdout);
        ensure!(
            tree.starts_with(package),
            "the tree of `{package}` begins with another crate"
        );
        let unwanted = unwanted(&tree);
        ensure!(
            unwanted.is_empty(),
            "`{package}` brings {unwanted:?} without its feature"
        );
    }
    Ok(())
}

/// Returns which crates of a tree only a feature may bring.
fn unwanted(tree: &str) -> Vec<&'static str> {
    let mut unwanted = ONLY_BY_FEATURE.to_vec();
    unwanted.retain(|name| {
        let mut names = tree.lines().filter_map(|line| line.split(' ').next());
        names.any(|other| other == *name)
    });
    unwanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_feature_brings_is_found_by_its_whole_name() {
        let plain =
            "fdbq-keyspace v0.1.0 (crates/keyspace)\nfoundationdb-tuple v0.11.0\nserde v1.0.0\n";
        assert_eq!(unwanted(plain), [""; 0]);
        let planted = format!("{plain}bincode v2.0.1\nbincode_derive v2.0.1 (proc-macro)\n");
        assert_eq!(unwanted(&planted), ["bincode"]);
    }

    #[test]
    fn the_layers_bring_nothing_unasked() {
        check_defaults().unwrap();
    }
}
