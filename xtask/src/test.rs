//! `cargo xtask test`: every test of the workspace, counted.
//!
//! Runs unit, integration and documentation tests, compiles the examples, streams what they print,
//! and ends with the slowest programs, what failed and one line `N passed, N failed, N skipped`.
//!
//! A test of every store has one variant per store, which its name says. The variants on FoundationDB need a server and
//! a client library on this machine. The tests of the console's pages need `chromium` and
//! `chromedriver` on the path.
//!
//! A test that lacks something it needs writes a line `skipped: <test name>: <reason>` and returns. It writes straight
//! to the standard error (`writeln!(io::stderr(), ..)`), because the test harness captures the print macros.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::busy::Busy;
use crate::workspace::cargo;
use crate::{fdb, tidy};

/// The environment variable that says how many tests of a program run at once.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// How many of the slowest programs of tests to name.
const MAX_SLOWEST: usize = 10;

/// How to run the tests.
#[derive(Debug, Default)]
pub(crate) struct TestOptions {
    long: bool,
    require_fdb: bool,
    require_browser: bool,
    db: Option<String>,
    /// How many loops keep the machine busy meanwhile.
    busy: usize,
}

/// Describes the command.
pub(crate) fn command() -> Command {
    let flag = |name, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("test")
        .about("Runs every test of the workspace, and ends with `N passed, N failed, N skipped`")
        .args([
            flag(
                "long",
                "Uses the long counts of seeds, crash points and kills, as before a release",
            ),
            flag(
                "require-fdb",
                "Fails if FoundationDB is missing, instead of skipping the tests that need it",
            ),
            flag(
                "require-browser",
                "Fails if there is no Chromium with its driver, instead of skipping what needs it",
            ),
            Arg::new("db")
                .long("db")
                .value_parser(["memory:", "embedded:", "fdb:"])
                .help("Runs only the tests of one store"),
            Arg::new("busy")
                .long("busy")
                .value_name("LOOPS")
                .value_parser(value_parser!(usize))
                .help("Builds the tests, and then runs them beside this many loops that keep the machine busy"),
        ])
}

impl From<&ArgMatches> for TestOptions {
    fn from(parsed: &ArgMatches) -> Self {
        Self {
            long: parsed.get_flag("long"),
            require_fdb: parsed.get_flag("require-fdb"),
            require_browser: parsed.get_flag("require-browser"),
            db: parsed.get_one("db").cloned(),
            busy: parsed.get_one("busy").copied().unwrap_or_default(),
        }
    }
}

impl TestOptions {
    /// Returns the part of a test's name that selects the store.
    fn filter(&self) -> Option<&'static str> {
        match self.db.as_deref()? {
            "memory:" => Some("on_memory"),
            "embedded:" => Some("on_embedded"),
            _ => Some("on_fdb"),
        }
    }
}

/// Runs the tests and counts them. Tests that need FoundationDB run on the cluster that the environment names, or else
/// on a private one if FoundationDB is installed.
pub(crate) fn run(options: &TestOptions) -> anyhow::Result<Tally> {
    if options.require_browser {
        find_browser()?;
    }
    let other_store = options.db.as_deref().is_some_and(|db| db != "fdb:");
    let cluster = match serve() {
        _ if other_store => None,
        Ok(cluster) => Some(cluster),
        Err(error) if options.require_fdb || options.db.is_some() => return Err(error),
        Err(error) => {
            println!("tests on FoundationDB are skipped: {error:#}");
            None
        }
    };
    let features = cluster.as_ref().map_or("", |(features, _)| features);
    let arguments = [
        "test",
        "--workspace",
        "--no-fail-fast",
        "--features",
        features,
    ];
    if options.busy > 0 {
        let built = cargo(&arguments)?.arg("--no-run").status();
        ensure!(
            built.context("cannot run cargo")?.success(),
            "the tests do not build"
        );
    }
    let mut command = cargo(&arguments)?;
    if options.long {
        command.env("TEST_RUN", "long");
    }
    if let Some(file) = cluster
        .as_ref()
        .and_then(|(_, served)| served.cluster_file())
    {
        command.env(fdb::CLUSTER_FILE, file);
    }
    if let Some(filter) = options.filter() {
        command.args(["--", filter]);
    }
    if env::var_os(TEST_THREADS).is_none() {
        // Tests wait for most of their time: for leases, for processes, for pages. On two cores and a cluster, the
        // longest program takes 218 s with two threads for each core, and 193 s with five.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        command.env(TEST_THREADS, (4 * cores).to_string());
    }
    let _busy = Busy::start(options.busy);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let stdout = child.stdout.take().context("no standard output")?;
    let stderr = child.stderr.take().context("no standard error")?;

    let tally = Mutex::new(Tally::default());
    let streamed = thread::scope(|scope| {
        let errors = scope.spawn(|| stream(stderr, io::stderr(), &tally));
        let output = stream(stdout, io::stdout(), &tally);
        output.and(errors.join().expect("streaming does not panic"))
    });
    streamed.context("cannot stream the output of the tests")?;
    let status = child.wait().context("cannot wait for cargo")?;

    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.finish(status.success());
    Ok(tally)
}

