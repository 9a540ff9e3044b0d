//! The console beside an example that runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Returns the answer to a request for a path.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_store_that_an_example_has_open_is_watched() {
    let folder = TempDir::new().unwrap();
    let db = format!("embedded:{}", folder.path().join("store").display());
    let mut example = Command::new(env!("CARGO_BIN_EXE_example"))
        .args(["payments", "--db", &db, "--console", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(example.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.strip_prefix("the console is at http://").unwrap();
    // Each receipt is printed: the queues are there now.
    assert!(lines.next().unwrap().unwrap().starts_with("Ada paid "));
    for name in ["payments", "receipts"] {
        let answer = get(address, &format!("/api/queues/shop%2F{name}"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // It goes on after its first run, until it is stopped.
    for _receipt in 0..150 {
        lines.next().unwrap().unwrap();
    }
    let pid = example.id().to_string();
    let kill = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(kill.success());
    lines.for_each(drop);
    assert!(example.wait().unwrap().success());
}
