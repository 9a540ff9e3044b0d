//! Order, hand-over and patience: which consumer gets which item, and that no consumer waits while there are items.

use std::time::Duration;

use crate::common::still::Still;
use crate::common::{Doomed, LONG, World};
use conformance::chaos::{Chaos, Faults};
use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::microqueue::{ItemId, MicroQueue};
use hc_dequeue::{Consumer, Enqueue, PlaceKind, Settings, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::{Bytes, Environment, RunOptions, Runner, Tx};
use tokio::task::JoinSet;

conformance::on_every_store!(threads:
    items_are_granted_in_the_order_of_their_first_enqueue,
    what_comes_back_comes_first,
    the_consumer_that_waits_longest_is_served_first,
    an_item_that_comes_due_goes_to_the_consumer_that_has_waited_longest,
    without_a_death_every_item_arrives_without_the_poll_and_no_patience_ends,
    a_dead_leader_costs_one_patience_at_most,
    a_call_that_does_not_wait_waits_no_longer_for_a_dead_leader,
    a_thousand_abandoned_requests_are_removed_by_a_few_steps,
    while_the_store_does_not_answer_no_session_is_found_dead,
);

/// A lease so long that a test only passes without waiting for the end of a patience.
fn patient() -> Settings {
    Settings::new().with_lease(LONG * 60)
}

/// A consumer that only watches wake.
async fn without_poll(world: &World) -> Consumer<u64> {
    let options = WorkerOptions::default().with_poll_interval(LONG * 60);
    world.queue.consumer(&world.runner, options).await.unwrap()
}

async fn items_are_granted_in_the_order_of_their_first_enqueue(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for first in 0..10 {
        world.enqueue(first * 20..(first + 1) * 20).await;
    }
    let mut consumers = JoinSet::new();
    for _ in 0..4 {
        let consumer = world.consumer().await;
        consumers.spawn(async move {
            let mut taken = Vec::new();
            while let Some(delivery) = consumer.dequeue().await.unwrap() {
                taken.push((delivery.id(), *delivery.value()));
                delivery.complete().await.unwrap();
            }
            taken
        });
    }
    let mut all = Vec::new();
    for taken in consumers.join_all().await {
        // Each consumer sees the items in order, and so do all together: no item is granted before an earlier one
        // that is queued.
        assert!(taken.is_sorted(), "{taken:?}");
        all.extend(taken);
    }
    all.sort_unstable();
    let values: Vec<_> = all.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, (0..200).collect::<Vec<_>>());
}

/// Waits until an item that was delayed by a millisecond is due.
async fn until_due(world: &World) {
    let environment = world.runner.environment();
    let due = environment.wall() + Duration::from_millis(1);
    until(async || environment.wall() > due).await;
}

async fn what_comes_back_comes_first(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let soon = Enqueue::new().with_delay(Duration::from_millis(1));
    let _ = world.enqueue_with(0, &soon).await.unwrap();
    world.enqueue(1..=3).await;
    until_due(&world).await;
    let mut ids: Vec<ItemId> = Vec::new();
    let first = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let second = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let third = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    for delivery in [&first, &second, &third] {
        ids.push(delivery.id());
    }
    ids.sort_unstable();
    third.discard("no good").await.unwrap();
    second
        .retry_after(Duration::from_millis(1), "not now")
        .await
        .unwrap();
    first.nack().await.unwrap();
    let queue = &world.queue;
    let redrive = |tr| async move {
        let dead = queue.list(&tr, PlaceKind::Dead, None, 1).await?.items;
        queue.redrive(&tr, &dead[0].item).await
    };
    assert!(world.runner.run(redrive).await.unwrap());
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.held), (0, 0));
    until_due(&world).await;
    let mut again = Vec::new();
    while again.len() < 4 {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        again.push((delivery.id(), *delivery.value()));
        delivery.complete().await.unwrap();
    }
    let mut granted: Vec<_> = again.iter().map(|(id, _)| *id).collect();
    granted.sort_unstable();
    assert_eq!(granted[..3], ids[..]);
    assert_eq!(again.last().unwrap().1, 3, "{again:?}");
}

