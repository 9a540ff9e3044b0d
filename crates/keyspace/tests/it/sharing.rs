//! One store in several processes.

use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use conformance::{stores, timeout, until};
use keyspace::embedded::{Durability, Embedded, Options, Role, Sharing};
use keyspace::{
    Bytes, Code, Database, Environment, Error, Isolation, OpenError, OwnedTransaction, RangeQuery,
    Result, Transaction,
};
use tempfile::TempDir;

const LIMIT: Duration = conformance::HANG;

const CANCELLED: Code = Code::TRANSACTION_CANCELLED;

/// What is to be refused does not wait for long.
fn share() -> Options {
    Options::new().with_patience(Duration::from_millis(500))
}

/// Panics if openings are not refused with this reason. An owner that is slow on a busy machine may not answer all of
/// them in time.
#[track_caller]
fn assert_refused(options: &Options, path: &Path, expected: &str) {
    let mut reason = String::new();
    for _ in 0..100 {
        reason = options.open(path).unwrap_err().to_string();
        if reason.contains(expected) {
            return;
        }
    }
    panic!("{reason}");
}

fn open(path: &Path) -> Embedded {
    Options::new().with_patience(LIMIT).open(path).unwrap()
}

async fn set(db: &Embedded, key: &str, value: &str) -> Result<()> {
    let mut tr = db.begin()?;
    tr.set(key.as_bytes(), value.as_bytes());
    tr.commit().await.map(drop)
}

async fn get(db: &Embedded, key: &str) -> Result<Option<Bytes>> {
    let tr = db.begin()?;
    tr.get(key.as_bytes(), Isolation::Snapshot).await
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    (folder, store)
}

/// The files beside the store.
fn beside(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.contains(".log.")).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_second_opening_of_a_shared_store_is_a_client_of_the_first() {
    let (folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    set(&owner, "a", "1").await.unwrap();
    assert_eq!(get(&client, "a").await.unwrap(), Some("1".into()));
    set(&client, "b", "2").await.unwrap();
    assert_eq!(get(&owner, "b").await.unwrap(), Some("2".into()));
    assert_eq!(client.owned_since(), owner.owned_since());
    assert!(owner.owned_since().is_some());
    assert_eq!(
        beside(&folder),
        ["store", "store.apps", "store.lock", "store.socket"]
    );
    client.close().unwrap();
    owner.close().unwrap();
    assert_eq!(beside(&folder), ["store"]);
}

#[tokio::test]
async fn a_commit_of_a_client_wakes_the_watch_of_another() {
    let (_folder, path) = folder();
    let _owner = open(&path);
    let (one, other) = (open(&path), open(&path));
    let mut tr = one.begin().unwrap();
    let watch = tr.watch(b"a");
    tr.commit().await.unwrap();
    set(&other, "a", "1").await.unwrap();
    timeout(LIMIT, watch).await.unwrap();
}

#[tokio::test]
async fn a_client_becomes_the_owner_once_the_owner_has_closed() {
    let (folder, path) = folder();
    let owner = open(&path);
    let clients = [open(&path), open(&path)];
    let owned_since = owner.owned_since();
    set(&owner, "a", "1").await.unwrap();
    owner.close().unwrap();
    assert_eq!(get(&owner, "a").await.unwrap_err().code(), Some(CANCELLED));
    for client in &clients {
        assert_eq!(get(client, "a").await.unwrap(), Some("1".into()));
        assert_eq!(client.owned_since(), owned_since);
    }
    assert_eq!(
        beside(&folder),
        ["store", "store.apps", "store.lock", "store.socket"]
    );
    for (client, value) in clients.into_iter().zip(["2", "3"]) {
        set(&client, "a", value).await.unwrap();
        client.close().unwrap();
    }
    assert_eq!(beside(&folder), ["store"]);
    assert_eq!(get(&open(&path), "a").await.unwrap(), Some("3".into()));
}

#[test]
fn the_last_process_leaves_one_file_even_if_it_has_not_become_the_owner_yet() {
    for _ in 0..conformance::scale(20, 1_000) {
        let (folder, path) = folder();
        let mut handles = vec![open(&path), open(&path), open(&path)];
        // The next one may be looking for the owner that has just ended.
        handles.drain(..).for_each(|handle| handle.close().unwrap());
        assert_eq!(beside(&folder), ["store"]);
    }
}

#[tokio::test]
async fn a_transaction_without_a_read_version_goes_on_with_the_next_owner() {
    let (_folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    let mut fresh = client.begin().unwrap();
    fresh.set(b"a", b"1");
    let mut old = client.begin().unwrap();
    old.set(b"b", b"1");
    assert_eq!(old.get(b"a", Isolation::Snapshot).await.unwrap(), None);
    owner.close().unwrap();
    assert_eq!(fresh.get(b"b", Isolation::Snapshot).await.unwrap(), None);
    fresh.commit().await.unwrap();
    // It has this row, and may read it again.
    assert_eq!(old.get(b"a", Isolation::Snapshot).await.unwrap(), None);
    let refused = old.get(b"c", Isolation::Snapshot).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::TRANSACTION_TOO_OLD));
    let refused = old.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::TRANSACTION_TOO_OLD));
    let mut again = client.begin().unwrap();
    again.set_read_version(1);
    again.set(b"b", b"1");
    let refused = again.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::TRANSACTION_TOO_OLD));
    assert_eq!(get(&client, "b").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_commit_that_is_under_way_when_the_owner_closes_has_a_known_result() {
    let (_folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    let committers: Vec<_> = (0..16)
        .map(|name| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for number in 0..100 {
                    let key = format!("{name:03} {number:03}");
                    match set(&client, &key, "1").await {
                        Ok(()) => acknowledged.push(key),
                        Err(error) => assert_eq!(error.code(), Some(Code::TRANSACTION_TOO_OLD)),
                    }
                }
                acknowledged
            })
        })
        .collect();
    until(async || get(&owner, "003 010").await.unwrap().is_some()).await;
    owner.close().unwrap();
    for committer in committers {
        for key in committer.await.unwrap() {
            assert_eq!(get(&client, &key).await.unwrap(), Some("1".into()), "{key}");
        }
    }
}

