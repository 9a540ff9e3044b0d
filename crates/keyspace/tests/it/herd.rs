//! Herds of five processes that share a store in a file. Each opens the store, commits, closes or drops it, and opens
//! it again. They are killed, stopped and continued, and asked to end, also all at the same moment, and some herds have
//! a disk that is full at times, or few descriptors. Of each herd,
//!
//! - every acknowledged commit happened once, and no commit whose end was known as a failure did;
//! - all commits are serializable in their order, and none is before one that its task had made and known before;
//! - after the last orderly end, the store's file is the only one in its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use conformance::process::{Herd, acknowledge, misaccounted, role, until_asked_to_end};
use conformance::{HANG, let_pass, scale, stores};
use futures::FutureExt;
use futures::future::{join, join_all};
use keyspace::embedded::{Embedded, Options};
use keyspace::error::chain;
use keyspace::{Database, Error, OwnedTransaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use crate::processes::{COUNTERS, Record, read, unserializable, update};

const PROCESSES: usize = 5;

/// The number of transactions of a process that are under way at once.
const IN_FLIGHT: usize = 4;

/// The number of blows to a herd before its end.
const BLOWS: usize = 12;

/// What a herd lacks at times.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lack {
    Nothing,
    Room,
    Descriptors,
}

/// The size of the disk of a herd that lacks room. A log begins with 4 MiB.
const DISK: &str = "size=48m";

/// Reports what a child of the herd has seen.
fn report(what: &str, rest: impl std::fmt::Display) {
    acknowledge(&format!("{what} {rest}"));
}

/// Does the work of a child until it is asked to end. The role is its name, its seed, what it lacks, and the path of
/// the store.
async fn live(role: &str) {
    let parts: Vec<_> = role.splitn(4, ' ').collect();
    let [name, seed, lack, path] = parts[..] else {
        panic!("a role of {role}");
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let asked = is_over.clone();
    thread::spawn(move || {
        until_asked_to_end();
        asked.store(true, Ordering::Relaxed);
    });
    let mut rng = StdRng::seed_from_u64(seed.parse().unwrap());
    let lacks_descriptors = lack == format!("{:?}", Lack::Descriptors);
    for opening in 0_u64.. {
        let lacks = |rng: &mut StdRng| {
            if lacks_descriptors && rng.random() {
                lack_descriptors(rng);
            }
        };
        lacks(&mut rng);
        match Options::new().with_patience(HANG).open(path) {
            Ok(db) => {
                lacks(&mut rng);
                let name = format!("{name}-{opening}");
                if rng.random_ratio(1, 3) {
                    let after = Duration::from_millis(rng.random_range(0..60));
                    let early = close_early(db.clone(), after);
                    join(work(&db, &name, &mut rng, &is_over), early).await;
                } else {
                    work(&db, &name, &mut rng, &is_over).await;
                    let is_last = is_over.load(Ordering::Relaxed);
                    if is_last || rng.random() {
                        close(&db);
                    }
                }
            }
            Err(error) => {
                report("refused", format!("open: {}", chain(&error)));
                let_pass(Duration::from_millis(rng.random_range(0..20))).await;
            }
        }
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn close(db: &Embedded) {
    if let Err(error) = db.close() {
        report("refused", format!("close: {}", chain(&error)));
    }
}

/// Closes a store while commits are under way.
async fn close_early(db: Embedded, after: Duration) {
    let_pass(after).await;
    spawn_blocking(move || close(&db)).await.unwrap();
}

/// Leaves this process a few descriptors beside those that it has, for a while.
fn lack_descriptors(rng: &mut StdRng) {
    let used = fs::read_dir("/dev/fd").map_or(0, Iterator::count) as u64;
    let spare = rng.random_range(0..12);
    let moment = Duration::from_millis(rng.random_range(0..200));
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(used + spare),
        ..limit
    };
    let many = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, few).unwrap();
    tokio::spawn(async move {
        let_pass(moment).await;
        setrlimit(Resource::Nofile, many).unwrap();
    });
}

/// Commits from several tasks, until the store has failed, the child is asked to end, or it is enough.
async fn work(db: &Embedded, name: &str, rng: &mut StdRng, is_over: &AtomicBool) {
    let tasks = (0..IN_FLIGHT).map(|task| {
        let mut rng = StdRng::seed_from_u64(rng.random());
        async move {
            for number in 0..rng.random_range(1..200) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let name = format!("{name}-{task}-{number}");
                if let Err(error) = attempt(db, &name, &mut rng).await {
                    return report("refused", format!("work: {}", chain(&error)));
                }
            }
        }
    });
    join_all(tasks).await;
}

