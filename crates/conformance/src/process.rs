//! Processes of a test's own, to be killed at random: children that run the same test with a role.
//!
//! The test asks for its [`role`] first. A child has one, works until it is killed, and tells its
//! parent with [`acknowledge`] what the store has acknowledged. The parent keeps a [`Herd`] of them, and
//! in the end it compares what was acknowledged with what took effect, with [`misaccounted`].
//!
//! A test of a [program], or of an [example], has no children of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{env, fmt, io, thread};

use keyspace::store::FDB_API_VERSION;

/// Set for a child.
const ROLE: &str = "TEST_PROCESS_ROLE";

/// What begins a line that tells what was acknowledged.
const ACKNOWLEDGED: &str = "acknowledged ";

/// Returns what this process is to do, if it is a child.
#[must_use]
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Tells the parent that the store has acknowledged something.
pub fn acknowledge(item: &str) {
    println!("{ACKNOWLEDGED}{item}");
}

/// A child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a child that runs the test of this name, and sends on what it acknowledges.
    ///
    /// # Panics
    /// If the machine starts no process.
    #[must_use]
    pub fn start(test: &str, role: &str, acknowledged: &Sender<String>) -> Self {
        let program = env::current_exe().expect("a test knows its own program");
        let mut child = Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can start itself");
        let output = child.stdout.take().expect("its output is piped");
        let acknowledged = acknowledged.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                if let Some(item) = line.strip_prefix(ACKNOWLEDGED) {
                    // The test may have ended.
                    let _ = acknowledged.send(item.to_owned());
                }
            }
        });
        Self { child }
    }

    /// Kills the child.
    ///
    /// # Panics
    /// If it has ended by itself: children work until they are killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        let status = self.child.wait().expect("a child can be waited for");
        assert_eq!(status.code(), None, "a process ended by itself: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Children at so many places: one that is killed is replaced by another one.
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
    /// Starts children that run the test of this name, one at each place.
    ///
    /// # Panics
    /// If the machine starts no process.
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

    /// Waits until the children have told of so many acknowledgements more.
    pub fn hear(&mut self, count: usize) {
        let heard = self.acknowledgements.iter().take(count);
        self.acknowledged.extend(heard);
        self.acknowledged.extend(self.acknowledgements.try_iter());
    }

    /// Kills the child at a place, and starts another one there.
    ///
    /// # Panics
    /// If the child has ended by itself.
    pub fn replace(&mut self, place: usize) {
        self.places[place].kill();
        self.places[place] = self.child(place);
    }

    /// Kills all children, and returns all that was acknowledged.
    ///
    /// # Panics
    /// If a child has ended by itself.
    #[must_use]
    pub fn end(mut self) -> BTreeSet<String> {
        self.places.iter_mut().for_each(Process::kill);
        // Then every sender is gone once the pipes are read to their ends.
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

/// The feature that this was built with, if it was built with FoundationDB. Every crate of the
/// workspace has one of this name.
const FDB_FEATURE: Option<&str> = match FDB_API_VERSION {
    Some(710) => Some("fdb-7_1"),
    Some(730) => Some("fdb-7_3"),
    Some(740) => Some("fdb-7_4"),
    Some(_) => panic!("another API version has another feature"),
    None => None,
};

/// Returns the program of an example, built as the test is, if the test was built without it.
///
/// # Panics
/// If the example does not build.
#[must_use]
pub fn example(package: &str, name: &str) -> PathBuf {
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    build(package, "--example", name)
        .join("examples")
        .join(file)
}

/// Returns the program of the package that has its name, built as the test is. The tests of the package
/// itself find it in `CARGO_BIN_EXE_<name>`.
///
/// # Panics
/// If the program does not build.
#[must_use]
pub fn program(package: &str) -> PathBuf {
    let file = format!("{package}{}", env::consts::EXE_SUFFIX);
    build(package, "--bin", package).join(file)
}

/// Builds a target of a package, and returns the folder of what was built.
fn build(package: &str, kind: &str, name: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo runs the tests");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", package, kind, name]);
    if let Some(feature) = FDB_FEATURE {
        build.args(["--features", feature]);
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let built = build.status().expect("cargo can be started");
    assert!(built.success(), "{name} does not build");
    let test = env::current_exe().expect("a test knows its own program");
    let profile = test.parent().and_then(Path::parent);
    let profile = profile.expect("tests lie in a folder of their profile's");
    profile.to_owned()
}

/// Finds what is wrong with how often items took effect, given those that were acknowledged.
#[must_use]
pub fn misaccounted(
    acknowledged: &BTreeSet<String>,
    effects: &BTreeMap<String, u64>,
) -> Vec<String> {
    let lost = acknowledged
        .iter()
        .filter(|item| !effects.contains_key(*item));
    let lost = lost.map(|item| format!("{item} was acknowledged and had no effect"));
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
        // The news of an acknowledgement may be lost with its process.
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
