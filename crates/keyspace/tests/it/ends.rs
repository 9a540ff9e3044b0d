//! Processes that close a store at the same moment, or while a commit waits.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use keyspace::embedded::{Embedded, Options, Sharing};
use keyspace::{Code, Database, Isolation, OwnedTransaction, Transaction};
use tempfile::TempDir;

/// Only a hang takes as long.
const LIMIT: Duration = conformance::HANG;

fn open(path: &Path, sharing: Sharing) -> Embedded {
    let options = Options::new().with_patience(LIMIT).with_sharing(sharing);
    options.open(path).unwrap()
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    (folder, store)
}

/// All files in the folder of a store.
fn files(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn processes_that_close_at_the_same_moment_leave_one_file() {
    use Sharing::{ClientOnly, Share, Yield};
    let groups = [
        [Share, Share, Share, Share],
        [Share, ClientOnly, ClientOnly, Share],
        [Share, Yield, ClientOnly, Yield],
        [Yield, Yield, Yield, Yield],
    ];
    for round in 0..conformance::scale(40, 2_000) {
        let (folder, path) = folder();
        let group = groups[round % groups.len()];
        let begin = Barrier::new(group.len());
        let handles = group.map(|sharing| open(&path, sharing));
        thread::scope(|scope| {
            for handle in handles {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    if round % 3 > 0 {
                        handle.close().unwrap();
                    }
                    drop(handle);
                });
            }
        });
        assert_eq!(files(&folder), ["store"], "{round} {group:?}");
    }
}

#[test]
fn a_handle_that_is_only_a_client_ends_the_store_if_it_is_the_last() {
    let (folder, path) = folder();
    let owner = open(&path, Sharing::Share);
    let client = open(&path, Sharing::ClientOnly);
    owner.close().unwrap();
    client.close().unwrap();
    assert_eq!(files(&folder), ["store"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_while_its_client_closes_has_a_known_end_or_none() {
    for _ in 0..conformance::scale(40, 1_000) {
        let (_folder, path) = folder();
        let owner = open(&path, Sharing::Share);
        let client = open(&path, Sharing::ClientOnly);
        owner.close().unwrap();
        let commit = tokio::spawn({
            let client = client.clone();
            async move {
                let mut tr = client.begin()?;
                tr.set(b"a", b"1");
                tr.commit().await
            }
        });
        let closing = tokio::task::spawn_blocking(move || client.close());
        let next = open(&path, Sharing::Share);
        closing.await.unwrap().unwrap();
        let outcome = commit.await.unwrap();
        let tr = next.begin().unwrap();
        let value = tr.get(b"a", Isolation::Snapshot).await.unwrap();
        match outcome {
            Ok(_) => assert!(value.is_some()),
            Err(error) if error.code() == Some(Code::COMMIT_UNKNOWN_RESULT) => {}
            Err(error) => assert_eq!(value, None, "{error}"),
        }
    }
}
