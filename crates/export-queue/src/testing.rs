//! A test kit for applications: exports all entries of a real queue, in memory or in any other store, without a
//! worker.
//!
//! Nothing here is a mock: the batches are those of a worker, under the claims of a session. The test kits of
//! [`combine::testing`] and [`hc_dequeue::testing`](combine::hc_dequeue::testing) do the same for other queues.

use std::time::Duration;

use combine::bucket_worker::{Assignment, Next};
use combine::hc_dequeue::session::{Life, Member, SessionId};
use combine::keyspace::codec::{Codec, Raw};
use combine::keyspace::{Bytes, Database, Runner, Store, Transaction, Tx};
use combine::{Bucket, WorkerOptions};
use futures::future::BoxFuture;

use crate::error::{Error, Result};
use crate::exporter::Exporter;
use crate::exporting::typed::{QueueExporter, TypedExporter};
use crate::exporting::{Exporting, RetryState};
use crate::subscription::Subscription;

/// What became of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Drained {
    /// How many were exported, each once. With [`coalesce`](WorkerOptions::with_coalesce), the exporter got fewer.
    pub exported: u64,
    /// How many became [dead letters](Subscription::dead_letters). A block that does not decode counts once.
    pub dead: u64,
}

/// Exports all entries of the subscription, bucket by bucket, until none is left. This includes entries that are added
/// meanwhile.
///
/// The exporter is one of [`work`](Subscription::work). It is called outside of transactions, with one batch at a time.
/// While the subscription is paused, nothing is exported.
///
/// The function opens its own session, and ends it before it returns. A bucket in which a worker of another session is
/// at work stays with that one.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use export_queue::keyspace::{self, Runner};
/// use export_queue::testing::drain;
/// use export_queue::{BoxError, ExportQueue, Exporter, SequencedExport, Start, async_trait};
///
/// #[derive(Default)]
/// struct Table(Mutex<BTreeMap<String, u64>>);
///
/// #[async_trait]
/// impl Exporter<String, u64> for Table {
///     async fn export(&self, batch: &[SequencedExport<String, u64>]) -> Result<(), BoxError> {
///         let mut rows = self.0.lock().unwrap();
///         rows.extend(batch.iter().map(|entry| (entry.key.clone(), entry.value)));
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let changes = &ExportQueue::<String, u64>::open(&runner, "changes").await?;
/// let subscription = changes.subscribe(&runner, "table", Start::Oldest).await?;
/// let pan = &"pan".to_owned();
/// for pieces in [2, 5] {
///     runner.run(async |tr| changes.add(&tr, pan, &pieces).await).await?;
/// }
///
/// let table = Arc::new(Table::default());
/// assert_eq!(drain(&runner, &subscription, table.clone()).await?.exported, 2);
/// assert_eq!(table.0.lock().unwrap()["pan"], 5);
/// # Ok(())
/// # }
/// ```
///
/// # Conflicts
/// As a [`Worker`](crate::Worker).
///
/// # Errors
/// The first error of a batch: that of the exporter, a panic of it or its time limit, those of [`Runner::run`], and
/// [`Corrupt`](combine::keyspace::Error::Corrupt). The batch is exported again by a later call.
/// [`NoSubscription`](Error::NoSubscription) if the subscription was removed; [`SessionLost`](Error::SessionLost) if a
/// worker has taken over, since the exporter took longer than the lease.
///
/// # Cancel safety
/// Dropping the future may leave a session without heartbeats, which others remove, and a batch that is exported again.
pub async fn drain<K, V, C, D>(
    runner: &Runner<D>,
    subscription: &Subscription<K, V, C>,
    exporter: impl Exporter<K, V>,
) -> Result<Drained>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
    D: Database,
{
    drain_with(runner, subscription, WorkerOptions::default(), exporter).await
}

