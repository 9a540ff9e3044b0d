//! `cargo xtask test`: every test of the workspace, counted.
//!
//! Runs unit, integration and documentation tests, compiles the examples, streams what they print,
//! and ends with the slowest programs, what failed and one line `N passed, N failed, N skipped`.
//!
//! Cargo builds the programs of tests. Two of them run at once, the largest first, since tests wait for most of their
//! time: the one that takes longest would otherwise end alone. On a cluster, which the programs would share, one runs
//! after another.
//!
//! A test of every store has one variant per store, which its name says. The variants on FoundationDB need a server and
//! a client library on this machine. The tests of the console's pages need `chromium` and
//! `chromedriver` on the path.
//!
//! A test that lacks something it needs writes a line `skipped: <test name>: <reason>` and returns. It writes straight
//! to the standard error (`writeln!(io::stderr(), ..)`), because the test harness captures the print macros.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;

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
    let mut programs = Program::build(features)?;
    let at_once = if cluster.is_some() { 1 } else { AT_ONCE };
    let setting = Setting {
        options,
        cluster_file: cluster
            .as_ref()
            .and_then(|(_, served)| served.cluster_file()),
        threads: threads(at_once),
    };
    let busy = Busy::start(options.busy);
    programs.sort_by_key(|program| Reverse(program.size));
    let programs = Mutex::new(programs.into_iter());
    let next = || lock(&programs).next();
    let all = Mutex::new(Tally::default());
    thread::scope(|scope| -> anyhow::Result<()> {
        let run = || -> anyhow::Result<()> {
            while let Some(program) = next() {
                let tally = setting.run(&program)?;
                lock(&all).add(tally);
            }
            Ok(())
        };
        let runs: Vec<_> = (0..at_once).map(|_| scope.spawn(run)).collect();
        let mut runs = runs
            .into_iter()
            .map(|run| run.join().expect("it does not panic"));
        runs.try_for_each(|run| run)
    })?;
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    // These are compiled first, and then run in one program for each library.
    let mut documentation = cargo(&["test", "--workspace", "--no-fail-fast", "--doc"])?;
    documentation.args(["--features", features]);
    all.add(setting.run_to_end(documentation, String::new())?);
    drop(busy);
    all.sort();
    Ok(all)
}

/// How many programs of tests run at once, without a cluster.
const AT_ONCE: usize = 2;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many tests of a program run at once.
fn threads(at_once: usize) -> usize {
    // Tests wait for most of their time: for leases, for processes, for pages. On two cores and a cluster, the longest
    // program takes 218 s with two threads for each core, and 193 s with five.
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    if at_once == 1 { 4 * cores } else { 3 * cores }
}

/// A program of tests that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// The folder of its package, and its source: `hc-dequeue: tests/it/main.rs`.
    name: String,
    file: PathBuf,
    /// Its size in bytes.
    size: u64,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
}

impl Program {
    /// Builds all programs of tests, and the examples.
    fn build(features: &str) -> anyhow::Result<Vec<Self>> {
        let arguments = ["test", "--workspace", "--no-run", "--features", features];
        let mut command = cargo(&arguments)?;
        command.arg("--message-format=json-render-diagnostics");
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run cargo")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut programs = Vec::new();
        for line in BufReader::new(stdout).lines() {
            programs.extend(Self::of_message(&line?));
        }
        let built = child.wait().context("cannot wait for cargo")?;
        ensure!(built.success(), "the tests do not build");
        Ok(programs)
    }

    /// Returns the program of tests that a message of cargo is about, if it is about one.
    fn of_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let file = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let source = Path::new(message["target"]["src_path"].as_str()?);
        let source = source.strip_prefix(folder).unwrap_or(source);
        let package = folder.file_name()?.to_string_lossy();
        Some(Self {
            name: format!("{package}: {}", source.display()),
            size: file.metadata().map_or(0, |metadata| metadata.len()),
            file,
            folder: folder.to_owned(),
        })
    }
}

/// How programs of tests run.
struct Setting<'a> {
    options: &'a TestOptions,
    cluster_file: Option<PathBuf>,
    threads: usize,
}

