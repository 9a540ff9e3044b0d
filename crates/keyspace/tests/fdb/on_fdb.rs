//! Cluster files that are not valid, clusters that do not answer, and processes that exit while handles are
//! alive.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, io, process, thread};

use conformance::server::Server;
use conformance::{HANG, stores, until};
use keyspace::fdb::Fdb;
use keyspace::{
    Code, Database, DatabaseOption, Error, Isolation, MutationOp, OpenError, OwnedTransaction,
    RunOptions, Runner, Transaction,
};

/// Writes a cluster file and returns its folder, which must outlive it, and its path.
fn cluster_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fdb.cluster");
    fs::write(&file, text).unwrap();
    (folder, file)
}

/// Opens a cluster without a server: port 1 of this machine.
fn unreachable() -> (tempfile::TempDir, PathBuf, Fdb) {
    let (folder, file) = cluster_file("nobody:home@127.0.0.1:1\n");
    let db = Fdb::open(Some(&file)).unwrap();
    let limit = DatabaseOption::TransactionTimeout(Duration::from_millis(300));
    db.set_option(limit).unwrap();
    (folder, file, db)
}

fn assert_unreachable(error: &Error, file: &Path) {
    assert!(
        matches!(error, Error::Unreachable { cluster_file, .. } if cluster_file == file),
        "{error:?}"
    );
    assert_eq!(error.code(), Some(Code::TRANSACTION_TIMED_OUT));
    let text = error.to_string();
    assert!(text.contains(&*file.to_string_lossy()), "{text}");
}

#[test]
fn a_malformed_cluster_file_is_named_with_the_reason() {
    let (folder, file) = cluster_file("127.0.0.1:4500\n");
    let missing = folder.path().join("missing.cluster");
    for (path, expected) in [
        (&*file, "found no `@`"),
        (&*missing, "copy the cluster's file there"),
        (folder.path(), "it cannot be read"),
    ] {
        let url = format!("fdb:{}", path.display());
        let error = keyspace::open(&url).unwrap_err();
        assert!(matches!(&error, OpenError::ClusterFile { path: named, .. } if named == path));
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "127.0.0.1:4500\n");
}

#[tokio::test]
async fn an_unreachable_cluster_is_named_by_whatever_asks_it_first() {
    let (_folder, file, db) = unreachable();
    let tr = db.begin().unwrap();
    let read = tr.get(b"key", Isolation::Serializable).await;
    assert_unreachable(&read.unwrap_err(), &file);
    let tr = db.begin().unwrap();
    assert_unreachable(&tr.read_version().await.unwrap_err(), &file);
    let mut tr = db.begin().unwrap();
    tr.set(b"key", b"value");
    assert_unreachable(&tr.commit().await.unwrap_err(), &file);
}

#[tokio::test]
async fn a_runner_gives_up_on_an_unreachable_cluster_and_names_it() {
    let (_folder, file, db) = unreachable();
    let options = RunOptions::default().with_time_limit(Duration::from_millis(300));
    for runner in [
        Runner::new(db.clone()),
        Runner::with_options(db.clone(), options),
    ] {
        let outcome = runner.run(|tr| async move {
            tr.set(b"key", b"value");
            Ok::<_, Error>(())
        });
        assert_unreachable(&outcome.await.unwrap_err(), &file);
    }
}

#[tokio::test]
async fn a_transaction_that_was_given_up_can_be_reset() {
    let (_folder, file, db) = unreachable();
    let mut tr = db.begin().unwrap();
    let timed_out = tr.get(b"key", Isolation::Serializable).await.unwrap_err();
    let refused = tr.on_error(timed_out).await.unwrap_err();
    assert_unreachable(&refused, &file);
    let cancelled = tr.get(b"key", Isolation::Serializable).await.unwrap_err();
    assert_eq!(cancelled.code(), Some(Code::TRANSACTION_CANCELLED));
    tr.reset();
    let again = tr.get(b"key", Isolation::Serializable).await.unwrap_err();
    assert_unreachable(&again, &file);
}

/// Adds one to a counter, exactly once.
async fn count(runner: &Runner<Fdb>) -> Result<(), Error> {
    let outcome = runner.run(|tr| async move {
        tr.atomic(MutationOp::Add, b"counter", &1_u64.to_le_bytes());
        Ok::<_, Error>(())
    });
    outcome.await
}