/// Exports as [`drain`] does, with the options of a worker:
///
/// - the [bytes of a batch](WorkerOptions::with_max_batch_bytes)
/// - the [time limit](WorkerOptions::with_time_limit) of a call of the exporter
/// - whether it [coalesces](WorkerOptions::with_coalesce)
/// - after how many failures an entry is a [dead letter](WorkerOptions::with_dead_letter_after): if this is set, a
///   batch that fails is exported again at once, in smaller parts, until the entries that fail are dead letters
///
/// The others have no effect: buckets are exported one after another, and the drain waits for nothing.
///
/// # Conflicts
/// As [`drain`].
///
/// # Errors
/// As [`drain`]. With dead letters, no error of the exporter.
///
/// # Cancel safety
/// As [`drain`].
pub async fn drain_with<K, V, C, D>(
    runner: &Runner<D>,
    subscription: &Subscription<K, V, C>,
    options: WorkerOptions,
    exporter: impl Exporter<K, V>,
) -> Result<Drained>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
    D: Database,
{
    let exporter = QueueExporter {
        queue: subscription.queue.clone(),
        exporter,
    };
    let untyped = subscription.untyped();
    drain_untyped(untyped, runner.on_store(), options, Box::new(exporter)).await
}

fn drain_untyped(
    subscription: Subscription<Bytes, Bytes, Raw>,
    runner: Runner<Store>,
    options: WorkerOptions,
    exporter: Box<dyn TypedExporter>,
) -> BoxFuture<'static, Result<Drained>> {
    Box::pin(async move {
        let lease = subscription.queue.settings.lease();
        let mut member = Member::new(subscription.sessions(), &runner, lease);
        member.open().await?;
        let mut drain = Drain {
            exporting: Exporting::new(subscription, runner, &options, exporter),
            session: member.id(),
            lease,
            drained: Drained::default(),
        };
        let exported = drain.export_all().await;
        let ended = drain.end_session().await;
        exported.and(ended)?;
        Ok(drain.drained)
    })
}

/// A subscription that is being drained.
struct Drain {
    exporting: Exporting,
    session: SessionId,
    lease: Duration,
    drained: Drained,
}

impl Drain {
    async fn export_all(&mut self) -> Result<()> {
        loop {
            let before = self.drained;
            for bucket in self.pending().await? {
                self.export_bucket(bucket).await?;
            }
            // Nothing is left, or only buckets of other sessions: all of them, if this session is dead.
            if self.drained == before {
                return self.check_session().await;
            }
        }
    }

    /// Fails if the session was declared dead. It writes no heartbeat.
    async fn check_session(&self) -> Result<()> {
        let sessions = &self.exporting.subscription.sessions();
        let life = |tr: Tx<_>| async move { sessions.life(&tr, self.session).await };
        match self.exporting.runner.run(life).await? {
            Some(Life::Alive) => Ok(()),
            _ => Err(Error::SessionLost { lease: self.lease }),
        }
    }

    /// Returns the buckets with entries to export.
    async fn pending(&self) -> Result<Vec<Bucket>> {
        let subscription = &self.exporting.subscription;
        let pending = |tr: Tx<_>| async move {
            if !subscription.is_there(&tr).await? {
                return Err(Error::NoSubscription {
                    queue: subscription.queue.subspace().clone(),
                    subscription: subscription.name().to_owned(),
                });
            }
            if subscription.is_paused(&tr).await? {
                return Ok(Vec::new());
            }
            subscription.unfinished_buckets(&tr).await
        };
        self.exporting.runner.run(pending).await
    }

    /// Exports the entries of a bucket.
    async fn export_bucket(&mut self, bucket: Bucket) -> Result<()> {
        let assignment = Assignment::new(self.session, bucket, true);
        let mut retry = RetryState::default();
        loop {
            match self.exporting.next_batch(assignment, &mut retry).await {
                Ok(stepped) => {
                    self.drained.exported += stepped.exported as u64;
                    self.drained.dead += stepped.dead as u64;
                    if stepped.next != Next::Again {
                        return Ok(());
                    }
                }
                Err(error) if self.becomes_dead(&error) => {
                    self.exporting.later(bucket, &mut retry, &error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether repetitions after an error end with a dead letter.
    fn becomes_dead(&self, error: &Error) -> bool {
        let is_of_exporter = matches!(
            error,
            Error::Exporter(_) | Error::ExporterPanicked { .. } | Error::ExporterTimedOut { .. }
        );
        is_of_exporter && self.exporting.options.dead_letter_after.is_some()
    }

    /// Ends the session, so that other sessions take over its buckets.
    async fn end_session(&self) -> Result<()> {
        let subscription = &self.exporting.subscription;
        let sessions = &subscription.sessions();
        let wake = &subscription.queue.keys.wake();
        let session = self.session;
        let end = |tr: Tx<_>| async move {
            sessions.remove(&tr, session);
            tr.set_to_versionstamp(wake);
            Ok::<_, Error>(())
        };
        self.exporting.runner.run(end).await
    }
}
