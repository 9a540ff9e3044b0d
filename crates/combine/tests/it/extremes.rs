//! Options at the ends of their types: a worker works with each of them, and ends.

use std::time::Duration;

use combine::hc_dequeue::Backoff;
use combine::{Settings, Sum, Unobserved, WorkerOptions};
use conformance::stores::TestStore;
use conformance::timeout;
use keyspace::OpenOptions;

use crate::common::{LONG, Queue, World};

conformance::on_every_store!(threads:
    a_worker_with_any_number_in_its_options_works,
    a_queue_with_any_number_in_its_settings_works_or_is_refused,
);

async fn a_worker_with_any_number_in_its_options_works(store: TestStore) {
    let mut all = Vec::new();
    for number in [0, 1, usize::MAX] {
        all.push(WorkerOptions::new().with_concurrency(number));
        all.push(WorkerOptions::new().with_max_batch_bytes(number));
    }
    let ends = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    for time in ends {
        all.push(WorkerOptions::new().with_poll_interval(time));
        all.push(WorkerOptions::new().with_takeover_after(time));
        all.push(WorkerOptions::new().with_pass_interval(time));
        for longest in ends {
            all.push(WorkerOptions::new().with_backoff(Backoff::new(time, longest)));
        }
    }
    all.push(WorkerOptions::new().with_time_limit(Duration::MAX));
    let world = World::sums(&store, 4).await;
    for options in all {
        world.add("key", 1).await;
        let worker = world.queue.work(&world.runner, options, Unobserved).await;
        let idle = world.queue.wait_idle(&world.runner);
        timeout(LONG, idle).await.unwrap();
        timeout(LONG, worker.unwrap().shut_down(Duration::MAX))
            .await
            .unwrap();
    }
}

async fn a_queue_with_any_number_in_its_settings_works_or_is_refused(store: TestStore) {
    for (buckets, is_valid) in [(0, false), (1, true), (1 << 16, true), (u32::MAX, false)] {
        for (lease, is_lease) in [(Duration::ZERO, false), (Duration::MAX, true)] {
            let store = store.fresh();
            let runner = store.runner();
            let settings = Settings::new().with_bucket_count(buckets).with_lease(lease);
            let subspace = store.root.subspace(&"queue");
            let options = OpenOptions::default();
            let queue: Result<Queue, _> =
                Queue::open_with(&runner, subspace, settings, Sum, options).await;
            assert_eq!(queue.is_ok(), is_valid && is_lease, "{buckets} {lease:?}");
            if let Ok(queue) = queue {
                let worker = queue.work(&runner, WorkerOptions::new(), Unobserved).await;
                timeout(LONG, queue.wait_idle(&runner)).await.unwrap();
                timeout(LONG, worker.unwrap().shut_down(LONG))
                    .await
                    .unwrap();
            }
        }
    }
}
