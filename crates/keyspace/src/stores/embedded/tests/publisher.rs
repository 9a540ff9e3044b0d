//! Tests of the publisher: the thread it runs on, and how many transactions it waits for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use conformance::{HANG, until};
use futures::FutureExt;
use parking_lot::Mutex;

use super::super::{Durability, Options};
use super::disk::{Disk, Fault};
use super::{new_store, path, set, setup, still};
use crate::contract::env::ManualClock;
use crate::contract::error::{Code, Result};
use crate::contract::transaction::Commit;
use crate::stores::embedded::disk::open::{OpenedStore, Setup};
use crate::stores::embedded::engine::{Committer, Engine};
use crate::stores::embedded::log::segment::Sizes;

/// Opens the store on a disk, with a log that has room for many batches.
fn open_with_room(disk: &Disk) -> OpenedStore {
    let log = Sizes {
        segment_bytes: 4 << 20,
        grow_bytes: 1 << 20,
    };
    let setup = Setup { log, ..setup() };
    OpenedStore::open(
        Arc::new(disk.clone()),
        Arc::new(disk.clone()),
        path(),
        &setup,
    )
    .unwrap()
}

/// A store whose batches are published step by step, by its caller or as the thread would.
struct PublisherWorld {
    disk: Disk,
    clock: ManualClock,
    engine: Engine,
    committer: Committer,
}

impl PublisherWorld {
    /// The world after a first batch, which the thread published: now callers may.
    fn new() -> Self {
        Self::with(Durability::Immediate)
    }

    fn with(durability: Durability) -> Self {
        let (environment, clock) = still();
        let disk = Disk::with(new_store());
        let options = Options::new()
            .with_environment(environment)
            .with_durability(durability);
        let (engine, committer) = Engine::prepare(open_with_room(&disk), &options);
        let mut world = Self {
            disk,
            clock,
            engine,
            committer,
        };
        world.commit_alone(Publishing::ByThread);
        world
    }

    /// Makes a write take time.
    fn writes_take(&self, time: Duration) {
        let clock = self.clock.clone();
        self.disk.during_write(move || clock.advance(time));
    }

    /// Makes a flush take time.
    fn flushes_take(&self, time: Duration) {
        let clock = self.clock.clone();
        self.disk.during_flush(move || clock.advance(time));
    }

    /// Commits a transaction, and publishes it. Returns the number of flushes.
    fn commit_alone(&mut self, expected: Publishing) -> usize {
        let commit = commit(&self.engine);
        self.committer.resolve().unwrap();
        let before = self.disk.flushes();
        if self.committer.publish_here() {
            assert_eq!(expected, Publishing::ByCaller);
        } else {
            assert_eq!(expected, Publishing::ByThread);
            self.committer.publish_on_thread().unwrap();
        }
        commit.now_or_never().unwrap().unwrap();
        self.disk.flushes() - before
    }
}

/// On which thread a batch is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Publishing {
    ByCaller,
    ByThread,
}

fn commit(engine: &Engine) -> impl Future<Output = Result<Commit>> + use<> {
    engine.commit(set(None, &["a"], "1"))
}

#[test]
fn callers_publish_while_they_are_alone_and_the_thread_looks_from_time_to_time() {
    let mut world = PublisherWorld::new();
    for by_callers in [1, 2, 4, 8, 16, 32, 32] {
        for _ in 0..by_callers {
            assert_eq!(world.commit_alone(Publishing::ByCaller), 1);
        }
        assert_eq!(world.commit_alone(Publishing::ByThread), 1);
    }
}

#[test]
fn the_thread_publishes_once_transactions_have_met_in_a_batch() {
    let mut world = PublisherWorld::new();
    for met in [Publishing::ByCaller, Publishing::ByThread] {
        let commits = [commit(&world.engine), commit(&world.engine)];
        world.committer.resolve().unwrap();
        match met {
            Publishing::ByCaller => assert!(world.committer.publish_here()),
            Publishing::ByThread => world.committer.publish_on_thread().unwrap(),
        }
        let mut results = commits.map(FutureExt::now_or_never).into_iter();
        assert!(results.all(|result| result.unwrap().is_ok()));
        world.commit_alone(Publishing::ByThread);
        world.commit_alone(Publishing::ByCaller);
        world.commit_alone(Publishing::ByThread);
    }
}

#[test]
fn callers_do_not_wait_for_slow_flushes() {
    let mut world = PublisherWorld::new();
    world.flushes_take(Duration::from_millis(1));
    world.commit_alone(Publishing::ByCaller);
    for _ in 0..9 {
        world.commit_alone(Publishing::ByThread);
    }
    world.flushes_take(Duration::from_micros(100));
    world.commit_alone(Publishing::ByThread);
    world.commit_alone(Publishing::ByCaller);
}

#[test]
fn a_write_that_takes_so_long_that_it_is_flushed_keeps_callers_waiting_only_once() {
    const INTERVAL: Duration = Duration::from_millis(5);
    let mut world = PublisherWorld::with(Durability::Relaxed { interval: INTERVAL });
    assert_eq!(world.commit_alone(Publishing::ByCaller), 0);
    assert_eq!(world.commit_alone(Publishing::ByThread), 0);
    world.writes_take(INTERVAL);
    assert_eq!(world.commit_alone(Publishing::ByCaller), 1);
    world.writes_take(Duration::ZERO);
    assert_eq!(world.commit_alone(Publishing::ByThread), 0);
    assert_eq!(world.commit_alone(Publishing::ByCaller), 0);
}

