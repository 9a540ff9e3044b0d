//! Stores whose files were damaged. Every outcome is an error that names damage, or rows that are all right.
//! What the file has no checksums for, and what is therefore read wrongly without an error, is counted, and
//! found by a check and by a copy. A refusal changes no file, and nothing takes for ever.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use conformance::scale;
use keyspace::embedded::{self, Embedded, Options};
use keyspace::{
    Code, Database, Error, Isolation, OpenError, OwnedTransaction, RangeQuery, Transaction, limits,
    read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The unit of damage, in bytes: a block of a disk, and a page of the store.
const BLOCK_BYTES: usize = 4096;

/// The number of rows, of which the last ones are only in the log of a store that was not closed.
const ROWS: u32 = 1000;
const LOGGED_ROWS: u32 = 40;

type Files = BTreeMap<String, Vec<u8>>;
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(future)
}

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap();
    let files = entries.map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    files.collect()
}

fn write_files(folder: &Path, files: &Files) {
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

fn row(number: u32) -> (Vec<u8>, Vec<u8>) {
    let mut rng = StdRng::seed_from_u64(number.into());
    // A few values take several pages.
    let value_bytes = if number.is_multiple_of(100) {
        9_000
    } else {
        rng.random_range(0..200)
    };
    let value = (0..value_bytes).map(|_| rng.random()).collect();
    (number.to_be_bytes().to_vec(), value)
}

fn commit(db: &Embedded, numbers: impl Iterator<Item = u32>) {
    let mut tr = db.begin().unwrap();
    for (key, value) in numbers.map(row) {
        tr.set(&key, &value);
    }
    block_on(tr.commit()).unwrap();
}

/// A store, and what it must hold.
struct Sound {
    files: Files,
    rows: Rows,
}

impl Sound {
    /// Returns a closed store.
    fn closed() -> Self {
        Self::new(|_, _| {})
    }

    /// Returns a store as `kill -9` leaves it, with one commit for each row that is only in its log.
    fn killed() -> Self {
        Self::new(|path, files| {
            let db = Options::new().open(path).unwrap();
            for number in ROWS..ROWS + LOGGED_ROWS {
                commit(&db, number..number + 1);
            }
            *files = self::files(path.parent().unwrap());
        })
    }

    fn new(reopen: impl FnOnce(&Path, &mut Files)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let db = Options::new().open(&path).unwrap();
        // In the order of another hash, so that pages have gaps.
        for step in 0..3 {
            commit(&db, (0..ROWS).filter(|number| number % 3 == step));
        }
        db.close().unwrap();
        let mut files = self::files(folder.path());
        reopen(&path, &mut files);
        let last = if files.len() > 1 {
            ROWS + LOGGED_ROWS
        } else {
            ROWS
        };
        Self {
            files,
            rows: (0..last).map(row).collect(),
        }
    }

    /// Damages one of the files. Returns a description.
    fn damage(&self, rng: &mut StdRng) -> (Kind, Files) {
        let mut files = self.files.clone();
        let index = rng.random_range(0..files.len());
        let bytes = files.values_mut().nth(index).unwrap();
        // Most of the log is not written yet.
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0);
        let len = (used + 2 * BLOCK_BYTES).min(bytes.len());
        let blocks = len / BLOCK_BYTES;
        let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
        let block = rng.random_range(0..blocks) * BLOCK_BYTES;
        match kind {
            Kind::Exchange => {
                let other = rng.random_range(0..blocks) * BLOCK_BYTES;
                for at in 0..BLOCK_BYTES {
                    bytes.swap(block + at, other + at);
                }
            }
            Kind::Zero => bytes[block..block + BLOCK_BYTES].fill(0),
            Kind::Overwrite => rng.fill(&mut bytes[block..block + BLOCK_BYTES]),
            Kind::Flip => bytes[rng.random_range(0..len)] ^= 1 << rng.random_range(0..8),
            Kind::Cut => bytes.truncate(rng.random_range(0..len)),
        }
        (kind, files)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exchange,
    Zero,
    Overwrite,
    Flip,
    Cut,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Exchange,
        Self::Zero,
        Self::Overwrite,
        Self::Flip,
        Self::Cut,
    ];
}

/// What became of a damaged store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It was not opened.
    Refused,
    /// It was opened, and stopped when it found the damage.
    Stopped,
    /// The damage is in bytes that are not used.
    Right,
    /// It was opened, and rows were wrong or missing without an error. A check has found that.
    Wrong,
    /// It was opened without the last commits of its log, and nothing can find that.
    Lost,
}

/// Returns whether an error of an open store names damage.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. }) && error.code() == Some(Code::FILE_CORRUPT)
}

fn is_refusal_of_damage(error: &OpenError, sound: &Sound) -> bool {
    let is_damage = match error {
        OpenError::Damaged { .. } | OpenError::LogDamaged { .. } => true,
        // A file of no bytes is nobody's.
        OpenError::NotAStore { .. } => sound.files.len() == 1,
        _ => false,
    };
    let text = error.to_string();
    is_damage && !text.contains("redb") && !text.contains("panic")
}

