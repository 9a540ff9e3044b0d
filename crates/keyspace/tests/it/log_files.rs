//! The files of a store that was not closed. Lost, swapped, foreign, newer or damaged files are refused
//! with an error that says what to do, and all files stay unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use keyspace::embedded::{Embedded, Options, Sharing};
use keyspace::{Database, Isolation, OpenError, OwnedTransaction, Transaction};
use xxhash_rust::xxh3::xxh3_64;

/// The offset of the first frame of a segment, in bytes.
const FRAMES: usize = 4096;

fn open(path: &Path) -> Result<Embedded, OpenError> {
    Options::new().with_sharing(Sharing::Refuse).open(path)
}

fn block_on<F: Future>(future: F) -> F::Output {
    // A commit may wait for its turn.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(future)
}

fn set(db: &Embedded, key: &[u8]) {
    let mut tr = db.begin().unwrap();
    tr.set(key, b"value");
    block_on(tr.commit()).unwrap();
}

fn has(db: &Embedded, key: &[u8]) -> bool {
    let tr = db.begin().unwrap();
    let value = block_on(tr.get(key, Isolation::Snapshot)).unwrap();
    value.is_some()
}

/// A folder with a store, as `kill -9` leaves it.
struct Killed {
    folder: tempfile::TempDir,
    /// The store's file before its last opening, when the store was closed.
    closed: Vec<u8>,
}

