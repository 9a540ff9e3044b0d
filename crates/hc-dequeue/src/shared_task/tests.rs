//! Which polls are made by callers, that no wake-up is lost, and how a task ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread::ThreadId;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use super::*;

/// A task that answers each command with the thread that runs it.
struct Fixture {
    task: Arc<SharedTask>,
    /// Whether the task has been polled.
    has_run: Arc<AtomicBool>,
    commands: mpsc::UnboundedSender<oneshot::Sender<ThreadId>>,
}

impl Fixture {
    fn new() -> Self {
        let (commands, mut received) = mpsc::unbounded_channel::<oneshot::Sender<ThreadId>>();
        let task = SharedTask::new();
        let running = task.clone();
        let has_run = Arc::new(AtomicBool::new(false));
        let runs = has_run.clone();
        task.spawn(async move {
            runs.store(true, Ordering::Relaxed);
            while let Some(reply) = received.recv().await {
                running.next_step().await;
                reply.send(thread::current().id()).unwrap();
            }
        });
        Self {
            task,
            has_run,
            commands,
        }
    }

    fn send(&self) -> oneshot::Receiver<ThreadId> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(reply).unwrap();
        answer
    }

    async fn ask(&self) -> ThreadId {
        let call = self.task.call();
        call.send(|| self.send()).await.unwrap()
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Waits until the future is neither polled nor woken.
fn wait_for_rest(task: &SharedTask) {
    while task.state.load(Ordering::Relaxed) != 0 {
        thread::yield_now();
    }
}

/// Waits until the runtime has dropped its part of the task, and the future.
fn wait_for_end(task: &Arc<SharedTask>) {
    let ends = (0..10_000_000).any(|_| {
        thread::yield_now();
        Arc::strong_count(task) == 1
    });
    assert!(ends, "the task has not ended");
}

#[tokio::test]
async fn a_lone_caller_has_its_answer_before_the_runtime_runs_the_task() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        let call = fixture.task.call();
        let mut answer = call.send(|| fixture.send());
        assert_eq!(answer.try_recv(), Ok(thread::current().id()));
    }
}

#[tokio::test]
async fn a_caller_beside_another_leaves_its_command_to_the_runtime() {
    let fixture = Fixture::new();
    let _other = fixture.task.call();
    let call = fixture.task.call();
    let mut answer = call.send(|| fixture.send());
    assert!(answer.try_recv().is_err());
    answer.await.unwrap();
}

#[tokio::test]
async fn a_caller_runs_one_step_and_the_runtime_the_rest() {
    let fixture = Fixture::new();
    let (mut first, mut second) = (fixture.send(), fixture.send());
    let call = fixture.task.call();
    let mut own = call.send(|| fixture.send());
    assert!(first.try_recv().is_ok());
    assert!(second.try_recv().is_err());
    assert!(own.try_recv().is_err());
    second.await.unwrap();
    own.await.unwrap();
}

#[test]
fn a_caller_outside_the_tasks_runtime_leaves_its_command_to_it() {
    let runtime = runtime();
    let fixture = runtime.block_on(async { Fixture::new() });
    let here = thread::current().id();
    assert_ne!(futures::executor::block_on(fixture.ask()), here);
    let another = Builder::new_current_thread().build().unwrap();
    assert_ne!(another.block_on(fixture.ask()), here);
    wait_for_rest(&fixture.task);
    assert_eq!(runtime.block_on(fixture.ask()), here);
}

#[test]
fn a_wake_up_during_the_poll_of_a_caller_is_passed_on() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let task = SharedTask::new();
    let (polled, polls) = channel();
    let (go, gone) = channel();
    task.spawn(poll_fn(move |_| {
        polled.send(thread::current().id()).unwrap();
        gone.recv().unwrap();
        Poll::Pending
    }));
    let next_poll = || polls.recv_timeout(Duration::from_secs(10)).unwrap();
    next_poll();
    go.send(()).unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let _entered = runtime.enter();
            wait_for_rest(&task);
            task.call().send(|| ());
        });
        assert_eq!(next_poll(), caller.thread().id());
        task.clone().wake();
        go.send(()).unwrap();
    });
    next_poll();
    go.send(()).unwrap();
}

#[test]
fn a_poll_that_panics_ends_the_task() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let (polled, first_poll) = channel();
    let (commands, mut received) = mpsc::unbounded_channel::<()>();
    let task = SharedTask::new();
    task.spawn(async move {
        polled.send(()).unwrap();
        received.recv().await;
        panic!("planted");
    });
    first_poll.recv().unwrap();
    wait_for_rest(&task);
    let call = || task.call().send(|| commands.send(()));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert!(commands.is_closed());
    wait_for_end(&task);
}

#[test]
fn a_future_that_ends_in_the_poll_of_a_caller_ends_the_task() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let fixture = Fixture::new();
    while !fixture.has_run.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    wait_for_rest(&fixture.task);
    let call = fixture.task.call();
    call.send(|| drop(fixture.commands));
    wait_for_end(&fixture.task);
}

#[test]
fn the_end_of_the_runtime_ends_the_task() {
    let runtime = runtime();
    let fixture = runtime.block_on(async { Fixture::new() });
    drop(runtime);
    assert!(fixture.commands.is_closed());
    wait_for_end(&fixture.task);
}

#[test]
fn every_caller_gets_an_answer() {
    let runtime = runtime();
    let fixture = Arc::new(runtime.block_on(async { Fixture::new() }));
    let callers = (0..4).map(|caller| {
        let fixture = fixture.clone();
        runtime.spawn(async move {
            for call in 0..5_000 {
                fixture.ask().await;
                if call % (caller + 2) == 0 {
                    yield_now().await;
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
}
