//! Stores whose files were damaged. Every outcome is an error that names damage, or rows that are all right, except
//! that the last commits of a damaged log may be missing. A refusal changes no file, and every call ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;

use conformance::{HANG, scale};
use keyspace::embedded::{self, Embedded, Options};
use keyspace::{
    Code, Database, Error, Isolation, OpenError, OwnedTransaction, RangeQuery, Transaction, limits,
    read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The unit of damage, in bytes: a block of a disk, and about a block of the store.
const BLOCK_BYTES: usize = 4096;

/// Where the two manifests are in the file.
const MANIFESTS: [usize; 2] = [0, 1 << 20];

/// The number of rows, of which the last ones are only in the log of a store that was not closed.
const ROWS: u32 = 1000;
const LOGGED_ROWS: u32 = 40;

type Files = BTreeMap<String, Vec<u8>>;

/// Returns a changed copy of files.
fn with<R>(base: &Files, change: impl FnOnce(&mut Files) -> R) -> Files {
    let mut files = base.clone();
    change(&mut files);
    files
}
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(future)
}

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    // These have no content.
    let names =
        names.filter(|name| !["store.apps", "store.lock", "store.socket"].contains(&name.as_str()));
    let content = |name: &String| fs::read(folder.join(name)).unwrap();
    names.map(|name| (name.clone(), content(&name))).collect()
}

fn write_files(folder: &Path, files: &Files) {
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

fn row(number: u32) -> (Vec<u8>, Vec<u8>) {
    let mut rng = StdRng::seed_from_u64(number.into());
    // A few values are longer than a block.
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
        let folder = tempfile::tempdir().unwrap();
        let db = Options::new().open(folder.path().join("store")).unwrap();
        // Not in the order of the keys, so that commits overlap.
        for step in 0..3 {
            commit(&db, (0..ROWS).filter(|number| number % 3 == step));
        }
        db.close().unwrap();
        Self {
            files: files(folder.path()),
            rows: (0..ROWS).map(row).collect(),
        }
    }

    /// Returns a store as `kill -9` leaves it, with one commit for each row that is only in its log.
    fn killed() -> Self {
        Self::closed().and_killed()
    }

    /// Returns the same store after it was opened again and its process was killed.
    fn and_killed(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), &self.files);
        let db = Options::new().open(folder.path().join("store")).unwrap();
        for number in ROWS..ROWS + LOGGED_ROWS {
            commit(&db, number..number + 1);
        }
        Self {
            files: files(folder.path()),
            rows: (0..ROWS + LOGGED_ROWS).map(row).collect(),
        }
    }

    /// Damages one of the files. Returns a description.
    fn damage(&self, rng: &mut StdRng) -> (Kind, Files) {
        let mut files = self.files.clone();
        let index = rng.random_range(0..files.len());
        let bytes = files.values_mut().nth(index).unwrap();
        // Most of the log is not written yet, and most of a manifest's chunk is not used.
        let blocks = bytes.chunks_exact(BLOCK_BYTES).enumerate();
        let used = blocks.filter(|(_, block)| block.iter().any(|&byte| byte != 0));
        let mut blocks: Vec<usize> = used.map(|(number, _)| number * BLOCK_BYTES).collect();
        let len = (blocks.last().unwrap() + 3 * BLOCK_BYTES).min(bytes.len());
        blocks.extend((0..len - BLOCK_BYTES).step_by(BLOCK_BYTES).take(2));
        let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
        let block = blocks[rng.random_range(0..blocks.len())];
        match kind {
            Kind::Exchange => {
                let other = blocks[rng.random_range(0..blocks.len())];
                for at in 0..BLOCK_BYTES {
                    bytes.swap(block + at, other + at);
                }
            }
            Kind::Zero => bytes[block..block + BLOCK_BYTES].fill(0),
            Kind::Overwrite => rng.fill(&mut bytes[block..block + BLOCK_BYTES]),
            Kind::Flip => {
                bytes[block + rng.random_range(0..BLOCK_BYTES)] ^= 1 << rng.random_range(0..8);
            }
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
    /// It was opened without the last commits of its log, and nothing can find that.
    Lost,
}

/// Returns whether an error of an open store names damage.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. }) && error.code() == Some(Code::FILE_CORRUPT)
}

