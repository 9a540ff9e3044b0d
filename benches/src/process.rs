//! Trials of several processes: children of this one, each of which plays a part on the same store.
//!
//! A child prints a line when all is prepared, waits for a line, and prints its sample. It begins
//! when all of them are prepared.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use keyspace::Store;
use keyspace::url::StoreUrl;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::load::Sample;

/// Set for a child: its part, as JSON, and the URL of the store.
const PART: &str = "BENCH_PART";
const STORE: &str = "BENCH_PART_STORE";

/// What one process does in a trial.
pub trait Part: Serialize + DeserializeOwned {
    /// Plays the part. `meet` is called when all is prepared, and waits for the other processes.
    fn play(&self, db: Store, meet: impl FnOnce()) -> Sample;
}

/// Plays the part that this process was started for. Returns false if it was started for none.
///
/// # Panics
/// If the parent has ended.
#[must_use]
pub fn play_part<P: Part>() -> bool {
    let Ok(part) = env::var(PART) else {
        return false;
    };
    let part: P = serde_json::from_str(&part).expect("the parent wrote it");
    let url = env::var(STORE).expect("the parent set it");
    let db = keyspace::open(&url).expect("the parent has opened it");
    let sample = part.play(db, || {
        tell("prepared");
        let begin = io::stdin().lines().next();
        begin.expect("the parent lives").expect("and says so");
    });
    tell(&serde_json::to_string(&sample).expect("a sample is plain"));
    true
}

fn tell(line: &str) {
    writeln!(io::stdout(), "{line}").expect("the parent lives");
}

/// Lets children play a part, all at the same time, and returns what they did together.
///
/// # Panics
/// If a process cannot be started, or fails.
#[must_use]
pub fn play_in_children(part: &impl Part, count: usize, url: &StoreUrl) -> Sample {
    let part = serde_json::to_string(part).expect("a part is plain");
    let start = |_| Player::start(&part, url).expect("the system starts processes");
    let mut players: Vec<_> = (0..count).map(start).collect();
    for player in &mut players {
        assert_eq!(player.line(), "prepared\n");
    }
    for player in &mut players {
        player.begin();
    }
    let sample = |player: &mut Player| {
        let line = player.line();
        serde_json::from_str::<Sample>(&line).expect("the child wrote it")
    };
    players.iter_mut().map(sample).sum()
}

/// A child, which does not outlive its trial.
struct Player {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Player {
    fn start(part: &str, url: &StoreUrl) -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .env(PART, part)
            .env(STORE, url.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().expect("it is piped");
        Ok(Self {
            child,
            output: BufReader::new(output),
        })
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.expect("the child writes text");
        line
    }

    fn begin(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input).expect("the child reads");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