/// Reads all rows in both directions, and each row alone.
fn read(db: &Embedded, keys: &Rows) -> Result<[Rows; 3], Error> {
    let tr = db.begin()?;
    block_on(async {
        let all = RangeQuery::keys(&b""[..], limits::END_OF_KEYSPACE);
        let mut found = [Rows::new(), Rows::new(), Rows::new()];
        for (query, rows) in [all.clone(), all.reversed()].into_iter().zip(&mut found) {
            let read = read_all(&tr, query, Isolation::Snapshot).await?;
            rows.extend(
                read.into_iter()
                    .map(|row| (row.key().to_vec(), row.value().to_vec())),
            );
        }
        for key in keys.keys() {
            if let Some(value) = tr.get(key, Isolation::Snapshot).await? {
                found[2].insert(key.clone(), value.to_vec());
            }
        }
        Ok(found)
    })
}

/// Opens and reads damaged files, and checks the outcome.
fn outcome(sound: &Sound, damaged: &Files) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    write_files(folder.path(), damaged);
    let verified = embedded::verify(&path, |_, _| {});
    assert!(
        files(folder.path()) == *damaged,
        "the check has changed a file"
    );
    let db = match Options::new().open(&path) {
        Ok(db) => db,
        Err(error) => {
            assert!(is_refusal_of_damage(&error, sound), "{error:?}");
            assert!(
                files(folder.path()) == *damaged,
                "the refusal has changed a file"
            );
            assert!(
                verified.is_err(),
                "refused, and the check found nothing: {error:?}"
            );
            return Outcome::Refused;
        }
    };
    let found = match read(&db, &sound.rows) {
        Ok(found) => found,
        Err(error) => {
            assert!(is_damage(&error), "{error:?}");
            assert!(
                verified.is_err(),
                "stopped, and the check found nothing: {error:?}"
            );
            return Outcome::Stopped;
        }
    };
    let copied = copy(&db, folder.path());
    if found.iter().all(|rows| *rows == sound.rows) {
        if let Ok(rows) = copied {
            assert!(rows == sound.rows, "the copy differs");
        }
        return Outcome::Right;
    }
    let logged = sound.rows.len() - ROWS as usize;
    let is_lost = |count: &usize| {
        let left = sound.rows.iter().take(sound.rows.len() - count);
        let left: Rows = left
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        found.iter().all(|rows| *rows == left)
    };
    if (1..=logged).any(|count| is_lost(&count)) {
        assert!(is_lost(&1), "more than the last flushed frame is lost");
        return Outcome::Lost;
    }
    assert!(
        verified.is_err(),
        "rows are wrong, and the check found nothing"
    );
    let error = copied.expect_err("rows are wrong, and the copy was made");
    assert!(
        matches!(&error, OpenError::Store(error) if is_damage(error)),
        "{error:?}"
    );
    Outcome::Wrong
}

/// Copies a store, and returns the rows of the copy. A copy that fails must leave nothing.
fn copy(db: &Embedded, folder: &Path) -> Result<Rows, OpenError> {
    let path = folder.join("copy");
    let names = || files(folder).into_keys().collect::<Vec<_>>();
    let before = names();
    if let Err(error) = db.backup(&path) {
        assert_eq!(names(), before, "a file was left");
        return Err(error);
    }
    let copy = Options::new().open_existing(&path)?;
    let [rows, ..] = read(&copy, &Rows::new())?;
    Ok(rows)
}

/// Aborts the process if a case takes so long that it will probably never end.
fn watch() -> Sender<u64> {
    const LIMIT: Duration = Duration::from_secs(120);
    let (sender, cases) = mpsc::channel();
    thread::spawn(move || {
        let mut last = 0;
        loop {
            match cases.recv_timeout(LIMIT) {
                Ok(seed) => last = seed,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("it does not end; to repeat: TEST_SEED={last}");
                    process::abort();
                }
            }
        }
    });
    sender
}

/// Damages a store again and again. Returns the number of cases for each kind of damage and outcome.
fn damage_again_and_again(sound: &Sound) -> BTreeMap<(Kind, Outcome), usize> {
    let one = std::env::var("TEST_SEED").ok();
    let one: Option<u64> = one.map(|seed| seed.parse().expect("TEST_SEED is a number"));
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..scale(40, 5_000) as u64,
    };
    let watchdog = watch();
    let mut counts = BTreeMap::new();
    for seed in seeds {
        watchdog.send(seed).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let (kind, damaged) = sound.damage(&mut rng);
        if damaged == sound.files {
            continue;
        }
        let check = || outcome(sound, &damaged);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        let outcome = outcome.unwrap_or_else(|_| panic!("{kind:?}; to repeat: TEST_SEED={seed}"));
        *counts.entry((kind, outcome)).or_insert(0) += 1;
    }
    counts
}

fn total(counts: &BTreeMap<(Kind, Outcome), usize>, of: Outcome) -> usize {
    let of = counts.iter().filter(|((_, outcome), _)| *outcome == of);
    of.map(|(_, count)| count).sum()
}

#[test]
fn a_damaged_store_is_refused_or_stops_or_a_check_finds_what_is_wrong() {
    let counts = damage_again_and_again(&Sound::closed());
    println!("closed: {counts:#?}");
    assert_eq!(total(&counts, Outcome::Lost), 0);
    // A cut is always found.
    assert!(
        counts
            .keys()
            .all(|(kind, outcome)| *kind != Kind::Cut || *outcome == Outcome::Refused)
    );
}

#[test]
fn a_damaged_store_with_a_log_loses_no_more_than_what_no_later_frame_says_was_flushed() {
    let counts = damage_again_and_again(&Sound::killed());
    println!("killed: {counts:#?}");
    assert!(
        counts
            .keys()
            .all(|(kind, outcome)| *kind != Kind::Cut || *outcome == Outcome::Refused)
    );
}
