//! A rolling deployment: two versions of a payload's type on one queue at the same time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{LONG, Wall};
use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{Backoff, Delivery, Queue, Settings, Worker, WorkerOptions};
use keyspace::{OpenOptions, Runner, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

conformance::on_every_store!(
    versions_that_add_and_remove_a_field_share_a_queue,
    a_variant_that_a_version_does_not_know_waits_for_one_that_does,
);

/// The items that were handled, each with the version that handled it.
type Handled = Arc<Mutex<Vec<(u32, u64)>>>;

/// Opens the queue as a version that decodes its items as `T`.
async fn open<T>(store: &TestStore, runner: &Runner<Store>) -> Queue<T>
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let settings = Settings::new().with_max_attempts(10_000);
    let queue = Queue::open_with(
        runner,
        store.root.subspace(&"queue"),
        settings,
        OpenOptions::default(),
    );
    queue.await.unwrap()
}

/// Runs a worker of a version, which identifies an item by `id_of`.
async fn work<T>(
    queue: &Queue<T>,
    runner: &Runner<Store>,
    version: u32,
    handled: &Handled,
    id_of: fn(&T) -> u64,
) -> Worker<T>
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let handled = handled.clone();
    let handler = move |delivery: Delivery<T>| {
        let handled = handled.clone();
        async move {
            handled
                .lock()
                .unwrap()
                .push((version, id_of(delivery.value())));
        }
    };
    // An item that comes back is granted first. Until other items are taken, too, it comes back later each time,
    // however slow the store is.
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let options = WorkerOptions::new()
        .with_concurrency(2)
        .with_backoff(backoff);
    queue.work(runner, options, handler).await.unwrap()
}

/// Enqueues one item after another, so that both versions get some.
async fn enqueue<T>(queue: &Queue<T>, runner: &Runner<Store>, values: &[T])
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    for value in values {
        let enqueue = |tr| async move { queue.enqueue(&tr, value).await };
        runner.run(enqueue).await.unwrap();
    }
}

async fn versions_that_add_and_remove_a_field_share_a_queue(store: TestStore) {
    #[derive(Serialize, Deserialize)]
    struct Old {
        id: u64,
        // The new version has removed this field.
        #[serde(default)]
        note: String,
    }

    #[derive(Serialize, Deserialize)]
    struct New {
        id: u64,
        // The old version does not know this field.
        #[serde(default)]
        priority: Option<u8>,
    }

    let runner = store.runner();
    let old = open::<Old>(&store, &runner).await;
    let new = open::<New>(&store, &runner).await;
    let handled = Handled::default();
    let old_worker = work(&old, &runner, 1, &handled, |order| order.id).await;
    let new_worker = work(&new, &runner, 2, &handled, |order| order.id).await;
    let mut rounds = 0;
    loop {
        let first = 100 * rounds;
        rounds += 1;
        let olds: Vec<_> = (first..first + 50)
            .map(|id| Old {
                id,
                note: "new".to_owned(),
            })
            .collect();
        let news: Vec<_> = (first + 50..first + 100)
            .map(|id| New {
                id,
                priority: Some(3),
            })
            .collect();
        tokio::join!(enqueue(&old, &runner, &olds), enqueue(&new, &runner, &news));
        old.wait_idle(&runner).await.unwrap();
        // Otherwise the test would not have tested decoding across versions.
        let handled = handled.lock().unwrap();
        let crossed = |version, is_new| {
            let mut of_version = handled.iter().filter(|(by, _)| *by == version);
            of_version.any(|(_, id)| (id % 100 >= 50) == is_new)
        };
        if crossed(1, true) && crossed(2, false) {
            break;
        }
        assert!(rounds < 1_000, "one version handles everything");
    }
    old_worker.shut_down(LONG).await.unwrap();
    new_worker.shut_down(LONG).await.unwrap();
    let handled = handled.lock().unwrap();
    let ids: BTreeSet<_> = handled.iter().map(|(_, id)| *id).collect();
    let count = usize::try_from(100 * rounds).unwrap();
    assert_eq!((handled.len(), ids.len()), (count, count));
}

async fn a_variant_that_a_version_does_not_know_waits_for_one_that_does(store: TestStore) {
    #[derive(Serialize, Deserialize)]
    enum Old {
        Mail(u64),
    }

    #[derive(Serialize, Deserialize)]
    enum New {
        Mail(u64),
        Text(u64),
    }

    let runner = store.runner();
    let old = open::<Old>(&store, &runner).await;
    let new = open::<New>(&store, &runner).await;
    let handled = Handled::default();
    let old_worker = work(&old, &runner, 1, &handled, |Old::Mail(id)| *id).await;
    let texts: Vec<_> = (50..60).map(New::Text).collect();
    enqueue(&new, &runner, &texts).await;
    let mails: Vec<_> = (0..10).map(Old::Mail).collect();
    enqueue(&old, &runner, &mails).await;
    until(async || handled.lock().unwrap().len() >= 10).await;
    // For its clock, all backoffs are over.
    let later = Wall::ahead(Duration::from_secs(24 * 60 * 60)).runner(&store);
    let new = open::<New>(&store, &later).await;
    let new_worker = work(&new, &later, 2, &handled, |job| {
        let (New::Mail(id) | New::Text(id)) = job;
        *id
    })
    .await;
    new.wait_idle(&runner).await.unwrap();
    old_worker.shut_down(LONG).await.unwrap();
    new_worker.shut_down(LONG).await.unwrap();
    let mut handled = handled.lock().unwrap().clone();
    handled.sort_unstable();
    let mails = (0..10).map(|id| (1, id));
    let texts = (50..60).map(|id| (2, id));
    assert_eq!(handled, mails.chain(texts).collect::<Vec<_>>());
    let stats = |tr| {
        let new = &new;
        async move { new.stats(&tr).await }
    };
    assert_eq!(runner.run(stats).await.unwrap().dead, 0);
}
