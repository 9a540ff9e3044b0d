//! The program ends when it is asked to: `console serve` whatever its clients do, and every command whatever the store
//! and the terminal do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::common::LONG;
#[cfg(target_os = "linux")]
use crate::common::program::Asking;
use crate::common::program::{Filled, program};

/// A process that serves, and the address at which it says that it does.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(store: &Filled) -> Self {
        Self::start_as(program(), store)
    }

    /// Starts a program with the arguments that let it serve.
    fn start_as(mut serve: Command, store: &Filled) -> Self {
        serve.args(["serve", "--listen", "127.0.0.1:0", "--db", &store.db]);
        let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let (_, address) = line.split_once("http://").unwrap();
        let (address, how) = address.split_once(';').unwrap();
        assert_eq!(how, " stop with Ctrl-C or SIGTERM\n");
        Self {
            child,
            address: address.to_owned(),
        }
    }

    /// Opens a connection, sends a request, and reads the begin of the answer.
    fn begin(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut begin = [0; 15];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
        stream
    }

    /// Sends a signal, and returns the exit status.
    fn stop(mut self, signal: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.unwrap().success());
        let (ended, end) = mpsc::channel();
        thread::spawn(move || ended.send(self.child.wait().unwrap().code()));
        end.recv_timeout(LONG).expect("it ends soon")
    }
}

#[test]
fn a_server_with_open_event_streams_and_stalled_clients_ends_at_each_signal() {
    let store = Filled::embedded();
    for signal in ["-TERM", "-INT"] {
        let serving = Serving::start(&store);
        // They read nothing more, send half of a request, or nothing at all.
        let events = ["/events", "/events/queues/jobs"].map(|path| serving.begin(path));
        let idle = TcpStream::connect(&serving.address).unwrap();
        let mut half = TcpStream::connect(&serving.address).unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
        assert_eq!(serving.stop(signal), Some(0), "{signal}");
        drop((events, idle, half));
        // The store was closed.
        assert_eq!(store.run(&["queues"]).status, 0);
    }
}

#[test]
fn a_second_signal_is_not_needed_and_does_no_harm() {
    let store = Filled::embedded();
    let serving = Serving::start(&store);
    let _events = serving.begin("/events");
    let id = serving.child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.unwrap().success());
    let status = serving.stop("-TERM");
    assert!(matches!(status, Some(0 | 143)), "{status:?}");
    assert_eq!(store.run(&["queues"]).status, 0);
}

/// Returns the program with a disk that takes seconds to remove a file, or says why that is not possible here.
#[cfg(target_os = "linux")]
fn on_a_slow_disk() -> Result<Command, String> {
    let tracer = || {
        let mut tracer = Command::new("strace");
        tracer.args([
            "--daemonize",
            "--follow-forks",
            "--quiet=all",
            "--output=/dev/null",
        ]);
        tracer
    };
    let probed = tracer().arg("true").status();
    if !probed.map_err(|error| error.to_string())?.success() {
        return Err("strace cannot trace a process here".to_owned());
    }
    let mut slow = tracer();
    slow.arg("--inject=unlink,unlinkat:delay_enter=3s");
    slow.arg(program().get_program());
    Ok(slow)
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_signal_ends_the_wait_for_a_store_that_does_not_close() {
    let slow = match on_a_slow_disk() {
        Ok(slow) => slow,
        Err(reason) => {
            let name = "a_second_signal_ends_the_wait_for_a_store_that_does_not_close";
            return conformance::stores::skip(name, &reason);
        }
    };
    let store = Filled::embedded();
    let serving = Serving::start_as(slow, &store);
    // From now on signals are received.
    let _events = serving.begin("/events");
    let mut child = serving.child;
    let id = child.id().to_string();
    // The second one counts from when the store is being closed.
    while child.try_wait().unwrap().is_none() {
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.unwrap().success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[cfg(target_os = "linux")]
#[test]
fn a_question_ends_at_each_signal_with_its_status() {
    let store = Filled::embedded();
    for (signal, status) in [("-TERM", 143), ("-INT", 130)] {
        let asking = Asking::purge(&store);
        let sent = Command::new("kill").args([signal, &asking.id()]).status();
        assert!(sent.unwrap().success());
        let ended = asking.answer("");
        assert_eq!(ended.status, status, "{ended:?}");
        assert!(ended.out.contains("error: stopped"), "{ended:?}");
        assert_eq!(store.count("dead"), 3);
    }
}