/// Makes one attempt at a transaction, and reports its end.
///
/// # Errors
/// What has ended the store.
async fn attempt(db: &Embedded, name: &str, rng: &mut StdRng) -> Result<(), Error> {
    let counters = [(); 3].map(|()| rng.random_range(0..COUNTERS));
    let is_dropped = rng.random_range(0..32) == 0;
    let fatal = |error: Error| match error {
        Error::Store(_) => Ok(()),
        error => Err(error),
    };
    let mut tr = match db.begin() {
        Ok(tr) => tr,
        Err(error) => return fatal(error),
    };
    if let Err(error) = update(&tr, name, counters).await {
        return fatal(error);
    }
    let mut commit = Box::pin(tr.commit());
    let end = if is_dropped {
        (&mut commit).now_or_never()
    } else {
        Some(commit.await)
    };
    match end {
        Some(Ok(_)) => report("committed", name),
        Some(Err(error)) => {
            let is_known = !error
                .code()
                .is_some_and(|code| code.leaves_commit_unknown());
            if is_known {
                report("failed", format!("{name} {}", chain(&error)));
            }
            return fatal(error);
        }
        // A commit that no task waits for may happen or not.
        None => {}
    }
    Ok(())
}

/// What the children have seen.
#[derive(Debug, Default)]
struct Ends {
    committed: BTreeSet<String>,
    /// The commits that have failed for certain, with their errors.
    failed: BTreeMap<String, String>,
    /// The errors of openings, of closes and of stores that have failed.
    refused: Vec<String>,
}

impl Ends {
    fn note(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap();
        match what {
            "committed" => {
                self.committed.insert(rest.to_owned());
            }
            "failed" => {
                let (name, error) = rest.split_once(' ').unwrap();
                self.failed.insert(name.to_owned(), error.to_owned());
            }
            "refused" => self.refused.push(rest.to_owned()),
            _ => panic!("a report of {line}"),
        }
    }

    /// Compares what the children have seen with the history of the store, and returns all errors.
    fn wrong(&self, records: &[Record], counters: &BTreeMap<u64, u64>) -> Vec<String> {
        let mut wrong = unserializable(records, counters);
        let mut effects = BTreeMap::new();
        let mut last = BTreeMap::new();
        for Record { name, .. } in records {
            *effects.entry(name.clone()).or_default() += 1;
            let (task, number) = name.rsplit_once('-').unwrap();
            let number: i64 = number.parse().unwrap();
            let before = last.insert(task, number);
            // One whose end is unknown may happen after those that were made later.
            let was_first = self.committed.contains(name);
            if was_first && before.is_some_and(|before| before >= number) {
                wrong.push(format!(
                    "{name} is after {task}-{}",
                    before.unwrap_or_default()
                ));
            }
        }
        let failed = self.failed.iter();
        let happened = failed.filter(|(name, _)| effects.contains_key(*name));
        wrong.extend(happened.map(|(name, error)| format!("{name} happened: {error}")));
        wrong.extend(misaccounted(&self.committed, &effects));
        wrong
    }
}

/// A folder of a store, perhaps on a disk of its own. Dropping it removes it.
struct Place {
    folder: TempDir,
    is_disk: bool,
}

impl Place {
    /// Makes a folder. Returns `None` if that takes a disk, and the system gives none.
    fn new(lack: Lack) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let is_disk = lack == Lack::Room;
        if is_disk {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", DISK, "tmpfs"]);
            let mounted = mount.arg(folder.path()).output();
            if !mounted.is_ok_and(|mounted| mounted.status.success()) {
                return None;
            }
        }
        Some(Self { folder, is_disk })
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// The file that fills the disk.
    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }

    fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        while ballast.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        // A process that is killed leaves what it makes, for the user to remove.
        let mut names: Vec<_> = names
            .filter(|name| !name.starts_with(".keyspace-"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_disk {
            let _ = Command::new("umount").arg(self.folder.path()).status();
        }
    }
}

