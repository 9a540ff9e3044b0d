//! Processes of a test's own, to be killed at random: children that run the same test with a role.
//!
//! The test asks for its [`role`] first. A child has one, works until it is killed, and tells its
//! parent with [`acknowledge`] what the store has acknowledged; in the end the parent compares that
//! with what took effect, with [`misaccounted`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::{env, io, thread};

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
