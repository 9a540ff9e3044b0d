//! Kills a child with `kill -9` again and again, at any moment, also while it recovers or copies its store.
//! The child streams the commits that were acknowledged over a pipe. Every acknowledged commit must be
//! there, each commit must be whole, the surviving commits must be the first ones, and new versionstamps
//! must be newer than all earlier ones.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::scale;
use futures::future::join_all;
use keyspace::embedded::{Durability, Embedded, EmbeddedTransaction, Options};
use keyspace::{
    Bytes, Database, Isolation, KeyValue, MutationOp, OwnedTransaction, RangeQuery, Transaction,
    Versionstamp, read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The environment variable that gives the child the path of its store.
const CHILD: &str = "KEYSPACE_CRASH_CHILD";

/// The line that the child prints before it opens the store, and the prefix of each acknowledged stamp.
const OPENING: &str = "opening";
const ACKNOWLEDGED: &str = "acknowledged ";

/// The prefix of the names of copies.
const COPY: &str = "copy-";

/// The number of commits that are under way at once.
const IN_FLIGHT: u64 = 8;

/// A commit clears the row of the commit this many places before it.
const KEPT_ROWS: u64 = 100;

#[test]
fn a_killed_process_loses_no_acknowledged_commit_and_leaves_commits_whole_and_in_order() {
    let name = "crash::a_killed_process_loses_no_acknowledged_commit_and_leaves_commits_whole_and_in_order";
    assert_eq!(kill_again_and_again(name, Durability::Immediate), Ok(()));
}

#[test]
fn a_killed_process_loses_no_commit_that_it_was_to_flush_later() {
    let name = "crash::a_killed_process_loses_no_commit_that_it_was_to_flush_later";
    let interval = std::time::Duration::from_secs(3600);
    let killed = kill_again_and_again(name, Durability::Relaxed { interval });
    assert_eq!(killed, Ok(()));
}

#[test]
fn a_process_that_is_killed_while_it_copies_its_store_leaves_whole_copies_only() {
    let name = "crash::a_process_that_is_killed_while_it_copies_its_store_leaves_whole_copies_only";
    if let Some(path) = std::env::var_os(CHILD) {
        let folder = Path::new(&path).parent().unwrap().to_owned();
        commit_until_killed(Path::new(&path), Durability::Immediate, |db| {
            let db = db.clone();
            std::thread::spawn(move || {
                for copy in 0.. {
                    db.backup(folder.join(format!("{COPY}{copy}"))).unwrap();
                }
            });
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.store");
    let mut acknowledged = Vec::new();
    let mut whole = 0;
    let mut partial = 0;
    for _ in 0..scale(10, 100) {
        let before = acknowledged.clone();
        acknowledged.extend(run_and_kill(name, &path, 300));
        acknowledged = check(&path, &acknowledged).unwrap();
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        for file in files {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap();
            if name.starts_with(".keyspace-") {
                partial += 1;
            } else if name.starts_with(COPY) {
                check(&file, &before).unwrap();
                whole += 1;
            } else {
                continue;
            }
            fs::remove_file(file).unwrap();
        }
    }
    assert!(
        whole > 0 && partial > 0,
        "{whole} copies and {partial} parts"
    );
}

#[test]
fn the_check_finds_a_commit_that_is_lost() {
    let name = "crash::the_check_finds_a_commit_that_is_lost";
    if let Some(path) = std::env::var_os(CHILD) {
        commit_until_killed(Path::new(&path), Durability::Immediate, |_| {});
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.store");
    let mut acknowledged = run_and_kill(name, &path, 50);
    acknowledged.push(Versionstamp::from_bytes([0x7f; 10]));
    let found = check(&path, &acknowledged).unwrap_err();
    assert!(found.contains("was acknowledged"), "{found}");
}

/// Kills children that run the test with this name until the check fails or has passed often enough. In a
/// child, commits until killed.
fn kill_again_and_again(name: &str, durability: Durability) -> Result<(), String> {
    if let Some(path) = std::env::var_os(CHILD) {
        commit_until_killed(Path::new(&path), durability, |_| {});
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.store");
    let mut rng = StdRng::seed_from_u64(9);
    let mut acknowledged = Vec::new();
    for kill in 1..=scale(20, 200) {
        let lines = match rng.random_range(0..4) {
            0 => 0,
            1 => 1,
            _ => rng.random_range(2..300),
        };
        acknowledged.extend(run_and_kill(name, &path, lines));
        acknowledged =
            check(&path, &acknowledged).map_err(|found| format!("kill {kill}: {found}"))?;
    }
    Ok(())
}

/// Starts a child, kills it after it has printed some lines, and returns the stamps that it printed.
fn run_and_kill(name: &str, path: &Path, lines: usize) -> Vec<Versionstamp> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut printed = Vec::new();
    let mut next_line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // A line without its end was cut off by the kill.
        line.ends_with('\n').then_some(line)
    };
    while printed.len() < lines
        && let Some(line) = next_line()
    {
        if line.starts_with(OPENING) || line.starts_with(ACKNOWLEDGED) {
            printed.push(line);
        }
    }
    assert_eq!(printed.len(), lines, "the child ended before it was killed");
    child.kill().unwrap();
    child.wait().unwrap();
    printed.extend(std::iter::from_fn(next_line));
    printed.iter().filter_map(|line| stamp_in(line)).collect()
}

fn stamp_in(line: &str) -> Option<Versionstamp> {
    let digits = line.strip_prefix(ACKNOWLEDGED)?.trim_end();
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    Some(Versionstamp::from_bytes(bytes.try_into().unwrap()))
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// Opens the store, calls `open`, and commits.
fn commit_until_killed(path: &Path, durability: Durability, open: impl FnOnce(&Embedded)) -> ! {
    let print = |line: &str| {
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}").unwrap();
        stdout.flush().unwrap();
    };
    print(OPENING);
    let db = Options::new()
        .with_durability(durability)
        .open(path)
        .unwrap();
    open(&db);
    block_on(async {
        let mut committed = all_rows(&db, "stamp/").await.len() as u64;
        loop {
            // The commits are sent in the order of their numbers.
            let commits = (committed + 1..=committed + IN_FLIGHT).map(|number| {
                let mut tr = db.begin().unwrap();
                write(&tr, number);
                async move { tr.commit().await.unwrap() }
            });
            for commit in join_all(commits).await {
                print(&format!("{ACKNOWLEDGED}{}", commit.versionstamp.unwrap()));
            }
            committed += IN_FLIGHT;
        }
    })
}

fn row(number: u64) -> Bytes {
    format!("row/{number:010}").into()
}

/// Stages the content of a commit: its stamp, its row in place of an older one, and a count.
fn write(tr: &EmbeddedTransaction, number: u64) {
    let stamp_key = [&b"stamp/"[..], &[0; 10], &[6, 0, 0, 0]].concat();
    tr.atomic(
        MutationOp::SetVersionstampedKey,
        &stamp_key,
        &number.to_le_bytes(),
    );
    tr.set(&row(number), &[number as u8; 500]);
    if number > KEPT_ROWS {
        tr.clear(&row(number - KEPT_ROWS));
    }
    tr.atomic(MutationOp::Add, b"count", &1_u64.to_le_bytes());
}

async fn all_rows(db: &Embedded, prefix: &str) -> Vec<KeyValue> {
    let tr = db.begin().unwrap();
    let end = format!("{}0", prefix.strip_suffix('/').unwrap());
    let range = RangeQuery::keys(prefix.to_owned(), end);
    read_all(&tr, range, Isolation::Snapshot).await.unwrap()
}

/// Checks the store, and returns the stamps of all commits that it holds.
fn check(path: &Path, acknowledged: &[Versionstamp]) -> Result<Vec<Versionstamp>, String> {
    if !acknowledged.is_sorted_by(|a, b| a < b) {
        return Err("a stamp was acknowledged that is not newer than all before".to_owned());
    }
    let db = Options::new()
        .open(path)
        .map_err(|error| format!("does not open: {error}"))?;
    block_on(async {
        let stamps = all_rows(&db, "stamp/").await;
        let numbers = stamps
            .iter()
            .map(|row| u64::from_le_bytes(row.value()[..].try_into().unwrap()));
        if !numbers.eq(1..=stamps.len() as u64) {
            return Err("the commits there are not the first ones in order".to_owned());
        }
        let stamps: Vec<_> = stamps
            .iter()
            .map(|row| Versionstamp::from_bytes(row.key()[b"stamp/".len()..].try_into().unwrap()))
            .collect();
        let is_lost = |stamp: &&Versionstamp| stamps.binary_search(stamp).is_err();
        if let Some(lost) = acknowledged.iter().find(is_lost) {
            return Err(format!("commit {lost} was acknowledged and is not there"));
        }

        let count = stamps.len() as u64;
        let rows = all_rows(&db, "row/").await;
        let expected = (count.saturating_sub(KEPT_ROWS) + 1..=count)
            .map(|number| KeyValue::new(&row(number), &[number as u8; 500]));
        if !rows.into_iter().eq(expected) {
            return Err(format!("the rows are not those after commit {count}"));
        }
        let tr = db.begin().unwrap();
        let counted = tr.get(b"count", Isolation::Snapshot).await.unwrap();
        let expected = (count > 0).then(|| Bytes::copy_from_slice(&count.to_le_bytes()));
        if counted != expected {
            return Err(format!("{counted:?} were counted, {count} are there"));
        }
        Ok(stamps)
    })
}
