//! Rates: how many items of a group start in a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use futures::future::join_all;
use hc_dequeue::testing::{advance_rates, drain};
use hc_dequeue::{
    Consumer, Enqueue, GroupLimits, GroupState, PlaceKind, Rate, Settings, WorkerOptions,
};
use keyspace::limits::VERSIONS_PER_SECOND;
use keyspace::{Runner, Store, Transaction, Tx};

use super::{next, of, take_all, values};
use crate::common::{LONG, Wall, World, open};

conformance::on_every_store!(
    wall_clocks_that_jump_let_nothing_start_too_early,
    a_wall_clock_that_is_a_day_ahead_delays_no_start,
    workers_start_items_at_the_rate_of_each_group,
    a_group_that_waits_for_its_rate_is_no_delayed_item_and_leaves_nothing,
    an_item_that_comes_back_starts_again_at_the_rate,
    a_rate_that_changes_takes_effect_at_once,
    a_session_that_has_just_seen_a_notice_finds_the_group_that_another_one_has_parked,
    default_limits_have_a_rate_for_each_group,
    a_group_has_a_limit_and_a_rate,
    many_groups_in_which_nothing_waits_hide_none,
    oban_750_1477_the_rate_is_one_for_all_processes_and_has_no_windows,
    sidekiq_2704_6185_the_state_of_a_rate_outlives_the_processes,
    a_drain_goes_on_when_rates_were_advanced,
    a_worker_goes_on_when_rates_were_advanced,
);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// No second item starts during a test.
const RARE: GroupLimits = GroupLimits::new().with_rate(Rate::new(1, DAY));

fn rate(starts: u32, millis: u64) -> Rate {
    Rate::new(starts, Duration::from_millis(millis))
}

async fn version(runner: &Runner<Store>) -> i64 {
    let read = |tr: Tx<_>| async move { tr.read_version().await };
    runner.run(read).await.unwrap()
}

/// Pops what there is, at once.
async fn pop_all(consumer: &Consumer<u64>) -> Vec<u64> {
    let mut popped = Vec::new();
    while let Some(item) = consumer.pop().await.unwrap() {
        popped.push(item.value);
    }
    popped
}

/// The starts of a group since a version.
struct Starts {
    rate: Rate,
    since: i64,
    count: Mutex<u64>,
}

impl Starts {
    async fn of(rate: Rate, runner: &Runner<Store>) -> Self {
        Self {
            rate,
            since: version(runner).await,
            count: Mutex::new(0),
        }
    }

    /// Notes an item that was handed out. It has started since the first version and before this one.
    async fn note(&self, runner: &Runner<Store>) {
        let versions = version(runner).await - self.since;
        let mut count = self.count.lock().unwrap();
        *count += 1;
        let period = self.rate.period().as_secs_f64() * VERSIONS_PER_SECOND as f64;
        let more = versions as f64 * f64::from(self.rate.starts()) / period;
        let allowed = u64::from(self.rate.burst()) + more as u64;
        assert!(*count <= allowed, "{count} starts in {versions} versions");
    }
}

async fn wall_clocks_that_jump_let_nothing_start_too_early(store: TestStore) {
    const ITEMS: u64 = 20;
    let world = World::with_defaults(&store).await;
    let rate = rate(1, 15).with_burst(3);
    world.limit("a", GroupLimits::new().with_rate(rate)).await;
    let starts = Starts::of(rate, &world.runner).await;
    world.enqueue_all_of("a", 0..ITEMS).await;
    let left = AtomicUsize::new(ITEMS as usize);
    let processes = [0, 40, 80].map(|ahead| {
        let wall = Wall::ahead(Duration::from_millis(ahead));
        let store = &world.store;
        let starts = &starts;
        let left = &left;
        async move {
            let runner = wall.runner(store);
            let queue = open(store, &runner, Settings::default()).await.unwrap();
            let options = WorkerOptions::default();
            let consumer = queue.consumer(&runner, options).await.unwrap();
            for jump in 0_u64.. {
                if left.load(Ordering::Relaxed) == 0 {
                    break;
                }
                let within = Duration::from_millis(20);
                if consumer.pop_within(within).await.unwrap().is_some() {
                    starts.note(&runner).await;
                    left.fetch_sub(1, Ordering::Relaxed);
                }
                wall.set(Duration::from_millis(jump * 37 % 100));
            }
            consumer.shut_down(LONG).await.unwrap();
        }
    });
    join_all(processes).await;
    world.check().await;
}

