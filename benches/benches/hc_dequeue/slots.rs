//! Slots of limited groups: how soon an idle consumer gets one that was freed.

use std::mem::swap;
use std::sync::Arc;
use std::time::Duration;

use benches::contender::{ITEM, Site};
use benches::meter::Metered;
use benches::stage::{Stage, runtime};
use conformance::scale;
use hc_dequeue::{Consumer, Delivery, Enqueue, Error, GroupLimits, Queue, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::{Bytes, Environment, RunOptions, Runner, Store};

use crate::idle::{PATIENCE, SETTLING, Times, site};

/// A queue.
pub(crate) struct Place {
    pub(crate) runner: Runner<Metered<Store>>,
    pub(crate) queue: Queue<Bytes, Raw>,
}

impl Place {
    pub(crate) async fn open(site: &Site) -> Self {
        let options = RunOptions::default().with_ledger_subspace(site.ledger());
        let runner = Runner::with_options(site.db.clone(), options);
        let queue = Queue::open(&runner, site.queue()).await;
        Self {
            queue: queue.expect("nothing conflicts"),
            runner,
        }
    }

    /// Sets the default limits of groups.
    pub(crate) async fn limit_groups(&self, limits: &GroupLimits) {
        let queue = &self.queue;
        let limit = |tr| async move { queue.configure_groups(&tr, limits).await };
        self.runner.run(limit).await.expect("nothing conflicts");
    }

    pub(crate) async fn consumer(&self) -> Arc<Consumer<Bytes>> {
        let options = WorkerOptions::default();
        let consumer = self.queue.consumer(&self.runner, options).await;
        Arc::new(consumer.expect("nothing conflicts"))
    }

    /// Enqueues items, in one commit.
    pub(crate) async fn enqueue(&self, items: &[(Bytes, Enqueue)]) {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
        let enqueued: Result<(), Error> = self.runner.run(enqueue).await;
        enqueued.expect("nothing conflicts");
    }

    /// Enqueues an item of a group that is always the same.
    async fn enqueue_one(&self) {
        self.enqueue(&[(ITEM, Enqueue::new().with_group("group"))])
            .await;
    }
}

/// Acknowledges an item in a transaction of its own.
pub(crate) async fn acknowledge(runner: &Runner<Metered<Store>>, delivery: &Delivery<Bytes>) {
    let acknowledged: Result<(), Error> = runner
        .run(|tr| async move { delivery.ack(&tr).await })
        .await;
    acknowledged.expect("the session lives");
}

/// Waits for an item. Returns it, and when it came.
pub(crate) async fn wait(consumer: Arc<Consumer<Bytes>>) -> (Delivery<Bytes>, Duration) {
    let delivery = consumer.dequeue_within(PATIENCE).await;
    let delivery = delivery.expect("the store serves").expect("an item comes");
    (delivery, Environment::system().now())
}

/// Returns a table of the times from the call that acknowledges an item of an ordered group to the end of that call,
/// and to the delivery of the next item to a consumer that waits in another session.
pub(crate) fn latency(stage: &Stage) -> String {
    let times = stage.on_a_clean_place(|place| {
        let site = site(stage, place);
        runtime().block_on(measure_latency(&site))
    });
    let names = ["to its end", "to the delivery of the next item"];
    let table = times.into_table("from the call of ack", names);
    format!(
        "From the acknowledgement of an item of an ordered group to an idle consumer\n\n{table}"
    )
}

async fn measure_latency(site: &Site) -> Times {
    let env = Environment::system();
    let place = Place::open(site).await;
    place.limit_groups(&GroupLimits::ordered()).await;
    let mut holder = place.consumer().await;
    let mut waiter = place.consumer().await;
    place.enqueue_one().await;
    let (mut held, _) = wait(holder.clone()).await;
    let mut times = Times::default();
    for _ in 0..scale(200, 2_000) {
        place.enqueue_one().await;
        let waiting = tokio::spawn(wait(waiter.clone()));
        env.sleep(SETTLING).await;
        let began = env.now();
        acknowledge(&place.runner, &held).await;
        let acknowledged = env.now();
        let (next, delivered) = waiting.await.expect("the consumer does not panic");
        held = next;
        swap(&mut holder, &mut waiter);
        times.push(began, [acknowledged, delivered]);
    }
    times
}