fn is_refusal_of_damage(error: &OpenError, damaged: &Files) -> bool {
    let is_damage = match error {
        OpenError::Damaged { .. } | OpenError::LogDamaged { .. } => true,
        OpenError::NotAStore { .. } => damaged["store"].is_empty(),
        // The older manifest, from when the store was open, is the only valid one.
        OpenError::LogMissing { .. } => damaged.len() == 1,
        _ => false,
    };
    let text = error.to_string();
    is_damage && !text.contains("panic")
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
            assert!(is_refusal_of_damage(&error, damaged), "{error:?}");
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
    let rows = &sound.rows;
    let is_lost = |count: &usize| {
        let left: Rows = (rows.iter().take(rows.len() - count))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        found.iter().all(|rows| *rows == left)
    };
    if (1..=logged).any(|count| is_lost(&count)) {
        assert!(is_lost(&1), "more than the last flushed frame is lost");
        return Outcome::Lost;
    }
    panic!("rows are wrong or missing without an error");
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
    let (sender, cases) = mpsc::channel();
    thread::spawn(move || {
        let mut last = 0;
        loop {
            match cases.recv_timeout(HANG) {
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
    let given = std::env::var("TEST_SEED").map(|seed| seed.parse().expect("TEST_SEED is a number"));
    let seeds = match given {
        Ok(seed) => seed..seed + 1_u64,
        Err(_) => 0..scale(40, 50_000) as u64,
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
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check))
            .unwrap_or_else(|_| panic!("{kind:?}; to repeat: TEST_SEED={seed}"));
        *counts.entry((kind, outcome)).or_insert(0) += 1;
    }
    counts
}

fn total(counts: &BTreeMap<(Kind, Outcome), usize>, of: Outcome) -> usize {
    let of = counts.iter().filter(|((_, outcome), _)| *outcome == of);
    of.map(|(_, count)| count).sum()
}

/// Asserts that every cut was found, and, unless only one case ran, that damage was found early and late.
fn check_counts(counts: &BTreeMap<(Kind, Outcome), usize>) {
    println!("{counts:#?}");
    let mut outcomes = counts.keys();
    assert!(outcomes.all(|(kind, outcome)| *kind != Kind::Cut || *outcome == Outcome::Refused));
    if std::env::var_os("TEST_SEED").is_some() {
        return;
    }
    for outcome in [Outcome::Refused, Outcome::Stopped] {
        assert!(total(counts, outcome) > 0, "{outcome:?}: {counts:?}");
    }
}

#[test]
fn a_damaged_store_is_refused_or_stops_or_all_its_rows_are_right() {
    let counts = damage_again_and_again(&Sound::closed());
    check_counts(&counts);
    assert_eq!(total(&counts, Outcome::Lost), 0);
}

#[test]
fn a_damaged_store_with_a_log_loses_no_more_than_what_no_later_frame_says_was_flushed() {
    let counts = damage_again_and_again(&Sound::killed());
    check_counts(&counts);
}

/// The environment variable that gives a child process the path of its store.
const CHILD: &str = "KEYSPACE_DAMAGED_STORE_CHILD";

/// Prints what each way to use the store says.
fn use_damaged(path: &Path) {
    let said = match Options::new().open(path) {
        Ok(db) => format!("{:?} {:?}", read(&db, &Rows::new()).err(), db.close()),
        Err(error) => error.to_string(),
    };
    eprintln!("said: {said}");
}

#[test]
fn no_panic_of_a_library_is_printed_or_is_part_of_an_error() {
    const NAME: &str = "damaged_store::no_panic_of_a_library_is_printed_or_is_part_of_an_error";
    if let Some(path) = std::env::var_os(CHILD) {
        return use_damaged(Path::new(&path));
    }
    let sound = Sound::closed();
    let whole = &sound.files["store"];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let blocks = whole.chunks_exact(BLOCK_BYTES).enumerate();
    let used = blocks.filter(|(_, block)| block.iter().any(|&byte| byte != 0));
    for (block, _) in used.take(scale(12, usize::MAX)) {
        let mut bytes = whole.clone();
        bytes[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(if block % 2 == 0 { 0 } else { 0xff });
        fs::write(&path, bytes).unwrap();
        let mut child = process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, &path);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "block {block}: {said}");
        let is_clean = ["panicked", "unwrap", "index out of"]
            .iter()
            .all(|text| !said.contains(text));
        assert!(
            is_clean && said.starts_with("said: "),
            "block {block}: {said}"
        );
        for (name, _) in files(folder.path()) {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

/// Every kind of refusal, and the files that it is given.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_refusal_leaves_every_file_as_it_was_and_no_new_one() {
    let closed = Sound::closed();
    let killed = closed.and_killed().files;
    let closed = closed.files;
    let log = killed.keys().find(|name| name.contains(".log.")).unwrap();
    type Expected = fn(&OpenError) -> bool;
    let cases: Vec<(&str, Files, Expected)> = vec![
        (
            "a text",
            with(&Files::new(), |files| {
                files.insert("store".into(), b"text".to_vec());
            }),
            |error| matches!(error, OpenError::NotAStore { .. }),
        ),
        (
            "an empty file",
            with(&Files::new(), |files| {
                files.insert("store".into(), Vec::new());
            }),
            |error| matches!(error, OpenError::NotAStore { .. }),
        ),
        (
            "a store cut in half",
            with(&closed, |files| {
                let store = files.get_mut("store").unwrap();
                store.truncate(store.len() / 2);
            }),
            |error| matches!(error, OpenError::Damaged { .. }),
        ),
        (
            "the head of a store",
            with(&closed, |files| {
                files.get_mut("store").unwrap().truncate(64);
            }),
            |error| matches!(error, OpenError::Damaged { .. }),
        ),
        (
            "a store without its manifests",
            with(&closed, |files| {
                for place in MANIFESTS {
                    files.get_mut("store").unwrap()[place..place + BLOCK_BYTES].fill(0);
                }
            }),
            |error| matches!(error, OpenError::Damaged { .. }),
        ),
        (
            "a killed store without its log",
            with(&killed, |files| files.remove(log)),
            |error| matches!(error, OpenError::LogMissing { .. }),
        ),
        (
            "a log without its store",
            with(&killed, |files| files.remove("store")),
            |error| matches!(error, OpenError::LogWithoutStore { .. }),
        ),
        (
            "an older copy beside its log",
            with(&killed, |files| {
                files.insert("store".into(), closed["store"].clone());
            }),
            |error| matches!(error, OpenError::LogNewer { .. }),
        ),
        (
            "a foreign log",
            with(&killed, |files| {
                files.insert("store.log.00000000000000ff".into(), b"text".to_vec());
            }),
            |error| matches!(error, OpenError::LogForeign { .. }),
        ),
        (
            "a log that was cut",
            with(&killed, |files| {
                files.get_mut(log).unwrap().truncate(BLOCK_BYTES);
            }),
            |error| matches!(error, OpenError::LogDamaged { .. }),
        ),
        (
            "a log without its first frames",
            with(&killed, |files| {
                files.get_mut(log).unwrap()[BLOCK_BYTES..3 * BLOCK_BYTES].fill(0);
            }),
            |error| matches!(error, OpenError::LogDamaged { .. }),
        ),
        ("nothing", Files::new(), |error| {
            matches!(error, OpenError::NoStore { .. })
        }),
    ];
    for (what, given, is_expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        write_files(folder.path(), &given);
        let opened = [
            Options::new().open_existing(&path).err(),
            embedded::verify(&path, |_, _| {}).err(),
        ];
        for error in opened {
            let error = error.unwrap_or_else(|| panic!("{what} was opened"));
            assert!(is_expected(&error), "{what}: {error:?}");
            assert!(files(folder.path()) == given, "{what}: a file has changed");
        }
    }
}

/// Zeroes each block of a store in turn: an opening that is refused, for whichever reason, writes nothing.
#[test]
fn a_block_of_zeros_anywhere_makes_no_opening_write_before_it_refuses() {
    let sound = Sound::closed();
    let store = &sound.files["store"];
    let mut refused = 0;
    for (block, bytes) in store.chunks(BLOCK_BYTES).enumerate() {
        if bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        let mut damaged = sound.files.clone();
        damaged.get_mut("store").unwrap()[block * BLOCK_BYTES..][..bytes.len()].fill(0);
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), &damaged);
        let Err(error) = Options::new().open(folder.path().join("store")) else {
            continue;
        };
        assert!(
            is_refusal_of_damage(&error, &damaged),
            "block {block}: {error:?}"
        );
        assert!(
            files(folder.path()) == damaged,
            "block {block}: a file has changed"
        );
        refused += 1;
    }
    assert!(refused > 0, "{refused}");
}

/// Opens a store with as many descriptors as are left, one more each time.
#[cfg(unix)]
fn open_with_few_descriptors(path: &Path) {
    let folder = path.parent().unwrap();
    let before = files(folder);
    let mut held: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    let mut refused = 0;
    loop {
        match Options::new().open_existing(path) {
            Ok(_) => break,
            Err(error) => {
                assert!(matches!(error, OpenError::Open { .. }), "{error:?}");
                refused += 1;
            }
        }
        // To look at the folder takes descriptors, too.
        let released = held.split_off(held.len() - 4);
        drop(released);
        assert!(files(folder) == before, "a refusal has changed a file");
        let again = (0..3).map_while(|_| fs::File::open("/dev/null").ok());
        held.extend(again);
    }
    assert!(refused > 1, "{refused}");
}

#[cfg(unix)]
#[test]
fn an_opening_with_too_few_descriptors_changes_no_file() {
    const NAME: &str = "damaged_store::an_opening_with_too_few_descriptors_changes_no_file";
    if let Some(path) = std::env::var_os(CHILD) {
        return open_with_few_descriptors(Path::new(&path));
    }
    for sound in [Sound::closed(), Sound::killed()] {
        let folder = tempfile::tempdir().unwrap();
        write_files(folder.path(), &sound.files);
        let mut limited = process::Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
        limited.arg(std::env::current_exe().unwrap());
        limited.args(["--exact", NAME, "--nocapture"]);
        let output = limited
            .env(CHILD, folder.path().join("store"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
