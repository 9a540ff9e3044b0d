//! The relay example as users run it: as a program that is killed and restarted.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use conformance::server::Server;
use conformance::{scale, stores};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// Returns the command to relay.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_example"));
    command.arg("relay");
    command
}

/// A directory to relay, and a store to use.
struct Relay {
    directory: TempDir,
    db: String,
    _store: TempDir,
}

impl Relay {
    fn new() -> Self {
        let store = TempDir::new().unwrap();
        Self {
            directory: TempDir::new().unwrap(),
            db: format!("embedded:{}", store.path().join("store").display()),
            _store: store,
        }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    fn command(&self) -> Command {
        let mut command = program();
        command.arg(self.directory.path()).args(["--db", &self.db]);
        command
    }

    fn run(&self) -> Finished {
        finish(&mut self.command())
    }
}

#[derive(Debug)]
struct Finished {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn finish(command: &mut Command) -> Finished {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Finished {
        status: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

impl Finished {
    #[track_caller]
    fn assert_checked(&self, lines: usize, files: usize) {
        let checked =
            format!("checked: {lines} lines of {files} files arrived exactly once and in order");
        assert!(self.stdout.contains(&checked), "{self:?}");
        assert_eq!(self.status, Some(0));
    }

    #[track_caller]
    fn assert_refused(&self, reason: &str) {
        assert_eq!(self.status, Some(2), "{self:?}");
        assert!(self.stderr.contains(reason), "{self:?}");
    }
}

fn numbered(lines: usize) -> String {
    (1..=lines).fold(String::new(), |mut text, number| {
        writeln!(text, "line {number} of {lines}").unwrap();
        text
    })
}

#[test]
fn every_line_arrives_and_a_second_run_has_nothing_to_do() {
    let relay = Relay::new();
    relay
        .write("a.txt", "one\r\ntwo\n\nfour without an end")
        .write("below/b.md", numbered(1_234))
        .write("below/c/d", "umlaut ü\n")
        .write("empty", "");
    let first = relay.run();
    first.assert_checked(4 + 1_234 + 1, 4);
    for side in ["enqueued", "dequeued"] {
        let row = first
            .stdout
            .lines()
            .find(|line| line.starts_with(side))
            .unwrap();
        let items = row.split_whitespace().nth(1);
        assert_eq!(items, Some("1239"), "{first:?}");
    }
    assert!(first.stdout.contains("conflicts"));

    let second = relay.run();
    second.assert_checked(4 + 1_234 + 1, 4);
    assert!(second.stdout.contains("nothing to do"), "{second:?}");
}

#[test]
fn any_number_of_producers_and_consumers_relays_the_same() {
    let relay = Relay::new();
    for file in 0..9 {
        relay.write(&format!("file {file}"), numbered(file * 300));
    }
    for (producers, consumers) in [(1, 1), (1, 8), (8, 1), (20, 20)] {
        let mut command = program();
        command
            .arg(relay.directory.path())
            .args(["--producers", &producers.to_string()])
            .args(["--consumers", &consumers.to_string()]);
        finish(&mut command).assert_checked(36 * 300, 9);
    }
}

#[test]
fn a_killed_run_continues_without_loss_or_repetition() {
    kill_again_and_again(&Relay::new(), scale(10, 100));
}

#[test]
fn on_fdb_a_killed_run_continues_without_loss_or_repetition() {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => {
            let name = "on_fdb_a_killed_run_continues_without_loss_or_repetition";
            return stores::skip(name, reason);
        }
    };
    let relay = Relay {
        db: server.url(),
        ..Relay::new()
    };
    kill_again_and_again(&relay, scale(5, 50));
}

fn kill_again_and_again(relay: &Relay, kills: usize) {
    let seed = 0x5eed;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut files = 0;
    let mut lines = 0;
    let mut killed = 0;
    while killed < kills {
        // There is always work left to do.
        let count = rng.random_range(3_000..5_000);
        relay.write(&format!("{files}.txt"), numbered(count));
        (files, lines) = (files + 1, lines + count);
        let mut child = relay
            .command()
            .arg("--progress")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The program reports each batch that it has committed. It continues between the last report that
        // is read here and the kill, so the kill may hit any point of a transaction.
        let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
        let survived = rng.random_range(0..8);
        reports.by_ref().take(survived).for_each(drop);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        killed += usize::from(!status.success());
    }
    relay.run().assert_checked(lines, files);
    let again = relay.run();
    assert!(again.stdout.contains("nothing to do"), "{again:?}");
}

#[test]
fn a_file_that_has_grown_continues_after_the_relayed_lines() {
    let relay = Relay::new();
    relay.write("log", numbered(700));
    relay.run().assert_checked(700, 1);
    relay
        .write("log", numbered(700) + "one more\n")
        .write("new", "a\nb\n");
    let grown = relay.run();
    grown.assert_checked(703, 2);
    let row = grown
        .stdout
        .lines()
        .find(|line| line.starts_with("enqueued"));
    assert_eq!(row.unwrap().split_whitespace().nth(1), Some("3"));
}

#[test]
fn a_file_that_has_changed_is_reported() {
    let relay = Relay::new();
    relay.write("log", "one\ntwo\n").write("gone", "three\n");
    relay.run().assert_checked(3, 2);

    relay.write("log", "one\nTWO\n");
    fs::remove_file(relay.directory.path().join("gone")).unwrap();
    let changed = relay.run();
    assert_eq!(changed.status, Some(1), "{changed:?}");
    assert!(changed.stdout.contains("log:2 arrived with another text"));
    assert!(
        changed
            .stdout
            .contains("gone:1 arrived and is not in the file")
    );
    assert!(changed.stdout.contains("there are 2 problems"));

    relay.write("log", "one\n");
    relay
        .run()
        .assert_refused("log has 1 lines, but 2 were relayed");
}

#[test]
fn files_that_are_not_text_are_skipped_and_named() {
    let relay = Relay::new();
    relay
        .write("text", "a\nb\n")
        .write("image", b"\x89PNG\xff\xfe")
        .write("minified", format!("short\n{}\n", "x".repeat(100_000)));
    let run = relay.run();
    run.assert_checked(2, 1);
    assert!(run.stdout.contains("skipped 2 files:"));
    assert!(run.stdout.contains("  image: it is not UTF-8 text"));
    assert!(
        run.stdout
            .contains("  minified: its line 2 is over 99960 bytes")
    );
}

#[test]
fn an_empty_directory_is_relayed_at_once() {
    let run = Relay::new().run();
    run.assert_checked(0, 0);
    assert!(run.stdout.contains("nothing to do"));
}

#[test]
fn a_store_relays_one_directory() {
    let relay = Relay::new();
    relay.write("a", "a\n");
    relay.run().assert_checked(1, 1);
    let other = TempDir::new().unwrap();
    let mut command = program();
    let refused = finish(command.arg(other.path()).args(["--db", &relay.db]));
    refused.assert_refused(&relay.directory.path().display().to_string());
    refused.assert_refused(&other.path().display().to_string());
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let relay = Relay::new();
    relay.write("file", "a\n");
    let path = relay.directory.path().join("file");
    let file = path.to_str().unwrap();
    let directory = relay.directory.path().to_str().unwrap();
    let not_a_store = format!("embedded:{file}");
    for (arguments, reason) in [
        (
            &["/no/such/directory"][..],
            "cannot read /no/such/directory",
        ),
        (&[file], "is not a directory"),
        (
            &[directory, "--db", "fdb:/no/cluster.file"],
            "/no/cluster.file",
        ),
        (&[directory, "--db", "redis:"], "`redis:` names no store"),
        (&[directory, "--db", &not_a_store], "is not a store"),
        (&[directory, "--producers", "0"], "--producers"),
        (&[], "Usage"),
    ] {
        let refused = finish(program().args(arguments));
        refused.assert_refused(reason);
    }
    assert_eq!(fs::read(file).unwrap(), b"a\n");
}
