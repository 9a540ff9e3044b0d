//! Child processes that a test can kill at random: they run the same test in a role.
//!
//! The test first asks for its [`role`]. A child has a role, works until it is killed, and reports to its
//! parent with [`acknowledge`] what the store has acknowledged. The parent keeps a [`Herd`] of children. At
//! the end it compares acknowledgements with effects, with [`misaccounted`].
//!
//! Tests of a [program] start that program instead.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{env, fmt, io, thread};

use keyspace::Store;
use keyspace::embedded::{Options, Sharing};
use keyspace::store::FDB_API_VERSION;

use crate::wait::HANG;

/// The environment variable that gives a child its role.
const ROLE: &str = "TEST_PROCESS_ROLE";

/// The prefix of the lines that report acknowledgements.
const ACKNOWLEDGED: &str = "acknowledged ";

/// After a silence of this length, a parent looks whether a child has ended by itself.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the role of this process, if it is a child.
#[must_use]
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Reports an acknowledgement of the store to the parent.
pub fn acknowledge(item: &str) {
    println!("{ACKNOWLEDGED}{item}");
}

/// Waits, in a child, until the parent lets it [end](Herd::finish), or has ended.
pub fn until_asked_to_end() {
    // An error is also an end.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Disconnected once the child has ended.
    output: Receiver<()>,
}

impl Process {
    /// Starts a child that runs the test with this name, and forwards its acknowledgements.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start(test: &str, role: &str, acknowledged: &Sender<String>) -> Self {
        let program = env::current_exe().expect("a test knows its own program");
        let mut child = Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can start itself");
        let output = child.stdout.take().expect("its output is piped");
        let acknowledged = acknowledged.clone();
        let (writes, reads) = mpsc::channel();
        thread::spawn(move || {
            let _until_its_end: Sender<()> = writes;
            for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                if let Some(item) = line.strip_prefix(ACKNOWLEDGED) {
                    // The test may have ended.
                    let _ = acknowledged.send(item.to_owned());
                }
            }
        });
        Self {
            child,
            output: reads,
        }
    }

    /// Kills the child.
    ///
    /// # Panics
    /// If the child has already ended: children work until they are killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        let status = self.child.wait().expect("a child can be waited for");
        assert_eq!(status.code(), None, "a process ended by itself: {status}");
    }

    fn ask_to_end(&mut self) {
        self.child.stdin = None;
    }

    /// Waits until the child ends. Panics if it fails, or hangs.
    fn join(&mut self) {
        let ended = self.output.recv_timeout(HANG);
        assert_eq!(
            ended,
            Err(RecvTimeoutError::Disconnected),
            "a process hangs"
        );
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "a process failed: {status}");
    }

    fn has_ended(&mut self) -> bool {
        let ended = self.child.try_wait();
        ended.expect("a child can be waited for").is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A fixed number of children. A child that is killed is replaced by another one at its place.
pub struct Herd {
    test: &'static str,
    /// Returns the role of the next child at a place.
    role: Box<dyn FnMut(usize) -> String + Send>,
    places: Vec<Process>,
    lines: Sender<String>,
    acknowledgements: Receiver<String>,
    acknowledged: BTreeSet<String>,
}

impl Herd {
    /// Starts the children, one at each place, which run the test with this name.
    ///
    /// # Panics
    /// If a process cannot be started.
    #[must_use]
    pub fn start(
        test: &'static str,
        places: usize,
        role: impl FnMut(usize) -> String + Send + 'static,
    ) -> Self {
        let (lines, acknowledgements) = mpsc::channel();
        let mut herd = Self {
            test,
            role: Box::new(role),
            places: Vec::new(),
            lines,
            acknowledgements,
            acknowledged: BTreeSet::new(),
        };
        herd.places = (0..places).map(|place| herd.child(place)).collect();
        herd
    }

    fn child(&mut self, place: usize) -> Process {
        Process::start(self.test, &(self.role)(place), &self.lines)
    }

    /// Waits until the children have reported `count` more acknowledgements.
    ///
    /// # Panics
    /// If a child has ended by itself, or none reports anything.
    pub fn hear(&mut self, count: usize) {
        let mut missing = count;
        let mut silence = Duration::ZERO;
        while missing > 0 {
            if let Ok(item) = self.acknowledgements.recv_timeout(LOOK) {
                self.acknowledged.insert(item);
                missing -= 1;
                silence = Duration::ZERO;
                continue;
            }
            silence += LOOK;
            let has_ended = self.places.iter_mut().any(Process::has_ended);
            assert!(!has_ended, "a process ended by itself");
            assert!(silence < HANG, "the processes hang");
        }
        self.acknowledged.extend(self.acknowledgements.try_iter());
    }

    /// Kills the child at a place, and starts another one there.
    ///
    /// # Panics
    /// If the child has already ended.
    pub fn replace(&mut self, place: usize) {
        self.places[place].kill();
        self.places[place] = self.child(place);
    }

    /// Lets the child at a place end that [waits for that](until_asked_to_end), and starts another one there.
    ///
    /// # Panics
    /// If the child fails.
    pub fn restart(&mut self, place: usize) {
        self.places[place].ask_to_end();
        self.places[place].join();
        self.places[place] = self.child(place);
    }

    /// Kills the child at a place, and starts none there. The last child takes its place.
    ///
    /// # Panics
    /// If the child has already ended.
    pub fn remove(&mut self, place: usize) {
        self.places.swap_remove(place).kill();
    }

    /// Stops the child at a place until it is [resumed](Self::resume). It holds what it has.
    ///
    /// # Panics
    /// If the child has already ended.
    pub fn pause(&self, place: usize) {
        signal(self.places[place].child.id(), "-STOP");
    }

    /// Lets a child go on that was stopped.
    ///
    /// # Panics
    /// If the child has already ended.
    pub fn resume(&self, place: usize) {
        signal(self.places[place].child.id(), "-CONT");
    }

    /// Kills all children, and returns everything that was acknowledged.
    ///
    /// # Panics
    /// If a child has already ended.
    #[must_use]
    pub fn end(mut self) -> BTreeSet<String> {
        for child in &mut self.places {
            child.kill();
        }
        self.rest()
    }

    /// Lets all children end that [wait for that](until_asked_to_end), at the same moment or one after another, and
    /// returns everything that was acknowledged.
    ///
    /// # Panics
    /// If a child fails.
    #[must_use]
    pub fn finish(mut self, at_once: bool) -> BTreeSet<String> {
        if at_once {
            for child in &mut self.places {
                child.ask_to_end();
            }
        }
        for child in &mut self.places {
            child.ask_to_end();
            child.join();
        }
        self.rest()
    }

    /// Returns everything that was acknowledged by children that have ended.
    fn rest(mut self) -> BTreeSet<String> {
        // After this, all senders are gone once the pipes are read to their ends.
        drop(self.lines);
        self.acknowledged.extend(self.acknowledgements);
        self.acknowledged
    }
}

impl fmt::Debug for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Herd")
            .field("test", &self.test)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

/// Opens the store at a URL in a child. An owner that is stopped, or slow on a busy machine, only delays that.
///
/// # Panics
/// If the store cannot be opened.
#[must_use]
pub fn open(url: &str) -> Store {
    open_with(url, Sharing::Share)
}

/// Opens the store at a URL in a parent that must not own it, because its children are to be killed as owners. If it is
/// in a file, waits until a child owns it.
///
/// # Panics
/// If the store cannot be opened.
#[must_use]
pub fn join(url: &str) -> Store {
    open_with(url, Sharing::ClientOnly)
}

fn open_with(url: &str, sharing: Sharing) -> Store {
    let options = Options::new().with_patience(HANG).with_sharing(sharing);
    let opened = match url.strip_prefix("embedded:") {
        Some(path) => options.open(path).map(Store::from),
        None => keyspace::open(url),
    };
    opened.expect("the store opens")
}

/// Sends a signal to a process.
///
/// # Panics
/// If there is no such process.
pub(crate) fn signal(process: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "kill {signal}");
}

