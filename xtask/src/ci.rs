//! `cargo xtask ci`: everything that a change must satisfy, the quickest checks first.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use keyspace::Environment;

use crate::workspace::{cargo, root};
use crate::{dependencies, test, tidy};

/// A check that must succeed before the next one starts.
type Step = fn() -> anyhow::Result<()>;

const STEPS: [(&str, Step); 9] = [
    ("fmt", fmt),
    ("tidy", tidy::run),
    ("dependencies", dependencies::check_rules),
    (
        "dependencies, default features",
        dependencies::check_defaults,
    ),
    ("package", package),
    ("clippy", clippy),
    ("clippy, API versions", clippy_api_versions),
    ("clippy, fuzz targets", clippy_fuzz_targets),
    ("doc", doc),
];

const DENY_WARNINGS: [&str; 2] = ["-D", "warnings"];

/// Runs every step in order, up to the first that fails. The tests come last, so that their count
/// is the last line of all.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let environment = Environment::system();
    for (name, step) in STEPS {
        timed(&environment, name, step)?;
    }
    let tally = timed(
        &environment,
        "test",
        || test::run(&test::Options::default()),
    )?;
    Ok(tally.report())
}

fn timed<T>(
    environment: &Environment,
    name: &str,
    step: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    println!("ci: {name}");
    let start = environment.now();
    let output = step().with_context(|| format!("step `{name}`"))?;
    let seconds = (environment.now() - start).as_secs_f64();
    println!("ci: {name} took {seconds:.1} s");
    Ok(output)
}

fn fmt() -> anyhow::Result<()> {
    succeed(&mut cargo(&["fmt", "--all", "--check"])?)
}

/// Packages the layers as a release does, and builds them from the packages.
fn package() -> anyhow::Result<()> {
    remove_stale_sources().context("cannot remove what an earlier packaging has unpacked")?;
    let built = root()?.join("target/packages");
    remove(&built).context("cannot remove what an earlier packaging has built")?;
    let mut command = cargo(&["package", "--quiet", "--allow-dirty", "--target-dir"])?;
    // A build of a package has its default features alone, as a user gets it. In a build of the workspace, tests and
    // other crates turn on more, which hides code that nothing uses.
    command
        .arg(&built)
        .env("RUSTFLAGS", DENY_WARNINGS.join(" "));
    for package in tidy::PACKAGES.into_iter().chain([tidy::JUDGE]) {
        command.args(["--package", package]);
    }
    succeed(&mut command)?;
    // The other members are not published: their archives are made, but not built. phrasecount depends on the
    // console, which the registry does not know: there, another package has its name.
    let arguments = ["package", "--quiet", "--allow-dirty", "--workspace"];
    let mut archives = cargo(&arguments)?;
    succeed(archives.args(["--exclude", "phrasecount", "--no-verify"]))
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the layers that an earlier packaging has unpacked into cargo's cache. Their version does not change from
/// one run to the next, so cargo would build the old sources instead of the new ones.
fn remove_stale_sources() -> anyhow::Result<()> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let sources = home
        .context("there is no home directory")?
        .join("registry/src");
    let entries = |folder: &Path| match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    // A registry without a host is a temporary one of `cargo package`.
    let is_temporary = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"-");
    for registry in entries(&sources)?
        .iter()
        .filter(|entry| is_temporary(entry))
    {
        for krate in entries(&registry.path())? {
            if krate.file_name().as_encoded_bytes().starts_with(b"fdbq-") {
                remove(&krate.path())?;
            }
        }
    }
    Ok(())
}

/// Checks all code, with FoundationDB: the code without it is part of that, and [`package`] builds the layers without it.
/// Needs libclang, but no client library.
fn clippy() -> anyhow::Result<()> {
    let packages = tidy::PACKAGES.into_iter().chain(["benches"]);
    let features: Vec<_> = packages
        .map(|package| format!("{package}/fdb-7_3"))
        .collect();
    let arguments = ["clippy", "--workspace", "--all-targets", "--features"];
    let mut command = cargo(&arguments)?;
    command.arg(features.join(",")).arg("--");
    succeed(command.args(DENY_WARNINGS))
}

/// Checks the adapter, which alone calls FoundationDB's API, with the other versions of the API.
fn clippy_api_versions() -> anyhow::Result<()> {
    for version in ["fdb-7_1", "fdb-7_4"] {
        let arguments = [
            "clippy",
            "--package",
            "fdbq-keyspace",
            "--features",
            version,
        ];
        succeed(cargo(&arguments)?.arg("--").args(DENY_WARNINGS))?;
    }
    Ok(())
}

/// Checks the fuzz targets. They are separate workspaces, because running them takes a nightly toolchain.
fn clippy_fuzz_targets() -> anyhow::Result<()> {
    for layer in tidy::LAYERS {
        let manifest = format!("crates/{layer}/fuzz/Cargo.toml");
        if !root()?.join(&manifest).exists() {
            continue;
        }
        let mut command = cargo(&["clippy", "--manifest-path", &manifest])?;
        // What one target has compiled serves the others.
        command.arg("--target-dir").arg(root()?.join("target/fuzz"));
        // Checking links nothing. With the path of a prebuilt libFuzzer, its crate does not compile libFuzzer, which
        // would take a C++ compiler.
        command.env("CUSTOM_LIBFUZZER_PATH", "elsewhere/libfuzzer.a");
        succeed(command.arg("--").args(DENY_WARNINGS))?;
    }
    Ok(())
}

fn doc() -> anyhow::Result<()> {
    let features = [
        "fdbq-keyspace/anyhow",
        "fdbq-keyspace/bincode",
        "fdbq-keyspace/fdb-7_3",
        "fdbq-hc-dequeue/opentelemetry",
    ];
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--features"])?;
    command.arg(features.join(","));
    succeed(command.env("RUSTDOCFLAGS", DENY_WARNINGS.join(" ")))
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
