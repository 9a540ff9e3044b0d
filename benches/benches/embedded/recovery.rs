//! Opening a store after its process, a child of this one, was killed while it set rows, and taking it over.
//!
//! A child prints a line when all its rows are committed. The benchmark then kills it, or asks it to end.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use benches::arguments::Extent;
use benches::shift::Work;
use benches::{cores, fill, runtime};
use keyspace::embedded::{Embedded, Options};
use keyspace::{Environment, Error, Runner, Transaction};
use serde::{Deserialize, Serialize};

use crate::keys::{ROW_BYTES, VALUE, all_spread};
use crate::row::{self, Pairs, Row};
use crate::setter::{NO_HURRY, Setter, in_order, scattered, work};

/// Set for a child: its part, as JSON.
const PART: &str = "EMBEDDED_PART";

const WRITERS: u64 = 8;
const ROWS_PER_COMMIT: u64 = 100;

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    path: PathBuf,
    order: Order,
    /// How many rows the store has already.
    rows: u64,
    /// How many rows to set.
    sets: u64,
    /// Another one for each child.
    seed: u64,
}

/// Which rows a child sets.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Order {
    /// New ones, after all others.
    Ascending,
    /// Random ones of those that are there.
    Scattered,
}

/// Opens after a kill, and after a close.
pub(crate) fn measure(extent: Extent) -> Vec<Row> {
    let rows = extent.choose(1_000, 1_000_000, 10_000_000);
    let content_bytes: u64 = extent.choose(256 << 10, 64 << 20, 64 << 20);
    let folder = tempfile::tempdir().expect("the system has a temporary folder");
    let path = folder.path().join("store");
    let db = Options::new().open(&path).expect("a new store");
    runtime(cores()).block_on(fill(&db, all_spread(rows).map(|key| (key, VALUE))));
    close(&db);
    drop(db);
    [
        (Order::Ascending, "keys in order", "at most 0.5 s"),
        (Order::Scattered, "random keys", "at most 2 s"),
    ]
    .into_iter()
    .map(|(order, name, target)| {
        let mut pairs = Pairs::default();
        for seed in 0..extent.choose(1, 3, 5) {
            run_and_kill(&Part {
                path: path.clone(),
                order,
                rows,
                sets: content_bytes / ROW_BYTES,
                seed,
            });
            let after_kill = open_and_close(&path);
            pairs.push(open_and_close(&path), after_kill);
        }
        Row {
            workload: format!(
                "open after a kill, 64 MiB of {name} set before, in a store of {} rows",
                row::rate(rows as f64)
            ),
            yardstick: "after a close".to_owned(),
            pairs,
            unit: row::time,
            target,
        }
    })
    .collect()
}

/// Takes a store over whose owner was killed, and one whose owner has handed it over.
pub(crate) fn takeover(extent: Extent) -> Vec<Row> {
    let content_bytes: u64 = extent.choose(256 << 10, 64 << 20, 64 << 20);
    let folder = tempfile::tempdir().expect("the system has a temporary folder");
    let path = folder.path().join("store");
    let mut pairs = Pairs::default();
    for seed in 0..extent.choose(1, 5, 9) {
        let part = Part {
            path: path.clone(),
            order: Order::Ascending,
            rows: 0,
            sets: content_bytes / ROW_BYTES,
            seed,
        };
        let [handed_over, taken] = [Victim::end, Victim::kill].map(|end| take_over(&part, end));
        pairs.push(handed_over, taken);
    }
    vec![Row {
        workload: "first commit of a client after its owner was killed, with 64 MiB set before"
            .to_owned(),
        yardstick: "after its owner closed the store".to_owned(),
        pairs,
        unit: row::time,
        target: "",
    }]
}

/// Returns the seconds from the end of an owner, which a client waits for, to the first commit of that client.
fn take_over(part: &Part, end: fn(&mut Victim)) -> f64 {
    let mut owner = run(part);
    let client = Options::new().open(&part.path);
    let client = client.expect("the owner serves");
    let env = Environment::system();
    let began = env.now();
    end(&mut owner);
    let runner = Runner::new(client.clone());
    let commit = runner.run(|tr| async move {
        tr.set(b"taken", b"over");
        Ok::<_, Error>(())
    });
    runtime(1).block_on(commit).expect("the store recovers");
    let took = env.now() - began;
    drop(owner);
    close(&client);
    took.as_secs_f64()
}

/// Returns the seconds that opening the store takes.
fn open_and_close(path: &Path) -> f64 {
    let env = Environment::system();
    let began = env.now();
    let db = Options::new().open(path).expect("the store recovers");
    let took = env.now() - began;
    close(&db);
    took.as_secs_f64()
}

fn close(db: &Embedded) {
    db.close().expect("the disk has room");
}

/// Starts a child, and kills it once it has set its rows.
fn run_and_kill(part: &Part) {
    drop(run(part));
}

/// Starts a child, and waits until it has set its rows.
fn run(part: &Part) -> Victim {
    let part = serde_json::to_string(part).expect("a part is plain");
    let program = env::current_exe().expect("the system knows the path of this program");
    let mut child = Victim(
        Command::new(program)
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the system starts processes"),
    );
    let output = child.0.stdout.take().expect("it is piped");
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("the child writes text");
    assert_eq!(line, "written\n");
    child
}

/// A child, which is killed when it is dropped.
struct Victim(Child);

impl Victim {
    /// Asks the child to end.
    fn end(&mut self) {
        let input = self.0.stdin.as_mut().expect("it is piped");
        writeln!(input).expect("the child reads");
    }

    fn kill(&mut self) {
        self.0.kill().expect("the child lives");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself, if it has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays the part that this process was started for. Returns false if it was started for none.
pub(crate) fn play_part() -> bool {
    let Ok(part) = env::var(PART) else {
        return false;
    };
    let part: Part = serde_json::from_str(&part).expect("the parent wrote it");
    let db = Options::new().open(&part.path).expect("it was closed");
    match part.order {
        Order::Ascending => {
            let next_key = in_order(part.seed * part.sets);
            set_rows(&db, part.sets, |_| next_key.clone());
        }
        Order::Scattered => {
            let seed = |writer| part.seed * WRITERS + writer;
            set_rows(&db, part.sets, |writer| scattered(part.rows, seed(writer)));
        }
    }
    writeln!(io::stdout(), "written").expect("the parent lives");
    // Ends when the parent says so or ends itself. It may kill this process before.
    let _ = io::stdin().lines().next();
    true
}

/// Sets `sets` rows, by several writers with a source of keys each.
fn set_rows<K>(db: &Embedded, sets: u64, mut keys: impl FnMut(u64) -> K)
where
    Setter<K>: Work,
{
    let rows_left = Arc::new(AtomicU64::new(sets));
    let setters: Vec<_> = (0..WRITERS)
        .map(|writer| Setter {
            db: db.clone(),
            next_key: keys(writer),
            rows_per_commit: ROWS_PER_COMMIT,
            rows_left: rows_left.clone(),
        })
        .collect();
    work(&runtime(cores()), setters, NO_HURRY);
}