/// Finds or starts a cluster, and the features with which the tests can use it.
fn serve() -> anyhow::Result<(String, fdb::Served)> {
    let installation = fdb::Installation::find()?;
    fdb::Installation::find_library()?;
    let feature = installation.feature()?;
    // One of the examples is only for FoundationDB.
    let packages = tidy::PACKAGES.into_iter().chain(["examples"]);
    let features: Vec<_> = packages
        .map(|package| format!("{package}/{feature}"))
        .collect();
    Ok((features.join(","), fdb::Served::start()?))
}

/// Looks for what the tests in a browser need.
fn find_browser() -> anyhow::Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    for program in ["chromium", "chromedriver"] {
        let mut candidates = env::split_paths(&path).map(|folder| folder.join(program));
        ensure!(
            candidates.any(|candidate| candidate.is_file()),
            "{program} is not on the path: install the packages chromium and chromium-driver"
        );
    }
    Ok(())
}

/// Prints every line, and lets the tally read it.
fn stream(from: impl Read, mut to: impl Write, tally: &Mutex<Tally>) -> io::Result<()> {
    for line in BufReader::new(from).split(b'\n') {
        let mut line = line?;
        tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        to.write_all(&line)?;
    }
    to.flush()
}

/// The outcome of the tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// The program of tests that runs.
    program: String,
    /// The library or the program whose tests run: cargo names it for its unit tests, which come first, and not for the
    /// others.
    owner: String,
    /// When the program began.
    began: Option<Instant>,
    /// How long each program has run. For tests of documentation, the time of the compiler is part of it.
    durations: Vec<(Duration, String)>,
    /// The tests that announced that they did not run, with their reasons. Two programs may have tests of one name.
    announced: BTreeMap<(String, String), String>,
    /// What programs have said about tests that failed.
    failures: Vec<String>,
    /// Whether a program is saying it.
    fails: bool,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(announcement) = line.strip_prefix("skipped: ") {
            let (name, reason) = announcement.split_once(": ").unwrap_or((announcement, ""));
            let test = (self.program.clone(), name.to_owned());
            self.announced.insert(test, reason.to_owned());
        } else if let Some(program) = line.trim_start().strip_prefix("Running ") {
            self.end_program();
            if program.starts_with("unittests ") {
                self.owner = owner(program);
            }
            program.clone_into(&mut self.program);
            self.began = Some(Instant::now());
        } else if let Some(library) = line.trim_start().strip_prefix("Doc-tests ") {
            self.end_program();
            self.owner = library.to_owned();
            self.program = "documentation".to_owned();
            self.began = Some(Instant::now());
        } else if line == "failures:" {
            self.fails = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.fails = false;
            for field in result.split([';', '.']) {
                match field.trim().split_once(' ') {
                    Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                    Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                    Some((count, "ignored")) => self.ignored += count.parse().unwrap_or(0),
                    _ => {}
                }
            }
        }
        if self.fails {
            self.failures.push(line.to_owned());
        }
    }

    /// Notes how long the program has run that has ended.
    fn end_program(&mut self) {
        if let Some(began) = self.began.take() {
            let path = self.program.split(" (").next().unwrap_or_default();
            let name = format!("{}: {path}", self.owner);
            self.durations.push((began.elapsed(), name));
        }
    }

    /// Adds the exit of cargo. A failure without a count, such as a compile error or an abort, counts as one failed
    /// test. A test that announced that it was skipped does not count as passed.
    fn finish(&mut self, success: bool) {
        self.end_program();
        self.durations.sort_by(|one, other| other.cmp(one));
        if !success && self.failed == 0 {
            self.failed = 1;
        }
        self.passed = self.passed.saturating_sub(self.announced.len());
    }

    /// Prints the slowest programs, the skipped tests, what failed, and the counts. Succeeds if something passed and
    /// nothing failed.
    pub(crate) fn report(&self) -> ExitCode {
        for (duration, name) in self.durations.iter().take(MAX_SLOWEST) {
            println!("{:6.1} s  {name}", duration.as_secs_f64());
        }
        for ((_, name), reason) in &self.announced {
            println!("skipped: {name}: {reason}");
        }
        for line in &self.failures {
            println!("{line}");
        }
        println!("{self}");
        if self.passed > 0 && self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Returns the library or the program of `unittests src/lib.rs (target/debug/deps/keyspace-0123abcd)`.
fn owner(program: &str) -> String {
    let file = program.rsplit('/').next().unwrap_or_default();
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    name.to_owned()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.announced.len() + self.ignored;
        write!(
            f,
            "{} passed, {} failed, {skipped} skipped",
            self.passed, self.failed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(output: &str, success: bool) -> Tally {
        let tally = Mutex::default();
        stream(output.as_bytes(), io::sink(), &tally).unwrap();
        let mut tally = tally.into_inner().unwrap();
        tally.finish(success);
        tally
    }

    #[test]
    fn result_lines_add_up() {
        let tally = tally_of(
            "running 3 tests\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             test result: FAILED. 40 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.25s\n",
            false,
        );
        assert_eq!(tally.to_string(), "43 passed, 2 failed, 1 skipped");
        assert_eq!(tally.report(), ExitCode::FAILURE);
    }

    #[test]
    fn an_announced_skip_has_not_passed() {
        let tally = tally_of(
            "     Running tests/it/main.rs (target/debug/deps/it-1)\n\
             skipped: queue_on_a_cluster: no cluster file\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             skipped: queue_on_a_cluster: no cluster file\n\
             Running tests/it/main.rs (target/debug/deps/it-2)\n\
             skipped: queue_on_a_cluster: no cluster file\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
            true,
        );
        assert_eq!(tally.to_string(), "3 passed, 0 failed, 2 skipped");
        assert!(
            tally
                .announced
                .values()
                .all(|reason| reason == "no cluster file")
        );
        assert_eq!(tally.report(), ExitCode::SUCCESS);
    }

    #[test]
    fn each_program_is_measured_under_the_name_of_its_crate() {
        let tally = tally_of(
            "     Running unittests src/lib.rs (target/debug/deps/hc_dequeue-1)\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             Running tests/it/main.rs (target/debug/deps/it-2)\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             Doc-tests keyspace\n",
            true,
        );
        let mut names: Vec<_> = tally
            .durations
            .iter()
            .map(|(_, name)| name.as_str())
            .collect();
        names.sort_unstable();
        let expected = [
            "hc_dequeue: tests/it/main.rs",
            "hc_dequeue: unittests src/lib.rs",
            "keyspace: documentation",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_failed_is_said_again_at_the_end() {
        let tally = tally_of(
            "test a ... ok\n\
             failures:\n\
             ---- b stdout ----\n\
             b panicked\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored\n\
             test c ... ok\n\
             test result: ok. 1 passed; 0 failed; 0 ignored\n",
            false,
        );
        assert_eq!(
            tally.failures,
            ["failures:", "---- b stdout ----", "b panicked"]
        );
    }

    #[test]
    fn a_failure_without_a_count_is_counted() {
        let tally = tally_of("test result: ok. 3 passed; 0 failed; 0 ignored\n", false);
        assert_eq!(tally.to_string(), "3 passed, 1 failed, 0 skipped");
        assert_eq!(tally.report(), ExitCode::FAILURE);
    }

    #[test]
    fn a_run_of_nothing_fails() {
        assert_eq!(tally_of("", true).report(), ExitCode::FAILURE);
    }

    #[test]
    fn every_byte_is_passed_on() {
        let mut passed_on = Vec::new();
        stream(&b"one\n\xfftwo\n"[..], &mut passed_on, &Mutex::default()).unwrap();
        assert_eq!(passed_on, b"one\n\xfftwo\n");
    }
}