impl Setting<'_> {
    /// Runs a program of tests, as cargo would.
    fn run(&self, program: &Program) -> anyhow::Result<Tally> {
        let mut command = std::process::Command::new(&program.file);
        command.current_dir(&program.folder);
        command.env("CARGO_MANIFEST_DIR", &program.folder);
        if let Some(filter) = self.options.filter() {
            command.arg(filter);
        }
        println!("     Running {}", program.name);
        self.run_to_end(command, program.name.clone())
    }

    /// Runs a command that runs tests, and counts them.
    fn run_to_end(
        &self,
        mut command: std::process::Command,
        program: String,
    ) -> anyhow::Result<Tally> {
        if self.options.long {
            command.env("TEST_RUN", "long");
        }
        if let Some(file) = &self.cluster_file {
            command.env(fdb::CLUSTER_FILE, file);
        }
        if env::var_os(TEST_THREADS).is_none() {
            command.env(TEST_THREADS, self.threads.to_string());
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        let tally = Mutex::new(Tally::of(program));
        let streamed = thread::scope(|scope| {
            let errors = scope.spawn(|| stream(stderr, io::stderr(), &tally));
            let output = stream(stdout, io::stdout(), &tally);
            output.and(errors.join().expect("streaming does not panic"))
        });
        streamed.context("cannot stream the output of the tests")?;
        let status = child.wait().context("cannot wait for the tests")?;
        let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        tally.finish(status.success());
        Ok(tally)
    }
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
    /// The program of tests that runs: see [`Program`].
    program: String,
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
    /// Begins to count the tests of a program.
    fn of(program: String) -> Self {
        Self {
            program,
            began: Some(Instant::now()),
            ..Self::default()
        }
    }

    /// Adds the counts of another program.
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.durations.extend(other.durations);
        self.announced.extend(other.announced);
        self.failures.extend(other.failures);
    }

    fn sort(&mut self) {
        self.durations.sort_by(|one, other| other.cmp(one));
    }

    fn read(&mut self, line: &str) {
        if let Some(announcement) = line.strip_prefix("skipped: ") {
            let (name, reason) = announcement.split_once(": ").unwrap_or((announcement, ""));
            let test = (self.program.clone(), name.to_owned());
            self.announced.insert(test, reason.to_owned());
        } else if let Some(library) = line.trim_start().strip_prefix("Doc-tests ") {
            self.end_program();
            self.program = format!("{library}: documentation");
            self.began = Some(Instant::now());
        } else if line == "failures:" {
            self.fails = true;
            if self.failures.is_empty() && !self.program.is_empty() {
                self.failures.push(self.program.clone());
            }
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
        if let Some(began) = self.began.take()
            && !self.program.is_empty()
        {
            self.durations.push((began.elapsed(), self.program.clone()));
        }
    }

    /// Adds the exit of the tests. A failure without a count, such as an abort, counts as one failed test. A test that
    /// announced that it was skipped does not count as passed.
    fn finish(&mut self, success: bool) {
        self.end_program();
        if !success && self.failed == 0 {
            self.failed = 1;
            self.failures
                .push(format!("{} ended with an error", self.program));
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
        let output = "skipped: queue_on_a_cluster: no cluster file\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             skipped: queue_on_a_cluster: no cluster file\n";
        let mut all = Tally::default();
        for program in ["one: tests/it/main.rs", "other: tests/it/main.rs"] {
            let tally = Mutex::new(Tally::of(program.to_owned()));
            stream(output.as_bytes(), io::sink(), &tally).unwrap();
            let mut tally = tally.into_inner().unwrap();
            tally.finish(true);
            all.add(tally);
        }
        assert_eq!(all.to_string(), "4 passed, 0 failed, 2 skipped");
        let mut reasons = all.announced.values();
        assert!(reasons.all(|reason| reason == "no cluster file"));
        assert_eq!(all.report(), ExitCode::SUCCESS);
    }

    #[test]
    fn each_program_is_measured_under_the_name_of_its_crate() {
        let mut tally = Tally::of("hc-dequeue: src/lib.rs".to_owned());
        for line in ["Doc-tests keyspace", "Doc-tests microqueue"] {
            tally.read(line);
        }
        tally.finish(true);
        let names = tally.durations.iter().map(|(_, name)| &**name);
        let expected = [
            "hc-dequeue: src/lib.rs",
            "keyspace: documentation",
            "microqueue: documentation",
        ];
        assert!(names.eq(expected));
    }

    #[test]
    fn the_programs_of_tests_are_those_that_cargo_has_built_for_tests() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/hc-dequeue/Cargo.toml",
                "target":{{"name":"it","src_path":"/w/crates/hc-dequeue/tests/it/main.rs"}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let expected = Program {
            name: "hc-dequeue: tests/it/main.rs".to_owned(),
            file: PathBuf::from("/w/target/it-1"),
            size: 0,
            folder: PathBuf::from("/w/crates/hc-dequeue"),
        };
        let found = |line: &str| Program::of_message(line);
        assert_eq!(found(&message(true, r#""/w/target/it-1""#)), Some(expected));
        assert_eq!(found(&message(false, r#""/w/target/shop""#)), None);
        assert_eq!(found(&message(true, "null")), None);
        assert_eq!(found(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(found("no message"), None);
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
