//! The ends of transactions and of stores.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
#[cfg(unix)]
use std::process::Command;
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use conformance::stores::TestStore;
use futures::FutureExt;
#[cfg(unix)]
use keyspace::OpenError;
#[cfg(unix)]
use keyspace::embedded::Options;
use keyspace::{Code, Database, OwnedTransaction, Transaction, TransactionOption};

conformance::on_every_store!(
    an_error_that_ends_the_transaction_ends_its_watches_and_versionstamps,
    a_commit_that_may_skip_the_check_of_its_order_commits,
);

async fn an_error_that_ends_the_transaction_ends_its_watches_and_versionstamps(store: TestStore) {
    let mut tr = store.db.begin().unwrap();
    let watch = tr.watch(&store.root.pack(&"key"));
    let versionstamp = tr.versionstamp();
    let error = tr.on_error(Code::KEY_TOO_LARGE.into()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::KEY_TOO_LARGE));
    let watched = watch.await.map(drop);
    let stamped = versionstamp.await.map(drop);
    for end in [watched, stamped] {
        let code = end.unwrap_err().code();
        assert_eq!(code, Some(Code::TRANSACTION_CANCELLED));
    }
}

/// Drops its content as soon as it is woken, and then reports whether that succeeded.
struct DropWhenWoken {
    held: Mutex<Vec<Box<dyn Any + Send>>>,
    dropped: mpsc::Sender<thread::Result<()>>,
}

impl Wake for DropWhenWoken {
    fn wake(self: Arc<Self>) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let dropped = panic::catch_unwind(AssertUnwindSafe(|| drop(held)));
        self.dropped.send(dropped).unwrap();
    }
}

#[test]
fn a_task_that_a_commit_wakes_may_drop_the_last_handle() {
    let db = keyspace::open("memory:").unwrap();
    let (dropped, when_dropped) = mpsc::channel();
    let sleeper = Arc::new(DropWhenWoken {
        held: Mutex::default(),
        dropped,
    });
    let waker = Waker::from(sleeper.clone());

    let mut held = sleeper.held.lock().unwrap();
    // A commit may end before its first poll does. It then wakes no task, so the next commit is tried.
    let commit = loop {
        let mut tr = db.begin().unwrap();
        tr.set(b"key", b"value");
        let mut commit = async move { tr.commit().await.map(drop) }.boxed();
        match commit.poll_unpin(&mut Context::from_waker(&waker)) {
            Poll::Pending => break commit,
            Poll::Ready(committed) => committed.unwrap(),
        }
    };
    held.push(Box::new(commit));
    held.push(Box::new(db));
    drop(held);
    assert!(when_dropped.recv().unwrap().is_ok());
}

async fn a_commit_that_may_skip_the_check_of_its_order_commits(store: TestStore) {
    let mut tr = store.db.begin().unwrap();
    tr.set_option(TransactionOption::CausalWriteRisky).unwrap();
    tr.set(&store.root.pack(&"key"), b"value");
    tr.commit().await.unwrap();
}

#[cfg(unix)]
#[test]
fn a_closed_store_can_be_opened_while_processes_are_being_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        let opened = (0..200).try_for_each(|_| {
            let db = Options::new().open(&path)?;
            db.close().unwrap();
            Ok::<_, OpenError>(())
        });
        is_done.store(true, Ordering::Relaxed);
        opened.unwrap();
    });
}
