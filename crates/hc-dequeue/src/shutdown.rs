//! How workers end, in this recipe and in those that build on it: within a bounded time, whatever the application's
//! code and the store do.
//!
//! 1. A worker stops taking work, and its tasks may finish for the grace period.
//! 2. It drops the tasks that have not finished. A task that blocks its thread cannot be dropped: after [`DROP_LIMIT`],
//!    the worker goes on without it.
//! 3. It ends its session, so that other sessions take over what it holds. If the store does not answer within what is
//!    left of the grace period and [`SESSION_END_LIMIT`], the call fails with [`NotEnded`].

use std::future::Future;
use std::time::Duration;

use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::{Environment, Subspace};
use tokio::task::JoinSet;

/// How long a shutdown waits after the grace period until the futures of handlers, observers or exporters are dropped.
pub const DROP_LIMIT: Duration = Duration::from_secs(1);

/// How long a shutdown waits for the end of the session after the grace period, and after [`DROP_LIMIT`] if tasks had
/// to be dropped.
pub const SESSION_END_LIMIT: Duration = Duration::from_secs(10);

/// What a shutdown has found.
///
/// ```
/// # use std::time::Duration;
/// # use hc_dequeue::{Result, Worker};
/// # async fn example(worker: Worker<u64>) -> Result<()> {
/// let report = worker.shut_down(Duration::from_secs(30)).await?;
/// if report.running > 0 {
///     // The runtime would wait for the threads that they block.
///     std::process::exit(1);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many calls of a handler, observer or exporter had not finished after the grace period, and were dropped.
    pub dropped: usize,
    /// How many other calls had not finished either, but block their thread: they could not be dropped, and still run.
    /// Their work has gone back to the queue, and a later acknowledgement is refused.
    pub running: usize,
    /// How often a fault of this library has ended a part of the worker, which was then started again. The log has the
    /// reasons. Please report them.
    pub restarted: usize,
}

/// A session could not be ended, since the store did not answer in time.
///
/// If the store answers later and the process still runs, the session may end after all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store did not end the session of `{recipe}` within {limit:?}: other sessions take over what it \
     holds after its lease",
    recipe = queue_name(.recipe)
)]
pub struct NotEnded {
    /// The subspace of the recipe.
    pub recipe: Subspace,
    /// How long the call has waited.
    pub limit: Duration,
}

/// Waits for tasks up to `grace`. Calls `on_drop` and drops those that have not finished by then, and returns what is
/// left of them.
///
/// # Cancel safety
/// The tasks that have not finished stay in the set.
pub async fn end_tasks<T: 'static>(
    env: &Environment,
    tasks: &mut JoinSet<T>,
    grace: Duration,
    on_drop: impl FnOnce(),
) -> ShutdownReport {
    join(env, tasks, grace).await;
    let unfinished = tasks.len();
    if unfinished == 0 {
        return ShutdownReport::default();
    }
    on_drop();
    tasks.abort_all();
    join(env, tasks, DROP_LIMIT).await;
    let running = tasks.len();
    tasks.detach_all();
    let dropped = unfinished - running;
    tracing::warn!(dropped, running, "calls did not finish in time");
    ShutdownReport {
        dropped,
        running,
        ..ShutdownReport::default()
    }
}

/// Waits for tasks up to `limit`.
async fn join<T: 'static>(env: &Environment, tasks: &mut JoinSet<T>, limit: Duration) {
    within(env, limit, async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
}

/// Waits for a future up to `limit`, as [`Environment::timeout`] does. The runtime is only needed if it is not ready at
/// once: after the end of a runtime, its tasks have ended.
///
/// # Cancel safety
/// As [`Environment::timeout`].
pub async fn within<F: Future>(env: &Environment, limit: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = async { env.sleep(limit).await } => None,
    }
}
