//! What an opening needs, what it refuses, and what a refused one leaves: nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use keyspace::embedded::{self, Durability, Embedded, Options, Sharing};
use keyspace::{Code, Database, Isolation, OpenError, OwnedTransaction, Transaction};
use tempfile::TempDir;

/// Only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(300);

fn patient() -> Options {
    Options::new().with_patience(LIMIT)
}

/// What is to be refused does not wait.
fn share() -> Options {
    Options::new().with_patience(Duration::ZERO)
}

fn only_client() -> Options {
    share().with_sharing(Sharing::ClientOnly)
}

fn alone() -> Options {
    Options::new().with_sharing(Sharing::Refuse)
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().build().unwrap().block_on(future)
}

/// Commits a row. The owner may end meanwhile.
fn set(db: &Embedded, key: &str) {
    let set = || {
        let mut tr = db.begin()?;
        tr.set(key.as_bytes(), b"1");
        block_on(tr.commit()).map(drop)
    };
    while let Err(error) = set() {
        assert!(error.code().is_some_and(Code::is_retryable), "{error:?}");
    }
}

fn has(db: &Embedded, key: &str) -> bool {
    let tr = db.begin().unwrap();
    let value = block_on(tr.get(key.as_bytes(), Isolation::Snapshot)).unwrap();
    value.is_some()
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    (folder, store)
}

/// What is in a folder: the bytes of files, unless a process has them open, and the type of others.
fn content(folder: &Path, is_open: bool) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let content = entries.map(|entry| {
        let kind = entry.file_type().unwrap();
        let bytes = if kind.is_file() && is_open {
            Vec::new()
        } else if kind.is_file() {
            fs::read(entry.path()).unwrap()
        } else {
            format!("{kind:?}").into_bytes()
        };
        (entry.file_name().into_string().unwrap(), bytes)
    });
    content.collect()
}

/// Makes a store with one row, and closes it.
fn make(path: &Path) {
    let db = alone().open(path).unwrap();
    set(&db, "a");
    db.close().unwrap();
}

#[test]
fn openings_of_a_new_store_at_the_same_time_all_succeed() {
    const THREADS: usize = 8;
    for round in 0..conformance::scale(20, 2_000) {
        let (_folder, path) = folder();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let path = &path;
                scope.spawn(move || {
                    let db = patient().open(path);
                    let db = db.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
                    set(&db, &thread.to_string());
                    if thread % 2 == 0 {
                        db.close().unwrap();
                    }
                });
            }
        });
        let db = patient().open(&path).unwrap();
        assert!((0..THREADS).all(|thread| has(&db, &thread.to_string())));
    }
}

