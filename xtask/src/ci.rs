//! `cargo xtask ci`: everything that a change must satisfy, the quickest checks first.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, ensure};

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
    ("clippy, oldest API version", clippy_oldest_api),
    ("clippy, fuzz targets", clippy_fuzz_targets),
    ("doc", doc),
];

const DENY_WARNINGS: [&str; 2] = ["-D", "warnings"];

/// Runs every step in order, up to the first that fails. The tests come last, so that their count
/// is the last line of all.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    for (name, step) in STEPS {
        timed(name, step)?;
    }
    let tally = timed("test", || test::run(&test::TestOptions::default()))?;
    Ok(tally.report())
}

fn timed<T>(name: &str, step: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("ci: {name}");
    let start = Instant::now();
    let output = step().with_context(|| format!("step `{name}`"))?;
    let seconds = start.elapsed().as_secs_f64();
    println!("ci: {name} took {seconds:.1} s");
    Ok(output)
}

fn fmt() -> anyhow::Result<()> {
    succeed(&mut cargo(&["fmt", "--all", "--check"])?)
}

/// Packages every member as a release does, and checks the layers as their packages have them.
fn package() -> anyhow::Result<()> {
    let target = root()?.join("target/packages");
    remove(&target).context("cannot remove what an earlier packaging has left")?;
    // These depend on the console, which is not published.
    let arguments = ["package", "--quiet", "--allow-dirty", "--no-verify"];
    let mut command = cargo(&arguments)?;
    command.args([
        "--workspace",
        "--exclude",
        "phrasecount",
        "--exclude",
        "examples",
    ]);
    command.arg("--target-dir");
    succeed(command.arg(&target))?;
    let sources = target.join("sources");
    unpack(&target.join("package"), &sources).context("cannot unpack the packages")?;
    // A package has its default features alone, as a user gets it. In the workspace, tests and other crates turn on
    // more, which hides code that nothing uses.
    let mut command = cargo(&["clippy", "--quiet", "--target-dir"])?;
    command.arg(root()?.join("target")).current_dir(&sources);
    succeed(command.arg("--").args(DENY_WARNINGS))
}

/// Unpacks the layers into a workspace of their own, in which they depend on each other as they are in their packages.
fn unpack(archives: &Path, sources: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(sources)?;
    let mut manifest =
        String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n");
    for package in tidy::PACKAGES.into_iter().chain([tidy::JUDGE]) {
        let folder = format!("{package}-{}", env!("CARGO_PKG_VERSION"));
        let mut tar = Command::new("tar");
        let archive = archives.join(format!("{folder}.crate"));
        succeed(tar.arg("-xzf").arg(archive).arg("-C").arg(sources))?;
        manifest += &format!("{package}.path = \"{folder}\"\n");
    }
    fs::write(sources.join("Cargo.toml"), manifest)?;
    fs::copy(root()?.join("Cargo.lock"), sources.join("Cargo.lock"))?;
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks all code, with FoundationDB: the code without it is part of that, and [`package`] checks the layers without
/// it. Needs libclang, but no client library. The API version is the newest, and [`clippy_oldest_api`] checks the
/// oldest: no code is compiled for only one between them.
fn clippy() -> anyhow::Result<()> {
    let packages = tidy::PACKAGES.into_iter().chain(["benches", "examples"]);
    let features: Vec<_> = packages
        .map(|package| format!("{package}/fdb-7_4"))
        .collect();
    let arguments = ["clippy", "--workspace", "--all-targets", "--features"];
    let mut command = cargo(&arguments)?;
    command.arg(features.join(",")).arg("--");
    succeed(command.args(DENY_WARNINGS))
}

/// Checks the adapter, which alone calls FoundationDB's API, with the oldest version of the API.
fn clippy_oldest_api() -> anyhow::Result<()> {
    let arguments = [
        "clippy",
        "--package",
        "fdbq-keyspace",
        "--features",
        "fdb-7_1",
    ];
    succeed(cargo(&arguments)?.arg("--").args(DENY_WARNINGS))
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
        "fdbq-keyspace/uuid",
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
