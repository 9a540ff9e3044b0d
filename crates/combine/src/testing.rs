//! A test kit for applications: combines all updates of a real queue, in memory or in any other store, without a
//! worker.
//!
//! Nothing here is a mock: the passes are those of a worker. The test kit of
//! [`hc_dequeue::testing`] does the same for work queues.

use futures::future::BoxFuture;
use hc_dequeue::WorkerOptions;
use hc_dequeue::keyspace::codec::{Codec, Raw};
use hc_dequeue::keyspace::{Bytes, Database, Runner, Store};

use crate::error::Result;
use crate::pass::Pass;
use crate::pass::combining::{BeginPass, Combining};
use crate::pass::observer::ChangeObserver;
use crate::queue::CombineQueue;

/// What passes have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Drained {
    /// How many updates they have taken. Those that were set aside count, too.
    pub updates: u64,
    /// How many changes they have reported to the observer.
    pub changes: u64,
    /// How many updates they have [set aside](CombineQueue::set_aside), and changes whose report they have withheld.
    pub set_aside: u64,
}

/// Combines all updates of the queue, bucket by bucket, until none is left and all changes were reported. This includes
/// updates that the observer adds.
///
/// The observer is one of [`work`](CombineQueue::work). It has the time limit of a worker with the default options.
///
/// The function opens no session. Workers of the queue may run at the same time: two passes over a bucket exclude each
/// other.
///
/// ```
/// use combine::keyspace::{self, Isolation, Runner};
/// use combine::testing::drain;
/// use combine::{CombineQueue, Sum, Unobserved};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let sold = &CombineQueue::<String, i64>::open(&runner, "sold", Sum).await?;
/// let pan = &"pan".to_owned();
/// for pieces in [2, 3] {
///     runner.run(async |tr| sold.add(&tr, pan, &pieces).await).await?;
/// }
///
/// let drained = drain(&runner, sold, Unobserved).await?;
/// assert_eq!((drained.updates, drained.changes), (2, 1));
/// let settled = runner.run(async |tr| sold.settled(&tr, pan, Isolation::Snapshot).await).await?;
/// assert_eq!(settled, Some(5));
/// # Ok(())
/// # }
/// ```
///
/// # Conflicts
/// As a [`Worker`](crate::Worker).
///
/// # Errors
/// The first error with which a pass fails: that of the observer, a panic of it or its time limit, those of
/// [`Runner::run`], and [`Corrupt`](hc_dequeue::keyspace::Error::Corrupt). Nothing of that pass is committed, and a
/// later call goes on there.
///
/// # Cancel safety
/// Dropping the future leaves the passes that were committed. A commit that was already sent may still happen.
pub async fn drain<K, U, V, C, D>(
    runner: &Runner<D>,
    queue: &CombineQueue<K, U, V, C>,
    observer: impl ChangeObserver<K, V>,
) -> Result<Drained>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
    D: Database,
{
    let begin_pass = queue.begin_pass(observer);
    drain_untyped(queue.untyped(), runner.on_store(), begin_pass).await
}

fn drain_untyped(
    queue: CombineQueue<Bytes, Bytes, Bytes, Raw>,
    runner: Runner<Store>,
    begin_pass: BeginPass,
) -> BoxFuture<'static, Result<Drained>> {
    Box::pin(async move {
        let combining = Combining::new(queue, runner, &WorkerOptions::default(), begin_pass);
        let queue = &combining.queue;
        let mut drained = Drained::default();
        loop {
            let pending = |tr| async move { queue.pending_buckets(&tr).await };
            let buckets = combining.runner.run(pending).await?;
            if buckets.is_empty() {
                return Ok(drained);
            }
            for bucket in buckets {
                let note = |pass: &Pass| {
                    drained.updates += pass.updates as u64;
                    drained.changes += pass.changes as u64;
                    drained.set_aside += pass.set_aside as u64;
                };
                combining.finish(bucket, note).await?;
            }
        }
    })
}
