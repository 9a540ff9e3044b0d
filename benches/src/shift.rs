//! Tasks that repeat an action for a time, and the time of each action.

use std::future::Future;
use std::time::Duration;

use keyspace::Environment;

/// The action that a task repeats.
pub trait Work: Send + 'static {
    /// Performs the action once. A task that waits for something gives up at the deadline.
    fn act(&mut self, deadline: Duration) -> impl Future<Output = Act> + Send;
}

/// The outcome of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The action was performed.
    Done,
    /// It was not performed, and nothing is left to do.
    Over,
}

/// The outcome of the time that tasks worked.
#[derive(Debug, Default)]
pub struct Burst {
    /// From the begin to the end, or to when the first task had nothing more to do: those that still
    /// act then are fewer than they should be.
    pub lasted: Duration,
    /// The number of actions in that time.
    pub done_in_time: u64,
    /// The time of each action, in microseconds, including those that ended late.
    pub took_micros: Vec<u32>,
}

/// What one task has done.
struct Shift {
    done: Vec<Done>,
    /// When the task found that there was nothing more to do, or no more time.
    ended: Duration,
}

/// An act that was done.
struct Done {
    at: Duration,
    took: Duration,
}

impl Done {
    fn micros(&self) -> u32 {
        u32::try_from(self.took.as_micros()).unwrap_or(u32::MAX)
    }
}

/// Has each worker act as a task of its own, one act after the other, for a time.
///
/// # Panics
/// If a worker does.
pub async fn work<W: Work>(
    env: &Environment,
    workers: impl IntoIterator<Item = W>,
    time: Duration,
) -> Burst {
    let began = env.now();
    let deadline = began + time;
    let begin = |worker| tokio::spawn(act_until(env.clone(), worker, deadline));
    let tasks: Vec<_> = workers.into_iter().map(begin).collect();
    let mut ended = deadline;
    let mut done = Vec::new();
    for task in tasks {
        let shift = task.await.expect("no worker panics");
        ended = ended.min(shift.ended);
        done.extend(shift.done);
    }
    let in_time = done.iter().filter(|done| done.at <= ended);
    Burst {
        lasted: ended - began,
        done_in_time: in_time.count() as u64,
        took_micros: done.iter().map(Done::micros).collect(),
    }
}

async fn act_until<W: Work>(env: Environment, mut worker: W, deadline: Duration) -> Shift {
    let mut done = Vec::new();
    loop {
        let began = env.now();
        if began >= deadline || worker.act(deadline).await == Act::Over {
            let ended = env.now().min(deadline);
            return Shift { done, ended };
        }
        let at = env.now();
        let took = at - began;
        done.push(Done { at, took });
    }
}