impl Killed {
    /// Creates a store with the row `closed`, and then `a`, `b` and `c` in its log.
    fn new() -> Self {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("store");
        let db = open(&path).unwrap();
        set(&db, b"closed");
        db.close().unwrap();
        let closed = fs::read(&path).unwrap();
        let db = open(&path).unwrap();
        for key in [b"a", b"b", b"c"] {
            set(&db, key);
        }
        // The copied files are what a killed process leaves.
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files(work.path()) {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        drop(db);
        Self { folder, closed }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn log(&self) -> PathBuf {
        let mut logs = files(self.folder.path()).into_keys();
        let log = logs.find(|name| name.starts_with("store.log."));
        self.folder
            .path()
            .join(log.expect("an open store has a log"))
    }

    /// Changes the bytes of the log.
    fn change_log(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.log()).unwrap();
        change(&mut bytes);
        fs::write(self.log(), bytes).unwrap();
    }

    /// Opens the store, which must fail and change no file.
    fn refused(&self) -> OpenError {
        let before = files(self.folder.path());
        let error = open(&self.path()).unwrap_err();
        assert!(files(self.folder.path()) == before, "a file has changed");
        error
    }

    /// Opens the store, which must have all commits.
    fn opened(&self) -> Vec<&'static str> {
        let db = open(&self.path()).unwrap();
        let keys = ["closed", "a", "b", "c"].into_iter();
        let found = keys.filter(|key| has(&db, key.as_bytes())).collect();
        db.close().unwrap();
        let left = files(self.folder.path());
        assert_eq!(
            left.keys().collect::<Vec<_>>(),
            ["store"],
            "one file is left"
        );
        found
    }
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn a_store_that_was_killed_opens_with_its_log_and_is_one_file_once_closed() {
    assert_eq!(Killed::new().opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn a_store_whose_log_is_missing_is_refused() {
    let killed = Killed::new();
    let log = killed.log();
    let bytes = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let error = killed.refused();
    assert!(matches!(error, OpenError::LogMissing { .. }), "{error:?}");
    fs::write(&log, bytes).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn a_log_whose_store_is_missing_is_refused() {
    let killed = Killed::new();
    let moved = killed.folder.path().join("moved");
    fs::rename(killed.path(), &moved).unwrap();
    let error = killed.refused();
    let is_named = matches!(&error, OpenError::LogWithoutStore { path } if *path == killed.path());
    assert!(is_named, "{error:?}");
    let error = Options::new().open_existing(killed.path()).unwrap_err();
    assert!(
        matches!(error, OpenError::LogWithoutStore { .. }),
        "{error:?}"
    );
    fs::rename(&moved, killed.path()).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn an_older_copy_of_the_store_beside_its_log_is_refused() {
    let killed = Killed::new();
    let newer = fs::read(killed.path()).unwrap();
    fs::write(killed.path(), &killed.closed).unwrap();
    let error = killed.refused();
    assert!(matches!(error, OpenError::LogNewer { .. }), "{error:?}");
    fs::write(killed.path(), newer).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn an_older_copy_opens_once_the_log_is_moved_away() {
    let killed = Killed::new();
    fs::write(killed.path(), &killed.closed).unwrap();
    fs::remove_file(killed.log()).unwrap();
    assert_eq!(killed.opened(), ["closed"]);
}

#[test]
fn the_log_of_another_store_is_refused() {
    let killed = Killed::new();
    let other = Killed::new();
    fs::copy(other.log(), killed.log()).unwrap();
    let error = killed.refused();
    let is_named = matches!(&error, OpenError::LogForeign { path } if *path == killed.log());
    assert!(is_named, "{error:?}");
}

#[test]
fn a_file_of_another_program_with_the_name_of_a_log_is_refused() {
    let killed = Killed::new();
    let foreign = killed.folder.path().join("store.log.00000000000000ff");
    fs::write(&foreign, vec![7; 10_000]).unwrap();
    let error = killed.refused();
    let is_named = matches!(&error, OpenError::LogForeign { path } if *path == foreign);
    assert!(is_named, "{error:?}");
    fs::remove_file(foreign).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn a_log_of_a_newer_format_is_refused() {
    let killed = Killed::new();
    killed.change_log(|bytes| {
        bytes[11] = 9;
        let checksum = xxh3_64(&bytes[..72]);
        bytes[72..80].copy_from_slice(&checksum.to_be_bytes());
    });
    let error = killed.refused();
    let is_named =
        matches!(&error, OpenError::NewerFormat { found: 9, path, .. } if *path == killed.log());
    assert!(is_named, "{error:?}");
}

#[test]
fn a_log_that_is_damaged_where_it_was_flushed_is_refused() {
    let killed = Killed::new();
    // A clock, then `a`, `b` and `c`, one block each, after the segment's begin.
    killed.change_log(|bytes| bytes[FRAMES + 2 * 4096 + 50] ^= 1);
    let error = killed.refused();
    assert!(matches!(error, OpenError::LogDamaged { .. }), "{error:?}");
}

/// Asserts that a damaged log is refused with an error that names it.
fn assert_damaged(killed: &Killed, log: &Path) {
    let error = killed.refused();
    let is_named = matches!(&error, OpenError::LogDamaged { path, .. } if path == log);
    assert!(is_named, "{error:?}");
    assert!(error.to_string().contains("restore a backup"), "{error}");
}

#[test]
fn a_log_that_was_cut_anywhere_is_refused() {
    let killed = Killed::new();
    let log = killed.log();
    let whole = fs::read(killed.log()).unwrap();
    let in_frames = [FRAMES, FRAMES + 1, FRAMES + 4096, FRAMES + 4 * 4096];
    let cuts = [0, 1, 7, 8, 50, 79, 80, 511, 512, 4095].into_iter();
    for len in cuts
        .chain(in_frames)
        .chain([whole.len() / 2, whole.len() - 1])
    {
        fs::write(&log, &whole[..len]).unwrap();
        assert_damaged(&killed, &log);
    }
    fs::write(&log, &whole).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn a_log_that_was_overwritten_is_refused() {
    let killed = Killed::new();
    let log = killed.log();
    let whole = fs::read(killed.log()).unwrap();
    let overwrites: [(std::ops::Range<usize>, u8); 6] = [
        (0..whole.len(), 0),
        (0..FRAMES, 0),
        (0..512, 0),
        (0..FRAMES, 7),
        (FRAMES..whole.len(), 0),
        (FRAMES..FRAMES + 4096, 0),
    ];
    for (range, byte) in overwrites {
        let mut bytes = whole.clone();
        bytes[range].fill(byte);
        fs::write(&log, &bytes).unwrap();
        assert_damaged(&killed, &log);
    }
}

#[test]
fn an_emptied_store_beside_its_log_is_damage() {
    let killed = Killed::new();
    fs::write(killed.path(), b"").unwrap();
    let error = killed.refused();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
}

/// A file of the log that has the name that the next one is to have is refused, and stays.
#[test]
fn a_log_whose_file_was_renamed_loses_nothing() {
    let killed = Killed::new();
    let name = |number| killed.path().with_extension(format!("log.{number:016x}"));
    fs::rename(name(1), name(2)).unwrap();
    let error = killed.refused();
    assert!(matches!(error, OpenError::Open { .. }), "{error:?}");
    fs::rename(name(2), name(1)).unwrap();
    assert_eq!(killed.opened(), ["closed", "a", "b", "c"]);
}

#[test]
fn a_last_commit_that_was_torn_is_left_out() {
    let killed = Killed::new();
    killed.change_log(|bytes| bytes[FRAMES + 4 * 4096 + 50] ^= 1);
    assert_eq!(killed.opened(), ["closed", "a", "b"]);
}

#[test]
fn a_store_opens_by_a_link_with_its_log() {
    let killed = Killed::new();
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(killed.path(), &link).unwrap();
    #[cfg(not(unix))]
    let link = {
        drop(link);
        killed.path()
    };
    let db = open(&link).unwrap();
    assert!(has(&db, b"c"));
}

#[cfg(unix)]
#[test]
fn an_error_names_the_file_of_the_log_that_is_there_and_not_one_beside_the_link() {
    let killed = Killed::new();
    killed.change_log(|bytes| bytes.truncate(4096));
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link");
    std::os::unix::fs::symlink(killed.path(), &link).unwrap();
    let error = open(&link).unwrap_err();
    let OpenError::LogDamaged { path, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(path.is_file(), "{error}");
}

/// Commits values of 100,000 bytes.
fn set_large(db: &Embedded, keys: std::ops::Range<u32>) {
    for number in keys {
        let mut tr = db.begin().unwrap();
        tr.set(&number.to_be_bytes(), &[7; 100_000]);
        block_on(tr.commit()).unwrap();
    }
}

#[test]
fn a_dropped_store_leaves_what_takes_long_to_move_in_its_log() {
    for (count, leaves_log) in [(10, false), (100, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let db = open(&path).unwrap();
        set_large(&db, 0..count);
        drop(db);
        assert_eq!(files(folder.path()).len() > 1, leaves_log);
        let db = open(&path).unwrap();
        assert!((0..count).all(|number| has(&db, &number.to_be_bytes())));
        db.close().unwrap();
        assert!(files(folder.path()).keys().eq(["store"]));
    }
}

/// Without a later frame, zeros look like a part of the log that was not written yet: they are written in pieces of
/// 4 MiB, and the segment records what was flushed before each.
#[test]
fn zeros_up_to_the_end_of_a_log_hide_at_most_4_mib_of_commits() {
    const COMMITS: u32 = 100;
    const PIECE_BYTES: usize = 4 << 20;
    let work = tempfile::tempdir().unwrap();
    let db = open(&work.path().join("store")).unwrap();
    set_large(&db, 0..COMMITS);
    let killed = files(work.path());
    drop(db);
    let log = "store.log.0000000000000001";
    let [mut refused, mut opened] = [0, 0];
    for zeros_from in (FRAMES..killed[log].len()).step_by(PIECE_BYTES / 4) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in &killed {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let mut bytes = killed[log].clone();
        bytes[zeros_from..].fill(0);
        fs::write(folder.path().join(log), bytes).unwrap();
        match open(&folder.path().join("store")) {
            Err(OpenError::LogDamaged { .. }) => refused += 1,
            Err(error) => panic!("{error:?}"),
            Ok(db) => {
                let kept = (0..COMMITS).filter(|number| has(&db, &number.to_be_bytes()));
                let lost = COMMITS as usize - kept.count();
                assert!(
                    lost * 100_000 <= PIECE_BYTES,
                    "{lost} commits from {zeros_from}"
                );
                opened += 1;
            }
        }
    }
    assert!(refused > 0 && opened > 0, "{refused}, {opened}");
}

#[test]
fn a_closed_store_takes_no_more_room_than_its_rows_need() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = open(&path).unwrap();
    set_large(&db, 0..1000);
    let mut tr = db.begin().unwrap();
    tr.clear_range(&1_u32.to_be_bytes(), &999_u32.to_be_bytes());
    block_on(tr.commit()).unwrap();
    db.close().unwrap();
    let bytes = fs::metadata(&path).unwrap().len();
    assert!(bytes <= 64 << 20, "{bytes} bytes for two rows");
    let db = open(&path).unwrap();
    let has = [0, 1, 998, 999].map(|number: u32| has(&db, &number.to_be_bytes()));
    assert_eq!(has, [true, false, false, true]);
}

#[test]
fn openers_that_follow_one_another_at_once_keep_their_logs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let open_and_close = |name: u8| {
        let mut opened = 0;
        while opened < 30 {
            match open(&path) {
                Ok(db) => {
                    assert!(opened == 0 || has(&db, &[name, opened - 1]));
                    set(&db, &[name, opened]);
                    db.close().unwrap();
                    opened += 1;
                }
                Err(OpenError::StoreInUse { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|name| drop(scope.spawn(move || open_and_close(name))));
    });
    let db = open(&path).unwrap();
    assert!((0..30).all(|number| has(&db, &[0, number]) && has(&db, &[1, number])));
}
