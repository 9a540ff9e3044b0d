//! A task that its callers run, too.
//!
//! A caller sends a command to a task and waits for the answer. If only the runtime ran the task, both the command and
//! the answer would have to wait until the runtime gets to them: several microseconds, a tenth of a commit to a fast
//! disk. Therefore, a caller that finds no other caller polls the future of a [`SharedTask`] itself, right after it has
//! sent its command. The runtime does the rest: what the future could not finish in that poll, and the commands of
//! callers that were not alone, which the task can combine.
//!
//! The waker of the future wakes the part of the task that the runtime runs. While the future is being polled, the
//! waker only leaves a mark, and the wake-up is passed on at the end of the poll.

use std::future::poll_fn;
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

    /// Returns the right to poll the future, unless it is being polled.
    fn turn(self: &Arc<Self>) -> Option<Turn<'_>> {
        let state = self.state.fetch_or(POLLED, Ordering::AcqRel);
        (state & POLLED == 0).then_some(Turn(self))
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
struct Turn<'a>(&'a Arc<SharedTask>);

impl Turn<'_> {
    /// Polls the future, which may begin this number of steps.
    fn poll(self, steps: usize) -> Poll<()> {
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

impl Drop for Turn<'_> {
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
        self.0.runner.register(context.waker());
        match self.0.turn() {
            Some(turn) => turn.poll(usize::MAX),
            None => Poll::Pending,
        }
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
    /// Sends the command of the call, and runs the task if the call is alone.
    pub(crate) fn send<R>(&self, send: impl FnOnce() -> R) -> R {
        // The timers of the future belong to its runtime.
        let is_local =
            || Handle::try_current().is_ok_and(|here| here.id() == self.task.runtime.id());
        let turn = (self.is_alone && is_local()).then(|| self.task.turn());
        let sent = send();
        if let Some(turn) = turn.flatten()
            && turn.poll(1).is_ready()
        {
            self.task.runner.wake();
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