/// What prepares the files at a path. What it returns lives until the opening was refused.
type Prepare = fn(&Path) -> Option<Embedded>;
type Open = fn(&Path) -> Option<OpenError>;
type Expected = fn(&OpenError) -> bool;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_refused_opening_leaves_each_file_and_no_new_one() {
    const LOG: &str = "store.log.0000000000000001";
    let nothing: Prepare = |_| None;
    let closed: Prepare = |path| {
        make(path);
        None
    };
    let owned: Prepare = |path| Some(patient().open(path).unwrap());
    let owned_alone: Prepare = |path| Some(alone().open(path).unwrap());
    let linked: Prepare = |path| {
        let other = path.with_file_name("other");
        let owner = patient().open(&other).unwrap();
        fs::hard_link(other, path).unwrap();
        Some(owner)
    };
    let another_durability: Open = |path| {
        let relaxed = Durability::Relaxed {
            interval: Duration::from_millis(5),
        };
        share().with_durability(relaxed).open(path).err()
    };
    let in_use: Expected = |error| matches!(error, OpenError::StoreInUse { .. });
    let no_owner: Expected = |error| matches!(error, OpenError::NoOwner { .. });
    let is_taken: Expected = |error| matches!(error, OpenError::NameTaken { .. });
    let not_a_store: Expected = |error| matches!(error, OpenError::NotAStore { .. });
    let as_share: Open = |path| share().open(path).err();
    let as_alone: Open = |path| alone().open(path).err();
    let as_client: Open = |path| only_client().open(path).err();
    let as_existing: Open = |path| share().open_existing(path).err();
    let as_check: Open = |path| embedded::verify(path, |_, _| ()).err();
    let cases: Vec<(&str, Prepare, Open, Expected)> = vec![
        ("a client of no store", nothing, as_client, no_owner),
        ("a client of a closed store", closed, as_client, no_owner),
        ("a client by a second name", linked, as_client, no_owner),
        ("a second name", linked, as_share, in_use),
        ("a second name, alone", linked, as_alone, in_use),
        (
            "an owner that does not share",
            owned_alone,
            as_share,
            in_use,
        ),
        ("alone beside an owner", owned, as_alone, in_use),
        ("another durability", owned, another_durability, in_use),
        ("no store", nothing, as_existing, |error| {
            matches!(error, OpenError::NoStore { .. })
        }),
        ("a check of no store", nothing, as_check, |error| {
            matches!(error, OpenError::NoStore { .. })
        }),
        ("a check of an open store", owned, as_check, in_use),
        (
            "a text",
            |path| {
                fs::write(path, "text").unwrap();
                None
            },
            as_share,
            not_a_store,
        ),
        (
            "a folder",
            |path| {
                fs::create_dir(path).unwrap();
                None
            },
            as_share,
            not_a_store,
        ),
        (
            "a file for the lock",
            |path| {
                fs::write(path.with_extension("lock"), "mine").unwrap();
                make(&path.with_file_name("other"));
                fs::rename(path.with_file_name("other"), path).unwrap();
                None
            },
            as_share,
            is_taken,
        ),
        (
            "a file for the lock of a new store",
            |path| {
                fs::write(path.with_extension("lock"), "mine").unwrap();
                None
            },
            as_share,
            is_taken,
        ),
        (
            "a file for the lock of applications",
            |path| {
                fs::write(path.with_extension("apps"), "mine").unwrap();
                make(&path.with_file_name("other"));
                fs::rename(path.with_file_name("other"), path).unwrap();
                None
            },
            as_share,
            is_taken,
        ),
        (
            "a file for the lock of applications, which a client finds",
            |path| {
                fs::write(path.with_extension("apps"), "mine").unwrap();
                make(&path.with_file_name("other"));
                fs::rename(path.with_file_name("other"), path).unwrap();
                None
            },
            as_client,
            no_owner,
        ),
        (
            "a folder for the lock",
            |path| {
                fs::create_dir(path.with_extension("lock")).unwrap();
                None
            },
            as_alone,
            is_taken,
        ),
        (
            "a link for the lock",
            |path| {
                fs::write(path.with_file_name("empty"), "").unwrap();
                symlink("empty", path.with_extension("lock")).unwrap();
                None
            },
            as_alone,
            is_taken,
        ),
        (
            "a file for the socket",
            |path| {
                fs::write(path.with_extension("socket"), "mine").unwrap();
                None
            },
            as_share,
            is_taken,
        ),
        (
            "an empty file for the socket",
            |path| {
                fs::write(path.with_extension("socket"), "").unwrap();
                None
            },
            as_alone,
            is_taken,
        ),
        (
            "a link for the socket",
            |path| {
                symlink("nowhere", path.with_extension("socket")).unwrap();
                None
            },
            as_share,
            is_taken,
        ),
        (
            "a folder for the log",
            |path| {
                make(path);
                fs::create_dir(path.with_file_name(LOG)).unwrap();
                None
            },
            as_share,
            |error| matches!(error, OpenError::LogForeign { .. }),
        ),
        (
            "a link for the log",
            |path| {
                make(path);
                fs::write(path.with_file_name("mine"), "").unwrap();
                symlink("mine", path.with_file_name(LOG)).unwrap();
                None
            },
            as_share,
            |error| matches!(error, OpenError::LogForeign { .. }),
        ),
        (
            "zeros beside a log",
            |path| {
                let db = alone().open(path).unwrap();
                set(&db, "a");
                let log = fs::read(path.with_file_name(LOG)).unwrap();
                db.close().unwrap();
                fs::write(path.with_file_name(LOG), log).unwrap();
                fs::write(path, [0; 100_000]).unwrap();
                None
            },
            as_share,
            |error| {
                let expected = "it is not a store, and the log of one is beside it";
                matches!(error, OpenError::Damaged { reason, .. } if reason == expected)
            },
        ),
    ];
    for (what, prepare, open, is_expected) in cases {
        let (folder, path) = folder();
        let owner = prepare(&path);
        let before = content(folder.path(), owner.is_some());
        let error = open(&path).unwrap_or_else(|| panic!("{what} was opened"));
        assert!(is_expected(&error), "{what}: {error:?}");
        let after = content(folder.path(), owner.is_some());
        assert!(
            before == after,
            "{what}: {:?}, {:?}",
            before.keys(),
            after.keys()
        );
        drop(owner);
    }
}

