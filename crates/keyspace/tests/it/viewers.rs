//! Viewers of a store that applications share. A viewer owns the store only while no application has it open.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{env, thread};

use conformance::{process, timeout, until};
use keyspace::embedded::{Embedded, Options, Role, Sharing};
use keyspace::{
    Bytes, Database, Isolation, MutationOp, OpenError, OwnedTransaction, Result, Runner,
    Transaction,
};
use tempfile::TempDir;

/// Only a hang takes as long.
const LIMIT: Duration = conformance::HANG;

fn options(sharing: Sharing) -> Options {
    Options::new().with_patience(LIMIT).with_sharing(sharing)
}

fn open(path: &Path, sharing: Sharing) -> Embedded {
    options(sharing).open(path).unwrap()
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

async fn add(db: &Embedded) -> Result<()> {
    let runner = Runner::new(db.clone());
    let added = runner.run(|tr| async move {
        tr.atomic(MutationOp::Add, b"count", &1_u64.to_le_bytes());
        Ok::<_, keyspace::Error>(())
    });
    timeout(LIMIT, added).await
}

async fn count(db: &Embedded) -> u64 {
    let runner = Runner::new(db.clone());
    let read = runner.run(|tr| async move { tr.get(b"count", Isolation::Snapshot).await });
    let value: Option<Bytes> = timeout(LIMIT, read).await.unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

#[tokio::test]
async fn a_viewer_owns_a_store_only_while_no_application_has_it_open() {
    let (folder, path) = folder();
    let viewer = open(&path, Sharing::Yield);
    add(&viewer).await.unwrap();
    assert_eq!(viewer.role(), Role::Owner);
    for before in [1, 4] {
        let application = open(&path, Sharing::Share);
        assert_eq!(application.role(), Role::Owner);
        assert_eq!(count(&application).await, before);
        add(&application).await.unwrap();
        add(&viewer).await.unwrap();
        assert_eq!(viewer.role(), Role::Client);
        assert_eq!(application.processes().await.unwrap().len(), 1);
        application.close().unwrap();
        add(&viewer).await.unwrap();
        assert_eq!(viewer.role(), Role::Owner);
    }
    viewer.close().unwrap();
    assert_eq!(files(&folder), ["store"]);
}

#[tokio::test]
async fn a_transaction_of_a_viewer_that_hands_the_store_over_goes_on() {
    let (_folder, path) = folder();
    let viewer = open(&path, Sharing::Yield);
    let mut fresh = viewer.begin().unwrap();
    fresh.set(b"a", b"1");
    let mut tr = viewer.begin().unwrap();
    let watch = tr.watch(b"b");
    tr.commit().await.unwrap();
    let application = open(&path, Sharing::Share);
    timeout(LIMIT, watch).await.unwrap();
    timeout(LIMIT, fresh.commit()).await.unwrap();
    let tr = application.begin().unwrap();
    let read = tr.get(b"a", Isolation::Snapshot).await.unwrap();
    assert_eq!(read, Some("1".into()));
}

#[tokio::test]
async fn an_application_that_shares_with_no_process_gets_the_store_from_a_viewer() {
    let (folder, path) = folder();
    let viewer = open(&path, Sharing::Yield);
    add(&viewer).await.unwrap();
    let alone = open(&path, Sharing::Refuse);
    assert_eq!(count(&alone).await, 1);
    let refused = options(Sharing::Refuse).open(&path).unwrap_err();
    assert!(
        matches!(refused, OpenError::StoreInUse { reason: None, .. }),
        "{refused:?}"
    );
    alone.close().unwrap();
    add(&viewer).await.unwrap();
    viewer.close().unwrap();
    assert_eq!(files(&folder), ["store"]);
}

#[tokio::test]
async fn a_viewer_waits_beside_an_application_that_must_not_own_the_store() {
    let (folder, path) = folder();
    let viewer = open(&path, Sharing::Yield);
    add(&viewer).await.unwrap();
    let soon = options(Sharing::ClientOnly).with_patience(Duration::from_millis(300));
    let refused = soon.open(&path).unwrap_err();
    assert!(matches!(refused, OpenError::NoOwner { .. }), "{refused:?}");
    // The application has given up.
    add(&viewer).await.unwrap();
    assert_eq!(viewer.role(), Role::Owner);

    let waiting = tokio::task::spawn_blocking({
        let path = path.clone();
        move || open(&path, Sharing::ClientOnly)
    });
    until(async || viewer.role() != Role::Owner).await;
    let application = open(&path, Sharing::Share);
    let client = waiting.await.unwrap();
    add(&client).await.unwrap();
    add(&viewer).await.unwrap();
    application.close().unwrap();
    let read = keyspace::Environment::system();
    let early = read
        .timeout(Duration::from_millis(300), count(&viewer))
        .await;
    assert!(early.is_none() && viewer.role() == Role::Client);
    client.close().unwrap();
    assert_eq!(count(&viewer).await, 4);
    viewer.close().unwrap();
    assert_eq!(files(&folder), ["store"]);
}

#[tokio::test]
async fn one_of_several_viewers_owns_the_store_and_all_give_way() {
    let (folder, path) = folder();
    let mut viewers: Vec<_> = (0..4).map(|_| open(&path, Sharing::Yield)).collect();
    for _ in 0..3 {
        for viewer in &viewers {
            add(viewer).await.unwrap();
        }
        let is_owner = |viewer: &&Embedded| viewer.role() == Role::Owner;
        assert_eq!(viewers.iter().filter(is_owner).count(), 1);
        let application = open(&path, Sharing::Share);
        for viewer in &viewers {
            add(viewer).await.unwrap();
        }
        assert_eq!(viewers.iter().filter(is_owner).count(), 0);
        application.close().unwrap();
        add(&viewers[0]).await.unwrap();
        let owner = viewers.iter().position(|it| it.role() == Role::Owner);
        viewers.remove(owner.unwrap()).close().unwrap();
    }
    assert_eq!(count(&viewers[0]).await, 9 + 7 + 5);
    drop(viewers);
    assert_eq!(files(&folder), ["store"]);
}

const NAME: &str = "viewers::no_viewer_stops_an_application_in_any_order_of_ends";

/// A process that has a store open and carries out orders.
struct Member {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Member {
    /// Starts a process, which opens the store. It answers once it has it.
    fn start(test: &str, sharing: Sharing, path: &Path) -> Self {
        let role = format!("{sharing:?} {}", path.display());
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("TEST_PROCESS_ROLE", role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(io::Result::ok) {
                if let Some(answer) = line.strip_prefix("answer ") {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        let orders = child.stdin.take().unwrap();
        Self {
            child,
            orders,
            answers,
        }
    }

    fn opened(test: &str, sharing: Sharing, path: &Path) -> Self {
        let member = Self::start(test, sharing, path);
        assert_eq!(member.answer(), "opened");
        member
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(LIMIT).expect("it answers")
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn signal(&self, signal: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends the process, in an orderly way or at once.
    fn end(mut self, is_killed: bool) {
        if is_killed {
            self.child.kill().unwrap();
        } else {
            assert_eq!(self.ask("close"), "closed");
        }
        self.child.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does what the parent says. The role is the sharing and the path of the store.
async fn obey(role: &str) {
    let (sharing, path) = role.split_once(' ').unwrap();
    let sharing = match sharing {
        "Share" => Sharing::Share,
        "Yield" => Sharing::Yield,
        _ => panic!("{sharing}"),
    };
    let db = match options(sharing).open(path) {
        Ok(db) => db,
        Err(error) => return println!("answer {error}"),
    };
    println!("answer opened");
    for order in io::stdin().lines().map(io::Result::unwrap) {
        match &order[..] {
            "add" => println!("answer {:?}", add(&db).await),
            "role" => println!("answer {:?}", db.role()),
            "close" => {
                db.close().unwrap();
                return println!("answer closed");
            }
            _ => panic!("{order}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_viewer_stops_an_application_in_any_order_of_ends() {
    if let Some(role) = process::role() {
        return obey(&role).await;
    }
    // The places in which the owner, the web process and the viewer end.
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for (round, order) in orders.into_iter().cycle().take(24).enumerate() {
        let [is_killed, is_stopped] = [round / 6 % 2 == 1, round / 12 == 1];
        let (folder, path) = folder();
        let sharings = [Sharing::Share, Sharing::Share, Sharing::Yield];
        let member = |sharing| Some(Member::opened(NAME, sharing, &path));
        let mut members = sharings.map(member);
        if is_stopped {
            members[2].as_ref().unwrap().signal("-STOP");
        }
        for place in order {
            let ends = members[place].take().unwrap();
            if place == 2 && is_stopped {
                ends.signal("-CONT");
            }
            ends.end(is_killed);
            let [one, other, viewer] = &mut members;
            for application in [one, other].into_iter().flatten() {
                assert_eq!(application.ask("add"), "Ok(())", "{order:?}");
            }
            if let Some(viewer) = viewer
                && !is_stopped
            {
                assert_eq!(viewer.ask("add"), "Ok(())", "{order:?}");
                let is_alone = order[0] != 2 && order[1] != 2 && place == order[1];
                let role = if is_alone { "Owner" } else { "Client" };
                assert_eq!(viewer.ask("role"), role, "{order:?}");
            }
            if place != 2 && is_stopped && members[2].is_some() {
                // Also a new one.
                let mut next = Member::opened(NAME, Sharing::Share, &path);
                assert_eq!(next.ask("add"), "Ok(())");
                next.end(is_killed);
            }
        }
        if !is_killed {
            assert_eq!(files(&folder), ["store"], "{order:?}");
        }
    }
}

const STOPPED: &str = "viewers::the_error_beside_a_stopped_viewer_names_its_process";

#[tokio::test(flavor = "multi_thread")]
async fn the_error_beside_a_stopped_viewer_names_its_process() {
    if let Some(role) = process::role() {
        return obey(&role).await;
    }
    let (_folder, path) = folder();
    let mut viewer = Member::opened(STOPPED, Sharing::Yield, &path);
    assert_eq!(viewer.ask("role"), "Owner");
    viewer.signal("-STOP");
    let soon = options(Sharing::Share).with_patience(Duration::from_millis(200));
    let refused = soon.open(&path).unwrap_err().to_string();
    let process = format!("process {}", viewer.child.id());
    assert!(refused.contains(&process), "{refused}");
    assert!(refused.contains("may be stopped"), "{refused}");
    viewer.signal("-CONT");
    let application = open(&path, Sharing::Share);
    assert_eq!(application.role(), Role::Owner);
    assert_eq!(viewer.ask("add"), "Ok(())");
    assert_eq!(viewer.ask("role"), "Client");
}
