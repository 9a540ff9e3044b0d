//! A process that owns its store starts again: the items that it held are available at once.

use std::path::Path;

use crate::common::{LONG, Queue, process};
use conformance::timeout;
use hc_dequeue::{Settings, WorkerOptions};
use keyspace::{OpenOptions, Runner, Store};

async fn open(path: &Path) -> (Runner<Store>, Queue) {
    let store = keyspace::open(&format!("embedded:{}", path.display())).unwrap();
    let runner = Runner::new(store);
    // With such a long lease, only the new opening of the store shows that the old session is gone.
    let settings = Settings::new().with_lease(LONG * 60);
    let queue = Queue::open_with(&runner, "queue", settings, OpenOptions::default());
    let queue = queue.await.unwrap();
    (runner, queue)
}

#[test]
fn what_a_process_held_on_its_own_store_is_there_when_it_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let same = path.clone();
    let first = process(|| async move {
        let (runner, queue) = open(&path).await;
        crate::common::enqueue(&runner, &queue, [7]).await.unwrap();
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let held = consumer.dequeue().await.unwrap().unwrap();
        (consumer, held)
    });
    // Nothing runs any more that could give anything back.
    drop(first.join().unwrap());
    let second = process(|| async move {
        let (runner, queue) = open(&same).await;
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let again = timeout(LONG, consumer.dequeue_within(LONG))
            .await
            .unwrap()
            .expect("it came back");
        assert_eq!((*again.value(), again.deaths()), (7, 1));
    });
    second.join().unwrap();
}