async fn a_wall_clock_that_is_a_day_ahead_delays_no_start(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let limits = GroupLimits::new().with_rate(rate(1, 50));
    world.limit_all(limits).await;
    for group in ["a", "b"] {
        world.enqueue_all_of(group, 0..3).await;
    }
    let runner = Wall::ahead(DAY).runner(&world.store);
    let queue = open(&world.store, &runner, Settings::default());
    let queue = queue.await.unwrap();
    let ahead = queue.consumer(&runner, WorkerOptions::default());
    let ahead = ahead.await.unwrap();
    // It starts an item of each group, and finds that the next ones must wait.
    let mut started = pop_all(&ahead).await.len();
    ahead.shut_down(LONG).await.unwrap();
    let consumer = world.consumer().await;
    while started < 6 {
        assert!(consumer.pop_within(LONG).await.unwrap().is_some());
        started += 1;
    }
    world.check().await;
}

async fn workers_start_items_at_the_rate_of_each_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let rate = rate(100, 1_000).with_burst(2);
    world.limit_all(GroupLimits::new().with_rate(rate)).await;
    let groups = ["a", "b", "c", "d"];
    let runner = &world.runner;
    let starts = groups.map(|group| async move { (group, Starts::of(rate, runner).await) });
    let starts = Arc::new(join_all(starts).await);
    for group in groups {
        world.enqueue_all_of(group, 0..10).await;
    }
    let runner = world.runner.clone();
    let of_key = starts.clone();
    let options = WorkerOptions::new().with_concurrency(8);
    let handle = move |delivery: &hc_dequeue::Delivery<u64>| {
        let group = delivery.group().expect("each item has a group").clone();
        let runner = runner.clone();
        let starts = of_key.clone();
        async move {
            let (_, starts) = starts
                .iter()
                .find(|(name, _)| group == name.as_bytes())
                .unwrap();
            starts.note(&runner).await;
        }
    };
    let worker = world
        .queue
        .work(&world.runner, options, move |item| handle(&item));
    let worker = worker.await.unwrap();
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    for (_, starts) in &*starts {
        assert_eq!(*starts.count.lock().unwrap(), 10);
    }
    world.check().await;
}

async fn a_group_that_waits_for_its_rate_is_no_delayed_item_and_leaves_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let limits = GroupLimits::new().with_rate(Rate::new(1, DAY).with_burst(2));
    world.limit("a", limits).await;
    world.enqueue_all_of("a", 0..3).await;
    let consumer = world.consumer().await;
    let held = take_all(&consumer).await;
    assert_eq!(values(&held), [0, 1]);
    let status = world.group_status("a").await;
    assert!(
        matches!(status.state, GroupState::UntilRate(_)),
        "{status:?}"
    );
    assert_eq!((status.slots, status.waiting), (2, 1));
    // The group is parked: no notice wakes a session, and one row does.
    assert_eq!((world.count("hs").await, world.count("hp").await), (0, 1));
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed, stats.held), (1, 0, 2));
    let queue = &world.queue;
    let delayed = |tr| async move { queue.list(&tr, PlaceKind::Delayed, None, 10).await };
    let page = world.runner.run(delayed).await.unwrap();
    assert_eq!((page.items, page.strays), (vec![], vec![]));
    world.check().await;
    // A faster rate lets it start, and once all tokens are there again, nothing is left.
    let fast = GroupLimits::new().with_rate(rate(1, 1).with_burst(2));
    world.limit("a", fast).await;
    let mut held = held;
    held.push(next(&consumer).await);
    for delivery in held {
        world.ack(&delivery).await.unwrap();
    }
    world.limit("a", None).await;
    while world.count("l").await + world.count("hp").await + world.count("hs").await > 0 {
        // The session that waits looks at the group.
        let none = consumer.dequeue_within(Duration::from_millis(5)).await;
        assert!(none.unwrap().is_none());
    }
    world.check().await;
}

async fn an_item_that_comes_back_starts_again_at_the_rate(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let limits = GroupLimits::ordered().with_rate(Rate::new(1, DAY).with_burst(3));
    world.limit("a", limits).await;
    world.enqueue_all_of("a", [0, 1]).await;
    let consumer = world.consumer().await;
    for _ in 0..3 {
        let delivery = next(&consumer).await;
        assert_eq!(*delivery.value(), 0);
        delivery.nack().await.unwrap();
    }
    // It has its slot, and no token.
    assert!(consumer.dequeue().await.unwrap().is_none());
    let status = world.group_status("a").await;
    assert!(
        matches!(status.state, GroupState::UntilRate(_)),
        "{status:?}"
    );
    assert_eq!(status.slots, 1);
    world.check().await;
    world.limit("a", GroupLimits::ordered()).await;
    let first = next(&consumer).await;
    assert_eq!(*first.value(), 0);
    world.ack(&first).await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 1);
    world.check().await;
}

