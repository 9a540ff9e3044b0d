//! An audit while the queue is in use never finds anything.

use std::sync::Arc;
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{scale, until};
use hc_dequeue::{Delivery, Enqueue, Enqueued, OnRepeat, Outcome, WorkerOptions};
use tokio::task::JoinSet;

use crate::common::World;

conformance::on_every_store!(threads: a_busy_queue_is_always_clean);

/// While workers, enqueues, cancellations and schedules change everything that is checked.
async fn a_busy_queue_is_always_clean(store: TestStore) {
    let moment = Duration::from_millis(2);
    let settings = crate::common::settings()
        .with_max_attempts(3)
        .with_keep_done(moment * 20);
    let world = Arc::new(World::new(&store, settings).await);
    let handler = move |delivery: Delivery<u64>| async move {
        match (*delivery.value() + delivery.deliveries()) % 4 {
            0 => Ok(Outcome::snooze(moment)),
            1 => Ok(Outcome::retry_after(moment, "again")),
            2 => Ok(Outcome::Done),
            _ => Err("it failed"),
        }
    };
    let options = WorkerOptions::new().with_concurrency(4);
    let mut workers = Vec::new();
    for _ in 0..2 {
        let worker = world.queue.work(&world.runner, options.clone(), handler);
        workers.push(worker.await.unwrap());
    }
    let mut clients = JoinSet::new();
    for client in 0..3 {
        let world = world.clone();
        clients.spawn(async move {
            for value in (client..).step_by(3) {
                change_something(&world, value).await;
            }
        });
    }
    let enough = scale(30, 2_000);
    let mut audits = 0;
    until(async || {
        let audit = world.audit().await;
        assert!(audit.is_clean(), "{audit:?}");
        audits += 1;
        let stats = world.stats().await;
        audits >= enough && stats.completed > 0 && stats.cancelled > 0
    })
    .await;
    clients.abort_all();
    for worker in workers {
        worker.shut_down(Duration::ZERO).await.unwrap();
    }
    world.check().await;
}

async fn change_something(world: &World, value: u64) {
    let dedupe = vec![(value % 5) as u8];
    let mode = [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce][value as usize % 3];
    let delay = Duration::from_millis(value % 4);
    let options = &Enqueue::new()
        .with_dedupe(dedupe.clone())
        .with_on_repeat(mode)
        .with_delay(delay);
    let enqueued = world.enqueue_with(value, options).await.unwrap();
    if let (Enqueued::Replaced(item), 0) = (enqueued, value % 2) {
        let _ = world.cancel(&item).await;
    }
    let name = ["one", "two"][value as usize % 2];
    match value % 8 {
        0..4 => {
            let cron = ["@daily", "@hourly"][value as usize % 3 % 2];
            world.schedule(name, cron).await;
        }
        4 => {
            let queue = &world.queue;
            let remove = |tr| async move { queue.unschedule(&tr, name).await };
            world.runner.run(remove).await.unwrap();
        }
        _ => {}
    }
}
