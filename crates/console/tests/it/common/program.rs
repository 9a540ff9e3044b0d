//! The program, on a store that another process has filled.

#[cfg(target_os = "linux")]
use std::io::{Read, Write};
use std::mem;
#[cfg(target_os = "linux")]
use std::process::{Child, ChildStdout};
use std::process::{Command, Stdio};

use export_queue::keyspace::{self, Ids, Subspace};
use futures::future::LocalBoxFuture;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{JobItems, World};

/// A store that nothing has open, and what its queue `jobs` has.
pub(crate) struct Filled {
    pub(crate) db: String,
    pub(crate) items: JobItems,
    pub(crate) folder: TempDir,
}

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Filled {
    pub(crate) fn embedded() -> Self {
        Self::with(|_| Box::pin(async {}))
    }

    /// Fills an embedded store, and adds more to it.
    pub(crate) fn with(more: impl FnOnce(&World) -> LocalBoxFuture<'_, ()>) -> Self {
        let folder = TempDir::new().unwrap();
        let db = format!("embedded:{}", folder.path().join("store").display());
        Self::fill(db, folder, more)
    }

    pub(crate) fn new(db: String, folder: TempDir) -> Self {
        Self::fill(db, folder, |_| Box::pin(async {}))
    }

    fn fill(
        db: String,
        folder: TempDir,
        more: impl FnOnce(&World) -> LocalBoxFuture<'_, ()>,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = keyspace::open(&db).unwrap();
        let mut world = runtime.block_on(World::on(store.clone(), Subspace::all(), Ids::default()));
        runtime.block_on(more(&world));
        // The process ends like one that is killed: what its session holds stays held.
        drop(runtime);
        let items = mem::take(&mut world.items);
        drop(world);
        store.close().unwrap();
        Self { db, items, folder }
    }

    /// Runs a command. That it owns the store is left out of what it says.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let mut finished = run(&[arguments, &["--db", &self.db]].concat());
        finished.err = finished.err.replace(OWNS, "");
        finished
    }

    /// Returns what a command prints with `--json`.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let finished = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(finished.status, 0, "{arguments:?}: {finished:?}");
        serde_json::from_str(&finished.out).unwrap()
    }

    /// Returns how many items of `jobs` are in a place.
    #[track_caller]
    pub(crate) fn count(&self, place: &str) -> u64 {
        self.json(&["stats", "jobs"])[place].as_u64().unwrap()
    }
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_console"));
    command
        .env_remove("COLUMNS")
        .env_remove("CONSOLE_DB")
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Finished {
    finish(program().args(arguments))
}

/// A program that asks a question on a terminal.
#[cfg(target_os = "linux")]
pub(crate) struct Asking {
    terminal: Child,
    out: ChildStdout,
    shown: Vec<u8>,
}

#[cfg(target_os = "linux")]
impl Asking {
    /// Purges every dead letter of `jobs`, up to the question.
    pub(crate) fn purge(store: &Filled) -> Self {
        // The program takes the place of the shell, whose id is printed.
        let purge = format!(
            "echo id $$; exec {} purge jobs --all --db {}",
            env!("CARGO_BIN_EXE_console"),
            store.db
        );
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &purge, "/dev/null"]);
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut terminal = terminal.spawn().unwrap();
        let mut out = terminal.stdout.take().unwrap();
        let mut shown = Vec::new();
        let mut byte = [0];
        while !shown.ends_with(b"[y/N] ") && out.read(&mut byte).unwrap() == 1 {
            shown.extend(byte);
        }
        Self {
            terminal,
            out,
            shown,
        }
    }

    /// Returns the id of the process that asks.
    pub(crate) fn id(&self) -> String {
        let shown = String::from_utf8_lossy(&self.shown);
        let id = shown.lines().find_map(|line| line.strip_prefix("id "));
        id.unwrap().trim().to_owned()
    }

    /// Types an answer, which may be none, and returns how it ended.
    pub(crate) fn answer(mut self, typed: &str) -> Finished {
        let mut keyboard = self.terminal.stdin.take().unwrap();
        keyboard.write_all(typed.as_bytes()).unwrap();
        self.out.read_to_end(&mut self.shown).unwrap();
        drop(keyboard);
        let status = self.terminal.wait().unwrap();
        Finished {
            status: status.code().unwrap(),
            out: String::from_utf8(self.shown).unwrap(),
            err: String::new(),
        }
    }
}

/// What a command says if it has to own the store.
pub(crate) const OWNS: &str =
    "no other process has the store open: this one owns it until an application opens it\n";

pub(crate) fn finish(command: &mut Command) -> Finished {
    let output = command.output().unwrap();
    Finished {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Finished {
    #[track_caller]
    pub(crate) fn assert_refused(&self, status: i32, reason: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.err.contains(reason), "{reason}: {self:?}");
        assert_eq!(self.out, "", "{self:?}");
    }
}
