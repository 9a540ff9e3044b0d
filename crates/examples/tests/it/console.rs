//! The console beside an example that runs, and what the program refuses.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use conformance::process::get;
use tempfile::TempDir;

/// Starts an example with the console beside it.
fn start(name: &str, db: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_example"))
        .args([name, "--db", db, "--console", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the address at which an example says that it serves the console.
fn address(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let first = lines.next().unwrap().unwrap();
    let address = first.strip_prefix("the console is at http://");
    address.unwrap().to_owned()
}

/// Sends a signal, and asserts that the example ends well.
fn stop(mut example: Child, lines: Lines<BufReader<ChildStdout>>, signal: &str) {
    let pid = example.id().to_string();
    let kill = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(kill.success());
    lines.for_each(drop);
    assert!(example.wait().unwrap().success());
}

#[test]
fn a_store_that_an_example_has_open_is_watched() {
    let folder = TempDir::new().unwrap();
    let db = format!("embedded:{}", folder.path().join("store").display());
    let mut example = start("payments", &db);
    let mut lines = BufReader::new(example.stdout.take().unwrap()).lines();
    let address = address(&mut lines);
    // Each receipt is printed: the queues are there now.
    let receipt = lines.next().unwrap().unwrap();
    assert!(receipt.starts_with("Ada paid "), "{receipt}");
    for name in ["payments", "receipts"] {
        let answer = get(&address, &format!("/api/queues/shop%2F{name}"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // It goes on after its first run.
    for _receipt in 0..150 {
        lines.next().unwrap().unwrap();
    }
    stop(example, lines, "-INT");
}

#[test]
fn an_example_that_was_stopped_starts_again_in_the_same_store() {
    for name in ["inverted-index", "payments"] {
        let folder = TempDir::new().unwrap();
        let db = format!("embedded:{}", folder.path().join("store").display());
        for signal in ["-INT", "-TERM"] {
            let mut example = start(name, &db);
            let mut lines = BufReader::new(example.stdout.take().unwrap()).lines();
            let overview = get(&address(&mut lines), "/api/queues");
            assert!(overview.starts_with("HTTP/1.1 200 "), "{overview}");
            // In the middle of a run.
            lines.next().unwrap().unwrap();
            stop(example, lines, signal);
        }
    }
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "a\n").unwrap();
    let not_a_store = format!("embedded:{}", path.display());
    for (arguments, reason) in [
        (
            &["payments", "--console", &address][..],
            &format!("error: cannot serve the console at {address}: ")[..],
        ),
        (
            &["payments", "--db", "redis:"],
            "error: cannot open the store: `redis:` names no store",
        ),
        (&["payments", "--db", &not_a_store], "is not a store"),
        (
            &["payments", "--db", "fdb:/no/cluster.file"],
            "/no/cluster.file",
        ),
        (&[], "Usage"),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_example"))
            .args(arguments)
            .output()
            .unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(told.contains(reason), "{arguments:?}: {told}");
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(fs::read(path).unwrap(), b"a\n");
}