/// Strikes a herd, and lets it end. Returns what its children have seen.
async fn strike(test: &'static str, seed: u64, lack: Lack, place: &Place) -> Ends {
    let store = place.store();
    let mut names = 0_u64..;
    let role = move |_| {
        let name = names.next().unwrap();
        format!("{name} {} {lack:?} {}", seed << 16 | name, store.display())
    };
    let mut herd = Herd::start(test, PROCESSES, role);
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..BLOWS {
        herd.hear(rng.random_range(1..60));
        let child = rng.random_range(0..PROCESSES);
        let moment = Duration::from_millis(rng.random_range(0..150));
        match rng.random_range(0..6) {
            0 => {
                herd.pause(child);
                let_pass(moment).await;
                herd.resume(child);
            }
            1 if lack == Lack::Room => {
                place.fill();
                let_pass(moment).await;
                if rng.random() {
                    herd.replace(child);
                }
                place.free();
            }
            1 | 2 => herd.restart(child),
            _ => herd.replace(child),
        }
    }
    for left in (3..=PROCESSES).rev() {
        if rng.random() {
            herd.remove(rng.random_range(0..left));
        } else {
            break;
        }
    }
    let mut ends = Ends::default();
    let at_once = rng.random();
    println!("the last ones end at the same moment: {at_once}");
    let reports = herd.finish(at_once);
    reports.iter().for_each(|report| ends.note(report));
    ends
}

/// Plays herds that lack something, one for each seed.
async fn play(test: &'static str, lack: Lack) {
    if let Some(role) = role() {
        return live(&role).await;
    }
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (0..scale(3, 250) as u64).collect(),
    };
    for seed in seeds {
        println!("to repeat: SEED={seed} cargo test -p fdbq-keyspace --test it {test}");
        let Some(place) = Place::new(lack) else {
            return stores::skip(test, "only root can mount a disk to fill");
        };
        let ends = strike(test, seed, lack, &place).await;
        check(&place, lack, &ends).await;
    }
}

async fn check(place: &Place, lack: Lack, ends: &Ends) {
    let left = place.files();
    let db = Options::new().open_existing(place.store()).unwrap();
    let (records, counters) = read(db.clone()).await;
    db.close().unwrap();
    println!(
        "{} commits, {} acknowledged, {} failed, {} refusals",
        records.len(),
        ends.committed.len(),
        ends.failed.len(),
        ends.refused.len()
    );
    assert_eq!(ends.wrong(&records, &counters), [""; 0]);
    ends.refused
        .iter()
        .for_each(|refusal| println!("{refusal}"));
    if lack == Lack::Nothing {
        assert_eq!(ends.refused, [""; 0]);
    }
    // What was refused may have been what would have ended the store: the last owner has left it to a process that then
    // lacked what it needed. The end above did the rest.
    if ends.refused.is_empty() {
        assert_eq!(left, ["store"]);
    }
    assert_eq!(place.files(), ["store"]);
}

#[test]
fn the_account_of_a_herd_finds_each_planted_fault() {
    let record = |number, value, written| Record {
        name: format!("0-0-0-{number}"),
        read: [(0, value), (1, 0)],
        written,
    };
    let history = [record(0, 0, 0), record(1, 1, 0)];
    let counters = BTreeMap::from([(0, 2)]);
    let mut ends = Ends::default();
    ends.note("committed 0-0-0-0");
    ends.note("failed 0-0-0-2 too old");
    assert_eq!(ends.wrong(&history, &counters), [""; 0]);

    let twice = [record(0, 0, 0), record(1, 1, 0), record(0, 2, 0)];
    let wrong = ends.wrong(&twice, &BTreeMap::from([(0, 3)]));
    assert_eq!(
        wrong,
        ["0-0-0-0 is after 0-0-0-1", "0-0-0-0 took effect 2 times"]
    );
    let unread = [record(0, 0, 0), record(1, 0, 1)];
    let wrong = ends.wrong(&unread, &BTreeMap::from([(0, 1), (1, 1)]));
    assert_eq!(wrong, ["0-0-0-1"]);
    ends.note("committed 0-0-0-3");
    ends.note("failed 0-0-0-1 cancelled");
    assert_eq!(
        ends.wrong(&history, &counters),
        [
            "0-0-0-1 happened: cancelled",
            "0-0-0-3 was acknowledged and had no effect"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_is_serializable_and_exact_and_leaves_one_file() {
    const NAME: &str = "herd::a_herd_is_serializable_and_exact_and_leaves_one_file";
    play(NAME, Lack::Nothing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_whose_disk_is_full_at_times_is_serializable_and_exact_and_leaves_one_file() {
    const NAME: &str =
        "herd::a_herd_whose_disk_is_full_at_times_is_serializable_and_exact_and_leaves_one_file";
    play(NAME, Lack::Room).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_that_lacks_descriptors_at_times_is_serializable_and_exact_and_leaves_one_file() {
    const NAME: &str = "herd::a_herd_that_lacks_descriptors_at_times_is_serializable_and_exact_and_leaves_one_file";
    play(NAME, Lack::Descriptors).await;
}
