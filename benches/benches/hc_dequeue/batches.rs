//! Batches: what it costs to be a member, and how soon the callback comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::contender::{ITEM, Site};
use benches::load::commits_of;
use benches::memory_bytes;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use hc_dequeue::{Batch, BatchRef, Enqueue, Error};
use keyspace::{Bytes, Environment, Tx};
use tokio::task::JoinSet;

use crate::groups::{Comparison, table_of};
use crate::idle::{PATIENCE, SETTLING, Times, site};
use crate::slots::{Place, acknowledge, wait};
use crate::trial::Way;
use crate::workload::pop;

/// How many consumers take the members of a large batch.
const CONSUMERS: usize = 64;

/// The value of a callback.
const CALLBACK: Bytes = Bytes::from_static(b"done");

/// Returns the table of members against items that are none.
pub(crate) fn members(stage: &Stage) -> Table {
    let compare = |way, yardstick, consumers| Comparison {
        way,
        yardstick,
        setting: pop(1, 1, consumers),
        other: None,
    };
    table_of(
        stage,
        vec![
            compare(Way::MembersAcknowledged, Way::Acknowledged, 1),
            compare(Way::MembersAcknowledged, Way::Acknowledged, 16),
            compare(Way::MembersAcknowledged, Way::Acknowledged, 64),
            compare(Way::Members, Way::Popped, 64),
        ],
    )
}

impl Place {
    async fn open_batch(&self) -> BatchRef {
        let queue = &self.queue;
        let batch = &Batch::new().with_callback(CALLBACK, Enqueue::new());
        let open = |tr| async move { queue.open_batch(&tr, batch).await };
        let opened: Result<BatchRef, Error> = self.runner.run(open).await;
        opened.expect("nothing conflicts")
    }

    /// Enqueues members of a batch, in one commit.
    async fn enqueue_members(&self, batch: &BatchRef, items: Vec<Bytes>) {
        let member = Enqueue::new().with_batch(batch);
        let items = items.into_iter().map(|item| (item, member.clone()));
        self.enqueue(&items.collect::<Vec<_>>()).await;
    }

    async fn close(&self, batch: &BatchRef) {
        let queue = &self.queue;
        let close = |tr: Tx<_>| async move { queue.close_batch(&tr, batch) };
        let closed: Result<(), Error> = self.runner.run(close).await;
        closed.expect("nothing conflicts");
    }
}

/// Returns a table of the times from the call that acknowledges the last member of a batch to the end of that call, and
/// to the delivery of the callback to a consumer that waits.
pub(crate) fn latency(stage: &Stage) -> String {
    let times = stage.on_a_clean_place(|place| {
        let site = site(stage, place);
        runtime().block_on(measure_latency(&site))
    });
    let names = ["to its end", "to the delivery of the callback"];
    let table = times.into_table("from the call of ack", names);
    format!("From the acknowledgement of the last member of a batch\n\n{table}")
}

async fn measure_latency(site: &Site) -> Times {
    let env = Environment::system();
    let place = Place::open(site).await;
    let holder = place.consumer().await;
    let waiter = place.consumer().await;
    let mut times = Times::default();
    for _ in 0..scale(100, 1_000) {
        let batch = place.open_batch().await;
        place.enqueue_members(&batch, vec![ITEM]).await;
        place.close(&batch).await;
        let (held, _) = wait(holder.clone()).await;
        let waiting = tokio::spawn(wait(waiter.clone()));
        env.sleep(SETTLING).await;
        let began = env.now();
        acknowledge(&place.runner, &held).await;
        let ended = env.now();
        drop(held);
        let (callback, delivered) = waiting.await.expect("the consumer does not panic");
        assert_eq!(*callback.value(), CALLBACK);
        callback.complete().await.expect("the session lives");
        times.push(began, [ended, delivered]);
    }
    times
}

/// Returns a table of a large batch: how fast its members are popped, and when its callback comes.
pub(crate) fn large(stage: &Stage) -> Table {
    let members = scale(100_000, 1_000_000) as u64;
    let [rate, millis, mebibytes] = stage.on_a_clean_place(|place| {
        let site = site(stage, place);
        runtime().block_on(measure_large(&site, members))
    });
    let mut table = Table::new([
        "members",
        "popped per second",
        "from the last pop to the callback",
        "resident memory meanwhile",
    ]);
    let callback = format!("{millis:.0} ms");
    let memory = format!("{mebibytes:.0} MiB");
    table.push([members.to_string(), format!("{rate:.0}"), callback, memory]);
    table
}

/// Returns how many members are popped in a second, in how many milliseconds the callback comes, and the memory that
/// the process has then, in MiB.
async fn measure_large(site: &Site, members: u64) -> [f64; 3] {
    let env = Environment::system();
    let place = Place::open(site).await;
    let batch = place.open_batch().await;
    for items in commits_of(members, 0) {
        place.enqueue_members(&batch, items).await;
    }
    place.close(&batch).await;
    let consumer = place.consumer().await;
    let began = env.now();
    let last = Arc::new(AtomicU64::new(0));
    let mut consumers = JoinSet::new();
    for _ in 0..CONSUMERS {
        let consumer = consumer.clone();
        let env = env.clone();
        let last = last.clone();
        consumers.spawn(async move {
            loop {
                let popped = consumer.pop_within(PATIENCE).await;
                let popped = popped.expect("conflicts are retried");
                if popped.expect("an item comes").value == CALLBACK {
                    return env.now();
                }
                last.fetch_max(env.now().as_micros() as u64, Ordering::Relaxed);
            }
        });
    }
    let callback = consumers.join_next().await.expect("there are consumers");
    let callback = callback.expect("the consumer does not panic");
    consumers.abort_all();
    let last = Duration::from_micros(last.load(Ordering::Relaxed));
    let took = last.saturating_sub(began).as_secs_f64();
    let wait = callback.saturating_sub(last).as_secs_f64();
    let memory = memory_bytes("VmRSS").unwrap_or(0) as f64 / f64::from(1 << 20);
    [members as f64 / took, wait * 1e3, memory]
}
