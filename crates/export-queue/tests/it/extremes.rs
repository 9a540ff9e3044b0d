//! Options at the ends of their types: a worker works with each of them, and ends.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::timeout;
use export_queue::WorkerOptions;
use export_queue::hc_dequeue::Backoff;

use crate::common::{LONG, Receiver, World};

conformance::on_every_store!(threads: a_worker_with_any_number_in_its_options_works);

async fn a_worker_with_any_number_in_its_options_works(store: TestStore) {
    let mut all = Vec::new();
    for number in [0, 1, usize::MAX] {
        all.push(WorkerOptions::new().with_concurrency(number));
        all.push(WorkerOptions::new().with_max_batch_bytes(number));
    }
    for number in [0, 1, u32::MAX] {
        all.push(WorkerOptions::new().with_dead_letter_after(number));
    }
    let ends = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    for time in ends {
        all.push(WorkerOptions::new().with_poll_interval(time));
        all.push(WorkerOptions::new().with_takeover_after(time));
        for longest in ends {
            all.push(WorkerOptions::new().with_backoff(Backoff::new(time, longest)));
        }
    }
    all.push(WorkerOptions::new().with_time_limit(Duration::MAX));
    let world = World::new(&store, 4).await;
    for (number, options) in all.into_iter().enumerate() {
        let receiver = Receiver::default();
        let value = i64::try_from(number).unwrap();
        world.add("key", value).await;
        let worker = world.work(options, receiver.clone()).await;
        timeout(LONG, world.wait_idle()).await;
        timeout(LONG, worker.shut_down(Duration::MAX))
            .await
            .unwrap();
        assert_eq!(receiver.values()["key"], value);
    }
}