async fn the_consumer_that_waits_longest_is_served_first(store: TestStore) {
    let world = World::new(&store, patient()).await;
    let consumers = [
        without_poll(&world).await,
        without_poll(&world).await,
        without_poll(&world).await,
    ];
    let mut waiting = JoinSet::new();
    for (number, consumer) in consumers.iter().cloned().enumerate() {
        waiting.spawn(async move {
            let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            delivery.complete().await.unwrap();
            number
        });
        world.until_requested(number + 1).await;
    }
    for expected in 0..3 {
        world.enqueue([7]).await;
        assert_eq!(waiting.join_next().await.unwrap().unwrap(), expected);
    }
}

async fn an_item_that_comes_due_goes_to_the_consumer_that_has_waited_longest(store: TestStore) {
    for options in [Enqueue::new(), Enqueue::new().with_group("a")] {
        let world = World::new(&store, patient()).await;
        Doomed::start(&world).await.die();
        let soon = options.with_delay(Duration::from_millis(1));
        let _ = world.enqueue_with(7, &soon).await.unwrap();
        until_due(&world).await;
        // The take that finds the item leaves it to the request before its own.
        let consumer = without_poll(&world).await;
        tokio::select! {
            taken = consumer.dequeue_within(LONG) => panic!("{taken:?}"),
            () = world.until_requested(2) => {}
        }
    }
}

async fn without_a_death_every_item_arrives_without_the_poll_and_no_patience_ends(
    store: TestStore,
) {
    const SESSIONS: u64 = 6;
    const ITEMS: u64 = 120;
    let world = World::recorded(&store, patient()).await;
    let mut consumers = JoinSet::new();
    for _ in 0..SESSIONS {
        let consumer = without_poll(&world).await;
        for _ in 0..2 {
            let consumer = consumer.clone();
            consumers.spawn(async move {
                let env = Environment::system();
                let mut taken = 0;
                // Some consumers stop waiting between two items, and come back.
                while let Some(delivery) = consumer.dequeue_within(LONG).await.unwrap() {
                    delivery.complete().await.unwrap();
                    taken += 1;
                    if taken % 3 == 0 {
                        let pop = consumer.pop_within(LONG);
                        let _ = env.timeout(Duration::from_micros(300), pop).await;
                    }
                    if taken == ITEMS / SESSIONS / 4 {
                        break;
                    }
                }
                taken
            });
        }
    }
    // As long as a consumer wants an item, there is one, and sometimes several.
    let enqueue = async {
        for round in 0.. {
            world.enqueue([round]).await;
            if round % 7 == 0 {
                world.enqueue(0..5).await;
            }
        }
    };
    tokio::select! {
        () = enqueue => unreachable!("it never ends"),
        taken = timeout(LONG, consumers.join_all()) => {
            let taken: u64 = taken.into_iter().sum();
            assert_eq!(taken, ITEMS / 2);
        }
    }
    let expiries = world.recorded_sum("hc_dequeue_patience_expiries");
    assert_eq!(expiries, 0.0);
    assert!(world.recorded_sum("hc_dequeue_dequeues") >= (ITEMS / 2) as f64);
}

async fn a_dead_leader_costs_one_patience_at_most(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_millis(600));
    let world = World::recorded(&store, settings).await;
    let leader = Doomed::start(&world).await;
    let options = WorkerOptions::default().with_poll_interval(Duration::from_millis(20));
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let waiting = tokio::spawn(async move {
        for _ in 0..10 {
            let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            delivery.complete().await.unwrap();
        }
        consumer
    });
    world.until_requested(2).await;
    leader.die();
    world.enqueue(0..11).await;
    // One more item is granted to the dead session, or comes back from it.
    timeout(LONG, waiting).await.unwrap();
    let expiries = world.recorded_sum("hc_dequeue_patience_expiries");
    assert!(expiries <= 1.0, "{expiries}");
}