#[tokio::test]
async fn a_watch_fires_when_the_owner_ends() {
    let (_folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    let mut tr = client.begin().unwrap();
    let watch = tr.watch(b"a");
    tr.commit().await.unwrap();
    drop(owner);
    timeout(LIMIT, watch).await.unwrap();
}

#[tokio::test]
async fn a_handle_that_is_dropped_hands_the_store_over() {
    let (folder, path) = folder();
    let mut handles: Vec<_> = (0..8).map(|_| open(&path)).collect();
    let mut number = 0_u8;
    while !handles.is_empty() {
        for handle in &handles {
            let before = get(handle, "a").await.unwrap().unwrap_or_default();
            assert_eq!(before.first().copied(), number.checked_sub(1));
            let mut tr = handle.begin().unwrap();
            tr.set(b"a", &[number]);
            tr.commit().await.unwrap();
            number += 1;
        }
        drop(handles.remove(0));
    }
    assert_eq!(beside(&folder), ["store"]);
}

#[tokio::test]
async fn the_next_owner_has_the_durability_of_the_last() {
    let (_folder, path) = folder();
    let relaxed = Durability::Relaxed {
        interval: Duration::from_millis(5),
    };
    let owner = share().with_durability(relaxed).open(&path).unwrap();
    let client = open(&path);
    owner.close().unwrap();
    // A commit that is sent to the owner that has just closed may end as unknown; a read is sent again.
    assert_eq!(get(&client, "a").await.unwrap(), None);
    set(&client, "a", "1").await.unwrap();
    let immediate = share().with_durability(Durability::Immediate);
    assert_refused(&immediate, &path, "5ms");
}

#[tokio::test]
async fn a_client_fails_when_another_store_is_at_the_path_of_its_own() {
    let (folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    let other = folder.path().join("other");
    open(&other).close().unwrap();
    fs::rename(&other, &path).unwrap();
    fs::remove_file(folder.path().join("store.log.0000000000000001")).unwrap();
    drop(owner);
    let refused = get(&client, "a").await.unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
    let expected = "was moved, removed or replaced while the store was open";
    let text = keyspace::error::chain(&refused).to_string();
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn a_handle_that_is_only_a_client_waits_for_an_owner_and_never_becomes_one() {
    let (_folder, path) = folder();
    let only = share().with_sharing(Sharing::ClientOnly);
    for _ in 0..2 {
        let refused = only.open(&path).unwrap_err();
        assert!(matches!(refused, OpenError::NoOwner { .. }), "{refused:?}");
        open(&path).close().unwrap();
    }
    let patient = only.clone().with_patience(LIMIT);
    let waiting = tokio::task::spawn_blocking({
        let path = path.clone();
        move || patient.open(path)
    });
    let owner = open(&path);
    let client = waiting.await.unwrap().unwrap();
    set(&client, "a", "1").await.unwrap();
    owner.close().unwrap();
    let read = get(&client, "a");
    let env = Environment::system();
    let early = env.timeout(Duration::from_millis(50), read).await;
    assert!(early.is_none(), "{early:?}");
    let _next = open(&path);
    let read = timeout(LIMIT, get(&client, "a")).await;
    assert_eq!(read.unwrap(), Some("1".into()));
}

#[tokio::test]
async fn a_client_copies_and_checks_the_whole_store() {
    const ROWS: u32 = 50;
    let (folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    let large = [7; 90_000];
    for row in 0..ROWS {
        let mut tr = client.begin().unwrap();
        tr.set(&row.to_be_bytes(), &large);
        tr.commit().await.unwrap();
    }
    let copy = folder.path().join("copy");
    client.backup(&copy).unwrap();
    let refused = client.backup(&copy).unwrap_err();
    assert!(matches!(refused, OpenError::Open { .. }), "{refused:?}");
    // They are in the store's file once it was closed.
    client.close().unwrap();
    owner.close().unwrap();
    let owner = open(&path);
    let client = open(&path);
    let mut calls = 0;
    let verified = client.verify(|_, _| calls += 1).unwrap();
    assert_eq!(verified.rows, u64::from(ROWS));
    assert!(calls > 0);
    assert_eq!(verified, owner.verify(|_, _| ()).unwrap());
    let copied = open(&copy);
    assert_eq!(copied.verify(|_, _| ()).unwrap().rows, u64::from(ROWS));
    let tr = copied.begin().unwrap();
    let rows =
        keyspace::read_all(&tr, RangeQuery::keys(vec![0], vec![1]), Isolation::Snapshot).await;
    let rows = rows.unwrap();
    let is_right = |(number, row): (u32, &keyspace::KeyValue)| {
        row.key() == number.to_be_bytes() && row.value() == large
    };
    assert!(rows.len() == ROWS as usize && (0..).zip(&rows).all(is_right));
}

#[tokio::test]
async fn each_process_that_has_a_store_open_is_named() {
    let (_folder, path) = folder();
    let owner = open(&path);
    let client = open(&path);
    assert_eq!(
        [&owner, &client].map(Embedded::role),
        [Role::Owner, Role::Client]
    );
    let processes = client.processes().await.unwrap();
    // This process has two handles.
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert!(processes[0].program.starts_with("it-"), "{processes:?}");
    assert_eq!(processes, owner.processes().await.unwrap());
    owner.close().unwrap();
    while client.role() == Role::Client {
        get(&client, "a").await.unwrap();
    }
    assert_eq!(processes, client.processes().await.unwrap());
}

#[test]
fn a_store_that_is_not_shared_refuses_clients() {
    let (folder, path) = folder();
    let alone = Options::new().with_sharing(Sharing::Refuse);
    let owner = alone.open(&path).unwrap();
    assert_eq!(beside(&folder), ["store", "store.apps", "store.lock"]);
    let refused = share().open(&path).unwrap_err();
    let expected = "is already open, in this process or another, and cannot be joined: no process \
                    listens at its socket";
    assert!(refused.to_string().contains(expected), "{refused}");
    let refused = alone.open(&path).unwrap_err();
    assert!(
        matches!(refused, OpenError::StoreInUse { reason: None, .. }),
        "{refused:?}"
    );
    owner.close().unwrap();
    assert_eq!(beside(&folder), ["store"]);
}

#[test]
fn a_client_with_another_durability_is_refused() {
    let (_folder, path) = folder();
    let _owner = open(&path);
    let relaxed = Durability::Relaxed {
        interval: Duration::from_millis(5),
    };
    let expected = "its owner has the durability Immediate: open it with the same";
    assert_refused(&share().with_durability(relaxed), &path, expected);
    share()
        .with_patience(LIMIT)
        .with_durability(Durability::Immediate)
        .open(&path)
        .unwrap();
}

#[tokio::test]
async fn at_most_128_clients_are_served() {
    let (_folder, path) = folder();
    let _owner = open(&path);
    let mut clients: Vec<_> = (0..128).map(|_| open(&path)).collect();
    assert_refused(
        &share(),
        &path,
        "its owner has 128 clients, and takes no more",
    );
    drop(clients.pop());
    // The owner learns of it in its own time.
    let mut one_more = share().open(&path);
    while one_more.is_err() {
        one_more = share().open(&path);
    }
    set(&one_more.unwrap(), "a", "1").await.unwrap();
}

#[tokio::test]
async fn a_connection_that_says_nothing_ends_with_the_store() {
    let (folder, path) = folder();
    let owner = open(&path);
    let mut silent = UnixStream::connect(folder.path().join("store.socket")).unwrap();
    set(&open(&path), "a", "1").await.unwrap();
    owner.close().unwrap();
    // The owner has ended the connection.
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
}

#[tokio::test]
async fn a_path_that_is_too_long_for_a_socket_is_none_for_a_store() {
    let (folder, _) = folder();
    let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
    fs::create_dir_all(&deep).unwrap();
    let path = deep.join("store");
    let _owner = open(&path);
    let client = open(&path);
    set(&client, "a", "1").await.unwrap();
}

#[tokio::test]
async fn a_stale_socket_and_a_stale_lock_are_no_obstacle() {
    let (folder, path) = folder();
    open(&path).close().unwrap();
    fs::write(folder.path().join("store.lock"), "").unwrap();
    let socket = folder.path().join("store.socket");
    drop(UnixListener::bind(&socket).unwrap());
    let owner = open(&path);
    assert!(owner.owned_since().is_some());
    set(&open(&path), "a", "1").await.unwrap();
    assert_eq!(get(&owner, "a").await.unwrap(), Some("1".into()));
}

#[tokio::test]
async fn a_store_has_one_socket_through_a_symbolic_link() {
    let (folder, path) = folder();
    let owner = open(&path);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    set(&open(&link), "a", "1").await.unwrap();
    assert_eq!(get(&owner, "a").await.unwrap(), Some("1".into()));
}

#[test]
fn a_store_is_not_opened_by_a_second_name_while_it_is_open() {
    let (folder, path) = folder();
    let _owner = open(&path);
    let other = folder.path().join("other");
    fs::hard_link(&path, &other).unwrap();
    // It has the same lock, and another socket.
    let refused = share().open(&other).unwrap_err();
    assert!(
        refused.to_string().contains("no process listens"),
        "{refused}"
    );
}

#[test]
fn a_child_that_has_the_lock_of_a_process_that_has_ended_keeps_others_waiting() {
    let (_folder, path) = folder();
    open(&path).close().unwrap();
    let file = fs::File::options().read(true).write(true).open(&path);
    let file = file.unwrap();
    file.lock().unwrap();
    // As a forked child has it, of an owner that was killed.
    let child = Command::new("sleep").arg("1000").stdin(file).spawn();
    let mut child = child.unwrap();
    let refused = share().open(&path).unwrap_err();
    assert!(
        matches!(refused, OpenError::StoreInUse { .. }),
        "{refused:?}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    open(&path);
}

#[test]
fn the_socket_has_the_permissions_of_the_store() {
    let (folder, path) = folder();
    open(&path).close().unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let _owner = open(&path);
    for name in ["store.socket", "store.lock", "store.apps"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o640, "{name}");
    }
}

#[test]
fn an_owner_that_was_not_alone_when_it_opened_does_not_claim_so() {
    let (folder, path) = folder();
    open(&path).close().unwrap();
    // Stands for a process that outlives the owner that it was a client of.
    let other = fs::File::create(folder.path().join("store.lock")).unwrap();
    other.lock_shared().unwrap();
    let owner = open(&path);
    assert_eq!(owner.owned_since(), None);
    assert_eq!(open(&path).owned_since(), None);
    owner.close().unwrap();
    assert_eq!(beside(&folder), ["store", "store.lock", "store.socket"]);
}

/// The place of the socket that a test's second process makes.
const FOREIGN: &str = "KEYSPACE_FOREIGN_SOCKET";

#[test]
fn a_socket_of_a_user_who_does_not_own_the_store_is_not_trusted() {
    const NAME: &str = "sharing::a_socket_of_a_user_who_does_not_own_the_store_is_not_trusted";
    const NOBODY: u32 = 65_534;
    if let Some(place) = env::var_os(FOREIGN) {
        let _listener = UnixListener::bind(place).unwrap();
        // Until the parent lets go of the other end.
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let (folder, path) = folder();
    if fs::metadata(folder.path()).unwrap().uid() != 0 {
        return stores::skip(NAME, "only root can start a process of another user");
    }
    let alone = Options::new().with_sharing(Sharing::Refuse);
    let _owner = alone.open(&path).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The program of the test may be where another user cannot reach it.
    let program = folder.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let socket = folder.path().join("store.socket");
    let mut foreign = Command::new(program);
    foreign.args(["--exact", NAME]).env(FOREIGN, &socket);
    foreign
        .uid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut foreign = foreign.spawn().unwrap();
    while !socket.exists() {
        assert!(foreign.try_wait().unwrap().is_none(), "it has a socket");
        thread::yield_now();
    }
    let refused = share().open(&path).unwrap_err();
    let expected = "the socket of the store belongs to user 65534, and the store to another";
    assert!(refused.to_string().contains(expected), "{refused}");
    drop(foreign.stdin.take());
    assert!(foreign.wait().unwrap().success());
}
