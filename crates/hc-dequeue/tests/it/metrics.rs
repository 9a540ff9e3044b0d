//! The metrics that a dispatcher records, by the names in the documentation.

use std::time::Duration;

use crate::common::{Doomed, LONG, World, process, settings};
use crate::costs::die_with_an_item;
use conformance::chaos::{Chaos, CommitFault, Faults};
use conformance::stores::TestStore;
use conformance::{let_pass, until};
use hc_dequeue::{
    Backoff, Delivery, Enqueue, Error, GroupLimits, MAX_RATE_PERIOD, Outcome, Queue, Rate,
    Settings, WorkerOptions,
};
use keyspace::{Environment, RunOptions, Runner};

conformance::on_every_store!(
    gauges_say_how_things_stand,
    a_session_sets_the_gauges_at_its_end,
    a_wanted_delay_and_a_pause_have_gauges_of_their_own,
    items_that_are_taken_and_deliveries_that_are_lost_are_counted,
    conflicts_and_what_a_fulfillment_grants_are_counted,
    looks_at_lanes_are_counted,
    a_leader_that_does_not_lead_costs_a_patience,
    items_that_are_returned_for_the_dead_are_counted,
    what_handlers_return_is_counted,
    each_dead_letter_is_counted_once_in_whatever_way_it_has_died,
);

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

impl World {
    /// Returns when the sums of the values recorded under these names equal the expected ones.
    async fn until_recorded<const N: usize>(&self, expected: [(&str, f64); N]) {
        let sums = || expected.map(|(metric, _)| self.recorded_sum(metric));
        let reached = async {
            while sums() != expected.map(|(_, value)| value) {
                let_pass(PAUSE).await;
            }
        };
        let reached = Environment::system().timeout(LONG, reached).await;
        assert!(reached.is_some(), "{expected:?}: {:?}", sums());
    }
}

/// With these settings, no session is declared dead and no patience ends.
fn patient() -> Settings {
    Settings::new().with_lease(LONG * 60)
}

async fn gauges_say_how_things_stand(store: TestStore) {
    let world = World::recorded(&store, settings()).await;
    let consumer = world.consumer().await;
    world.enqueue(0..6).await;
    let held = consumer.dequeue_batch(2).await.unwrap();
    let discard_one = async || {
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        delivery.discard("no good").await.unwrap();
    };
    discard_one().await;
    let depth_held_dead = |depth, held, dead| {
        [
            ("hc_dequeue_depth", depth),
            ("hc_dequeue_held", held),
            ("hc_dequeue_dead", dead),
        ]
    };
    world.until_recorded(depth_held_dead(3.0, 2.0, 1.0)).await;
    let age = world.recorded_sum("hc_dequeue_age_seconds");
    assert!(age > 0.0 && age < LONG.as_secs_f64(), "{age}");

    world.ack(&held[0]).await.unwrap();
    assert!(consumer.pop().await.unwrap().is_some());
    discard_one().await;
    world.until_recorded(depth_held_dead(1.0, 1.0, 2.0)).await;
}

async fn a_session_sets_the_gauges_at_its_end(store: TestStore) {
    // The first heartbeat comes before the first take, and the second one in an hour.
    let world = World::recorded(&store, patient()).await;
    let consumer = world.consumer().await;
    world.enqueue(0..3).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    consumer.shut_down(LONG).await.unwrap();
    assert_eq!(world.records("hc_dequeue_dead"), [1.0]);
    assert_eq!(world.records("hc_dequeue_depth"), [2.0]);
}

async fn a_wanted_delay_and_a_pause_have_gauges_of_their_own(store: TestStore) {
    let world = World::recorded(&store, settings()).await;
    for value in [1, 2] {
        let _ = world
            .enqueue_with(value, &Enqueue::new().with_delay(LONG * 60))
            .await
            .unwrap();
    }
    let queue = &world.queue;
    let pause = |tr| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    let _consumer = world.consumer().await;
    let expected = [("hc_dequeue_delayed", 2.0), ("hc_dequeue_paused", 1.0)];
    world.until_recorded(expected).await;
    assert_eq!(world.records("hc_dequeue_age_seconds"), [0.0; 0]);
    assert_eq!(world.records("hc_dequeue_depth"), [0.0; 0]);
}

async fn items_that_are_taken_and_deliveries_that_are_lost_are_counted(store: TestStore) {
    let world = World::recorded(&store, patient()).await;
    let options = WorkerOptions::default().with_time_limit(Duration::from_millis(20));
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    world.enqueue(0..5).await;
    assert!(consumer.pop().await.unwrap().is_some());
    let late = consumer.dequeue_batch(3).await.unwrap();
    for delivery in &late {
        delivery.lost().await;
    }
    let expected = [("hc_dequeue_dequeues", 4.0), ("hc_dequeue_lost", 3.0)];
    world.until_recorded(expected).await;
}

async fn conflicts_and_what_a_fulfillment_grants_are_counted(store: TestStore) {
    let world = World::recorded(&store, patient()).await;
    let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
    let ledgers = world.store.root.subspace(&"ledgers");
    let options = RunOptions::default().with_ledger_subspace(ledgers);
    let runner = Runner::with_options(chaos.clone(), options);
    let consumer = world
        .queue
        .consumer(&runner, WorkerOptions::default())
        .await
        .unwrap();
    world.enqueue(0..3).await;
    // The next commit is the take of the fast path.
    chaos.script([CommitFault::NotCommitted]);
    let deliveries = consumer.dequeue_batch_within(2, LONG).await.unwrap();
    assert_eq!(deliveries.len(), 2);
    let expected = [
        ("hc_dequeue_conflicts", 1.0),
        ("hc_dequeue_fulfilled", 2.0),
        ("hc_dequeue_dequeues", 2.0),
    ];
    world.until_recorded(expected).await;
}

