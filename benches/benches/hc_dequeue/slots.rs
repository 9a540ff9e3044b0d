//! Slots of limited keys: how soon an idle consumer gets one that was freed, and what freeing them costs while a
//! session waits that they do not concern.

use std::mem::swap;
use std::sync::Arc;
use std::time::Duration;

use benches::contender::{ITEM, Site};
use benches::meter::Metered;
use benches::processor_time;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use hc_dequeue::{Consumer, Delivery, Enqueue, Error, KeyLimits, Queue, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::{Bytes, Environment, RunOptions, Runner, Store};

use crate::idle::{PATIENCE, SETTLING, Times, site};

/// How many items the holder takes at once.
const BATCH: usize = 500;

/// How many tasks acknowledge items at once.
const ACKNOWLEDGERS: usize = 16;

/// A queue whose keys have limits.
pub(crate) struct Place {
    runner: Runner<Metered<Store>>,
    queue: Queue<Bytes, Raw>,
}

impl Place {
    pub(crate) async fn open(site: &Site, limits: &KeyLimits) -> Self {
        let options = RunOptions::default().with_ledger_subspace(site.ledger());
        let runner = Runner::with_options(site.db.clone(), options);
        let queue = Queue::open(&runner, site.queue()).await;
        let queue: Queue<Bytes, Raw> = queue.expect("nothing conflicts");
        let place = Self { runner, queue };
        let queue = &place.queue;
        let limit = |tr| async move { queue.configure_keys(&tr, limits).await };
        place.runner.run(limit).await.expect("nothing conflicts");
        place
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

    /// Enqueues this many items of one key.
    async fn enqueue_some(&self, count: usize) {
        let item = (ITEM, Enqueue::new().with_key("key"));
        self.enqueue(&vec![item; count]).await;
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

/// Returns a table of the times from the call that acknowledges an item of an ordered key to the end of that call, and
/// to the delivery of the next item to a consumer that waits in another session.
pub(crate) fn latency(stage: &Stage) -> String {
    let times = stage.on_a_clean_place(|place| {
        let site = site(stage, place);
        runtime().block_on(measure_latency(&site))
    });
    let names = ["to its end", "to the delivery of the next item"];
    let table = times.into_table("from the call of ack", names);
    format!("From the acknowledgement of an item of an ordered key to an idle consumer\n\n{table}")
}

async fn measure_latency(site: &Site) -> Times {
    let env = Environment::system();
    let place = Place::open(site, &KeyLimits::ordered()).await;
    let mut holder = place.consumer().await;
    let mut waiter = place.consumer().await;
    place.enqueue_some(1).await;
    let (mut held, _) = wait(holder.clone()).await;
    let mut times = Times::default();
    for _ in 0..scale(200, 2_000) {
        place.enqueue_some(1).await;
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

/// Returns a table of what acknowledgements cost if no item waits: of keys with and without a limit, and while a
/// session waits or not.
pub(crate) fn cost(stage: &Stage) -> String {
    let mut table = Table::new([
        "the key has a limit",
        "a session waits",
        "acknowledgements per second",
        "processor time for each",
    ]);
    for limited in [false, true] {
        for waits in [false, true] {
            let [rate, micros] = stage.on_a_clean_place(|place| {
                let site = site(stage, place);
                runtime().block_on(measure_cost(&site, limited, waits))
            });
            let yes = |is: bool| if is { "yes" } else { "no" };
            table.push([
                yes(limited).to_owned(),
                yes(waits).to_owned(),
                format!("{rate:.0}"),
                format!("{micros:.0} µs"),
            ]);
        }
    }
    format!("Acknowledgements that concern no session that waits\n\n{table}")
}

/// Returns how many items are acknowledged in a second, and the processor time for each in microseconds.
async fn measure_cost(site: &Site, limited: bool, waits: bool) -> [f64; 2] {
    let env = Environment::system();
    let count = scale(2_000, 5_000);
    let mut limits = KeyLimits::new();
    if limited {
        limits = limits.with_limit(1_000_000);
    }
    let place = Place::open(site, &limits).await;
    let holder = place.consumer().await;
    place.enqueue_some(count).await;
    let mut held = Vec::new();
    while held.len() < count {
        let batch = holder.dequeue_batch(BATCH.min(count - held.len())).await;
        held.extend(batch.expect("the store serves"));
    }
    if waits {
        tokio::spawn(wait(place.consumer().await));
    }
    env.sleep(10 * SETTLING).await;
    let began = (env.now(), processor_time());
    let mut tasks = Vec::new();
    for _ in 0..ACKNOWLEDGERS {
        let part = held.split_off(held.len() - count / ACKNOWLEDGERS);
        let runner = place.runner.clone();
        tasks.push(tokio::spawn(async move {
            for delivery in &part {
                acknowledge(&runner, delivery).await;
            }
            part.len()
        }));
    }
    let mut acknowledged = 0;
    for task in tasks {
        acknowledged += task.await.expect("no task panics");
    }
    let took = (env.now() - began.0).as_secs_f64();
    let processor = (processor_time() - began.1).as_secs_f64();
    let acknowledged = acknowledged as f64;
    [acknowledged / took, processor * 1e6 / acknowledged]
}