/// The FoundationDB feature of this build, if there is one. Every crate of the workspace has a feature of
/// this name.
const FDB_FEATURE: Option<&str> = match FDB_API_VERSION {
    Some(710) => Some("fdb-7_1"),
    Some(730) => Some("fdb-7_3"),
    Some(740) => Some("fdb-7_4"),
    Some(_) => panic!("another API version has another feature"),
    None => None,
};

/// Returns the path of the program with the name of its package, built with the same profile as the test.
/// Tests of the package itself find it in `CARGO_BIN_EXE_<name>`.
///
/// # Panics
/// If the program does not build.
#[must_use]
pub fn program(package: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo runs the tests");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", package, "--bin", package]);
    if let Some(feature) = FDB_FEATURE {
        build.args(["--features", feature]);
    }
    let test = env::current_exe().expect("a test knows its own program");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in a folder of their profile's");
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    build.args(["--profile", profile]);
    let built = build.status().expect("cargo can be started");
    assert!(built.success(), "{package} does not build");
    folder.join(format!("{package}{}", env::consts::EXE_SUFFIX))
}

/// Returns the answer of a process to an HTTP request for a path, with its head.
///
/// # Panics
/// If the process does not answer.
#[must_use]
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the process listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes());
    sent.expect("the process reads the request");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    read.expect("the process answers");
    answer
}

/// Compares how often items took effect with the items that were acknowledged, and returns all errors.
#[must_use]
pub fn misaccounted(
    acknowledged: &BTreeSet<String>,
    effects: &BTreeMap<String, u64>,
) -> Vec<String> {
    let lost = acknowledged
        .iter()
        .filter(|item| !effects.contains_key(*item))
        .map(|item| format!("{item} was acknowledged and had no effect"));
    let repeated = effects.iter().filter(|(_, count)| **count != 1);
    lost.chain(repeated.map(|(item, count)| format!("{item} took effect {count} times")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_finds_what_was_lost_and_what_took_effect_twice() {
        let acknowledged = ["a", "b"].map(str::to_owned).into();
        let effects = |counts: &[(&str, u64)]| {
            let counts = counts.iter();
            counts
                .map(|(item, count)| ((*item).to_owned(), *count))
                .collect()
        };
        // An acknowledgement may be lost together with its process.
        let right = effects(&[("a", 1), ("b", 1), ("c", 1)]);
        assert_eq!(misaccounted(&acknowledged, &right), [""; 0]);
        let wrong = effects(&[("a", 2), ("c", 3)]);
        assert_eq!(
            misaccounted(&acknowledged, &wrong),
            [
                "b was acknowledged and had no effect",
                "a took effect 2 times",
                "c took effect 3 times"
            ]
        );
    }
}