#[test]
fn a_flush_that_fails_on_the_thread_of_a_caller_ends_the_store() {
    let PublisherWorld {
        disk,
        engine,
        mut committer,
        ..
    } = PublisherWorld::new();
    let lost = commit(&engine);
    committer.resolve().unwrap();
    // The write succeeds.
    disk.fail_after(1, Fault::Error);
    assert!(committer.publish_here());
    assert!(disk.has_failed());
    let code = |commit: Result<Commit>| commit.unwrap_err().code();
    let lost = code(lost.now_or_never().unwrap());
    assert_eq!(lost, Some(Code::COMMIT_UNKNOWN_RESULT));
    let late = code(commit(&engine).now_or_never().unwrap());
    assert_eq!(late, Some(Code::IO_ERROR));
}

#[tokio::test]
async fn the_thread_flushes_what_callers_have_written() {
    let disk = Disk::with(new_store());
    let interval = Duration::from_millis(5);
    let options = Options::new().with_durability(Durability::Relaxed { interval });
    let engine = Engine::start(open_with_room(&disk), &options).unwrap();
    until(async || {
        let mut commit = Box::pin(commit(&engine));
        let by_caller = (&mut commit).now_or_never().is_some();
        until(async || disk.image() == disk.flushed()).await;
        by_caller
    })
    .await;
}

#[test]
fn the_publisher_expects_those_it_answers_and_those_that_arrive_during_the_flush() {
    let PublisherWorld {
        disk,
        engine,
        committer,
        ..
    } = PublisherWorld::new();
    let engine = Arc::new(engine);
    let late = Arc::new(Mutex::default());
    let mut publisher = engine.resolve_on_callers(committer);
    let first = [commit(&engine), commit(&engine)];
    disk.during_flush({
        let engine = engine.clone();
        let late = late.clone();
        move || *late.lock() = vec![commit(&engine)]
    });
    publisher.step_on_thread().unwrap();
    assert_eq!(publisher.expected(), first.len() + late.lock().len());
    disk.during_flush(|| ());
    publisher.step_on_thread().unwrap();
    assert_eq!(publisher.expected(), late.lock().len());
}

#[test]
fn a_task_that_commits_again_when_it_is_answered_is_still_alone() {
    /// A task that commits whenever it is woken.
    struct Task(Engine);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            drop(commit(&self.0));
        }
    }

    let PublisherWorld {
        engine, committer, ..
    } = PublisherWorld::new();
    let mut publisher = engine.resolve_on_callers(committer);
    let task = Arc::new(Task(engine));
    let mut first = pin!(commit(&task.0));
    let waker = Waker::from(task.clone());
    assert!(
        first
            .poll_unpin(&mut Context::from_waker(&waker))
            .is_pending()
    );
    publisher.step_on_thread().unwrap();
    assert_eq!(task.0.pipeline().len(), 1);
    assert_eq!(publisher.expected(), 1);
    assert!(publisher.step_here());
}

#[test]
fn the_publisher_waits_until_all_it_expects_are_there() {
    const EXPECTED: usize = 3;
    let PublisherWorld {
        engine, committer, ..
    } = PublisherWorld::new();
    let publisher = engine.resolve_on_callers(committer);
    let pipeline = engine.pipeline();
    let first = commit(&engine);
    thread::scope(|scope| {
        let gathered = scope.spawn(|| {
            pipeline.gather(EXPECTED, HANG);
            pipeline.len()
        });
        while pipeline.awaited() != Some(EXPECTED) {
            assert!(!gathered.is_finished());
            thread::yield_now();
        }
        let second = commit(&engine);
        assert_eq!(pipeline.awaited(), Some(EXPECTED));
        let third = commit(&engine);
        // Only now is it woken.
        assert_eq!(pipeline.awaited(), None);
        assert_eq!(gathered.join().unwrap(), EXPECTED);
        drop([first, second, third]);
    });
    drop(publisher);
}

/// Returns whether a store that is opened on what the disk has now must replay rows.
fn replays_rows(disk: &Disk) -> bool {
    let store = open_with_room(&Disk::with(disk.image()));
    let mut parts = store.replayed.iter();
    parts.any(|replayed| replayed.part.part.entries().next().is_some())
}

/// Returns a commit that is so large that its part may be moved early.
fn large_commit(engine: &Engine) -> impl Future<Output = Result<Commit>> + use<> {
    let value: &'static str = "x".repeat(4 << 10).leak();
    engine.commit(set(None, &["large"], value))
}

#[test]
fn a_part_that_has_stopped_growing_is_moved_to_the_runs() {
    let PublisherWorld {
        disk,
        clock,
        engine,
        mut committer,
    } = PublisherWorld::new();
    let large = large_commit(&engine);
    committer.step().unwrap();
    large.now_or_never().unwrap().unwrap();
    for pause in [Duration::ZERO, Duration::from_secs(1), Duration::ZERO] {
        assert!(replays_rows(&disk));
        clock.advance(pause);
        committer.step().unwrap();
    }
    assert!(!replays_rows(&disk));
    // What is left is not worth a checkpoint.
    let small = commit(&engine);
    committer.step().unwrap();
    small.now_or_never().unwrap().unwrap();
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        committer.step().unwrap();
    }
    assert!(replays_rows(&disk));
}

#[tokio::test]
async fn the_thread_moves_what_callers_have_written() {
    let disk = Disk::with(new_store());
    let engine = Engine::start(open_with_room(&disk), &Options::new()).unwrap();
    let mut by_callers = 0;
    // The thread may be as quick as a caller, so that one commit proves little.
    until(async || {
        let mut large = Box::pin(large_commit(&engine));
        by_callers += usize::from((&mut large).now_or_never().is_some());
        until(async || !replays_rows(&disk)).await;
        by_callers == 5
    })
    .await;
}
