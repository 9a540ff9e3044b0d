//! Which polls are made by callers, that no wake-up is lost, and how a task ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread::ThreadId;

use futures::FutureExt;
use futures::future::join_all;
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

/// Lets a lone caller poll the future.
fn allow_poll(task: &SharedTask) {
    task.lone.lock().left = 1;
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
async fn almost_every_lone_caller_has_its_answer_before_the_runtime_runs_the_task() {
    let fixture = Fixture::new();
    let asks = (0..1_000).map(|_| async {
        let mut ask = Box::pin(fixture.ask());
        let is_answered = (&mut ask).now_or_never().is_some();
        if !is_answered {
            ask.await;
        }
        usize::from(is_answered)
    });
    let mut answered = 0;
    for ask in asks {
        answered += ask.await;
    }
    // The runtime polls 5 times until it allows 32 polls, and for every 33rd of the other calls.
    assert_eq!(answered, 1_000 - 5 - 30);
}

#[tokio::test]
async fn callers_side_by_side_in_one_task_meet_in_a_poll_of_the_runtime() {
    let (commands, mut received) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
    let task = SharedTask::new();
    let running = task.clone();
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = steps.clone();
    task.spawn(async move {
        while let Some(reply) = received.recv().await {
            running.next_step().await;
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = reply.send(());
            while let Ok(reply) = received.try_recv() {
                let _ = reply.send(());
            }
        }
    });
    let ask = || async {
        let (reply, answer) = oneshot::channel();
        let call = task.call();
        call.send(|| commands.send(reply)).unwrap();
        answer.await.unwrap();
    };
    for _ in 0..100 {
        ask().await;
    }
    let before = steps.load(Ordering::Relaxed);
    for _ in 0..100 {
        join_all((0..16).map(|_| ask())).await;
    }
    let steps = steps.load(Ordering::Relaxed) - before;
    let until_they_meet = MAX_LONE_POLLS as usize;
    assert!(steps <= 100 + until_they_meet, "{steps} steps");
}

#[tokio::test]
async fn a_caller_beside_another_leaves_its_command_to_the_runtime() {
    let fixture = Fixture::new();
    allow_poll(&fixture.task);
    let _other = fixture.task.call();
    let call = fixture.task.call();
    let mut answer = call.send(|| fixture.send());
    assert!(answer.try_recv().is_err());
    answer.await.unwrap();
}

#[tokio::test]
async fn a_caller_runs_one_step_and_the_runtime_the_rest() {
    let fixture = Fixture::new();
    allow_poll(&fixture.task);
    let mut first = fixture.send();
    let mut second = fixture.send();
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
    let allow_poll = || {
        wait_for_rest(&fixture.task);
        allow_poll(&fixture.task);
    };
    allow_poll();
    assert_ne!(futures::executor::block_on(fixture.ask()), here);
    let another = Builder::new_current_thread().build().unwrap();
    allow_poll();
    assert_ne!(another.block_on(fixture.ask()), here);
    allow_poll();
    assert_eq!(runtime.block_on(fixture.ask()), here);
}

#[tokio::test]
async fn a_turn_that_is_refused_does_not_end_that_of_another_thread() {
    let task = SharedTask::new();
    let turn = task.turn();
    assert!(turn.is_some());
    for _ in 0..2 {
        assert!(task.turn().is_none());
    }
    drop(turn);
    assert!(task.turn().is_some());
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
    let next_poll = || polls.recv_timeout(conformance::HANG).unwrap();
    next_poll();
    go.send(()).unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let _entered = runtime.enter();
            wait_for_rest(&task);
            allow_poll(&task);
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
    allow_poll(&task);
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
    allow_poll(&fixture.task);
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
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let fixture = fixture.clone();
            runtime.spawn(async move {
                for call in 0..5_000 {
                    fixture.ask().await;
                    if call % (caller + 2) == 0 {
                        yield_now().await;
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
}
