//! The queue without any arrangement among its consumers: one item in a transaction, from the head.

use std::time::Duration;

use keyspace::codec::Raw;
use keyspace::{Bytes, RunOptions, Runner, Store};
use microqueue::MicroQueue;

use super::{Contender, Site};
use crate::meter::Metered;

/// Longer than any consumer waits at the head of a queue. A cluster's default is shorter.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// A microqueue whose consumers collide at its head.
#[derive(Debug)]
pub struct Naive {
    queue: MicroQueue<Bytes, Raw>,
    runner: Runner<Metered<Store>>,
}

impl Contender for Naive {
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let options = RunOptions::default()
            .with_ledger_subspace(site.ledger())
            .with_time_limit(TIME_LIMIT);
        let runner = Runner::with_options(site.db.clone(), options);
        Self {
            queue: MicroQueue::new(site.queue()),
            runner,
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.enqueue_all(&tr, items).await })
            .await
            .expect("nothing conflicts");
    }

    async fn pop(&self) -> Option<Bytes> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.dequeue(&tr).await })
            .await
            .expect("conflicts are retried")
            .map(|item| item.value)
    }
}