async fn a_rate_that_changes_takes_effect_at_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", RARE).await;
    world.enqueue_all_of("a", 0..6).await;
    let consumer = world.consumer().await;
    assert_eq!(pop_all(&consumer).await, [0]);
    // More at once: the one that has started counts.
    let more = GroupLimits::new().with_rate(Rate::new(1, DAY).with_burst(3));
    world.limit("a", more).await;
    assert_eq!(pop_all(&consumer).await, [1, 2]);
    world.check().await;
    // What has started counts as the smaller burst at most.
    world.limit("a", RARE).await;
    assert!(consumer.pop().await.unwrap().is_none());
    // Without a rate, nothing counts.
    world.limit("a", None).await;
    assert_eq!(
        consumer
            .pop_within(LONG)
            .await
            .unwrap()
            .map(|item| item.value),
        Some(3)
    );
    // Only items are left in the lane.
    assert_eq!(world.count("l").await, 2);
    world.limit("a", RARE).await;
    assert_eq!(pop_all(&consumer).await, [4]);
    world.check().await;
}

async fn default_limits_have_a_rate_for_each_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit_all(RARE).await;
    world.limit("c", GroupLimits::new()).await;
    for group in ["a", "b", "c"] {
        world.enqueue_all_of(group, 0..2).await;
    }
    let consumer = world.consumer().await;
    let mut taken = pop_all(&consumer).await;
    taken.sort_unstable();
    assert_eq!(taken, [0, 0, 0, 1]);
    assert_eq!(world.group_status("c").await.state, GroupState::Idle);
    world.check().await;
    // A session finds all groups that wait.
    world.limit_all(GroupLimits::new()).await;
    for _ in 0..2 {
        let item = consumer.pop_within(LONG).await.unwrap();
        assert_eq!(item.map(|item| item.value), Some(1));
    }
    world.check().await;
}

async fn a_group_has_a_limit_and_a_rate(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let rate = Rate::new(1, DAY).with_burst(3);
    world
        .limit("a", GroupLimits::new().with_limit(2).with_rate(rate))
        .await;
    world.enqueue_all_of("a", 0..5).await;
    let consumer = world.consumer().await;
    let held = take_all(&consumer).await;
    assert_eq!(values(&held), [0, 1]);
    assert_eq!(world.group_status("a").await.state, GroupState::AtLimit);
    for delivery in &held {
        world.ack(delivery).await.unwrap();
    }
    assert_eq!(pop_all(&consumer).await, [2]);
    let state = world.group_status("a").await.state;
    assert!(matches!(state, GroupState::UntilRate(_)), "{state:?}");
    world
        .limit("a", GroupLimits::new().with_limit(0).with_rate(rate))
        .await;
    assert_eq!(world.group_status("a").await.state, GroupState::Paused);
    assert!(consumer.pop().await.unwrap().is_none());
    world.check().await;
}

async fn many_groups_in_which_nothing_waits_hide_none(store: TestStore) {
    // More than one transaction promotes.
    const IDLE: u32 = 130;
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    world
        .limit_all(GroupLimits::new().with_rate(rate(1, 300)))
        .await;
    world
        .limit("z", GroupLimits::new().with_rate(rate(1, 400)))
        .await;
    let idle = (0..IDLE).map(|group| Enqueue::new().with_group(group.to_be_bytes()));
    let items = idle.chain([of("z"), of("z")]).map(|options| (7, options));
    let items = &items.collect::<Vec<_>>();
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let consumer = world.consumer().await;
    let pops = (0..=IDLE).map(|_| consumer.pop_within(LONG));
    for popped in join_all(pops).await {
        assert!(popped.unwrap().is_some());
    }
    // Until then, all groups are due, and those without items come first.
    until(async || world.group_status("z").await.state == GroupState::Ready).await;
    assert!(consumer.pop().await.unwrap().is_some());
    world.check().await;
}