async fn looks_at_lanes_are_counted(store: TestStore) {
    let world = World::recorded(&store, settings()).await;
    let queue = &world.queue;
    let limit = GroupLimits::new().with_limit(1);
    let rare = Rate::new(1, MAX_RATE_PERIOD);
    let limits = &[("a", limit), ("b", GroupLimits::new().with_rate(rare))];
    let fill = |tr| async move {
        for (group, limits) in limits {
            let items = [1, 2].map(|value| (value, Enqueue::new().with_group(*group)));
            queue
                .configure_group(&tr, group.as_bytes(), Some(limits))
                .await?;
            queue.enqueue_all_with(&tr, &items).await?;
        }
        Ok::<_, Error>(())
    };
    world.runner.run(fill).await.unwrap();
    let consumer = world.consumer().await;
    let held = consumer.dequeue_batch_within(2, LONG).await.unwrap();
    assert_eq!(held.len(), 2);
    // Two lanes were read. The second item of one needed a slot, that of the other waited for the rate.
    let expected = [
        ("hc_dequeue_lanes_looked", 2.0),
        ("hc_dequeue_groups_at_limit", 1.0),
        ("hc_dequeue_rate_waits", 1.0),
    ];
    world.until_recorded(expected).await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.recorded_sum("hc_dequeue_looks_fruitless"), 0.0);
}

async fn a_leader_that_does_not_lead_costs_a_patience(store: TestStore) {
    // The leading session is not declared dead before the patience, a fifth of this lease, ends.
    let settings = Settings::new().with_lease(Duration::from_secs(3));
    let world = World::recorded(&store, settings).await;
    let leader = Doomed::start(&world).await;
    let options = WorkerOptions::default().with_poll_interval(Duration::from_millis(20));
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let wait = consumer.dequeue_within(LONG);
    let enqueue = async {
        world.until_requested(2).await;
        leader.die();
        world.enqueue([1, 2]).await;
    };
    let (delivery, ()) = tokio::join!(wait, enqueue);
    // The first item went to the leading session.
    assert_eq!(*delivery.unwrap().unwrap().value(), 2);
    assert_eq!(world.recorded_sum("hc_dequeue_patience_expiries"), 1.0);
}

async fn items_that_are_returned_for_the_dead_are_counted(store: TestStore) {
    let world = World::recorded(&store, settings()).await;
    world.enqueue(0..3).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let dies = process(|| async move {
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let held = consumer.dequeue_batch_within(2, LONG).await.unwrap();
        assert_eq!(held.len(), 2);
        std::mem::forget((consumer, held));
    });
    dies.join().unwrap();
    let _consumer = world.consumer().await;
    world.until_recorded([("hc_dequeue_reclaimed", 2.0)]).await;
}

async fn what_handlers_return_is_counted(store: TestStore) {
    let settings = patient().with_max_attempts(2);
    let world = World::recorded(&store, settings).await;
    world.enqueue(0..10).await;
    let handler = |delivery: Delivery<u64>| async move {
        match (*delivery.value(), delivery.deliveries()) {
            (0..4, _) => Ok(Outcome::Done),
            (4..7, _) => Err("no"),
            (7..9, 1) => Ok(Outcome::snooze(Duration::from_millis(1))),
            (7..9, _) => Ok(Outcome::Done),
            _ => Ok(Outcome::discard("of no use")),
        }
    };
    let soon = Duration::from_millis(1);
    let options = WorkerOptions::new().with_backoff(Backoff::new(soon, soon));
    let worker = world
        .queue
        .work(&world.runner, options, handler)
        .await
        .unwrap();
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    world.until_recorded([("hc_dequeue_dequeues", 15.0)]).await;
    for (outcome, count) in [
        ("done", 6.0),
        ("retried", 3.0),
        // Three after their last failure, and the one that was discarded.
        ("dead", 4.0),
        ("snoozed", 2.0),
        ("discarded", 1.0),
    ] {
        let recorded = world.recorded_outcome(outcome);
        assert_eq!(recorded, count, "{outcome}");
    }
    assert_eq!(world.records("hc_dequeue_handler_seconds").len(), 15);
    assert_eq!(world.records("hc_dequeue_waiting_seconds").len(), 15);
}

async fn each_dead_letter_is_counted_once_in_whatever_way_it_has_died(store: TestStore) {
    let settings = settings().with_max_attempts(1).with_max_deaths(1);
    let world = World::recorded(&store, settings).await;
    // The first one dies with its session.
    world.enqueue([0]).await;
    die_with_an_item(&world).await;
    let subspace = world.queue.subspace().clone();
    let texts = Queue::<String>::open(&world.runner, subspace).await;
    let text = "no number".to_owned();
    texts.unwrap().submit(&world.runner, &text).await.unwrap();
    world.enqueue(1..4).await;
    let granted_once = Enqueue::new().with_max_deliveries(1);
    let _ = world.enqueue_with(4, &granted_once).await.unwrap();
    let handler = async |delivery: Delivery<u64>| match delivery.value() {
        1 => std::future::pending().await,
        2 => Outcome::retry("no luck"),
        3 => Outcome::discard("of no use"),
        _ => Outcome::snooze(Duration::ZERO),
    };
    let options = WorkerOptions::new().with_time_limit(Duration::from_millis(20));
    let worker = world.queue.work(&world.runner, options, handler);
    let worker = worker.await.unwrap();
    until(async || world.stats().await.dead == 6).await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.recorded_outcome("dead"), 6.0);
    // A consumer has no handler.
    world.enqueue([5]).await;
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    consumer.shut_down(LONG).await.unwrap();
    assert_eq!(world.recorded_outcome("dead"), 7.0);
    world.check().await;
}
