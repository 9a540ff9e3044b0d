//! Workers: what happens to items whose handlers succeed, fail, panic, hang or are shut down.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::timeout;
use hc_dequeue::{Backoff, Delivery, Settings, WorkerOptions};
use tokio::sync::{Notify, mpsc};

conformance::on_every_store!(
    every_item_is_handled_and_completed,
    a_handler_may_acknowledge_in_its_own_transaction,
    what_fails_or_panics_is_tried_again_and_then_a_dead_letter,
    a_handler_that_hangs_is_dropped_and_its_item_goes_to_another,
    a_shut_down_lets_handlers_finish,
    a_shut_down_returns_what_is_not_finished_in_time,
);

type Handled = Result<(), String>;

fn quick() -> WorkerOptions {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(4));
    WorkerOptions::default().with_backoff(backoff)
}

async fn every_item_is_handled_and_completed(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue(0..200).await;
    let (seen, mut handled) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        let seen = seen.clone();
        async move {
            seen.send(*delivery.value()).unwrap();
            Handled::Ok(())
        }
    };
    let queue = &world.queue;
    let runner = &world.runner;
    let worker = queue.work(runner, quick(), handler).await.unwrap();
    let mut values = Vec::new();
    while values.len() < 200 {
        values.push(handled.recv().await.unwrap());
    }
    worker.shut_down(LONG).await.unwrap();
    values.sort_unstable();
    assert_eq!(values, (0..200).collect::<Vec<_>>());
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.queued, stats.held), (200, 0, 0));
    world.check().await;
}

async fn a_handler_may_acknowledge_in_its_own_transaction(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let done = Arc::new(Notify::new());
    let runner = world.runner.clone();
    let acknowledged = done.clone();
    let handler = move |delivery: Delivery<u64>| {
        let runner = runner.clone();
        let acknowledged = acknowledged.clone();
        async move {
            let delivery = &delivery;
            let ack = |tr| async move { delivery.ack(&tr).await };
            runner.run(ack).await.map_err(|error| error.to_string())?;
            acknowledged.notify_one();
            Handled::Ok(())
        }
    };
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    done.notified().await;
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

async fn what_fails_or_panics_is_tried_again_and_then_a_dead_letter(store: TestStore) {
    let settings = Settings::new().with_max_attempts(3);
    let world = World::new(&store, settings).await;
    world.enqueue([0, 1, 2]).await;
    let (seen, mut attempts) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        let seen = seen.clone();
        async move {
            seen.send((*delivery.value(), delivery.attempt())).unwrap();
            match (*delivery.value(), delivery.attempt()) {
                (0, _) => Handled::Err("no".to_owned()),
                (1, _) => panic!("no"),
                (_, 1) => Handled::Err("not yet".to_owned()),
                _ => Handled::Ok(()),
            }
        }
    };
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    let mut all = Vec::new();
    while all.len() < 3 + 3 + 2 {
        all.push(attempts.recv().await.unwrap());
    }
    worker.unwrap().shut_down(LONG).await.unwrap();
    all.sort_unstable();
    let expected = [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
    ];
    assert_eq!(all, expected);
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.completed), (2, 1));
    world.check().await;
}

async fn a_handler_that_hangs_is_dropped_and_its_item_goes_to_another(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let done = Arc::new(Notify::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let handled = done.clone();
    let handler = move |_: Delivery<u64>| {
        let handled = handled.clone();
        let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            handled.notify_one();
            Handled::Ok(())
        }
    };
    let options = quick()
        .with_concurrency(1)
        .with_time_limit(Duration::from_millis(500));
    let worker = world.queue.work(&world.runner, options, handler).await;
    done.notified().await;
    timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

async fn a_shut_down_lets_handlers_finish(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let begun = Arc::new(Notify::new());
    let go_on = Arc::new(Notify::new());
    let report = begun.clone();
    let wait = go_on.clone();
    let handler = move |_: Delivery<u64>| {
        let report = report.clone();
        let wait = wait.clone();
        async move {
            report.notify_one();
            wait.notified().await;
            Handled::Ok(())
        }
    };
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    begun.notified().await;
    let shut_down = worker.unwrap().shut_down(LONG);
    let (ended, ()) = tokio::join!(shut_down, async { go_on.notify_one() });
    ended.unwrap();
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

async fn a_shut_down_returns_what_is_not_finished_in_time(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7, 8]).await;
    let begun = Arc::new(Notify::new());
    let report = begun.clone();
    let handler = move |_: Delivery<u64>| {
        let report = report.clone();
        async move {
            report.notify_one();
            std::future::pending::<Handled>().await
        }
    };
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    begun.notified().await;
    worker.unwrap().shut_down(Duration::ZERO).await.unwrap();
    assert_eq!(world.values().await, [7, 8]);
    world.check().await;
}