async fn counted(db: &Fdb) -> u64 {
    let tr = db.begin().unwrap();
    let value = tr.get(b"counter", Isolation::Snapshot).await.unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

/// A cluster for this test, and a runner on it with a short time limit.
fn own_cluster(name: &str) -> Option<(Server, Runner<Fdb>)> {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => {
            stores::skip(name, reason);
            return None;
        }
    };
    let db = Fdb::open(Some(&server.cluster_file())).unwrap();
    let options = RunOptions::default().with_time_limit(Duration::from_secs(1));
    Some((server, Runner::with_options(db, options)))
}

#[tokio::test]
async fn a_cluster_that_stops_answering_is_named_and_loses_nothing() {
    const NAME: &str = "on_fdb::a_cluster_that_stops_answering_is_named_and_loses_nothing";
    let Some((server, runner)) = own_cluster(NAME) else {
        return;
    };
    // An operation that is given up in the middle of its commit may have counted.
    let patient = Runner::new(runner.database().clone());
    // The time that a new cluster needs to become available.
    count(&patient).await.unwrap();
    let mut counts = counted(runner.database()).await..;
    for _ in 0..3 {
        let before = counts.next().unwrap();
        assert_eq!(counted(runner.database()).await, before);
        server.pause();
        let error = count(&runner).await.unwrap_err();
        assert_unreachable(&error, &server.cluster_file());
        server.resume();
        // The operation failed before its commit was sent, so this is the next attempt.
        count(&patient).await.unwrap();
    }
    assert_eq!(Some(counted(runner.database()).await), counts.next());
}

#[tokio::test]
async fn a_locked_cluster_says_so_and_changes_nothing() {
    const NAME: &str = "on_fdb::a_locked_cluster_says_so_and_changes_nothing";
    let Some((server, runner)) = own_cluster(NAME) else {
        return;
    };
    let patient = Runner::new(runner.database().clone());
    count(&patient).await.unwrap();
    let before = counted(runner.database()).await;
    server.cli("lock");
    // On a busy machine, the time limit may pass before the cluster answers.
    until(async || {
        let error = count(&runner).await.unwrap_err();
        let is_locked = error.code() == Some(Code::DATABASE_LOCKED);
        if is_locked {
            assert!(error.to_string().contains("unlock it"), "{error}");
        } else {
            assert_eq!(error.code(), Some(Code::TRANSACTION_TIMED_OUT));
        }
        is_locked
    })
    .await;

    // Does the same as `unlock`, which asks a person to confirm.
    let options = "option on ACCESS_SYSTEM_KEYS; option on LOCK_AWARE";
    server.cli(&format!(r"writemode on; {options}; clear \xff/dbLocked"));
    until(async || count(&patient).await.is_ok()).await;
    assert_eq!(counted(runner.database()).await, before + 1);
}

/// The name of the test that a child process runs.
const CHILD: &str = "on_fdb::a_process_ends_cleanly_while_handles_are_alive";

/// The environment variable that says how a child process ends.
const ENDING: &str = "KEYSPACE_FDB_ENDING";

/// Ends the process with a live handle, a read under way and another thread that continues to read.
fn end(ending: &str) -> ! {
    let (folder, _file, db) = unreachable();
    let busy = db.clone();
    thread::spawn(move || {
        loop {
            drop(busy.begin().map(|tr| tr.get(b"key", Isolation::Snapshot)));
        }
    });
    let read = db.begin().unwrap().get(b"key", Isolation::Snapshot);
    match ending {
        "exit" => process::exit(0),
        "leak" => {
            std::mem::forget((folder, db, read));
            process::exit(0)
        }
        _ => process::abort(),
    }
}

/// Waits for a child. If it takes so long that it must hang, kills it and returns `None`.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let mut output = child.stdout.take().unwrap();
    let (ended, end) = mpsc::channel();
    // The pipe is closed when the child ends.
    thread::spawn(move || {
        io::copy(&mut output, &mut io::sink()).unwrap();
        ended.send(()).unwrap();
    });
    let in_time = end.recv_timeout(HANG).is_ok();
    if !in_time {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    in_time.then_some(status)
}

#[test]
fn a_process_ends_cleanly_while_handles_are_alive() {
    if let Ok(ending) = env::var(ENDING) {
        end(&ending);
    }
    let children: Vec<_> = ["exit", "leak"]
        .into_iter()
        .cycle()
        .take(8)
        .map(|ending| {
            let child = Command::new(env::current_exe().unwrap())
                .args(["--exact", CHILD])
                .env(ENDING, ending)
                .stdout(Stdio::piped())
                .spawn();
            (ending, child.unwrap())
        })
        .collect();
    for (ending, child) in children {
        let status = wait(child).unwrap_or_else(|| panic!("`{ending}` hangs"));
        assert!(status.success(), "`{ending}` ended with {status}");
    }
}
