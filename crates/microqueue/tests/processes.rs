//! Four processes enqueue and four dequeue on one cluster. They are killed at random and started
//! again, and so is, once, the cluster's server. Every item whose enqueue was acknowledged is taken
//! exactly once, and no other more than once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::{env, io, thread};

use keyspace::conformance::server::Server;
use keyspace::conformance::{scale, stores};
use microqueue::keyspace::{
    self, Database, Isolation, MutationOp, RangeQuery, Runner, Store, Subspace, Transaction,
    read_all,
};
use microqueue::{Error, MicroQueue, Result};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Set for a child: what it does, the store's URL, and its own name.
const ROLE: &str = "MICROQUEUE_PROCESS";

const NAME: &str = "on_fdb_every_acknowledged_item_is_taken_exactly_once";

/// How many processes there are of each role.
const PROCESSES: usize = 4;

fn queue() -> MicroQueue<String> {
    MicroQueue::new(Subspace::from("jobs"))
}

/// Where each item's takes are counted, in the transactions that take.
fn takes() -> Subspace {
    Subspace::from("takes")
}

/// Does a child's work until it is killed. Each line that it prints is an item whose enqueue was
/// acknowledged.
async fn work(role: &str) -> Result<()> {
    let (verb, rest) = role.split_once(' ').unwrap();
    let (name, url) = rest.split_once(' ').unwrap();
    let runner = Runner::new(keyspace::open(url)?);
    for number in 0_u64.. {
        if verb == "enqueue" {
            let item = format!("{name}-{number}");
            queue().on(&runner).enqueue(&item).await?;
            println!("acknowledged {item}");
        } else {
            take(&runner).await?;
        }
    }
    Ok(())
}

/// Takes an item and counts that, in one transaction. Returns whether there was one.
async fn take<D: Database>(runner: &Runner<D>) -> Result<bool> {
    let (queue, takes) = (&queue(), &takes());
    let taken = runner.run(|tr, _| async move {
        let item = queue.dequeue(&tr).await?;
        if let Some(item) = &item {
            tr.atomic(
                MutationOp::Add,
                &takes.pack(&item.value),
                &1_u64.to_le_bytes(),
            );
        }
        Ok::<_, Error>(item.is_some())
    });
    taken.await
}

/// A process and what reads its lines.
struct Process {
    child: Child,
    verb: &'static str,
}

impl Process {
    fn start(verb: &'static str, name: usize, url: &str, lines: &Sender<String>) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(ROLE, format!("{verb} {name} {url}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = lines.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(io::Result::ok) {
                if let Some(item) = line.strip_prefix("acknowledged ") {
                    // The test may have ended.
                    let _ = lines.send(item.to_owned());
                }
            }
        });
        Self { child, verb }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "a process ended by itself: {status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Finds what is wrong with the takes of items, given those that were acknowledged.
fn misaccounted(acknowledged: &BTreeSet<String>, takes: &BTreeMap<String, u64>) -> Vec<String> {
    let lost = acknowledged
        .iter()
        .filter(|item| !takes.contains_key(*item));
    let lost = lost.map(|item| format!("{item} was acknowledged and never taken"));
    let repeated = takes.iter().filter(|(_, count)| **count != 1);
    lost.chain(repeated.map(|(item, count)| format!("{item} was taken {count} times")))
        .collect()
}

async fn counted(db: &Store) -> BTreeMap<String, u64> {
    let (begin, end) = takes().range();
    let tr = db.begin().unwrap();
    let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
    let row = |row: keyspace::KeyValue| {
        let item: String = takes().unpack(row.key()).unwrap();
        let count = row.value()[..].try_into().unwrap();
        (item, u64::from_le_bytes(count))
    };
    rows.await.unwrap().into_iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_every_acknowledged_item_is_taken_exactly_once() {
    if let Ok(role) = env::var(ROLE) {
        return work(&role).await.unwrap();
    }
    let mut server = match Server::start() {
        Ok(server) => server,
        Err(reason) => return stores::skip(NAME, reason),
    };
    let url = server.url();
    let (lines, acknowledgements) = mpsc::channel();
    let mut names = 0..;
    let store = url.clone();
    let mut start = move |verb| Process::start(verb, names.next().unwrap(), &store, &lines);
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.extend([start("enqueue"), start("dequeue")]);
    }

    let mut rng = StdRng::seed_from_u64(3);
    let mut acknowledged = BTreeSet::new();
    let kills = scale(12, 200);
    for kill in 0..kills {
        for _ in 0..rng.random_range(1..200) {
            acknowledged.insert(acknowledgements.recv().unwrap());
        }
        if kill == kills / 2 {
            server.restart();
        }
        let numbers: Vec<_> = (0..processes.len()).collect();
        let process = &mut processes[*numbers.choose(&mut rng).unwrap()];
        process.kill();
        *process = start(process.verb);
    }
    processes.iter_mut().for_each(Process::kill);
    // Then every sender is gone once the pipes are read to their ends.
    drop(start);
    acknowledged.extend(acknowledgements);

    let runner = Runner::new(keyspace::open(&url).unwrap());
    while take(&runner).await.unwrap() {}
    let takes = counted(runner.database()).await;
    assert_eq!(misaccounted(&acknowledged, &takes), [""; 0]);
}

#[test]
fn the_account_finds_what_was_lost_and_what_was_taken_twice() {
    let acknowledged = ["a", "b"].map(str::to_owned).into();
    let takes = |counts: &[(&str, u64)]| {
        let counts = counts.iter();
        counts
            .map(|(item, count)| ((*item).to_owned(), *count))
            .collect()
    };
    // The news of an enqueue may be lost with its process.
    let right = takes(&[("a", 1), ("b", 1), ("c", 1)]);
    assert_eq!(misaccounted(&acknowledged, &right), [""; 0]);
    let wrong = takes(&[("a", 2), ("c", 3)]);
    assert_eq!(
        misaccounted(&acknowledged, &wrong),
        [
            "b was acknowledged and never taken",
            "a was taken 2 times",
            "c was taken 3 times"
        ]
    );
}
