//! The program, a directory for it to count, and what it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tempfile::TempDir;

use crate::reference::{Counts, count};

/// Returns the program.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_phrasecount"))
}

/// A directory to count, a store, and a SQLite file.
pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) db: String,
    pub(crate) place: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let place = TempDir::new().unwrap();
        Self {
            directory: TempDir::new().unwrap(),
            db: format!("embedded:{}", place.path().join("store").display()),
            place,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    pub(crate) fn remove(&self, name: &str) -> &Self {
        fs::remove_file(self.path(name)).unwrap();
        self
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.place.path().join("phrases.sqlite")
    }

    /// Prepares a call with the store.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).args(["--db", &self.db]);
        command
    }

    /// Prepares the call of `run`.
    pub(crate) fn run_command(&self) -> Command {
        let mut command = self.command(&["run"]);
        command.arg(self.directory.path());
        command.arg("--out").arg(self.out());
        command
    }

    /// Loads, counts and exports, and returns the JSON that the program printed.
    #[track_caller]
    pub(crate) fn run(&self) -> Value {
        finish(self.run_command().arg("--json")).json()
    }

    /// Returns what is in the SQLite file.
    pub(crate) fn exported(&self) -> Counts {
        exported(&self.out())
    }

    #[track_caller]
    pub(crate) fn assert_exported(&self) {
        assert_same(&self.exported(), &count(self.directory.path()));
    }
}

pub(crate) fn exported(path: &Path) -> Counts {
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let mut all = file
        .prepare("SELECT phrase, documents, occurrences FROM phrases ORDER BY phrase")
        .unwrap();
    let rows: Vec<_> = all
        .query_map([], |row| {
            Ok((row.get::<_, String>(0)?, (row.get(1)?, row.get(2)?)))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
    rows.into_iter().collect()
}

/// Compares, and shows what differs rather than everything.
#[track_caller]
pub(crate) fn assert_same(found: &Counts, expected: &Counts) {
    let differs = |phrase: &&String| found.get(*phrase) != expected.get(*phrase);
    let phrases = found.keys().chain(expected.keys()).filter(differs);
    let differences: BTreeMap<_, _> = phrases
        .map(|phrase| (phrase, (found.get(phrase), expected.get(phrase))))
        .collect();
    let shown: Vec<_> = differences.iter().take(5).collect();
    assert!(
        differences.is_empty(),
        "{} of {} phrases differ, found and expected: {shown:?}",
        differences.len(),
        expected.len()
    );
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn finish(command: &mut Command) -> Finished {
    Finished::new(command.output().unwrap())
}

impl Finished {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn assert_refused(&self, status: i32, reason: &str) {
        assert_eq!(self.status, Some(status), "{self:?}");
        assert!(self.stderr.contains(reason), "{self:?}");
    }
}

/// A running call with `--verbose`.
pub(crate) struct Running {
    child: Child,
    told: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command
            .arg("--verbose")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let told = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, told }
    }

    /// Waits until the program has printed this number of lines, or has ended.
    pub(crate) fn wait_for(&mut self, lines: usize) {
        self.told.by_ref().take(lines).for_each(drop);
    }

    /// Waits until the program prints a text. Returns `false` if the program ends first.
    pub(crate) fn wait_until(&mut self, begin: &str) -> bool {
        self.rest_after(begin).is_some()
    }

    /// Returns the rest of the first line that begins with a text. Returns `None` if the program ends first.
    pub(crate) fn rest_after(&mut self, begin: &str) -> Option<String> {
        let mut told = self.told.by_ref().map(Result::unwrap);
        told.find_map(|line| line.strip_prefix(begin).map(str::to_owned))
    }

    /// Kills the program at whatever point it is. Returns `false` if it had already ended.
    pub(crate) fn kill(mut self) -> bool {
        self.child.kill().unwrap();
        !self.child.wait().unwrap().success()
    }

    /// Asks it to stop, as Ctrl-C does.
    pub(crate) fn ask_to_stop(&self) {
        self.signal("-INT");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Asks it to stop, and returns how it ended.
    pub(crate) fn interrupt(self) -> Finished {
        self.ask_to_stop();
        self.finish()
    }

    /// Returns how it ended.
    pub(crate) fn finish(mut self) -> Finished {
        let stderr: Vec<_> = self.told.by_ref().map(Result::unwrap).collect();
        Finished {
            stderr: stderr.join("\n"),
            ..Finished::new(self.child.wait_with_output().unwrap())
        }
    }
}
