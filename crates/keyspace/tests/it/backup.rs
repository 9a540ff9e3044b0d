//! Copies of open stores.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::let_pass;
use keyspace::embedded::{Durability, Embedded, Options};
use keyspace::{
    Code, Database, Isolation, OpenError, OwnedTransaction, RangeQuery, Transaction, read_all,
};

fn options() -> Options {
    // A small window makes the checkpointer move parts to the runs while rows are copied.
    Options::new().with_window_bytes(64 << 10)
}

async fn commit(db: &Embedded, number: u64) {
    let mut tr = db.begin().unwrap();
    let value = [&number.to_be_bytes()[..], &[7; 1000]].concat();
    tr.set(b"newest", &number.to_be_bytes());
    tr.set(&[b"row/", &number.to_be_bytes()[..]].concat(), &value);
    if let Some(old) = number.checked_sub(100) {
        tr.clear(&[b"row/", &old.to_be_bytes()[..]].concat());
    }
    tr.commit().await.unwrap();
}

/// Returns the number of the newest commit, after checking that the store holds the state of that commit.
async fn check(db: &Embedded) -> u64 {
    let tr = db.begin().unwrap();
    let newest = tr
        .get(b"newest", Isolation::Snapshot)
        .await
        .unwrap()
        .map_or(0, |newest| {
            u64::from_be_bytes(newest[..].try_into().unwrap())
        });
    let rows = read_all(&tr, RangeQuery::keys("row/", "row0"), Isolation::Snapshot);
    let found = rows.await.unwrap().into_iter().map(|row| {
        assert_eq!(row.key()[4..], row.value()[..8]);
        u64::from_be_bytes(row.value()[..8].try_into().unwrap())
    });
    let expected = newest.saturating_sub(99)..=newest;
    assert!(found.eq(expected), "not the state after commit {newest}");
    newest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_the_store_at_one_version_while_commits_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let db = options().open(folder.path().join("store")).unwrap();
    commit(&db, 0).await;
    let is_done = AtomicBool::new(false);
    let commits = async {
        let mut number = 0;
        while !is_done.load(Ordering::Relaxed) {
            number += 1;
            commit(&db, number).await;
        }
        number
    };
    let copies = async {
        let mut found = Vec::new();
        for copy in 0..10 {
            let source = db.clone();
            let path = folder.path().join(copy.to_string());
            let target = path.clone();
            let copied = tokio::task::spawn_blocking(move || source.backup(target));
            copied.await.unwrap().unwrap();
            let copy = options().open_existing(&path).unwrap();
            found.push(check(&copy).await);
            // The copy is a store like any other.
            commit(&copy, found.last().unwrap() + 1).await;
            check(&copy).await;
        }
        is_done.store(true, Ordering::Relaxed);
        found
    };
    let (number, found) = futures::join!(commits, copies);
    assert!(found.is_sorted() && found[0] < found[9], "{found:?}");
    assert_eq!(check(&db).await, number);
}

#[tokio::test]
async fn a_copy_that_meets_the_close_of_its_store_is_whole_or_fails() {
    const NEWEST: u64 = 1_000;
    let mut copied = 0;
    for round in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let interval = Duration::from_secs(1);
        let relaxed = options().with_durability(Durability::Relaxed { interval });
        let db = relaxed.open(&path).unwrap();
        for number in 0..=NEWEST {
            commit(&db, number).await;
        }
        let source = db.clone();
        let target = folder.path().join("copy");
        let copy = std::thread::spawn(move || source.backup(target));
        let wait = Duration::from_micros(200 * round);
        let_pass(wait).await;
        db.close().unwrap();
        match copy.join().unwrap() {
            Ok(()) => {
                let copy = options().open_existing(folder.path().join("copy")).unwrap();
                assert_eq!(check(&copy).await, NEWEST);
                copied += 1;
            }
            // It is closed, and not damaged.
            Err(OpenError::Store(error)) => {
                assert_eq!(error.code(), Some(Code::TRANSACTION_CANCELLED), "{error:?}");
            }
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(check(&options().open_existing(path).unwrap()).await, NEWEST);
    }
    println!("{copied} copies were made");
}

#[tokio::test]
async fn a_copy_of_a_store_in_memory_is_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let db = options().memory().unwrap();
    for number in 0..300 {
        commit(&db, number).await;
    }
    db.backup(folder.path().join("copy")).unwrap();
    let copy = options().open(folder.path().join("copy")).unwrap();
    assert_eq!(check(&copy).await, 299);
}

#[tokio::test]
async fn a_copy_takes_the_place_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let db = options().memory().unwrap();
    let taken = folder.path().join("taken");
    fs::write(&taken, "a text").unwrap();
    let refused = db.backup(&taken).unwrap_err();
    assert!(matches!(&refused, OpenError::Open { path, .. } if *path == taken));
    assert_eq!(fs::read(&taken).unwrap(), b"a text");

    let log = folder.path().join("other.log.0000000000000001");
    fs::write(&log, "a log").unwrap();
    let refused = db.backup(folder.path().join("other")).unwrap_err();
    assert!(matches!(refused, OpenError::LogWithoutStore { .. }));

    // Not "the log of a store that is missing": its log must not be removed.
    let store = folder.path().join("store");
    let open = options().open(&store).unwrap();
    for source in [&db, &open] {
        let refused = source.backup(&store).unwrap_err();
        let OpenError::Open { cause, .. } = &refused else {
            panic!("{refused:?}");
        };
        assert!(cause.to_string().contains("exists"), "{cause}");
    }
    open.close().unwrap();
    fs::remove_file(&store).unwrap();

    let nowhere = db.backup(folder.path().join("no/folder")).unwrap_err();
    assert!(nowhere.to_string().contains("no/folder"), "{nowhere}");

    db.close().unwrap();
    let closed = db.backup(folder.path().join("late")).unwrap_err();
    assert!(matches!(closed, OpenError::Store(_)), "{closed:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
