//! The high-contention queue: consumers of one session share its transactions, and sessions register.

use std::time::Duration;

use hc_dequeue::{Batch, BatchRef, Consumer, Enqueue, Error, GroupLimits, Queue, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::{Bytes, RunOptions, Runner, Store};

use super::{Contender, Site};
use crate::meter::Metered;

/// How long a consumer waits for an item that it acknowledges: all groups may be at their limits for a moment.
const PATIENCE: Duration = Duration::from_millis(100);

/// A session of a queue. It either pops items, or acknowledges each item in its own transaction.
#[derive(Debug)]
pub struct HighContention<const ACKNOWLEDGES: bool> {
    queue: Queue<Bytes, Raw>,
    runner: Runner<Metered<Store>>,
    consumer: Consumer<Bytes>,
}

/// A queue whose items are done when they are taken.
pub type Popped = HighContention<false>;

/// A queue whose items are each acknowledged in their own transaction.
pub type Acknowledged = HighContention<true>;

impl Popped {
    /// Takes an item as soon as there is one; `None` if there was none within the time.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn pop_within(&self, time: Duration) -> Option<Bytes> {
        let item = self.consumer.pop_within(time).await;
        item.expect("conflicts are retried").map(|item| item.value)
    }
}

impl<const ACKNOWLEDGES: bool> HighContention<ACKNOWLEDGES> {
    /// Sets the default limits of groups.
    pub(super) async fn limit_groups(&self, limits: &GroupLimits) {
        let queue = &self.queue;
        let limit = |tr| async move { queue.configure_groups(&tr, limits).await };
        self.runner.run(limit).await.expect("nothing conflicts");
    }

    /// Opens a batch.
    pub(super) async fn open_batch(&self) -> BatchRef {
        let queue = &self.queue;
        let open = |tr| async move { queue.open_batch(&tr, &Batch::new()).await };
        self.runner.run(open).await.expect("nothing conflicts")
    }

    /// Puts items with options into the queue, in one commit.
    pub(super) async fn enqueue_with(&self, items: &[(Bytes, Enqueue)]) {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await };
        let enqueued = self.runner.run(enqueue).await;
        drop(enqueued.expect("nothing conflicts"));
    }
}

impl<const ACKNOWLEDGES: bool> Contender for HighContention<ACKNOWLEDGES> {
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let options = RunOptions::default().with_ledger_subspace(site.ledger());
        let runner = Runner::with_options(site.db.clone(), options);
        let queue = Queue::open(&runner, site.queue())
            .await
            .expect("nothing conflicts");
        let consumer = queue.consumer(&runner, WorkerOptions::default()).await;
        Self {
            queue,
            runner,
            consumer: consumer.expect("nothing conflicts"),
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let queue = &self.queue;
        let enqueued = self
            .runner
            .run(|tr| async move { queue.enqueue_all(&tr, items).await });
        enqueued.await.expect("nothing conflicts");
    }

    async fn pop(&self) -> Option<Bytes> {
        if !ACKNOWLEDGES {
            let item = self.consumer.pop().await;
            return item.expect("conflicts are retried").map(|item| item.value);
        }
        let delivery = self.consumer.dequeue_within(PATIENCE).await;
        let delivery = delivery.expect("conflicts are retried")?;
        let acknowledge = self.runner.run(|tr| {
            let delivery = &delivery;
            async move { delivery.ack(&tr).await }
        });
        let acknowledged: Result<(), Error> = acknowledge.await;
        acknowledged.expect("the session lives");
        Some(delivery.value().clone())
    }
}