/// Windows by wall time let twice as many start around their edges, and counts of several partitions were added up.
async fn oban_750_1477_the_rate_is_one_for_all_processes_and_has_no_windows(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let rate = rate(4, 40).with_burst(4);
    world.limit("a", GroupLimits::new().with_rate(rate)).await;
    let starts = &Starts::of(rate, &world.runner).await;
    world.enqueue_all_of("a", 0..24).await;
    let left = &AtomicUsize::new(24);
    let consumers = (0..4).map(|_| async {
        let runner = world.store.runner();
        let queue = open(&world.store, &runner, Settings::default());
        let queue = queue.await.unwrap();
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        while left.load(Ordering::Relaxed) > 0 {
            let within = Duration::from_millis(20);
            if consumer.pop_within(within).await.unwrap().is_some() {
                starts.note(&runner).await;
                left.fetch_sub(1, Ordering::Relaxed);
            }
        }
        consumer.shut_down(LONG).await.unwrap();
    });
    join_all(consumers).await;
    world.check().await;
}

/// Limiters lost their state by expiry, or with the processes that kept it.
async fn sidekiq_2704_6185_the_state_of_a_rate_outlives_the_processes(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", RARE).await;
    world.enqueue_all_of("a", 0..2).await;
    let consumer = world.consumer().await;
    let first = next(&consumer).await;
    world.ack(&first).await.unwrap();
    drop(first);
    consumer.shut_down(LONG).await.unwrap();
    for _ in 0..2 {
        let consumer = world.consumer().await;
        assert!(consumer.pop().await.unwrap().is_none());
        consumer.shut_down(LONG).await.unwrap();
    }
    // Also if other items of the group come.
    let _ = world
        .enqueue_with(2, &of("a").with_priority(1))
        .await
        .unwrap();
    let consumer = world.consumer().await;
    assert!(consumer.pop().await.unwrap().is_none());
    world.check().await;
}

async fn a_session_that_has_just_seen_a_notice_finds_the_group_that_another_one_has_parked(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    let limits = GroupLimits::new().with_rate(rate(1, 500));
    world.limit("a", limits).await;
    let consumer = world.consumer().await;
    world.enqueue_all_of("b", [7]).await;
    assert_eq!(pop_all(&consumer).await, [7]);
    // The last look has seen no notice. The next one sees that of the group without a limit, and removes it.
    world.enqueue_all_of("b", [8]).await;
    assert_eq!(consumer.pop().await.unwrap().unwrap().value, 8);
    world.enqueue_all_of("a", [1, 2]).await;
    let other = world.consumer().await;
    assert_eq!(other.pop().await.unwrap().unwrap().value, 1);
    other.shut_down(LONG).await.unwrap();
    until(async || world.group_status("a").await.state == GroupState::Ready).await;
    assert_eq!(consumer.pop().await.unwrap().unwrap().value, 2);
    world.check().await;
}

/// Drains the queue, and returns the sorted values.
async fn drained(world: &World) -> Vec<u64> {
    let values = Mutex::new(Vec::new());
    let handler = async |item: hc_dequeue::Delivery<u64>| {
        values.lock().unwrap().push(*item.value());
    };
    drain(&world.runner, &world.queue, handler).await.unwrap();
    let mut values = values.into_inner().unwrap();
    values.sort_unstable();
    values
}

async fn a_drain_goes_on_when_rates_were_advanced(store: TestStore) {
    // This test takes less.
    const HOUR: Duration = Duration::from_secs(60 * 60);
    const NONE: [u64; 0] = [];
    let world = World::with_defaults(&store).await;
    let advance = async |time| {
        let advanced = advance_rates(&world.runner, &world.queue, time).await;
        advanced.unwrap();
        world.check().await;
    };
    let daily = GroupLimits::new().with_rate(Rate::new(1, DAY).with_burst(2));
    world.limit_all(daily).await;
    world.enqueue_all_of("a", [0, 2, 4, 6, 8, 10]).await;
    world.enqueue_all_of("b", [1, 3, 5]).await;
    assert_eq!(drained(&world).await, [0, 1, 2, 3]);
    advance(DAY - HOUR).await;
    assert_eq!(drained(&world).await, NONE);
    advance(HOUR).await;
    assert_eq!(drained(&world).await, [4, 5]);
    // A bucket is never fuller than full.
    advance(100 * DAY).await;
    assert_eq!(drained(&world).await, [6, 8]);
    advance(Duration::MAX).await;
    assert_eq!(drained(&world).await, [10]);
    world.check().await;
}

async fn a_worker_goes_on_when_rates_were_advanced(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit_all(RARE).await;
    for group in ["a", "b"] {
        world.enqueue_all_of(group, 0..2).await;
    }
    let worker = world
        .queue
        .work(&world.runner, WorkerOptions::new(), async |_| ());
    let worker = worker.await.unwrap();
    until(async || world.stats().await.completed == 2).await;
    let advanced = advance_rates(&world.runner, &world.queue, DAY).await;
    advanced.unwrap();
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 4);
    world.check().await;
}