async fn a_call_that_does_not_wait_waits_no_longer_for_a_dead_leader(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_secs(5));
    let world = World::recorded(&store, settings).await;
    let leader = Doomed::start(&world).await;
    let options = WorkerOptions::default();
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    world.until_requested(1).await;
    leader.die();
    // The first item is granted to the dead session.
    world.enqueue(0..2).await;
    let delivery = timeout(LONG, consumer.dequeue()).await.unwrap().unwrap();
    delivery.complete().await.unwrap();
    // Otherwise, it would have waited until the leader was found dead.
    assert_eq!(world.recorded_sum("hc_dequeue_patience_expiries"), 1.0);
}

async fn a_thousand_abandoned_requests_are_removed_by_a_few_steps(store: TestStore) {
    const ABANDONED: usize = 1_000;
    const REQUESTS_PER_STEP: usize = 128;
    let settings = Settings::new().with_lease(Duration::from_millis(300));
    let world = World::recorded(&store, settings).await;
    // Format, session, wanted number, and how many of these are for the reserve, as sessions that are gone may have
    // left them.
    let record = |number: usize| {
        let session = (number as u128).to_be_bytes();
        Bytes::from([&[1][..], &session, &1_u32.to_be_bytes(), &[0; 4]].concat())
    };
    let requests = MicroQueue::<Bytes, Raw>::new(world.queue.subspace().subspace(&"r"));
    let records: Vec<_> = (0..ABANDONED).map(record).collect();
    let requests = &requests;
    let records = &records[..];
    let enqueue = |tr: Tx<_>| async move { requests.enqueue_all(&tr, records).await };
    world.runner.run(enqueue).await.unwrap();

    world.enqueue([7]).await;
    let options = WorkerOptions::default().with_poll_interval(Duration::from_millis(20));
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let delivery = consumer.dequeue_within(LONG).await.unwrap();
    delivery.unwrap().complete().await.unwrap();
    world.until_requested(0).await;
    let steps = world.records("hc_dequeue_fulfilled").len();
    assert!(steps <= ABANDONED / REQUESTS_PER_STEP + 2, "{steps}");
    world.check().await;
}

async fn while_the_store_does_not_answer_no_session_is_found_dead(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_millis(900));
    let lease = settings.lease();
    let clock = Still::new();
    let world = clock.world(&store, settings).await;
    let env = world.runner.environment().clone();
    let chaos = Chaos::new(store.db.clone(), env.clone(), Faults::default());
    let ledgers = world.store.root.subspace(&"ledgers");
    let options = RunOptions::default()
        .with_ledger_subspace(ledgers)
        .with_environment(env);
    let runner = Runner::with_options(chaos.clone(), options);
    world.enqueue(0..3).await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let options = WorkerOptions::default();
        let consumer = world.queue.consumer(&runner, options).await.unwrap();
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        sessions.push((consumer, delivery));
    }
    chaos.stop();
    clock.advance(lease * 3);
    chaos.go_on();
    // After each heartbeat, a session searches for dead ones.
    for _ in 0..9 {
        clock.next_heartbeats(&world, lease).await;
    }
    for (_, delivery) in &sessions {
        assert!(!delivery.is_lost());
        world.ack(delivery).await.unwrap();
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_longest_waiting_consumer_is_not_served_if_wake_ups_are_lost_and_no_session_polls() {
    let store = TestStore::memory();
    let world = World::new(&store, patient()).await;
    let deaf = Planted::new(store.db.clone(), Plant::DeafWatches);
    let ledgers = world.store.root.subspace(&"ledgers");
    let options = RunOptions::default().with_ledger_subspace(ledgers);
    let runner = Runner::with_options(deaf, options);
    let poll = |interval| WorkerOptions::default().with_poll_interval(interval);
    let wait = async |options, within| {
        let consumer = world.queue.consumer(&runner, options).await.unwrap();
        let waiting = consumer.dequeue_within(within);
        let enqueue = async {
            world.until_requested(1).await;
            world.enqueue([7]).await;
        };
        let (delivery, ()) = tokio::join!(waiting, enqueue);
        let is_served = delivery.unwrap().is_some();
        let _ = world.queue.clear(&world.runner).await.unwrap();
        is_served
    };
    // It is served once in a while, if it has not gone to sleep yet.
    until(async || !wait(poll(LONG * 60), Duration::from_millis(300)).await).await;
    assert!(wait(poll(Duration::from_millis(10)), LONG).await);
}
