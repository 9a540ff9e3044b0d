//! A task that its callers run, too.
//!
//! A caller sends a command to a task and waits for the answer. If only the runtime ran the task, both the command and
//! the answer would have to wait until the runtime gets to them: several microseconds, a tenth of a commit to a fast
//! disk. Therefore, a caller that is alone polls the future of a [`SharedTask`] itself, right after it has sent its
//! command. The runtime does the rest: what the future could not finish in that poll, and the commands of callers that
//! are not alone, which the task can combine.
//!
//! While a caller polls the future, its thread cannot run the other callers that would send commands, too. The runtime
//! therefore takes a poll from time to time, and if several callers meet in it, all polls until they no longer do. The
//! embedded store decides in the same way whether a caller flushes its own commit.
//!
//! The waker of the future wakes the part of the task that the runtime runs. While the future is being polled, the
//! waker only leaves a mark, and the wake-up is passed on at the end of the poll.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;

/// The state of a future that is being polled.
const POLLED: u8 = 1;

/// The state of a future that was woken since its last poll began.
const WOKEN: u8 = 2;

/// The most polls in a row that callers make.
const MAX_LONE_POLLS: u32 = 32;

/// How many polls callers may make themselves.
#[derive(Default)]
struct Lone {
    /// How many were allowed after the last poll of the runtime.
    allowed: u32,
    /// How many of them are left.
    left: u32,
}

impl Lone {
    /// Decides anew after a poll of the runtime, during which there were at most this many callers.
    fn renew(&mut self, callers: usize) {
        self.allowed = match callers {
            0 => return,
            1 => (2 * self.allowed).clamp(1, MAX_LONE_POLLS),
            _ => 0,
        };
        self.left = self.allowed;
    }

    fn take(&mut self) -> bool {
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// Lets the runtime run other tasks first.
///
/// tokio keeps the last task that a task wakes for the same thread, where no other thread takes it over, and so it does
/// with a task that waits in `tokio::task::yield_now`. If the thread then runs code of the application that blocks it,
/// they do not run. After this wait, a task is in a queue from which other threads take it.
pub(crate) async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A task that its callers run, too.
pub(crate) struct SharedTask {
    /// The future, until it ends. The lock is held during a poll.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Any of [`POLLED`] and [`WOKEN`].
    state: AtomicU8,
    /// How many more steps the future may begin in this poll.
    steps: AtomicUsize,
    /// How many callers there are.
    callers: AtomicUsize,
    lone: Mutex<Lone>,
    /// Wakes the [`Runner`].
    runner: AtomicWaker,
    runtime: Handle,
}

impl SharedTask {
    /// Creates a task without a future.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            future: Mutex::default(),
            state: AtomicU8::default(),
            steps: AtomicUsize::default(),
            callers: AtomicUsize::default(),
            lone: Mutex::default(),
            runner: AtomicWaker::new(),
            runtime: Handle::current(),
        })
    }

    /// Spawns the future of the task.
    pub(crate) fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        *self.future.lock() = Some(Box::pin(future));
        let runner = Runner(self.clone());
        let run = poll_fn(move |context| runner.poll(context));
        self.runtime.spawn(run);
    }

    /// Waits until the future may begin another step. Each caller runs one step at most, so that it does not have to
    /// run steps for others before it gets its answer.
    pub(crate) async fn next_step(&self) {
        let next = poll_fn(|context| {
            let steps = self.steps.load(Ordering::Relaxed);
            let Some(left) = steps.checked_sub(1) else {
                context.waker().wake_by_ref();
                return Poll::Pending;
            };
            self.steps.store(left, Ordering::Relaxed);
            Poll::Ready(())
        });
        next.await;
    }

    /// Begins a call, which ends when it is dropped.
    pub(crate) fn call(self: &Arc<Self>) -> Call<'_> {
        let others = self.callers.fetch_add(1, Ordering::Relaxed);
        Call {
            task: self,
            is_alone: others == 0,
        }
    }

    /// Returns whether the future was woken since its last poll began.
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) & WOKEN != 0
    }

    /// Returns the right to poll the future, unless it is being polled.
    fn turn(self: &Arc<Self>) -> Option<PollTurn<'_>> {
        let state = self.state.fetch_or(POLLED, Ordering::AcqRel);
        if state & POLLED != 0 {
            return None;
        }
        Some(PollTurn(self))
    }
}

impl Wake for SharedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) & POLLED == 0 {
            self.runner.wake();
        }
    }
}

/// The right to poll the future of a task.
struct PollTurn<'a>(&'a Arc<SharedTask>);

impl PollTurn<'_> {
    /// Polls the future, which may begin this number of steps.
    fn poll(&self, steps: usize) -> Poll<()> {
        let task = self.0;
        let waker = Waker::from(task.clone());
        let mut slot = task.future.lock();
        task.steps.store(steps, Ordering::Relaxed);
        task.state.fetch_and(!WOKEN, Ordering::AcqRel);
        // If the poll panics, the future is gone.
        if let Some(mut future) = slot.take() {
            let context = &mut Context::from_waker(&waker);
            if future.as_mut().poll(context).is_pending() {
                *slot = Some(future);
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl Drop for PollTurn<'_> {
    fn drop(&mut self) {
        let state = self.0.state.fetch_and(!POLLED, Ordering::AcqRel);
        if state & WOKEN != 0 || thread::panicking() {
            self.0.runner.wake();
        }
    }
}

/// The part of a task that the runtime knows. If the runtime drops it, the future is dropped, too.
struct Runner(Arc<SharedTask>);

impl Runner {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let task = &self.0;
        task.runner.register(context.waker());
        let Some(turn) = task.turn() else {
            return Poll::Pending;
        };
        // A caller that is answered in this poll counts, and so does one that calls during it.
        let before = task.callers.load(Ordering::Relaxed);
        let polled = turn.poll(usize::MAX);
        let callers = before.max(task.callers.load(Ordering::Relaxed));
        task.lone.lock().renew(callers);
        polled
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.0.future.lock().take());
    }
}

/// A call of a task: from before its command is sent until it has its answer.
pub(crate) struct Call<'a> {
    task: &'a Arc<SharedTask>,
    is_alone: bool,
}

impl Call<'_> {
    /// Sends the command of the call, and polls the task if the call is alone.
    pub(crate) fn send<R>(&self, send: impl FnOnce() -> R) -> R {
        // The timers of the future belong to its runtime.
        let is_local =
            || Handle::try_current().is_ok_and(|here| here.id() == self.task.runtime.id());
        let may_poll = self.is_alone && is_local() && self.task.lone.lock().take();
        let turn = if may_poll { self.task.turn() } else { None };
        let sent = send();
        if let Some(turn) = turn {
            let polled = turn.poll(1);
            drop(turn);
            if polled.is_ready() {
                self.task.runner.wake();
            }
        }
        sent
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.task.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