#[test]
fn what_is_put_in_the_place_of_a_socket_and_a_lock_later_stays_there() {
    let (folder, path) = folder();
    let db = patient().open(&path).unwrap();
    for name in ["store.socket", "store.lock", "store.apps"] {
        fs::remove_file(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name), "mine").unwrap();
    }
    db.close().unwrap();
    let after = content(folder.path(), false);
    assert_eq!(after.len(), 4);
    assert_eq!(after["store.socket"], b"mine");
    assert_eq!(after["store.lock"], b"mine");
    assert_eq!(after["store.apps"], b"mine");
    for name in ["store.socket", "store.lock", "store.apps"] {
        let error = patient().open(&path).unwrap_err();
        assert!(matches!(error, OpenError::NameTaken { .. }), "{error:?}");
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    patient().open(&path).unwrap();
}

#[test]
fn a_store_with_a_folder_in_the_place_of_its_socket_is_not_shared() {
    let (folder, path) = folder();
    let socket = folder.path().join("store.socket");
    fs::create_dir(&socket).unwrap();
    let db = patient().open(&path).unwrap();
    set(&db, "a");
    db.close().unwrap();
    assert!(socket.is_dir());
    assert_eq!(content(folder.path(), false).len(), 2);
}

/// Gives the socket of a store another path.
type Place = fn(&Path, &Path) -> io::Result<()>;

#[test]
fn a_socket_in_the_place_of_another_stores_socket_lets_no_one_into_the_wrong_store() {
    let ways: [Place; 2] = [
        |socket, other| symlink(socket, other),
        |socket, other| fs::hard_link(socket, other),
    ];
    for place in ways {
        for is_copy in [false, true] {
            let (folder, one) = folder();
            let other = folder.path().join("other");
            let owner = patient().open(&one).unwrap();
            set(&owner, "one");
            if is_copy {
                // It has the same id.
                owner.backup(&other).unwrap();
            } else {
                make(&other);
            }
            let holder = alone().open(&other).unwrap();
            let [socket, wrong] = [&one, &other].map(|path| path.with_extension("socket"));
            place(&socket, &wrong).unwrap();
            let expected = [
                "the owner at its socket has another file open",
                "has the name of a file of the store, and is none",
            ];
            for sharing in [Sharing::ClientOnly, Sharing::Share] {
                let options = Options::new().with_patience(Duration::from_secs(1));
                let options = options.with_sharing(sharing);
                // The owner may not have answered in time.
                let is_refused = || {
                    let text = options.open(&other).unwrap_err().to_string();
                    expected.iter().any(|expected| text.contains(expected))
                };
                while !is_refused() {}
            }
            let client = patient().with_sharing(Sharing::ClientOnly);
            assert!(has(&client.open(&one).unwrap(), "one"));
            drop(holder);
        }
    }
}

#[test]
fn stores_with_long_names_and_paths_are_shared() {
    let (folder, _) = folder();
    let deep = folder.path().join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    for folder in [folder.path(), &deep] {
        for len in [83, 84, 93, 100, 200, 234] {
            let path = folder.join("n".repeat(len));
            let owner = patient().open(&path).unwrap();
            let client = patient().open(&path).unwrap();
            set(&client, "a");
            owner.close().unwrap();
            assert!(has(&client, "a"), "{len}");
            client.close().unwrap();
            fs::remove_file(&path).unwrap();
            assert!(
                fs::read_dir(folder)
                    .unwrap()
                    .all(|entry| entry.unwrap().path().is_dir())
            );
        }
    }
}

#[test]
fn a_name_that_is_too_long_for_the_log_is_refused_and_nothing_is_made() {
    let (folder, _) = folder();
    for len in [235, 248, 255, 256, 300] {
        let path = folder.path().join("n".repeat(len));
        for options in [share(), alone()] {
            let error = options.open(&path).unwrap_err();
            assert!(matches!(error, OpenError::Open { .. }), "{error:?}");
            let text = keyspace::error::chain(&error).to_string();
            assert!(text.contains("name") && text.contains("too long"), "{text}");
            assert_eq!(content(folder.path(), false).len(), 0);
        }
    }
}

#[test]
fn a_socket_that_is_left_over_is_replaced() {
    let (folder, path) = folder();
    let socket = folder.path().join("store.socket");
    drop(UnixListener::bind(&socket).unwrap());
    let owner = patient().open(&path).unwrap();
    assert!(
        fs::symlink_metadata(&socket)
            .unwrap()
            .file_type()
            .is_socket()
    );
    set(&patient().open(&path).unwrap(), "a");
    assert!(has(&owner, "a"));
}
