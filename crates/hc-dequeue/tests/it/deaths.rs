//! A queue of deaths gets each item that becomes a dead letter, in the same commit.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LONG, World, open};
use crate::costs::die_with_an_item;
use conformance::chaos::{Chaos, Faults};
use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use conformance::{logged_warnings, until};
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{
    Backoff, Death, DeathsRefusal, Enqueue, Error, ItemRef, Outcome, PlaceKind, Queue, Settings,
    WorkerOptions,
};
use keyspace::codec::Json;
use keyspace::names::queue_name;
use keyspace::{Environment, OpenOptions, Subspace};

conformance::on_every_store!(
    every_dead_letter_enqueues_a_death,
    each_death_is_enqueued_once_even_if_outcomes_of_commits_are_unknown,
    a_store_that_commits_twice_enqueues_a_death_twice,
    each_death_is_an_error_in_the_log,
    a_second_death_enqueues_another_one,
    the_last_death_of_a_session_enqueues_one,
    a_value_that_does_not_decode_enqueues_a_death,
    a_payload_that_does_not_fit_stays_in_its_queue,
    without_a_queue_of_deaths_none_is_enqueued,
    a_queue_that_cannot_have_the_deaths_is_refused,
);

const SOON: Duration = Duration::from_millis(1);

/// A world whose queue has a queue of deaths.
struct Deadly {
    world: World,
    deaths: Queue<Death>,
}

impl Deadly {
    async fn new(store: &TestStore, settings: Settings) -> Self {
        let mut world = World::new(store, settings.clone()).await;
        let deaths = Self::open_deaths(&world, "deaths").await;
        let settings = settings.with_deaths(deaths.subspace().clone());
        let configure = async |tr| world.queue.configure(&tr, &settings).await;
        world.runner.run(configure).await.unwrap();
        world.queue = open(&world.store, &world.runner, settings).await.unwrap();
        Self { world, deaths }
    }

    async fn open_deaths(world: &World, name: &str) -> Queue<Death> {
        let subspace = world.store.root.subspace(&name);
        Queue::open(&world.runner, subspace).await.unwrap()
    }

    /// Returns the waiting deaths, in their order.
    async fn deaths(&self) -> Vec<Death> {
        let deaths = &self.deaths;
        let list = async |tr| deaths.list(&tr, PlaceKind::Queued, None, 100).await;
        let page = self.world.runner.run(list).await.unwrap();
        assert!(page.strays.is_empty());
        let values = page
            .items
            .into_iter()
            .map(|item| item.status.unwrap().value);
        values.map(Result::unwrap).collect()
    }

    /// Returns the value, the reason, the attempts and the deaths that each waiting death names.
    async fn told(&self) -> Vec<(u64, String, u64, u64)> {
        let told = self.deaths().await.into_iter().map(|death| {
            assert_eq!(death.queue, queue_name(self.world.queue.subspace()));
            let payload = death.payload.unwrap();
            let value = self.world.queue.decode_payload(payload).unwrap();
            (value, death.reason, death.attempts, death.deaths)
        });
        told.collect()
    }

    /// Returns the dead letters without a death, the deaths without a dead letter, and those that are there twice.
    async fn mistold(&self) -> Vec<ItemRef> {
        let told = self.deaths().await.into_iter();
        let mut told: Vec<_> = told.map(|death| death.item).collect();
        let dead = self.world.dead_letters().await.into_iter();
        let mut mistold = Vec::new();
        for letter in dead {
            match told.iter().position(|item| *item == letter.item) {
                Some(place) => {
                    told.swap_remove(place);
                }
                None => mistold.push(letter.item),
            }
        }
        mistold.extend(told);
        mistold
    }

    async fn check(&self) {
        self.world.check().await;
        let audit = self.deaths.audit(&self.world.runner).await.unwrap();
        assert_eq!(audit.findings, []);
    }
}

async fn every_dead_letter_enqueues_a_death(store: TestStore) {
    let settings = Settings::new().with_max_attempts(2).with_max_deliveries(3);
    let deadly = Deadly::new(&store, settings).await;
    let world = &deadly.world;
    world.enqueue([1, 2, 3]).await;
    let options = WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON));
    let handler = async |delivery: hc_dequeue::Delivery<u64>| match delivery.value() {
        1 => Outcome::retry(format!("attempt {}", delivery.attempt())),
        2 => Outcome::discard("no good"),
        _ => Outcome::snooze(SOON),
    };
    let worker = world
        .queue
        .work(&world.runner, options, handler)
        .await
        .unwrap();
    until(async || world.stats().await.dead == 3).await;
    worker.shut_down(Duration::MAX).await.unwrap();
    let mut told = deadly.told().await;
    told.sort();
    assert_eq!(
        told,
        [
            (1, "attempt 2".to_owned(), 2, 0),
            (2, "no good".to_owned(), 0, 0),
            (3, "it was granted too often".to_owned(), 0, 0),
        ]
    );
    let items: Vec<ItemRef> = deadly
        .deaths()
        .await
        .into_iter()
        .map(|it| it.item)
        .collect();
    for letter in world.dead_letters().await {
        assert!(items.contains(&letter.item));
    }
    deadly.check().await;
}

async fn each_death_is_enqueued_once_even_if_outcomes_of_commits_are_unknown(store: TestStore) {
    let mut faults = 0;
    // Items whose grant was lost come back at a heartbeat.
    let settings = Settings::new().with_lease(Duration::from_secs(1));
    for seed in 0..3 {
        let deadly = Deadly::new(&store.fresh(), settings.clone()).await;
        let world = &deadly.world;
        let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
        let chaos = Chaos::new(world.store.db.clone(), env, Faults::all(0.05));
        let runner = world.store.runner_on(chaos.clone());
        world.enqueue(1..=20).await;
        let handler = async |delivery: hc_dequeue::Delivery<u64>| match delivery.value() % 2 {
            0 => Outcome::Done,
            _ => Outcome::discard("odd"),
        };
        let options = WorkerOptions::new()
            .with_concurrency(4)
            .with_backoff(Backoff::new(SOON, SOON));
        let worker = world.queue.work(&runner, options, handler).await;
        world.queue.wait_idle(&world.runner).await.unwrap();
        worker.unwrap().shut_down(LONG).await.unwrap();
        chaos.flush().await;
        assert_eq!(deadly.mistold().await, [], "seed {seed}");
        assert!(world.stats().await.dead >= 10);
        deadly.check().await;
        faults += chaos.tally().commits;
    }
    assert!(faults > 2, "{faults}");
}

/// The planted bug: two deaths for one dead letter.
async fn a_store_that_commits_twice_enqueues_a_death_twice(store: TestStore) {
    let deadly = Deadly::new(&store, Settings::new()).await;
    let world = &deadly.world;
    world.enqueue(0..100).await;
    let planted = Planted::new(world.store.db.clone(), Plant::RepeatedCommits);
    let runner = world.store.runner_on(planted);
    let consumer = world.queue.consumer(&runner, WorkerOptions::new());
    let consumer = consumer.await.unwrap();
    // One in 16 commits is repeated: with two returns for each take, a return soon is.
    while deadly.mistold().await.is_empty() {
        let deliveries = consumer.dequeue_batch(2).await.unwrap();
        assert!(!deliveries.is_empty(), "no death is enqueued twice");
        for delivery in deliveries {
            delivery.discard("no good").await.unwrap();
        }
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn each_death_is_an_error_in_the_log(store: TestStore) {
    // The first call begins the log.
    let _ = logged_warnings("");
    let settings = crate::common::settings();
    let settings = settings.with_max_attempts(2).with_max_deaths(1);
    let deadly = Deadly::new(&store, settings).await;
    let world = &deadly.world;
    world.enqueue([1]).await;
    die_with_an_item(world).await;
    world.enqueue([2, 3]).await;
    let options = WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON));
    let handler = async |delivery: hc_dequeue::Delivery<u64>| match delivery.value() {
        2 => Outcome::retry(format!("attempt {}", delivery.attempt())),
        _ => Outcome::discard("no good"),
    };
    let worker = world.queue.work(&world.runner, options, handler);
    let worker = worker.await.unwrap();
    until(async || world.stats().await.dead == 3).await;
    worker.shut_down(LONG).await.unwrap();
    let of_queue = format!("queue={}", queue_name(world.queue.subspace()));
    let mut lines = logged_warnings("an item is a dead letter");
    lines.retain(|line| line.contains(&of_queue));
    assert_eq!(lines.len(), 3, "{lines:?}");
    for death in deadly.deaths().await {
        let told = [
            format!("item={}", death.item),
            format!("attempts={}", death.attempts),
            format!("deaths={}", death.deaths),
            format!("reason={}", death.reason),
        ];
        let tells = |line: &String| told.iter().all(|field| line.contains(field));
        let lines: Vec<_> = lines.iter().filter(|line| tells(line)).collect();
        assert_eq!(lines.len(), 1, "{told:?}: {lines:?}");
    }
}

async fn a_second_death_enqueues_another_one(store: TestStore) {
    let deadly = Deadly::new(&store, Settings::new()).await;
    let world = &deadly.world;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    for reason in ["first", "second"] {
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        delivery.discard(reason).await.unwrap();
        let redrive = async |tr| world.queue.redrive(&tr, item).await;
        assert!(world.runner.run(redrive).await.unwrap());
    }
    let told = deadly.told().await;
    let reasons: Vec<_> = told.iter().map(|(_, reason, ..)| &**reason).collect();
    assert_eq!(reasons, ["first", "second"]);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    deadly.check().await;
}

async fn the_last_death_of_a_session_enqueues_one(store: TestStore) {
    let settings = crate::common::settings().with_max_deaths(1);
    let deadly = Deadly::new(&store, settings).await;
    let world = &deadly.world;
    world.enqueue([5]).await;
    die_with_an_item(world).await;
    let consumer = world.consumer().await;
    until(async || world.stats().await.dead == 1).await;
    let told = deadly.told().await;
    assert_eq!(
        told,
        [(5, "the session that held it has died".to_owned(), 0, 1)]
    );
    consumer.shut_down(Duration::ZERO).await.unwrap();
    deadly.check().await;
}

async fn a_value_that_does_not_decode_enqueues_a_death(store: TestStore) {
    let deadly = Deadly::new(&store, Settings::new().with_max_attempts(1)).await;
    let world = &deadly.world;
    let subspace = world.queue.subspace().clone();
    let texts = Queue::<String>::open(&world.runner, subspace)
        .await
        .unwrap();
    texts
        .submit(&world.runner, &"no number".to_owned())
        .await
        .unwrap();
    let handler = async |_: hc_dequeue::Delivery<u64>| Outcome::Done;
    let worker = world
        .queue
        .work(&world.runner, WorkerOptions::new(), handler);
    let worker = worker.await.unwrap();
    until(async || world.stats().await.dead == 1).await;
    worker.shut_down(LONG).await.unwrap();
    let [death] = &deadly.deaths().await[..] else {
        panic!("one death");
    };
    let payload = death.payload.clone().unwrap();
    assert!(world.queue.decode_payload(payload.clone()).is_err());
    assert_eq!(texts.decode_payload(payload).unwrap(), "no number");
    assert_eq!((death.attempts, death.deaths), (1, 0));
    deadly.check().await;
}

async fn a_payload_that_does_not_fit_stays_in_its_queue(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let deaths = Deadly::open_deaths(&world, "deaths").await;
    let settings = Settings::new().with_deaths(deaths.subspace().clone());
    let subspace = world.store.root.subspace(&"large");
    let options = OpenOptions::new().with_codec(keyspace::codec::Raw);
    let large = Queue::<Vec<u8>, _>::open_with(&world.runner, subspace, settings, options);
    let large = large.await.unwrap();
    let value = vec![7; hc_dequeue::MAX_PAYLOAD_BYTES];
    large.submit(&world.runner, &value).await.unwrap();
    let consumer = large
        .consumer(&world.runner, WorkerOptions::new())
        .await
        .unwrap();
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.discard("too large").await.unwrap();
    let deaths = Deadly { world, deaths };
    let [death] = &deaths.deaths().await[..] else {
        panic!("one death");
    };
    assert_eq!((&*death.reason, &death.payload), ("too large", &None));
    let status = async |tr| large.status(&tr, &death.item).await;
    let status = deaths.world.runner.run(status).await.unwrap().unwrap();
    assert_eq!(status.value.unwrap(), value);
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn without_a_queue_of_deaths_none_is_enqueued(store: TestStore) {
    let mut deadly = Deadly::new(&store, Settings::new()).await;
    let world = &mut deadly.world;
    let configure = async |tr| world.queue.configure(&tr, &Settings::new()).await;
    world.runner.run(configure).await.unwrap();
    // Sessions adopt settings at a heartbeat.
    world.queue = open(&world.store, &world.runner, Settings::new())
        .await
        .unwrap();
    let world = &deadly.world;
    let consumer = world.consumer().await;
    world.enqueue([1]).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    assert_eq!(deadly.told().await, []);
    assert_eq!(world.stats().await.dead, 1);
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn a_queue_that_cannot_have_the_deaths_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let at = |name: &str| world.store.root.subspace(&name);
    let refusal = async |queue: &hc_dequeue::Queue<Death>, deaths: Subspace| {
        let settings = &Settings::new().with_deaths(deaths);
        let configure = async |tr| queue.configure(&tr, settings).await;
        match world.runner.run(configure).await {
            Ok(()) => None,
            Err(Error::Deaths { reason, .. }) => Some(reason),
            Err(other) => panic!("{other}"),
        }
    };
    let a = &Deadly::open_deaths(&world, "a").await;
    let b = &Deadly::open_deaths(&world, "b").await;
    let c = &Deadly::open_deaths(&world, "c").await;
    assert_eq!(
        refusal(a, at("nowhere")).await,
        Some(DeathsRefusal::Missing)
    );
    assert_eq!(refusal(a, at("a")).await, Some(DeathsRefusal::Ring));
    let json = OpenOptions::new().with_codec(Json);
    let other = Queue::<Death, _>::open_with(&world.runner, at("json"), Settings::new(), json);
    other.await.unwrap();
    let codec = "Json".to_owned();
    assert_eq!(
        refusal(a, at("json")).await,
        Some(DeathsRefusal::Codec { codec })
    );
    assert_eq!(refusal(a, at("b")).await, None);
    assert_eq!(refusal(b, at("c")).await, None);
    for first in ["a", "b"] {
        assert_eq!(refusal(c, at(first)).await, Some(DeathsRefusal::Ring));
    }
    // A chain may be as long as the limit, and no longer.
    let mut last = at("c");
    for number in 0..20 {
        let next = &Deadly::open_deaths(&world, &format!("chain {number}")).await;
        match refusal(next, last).await {
            None => last = next.subspace().clone(),
            Some(reason) => {
                assert_eq!((number, reason), (8, DeathsRefusal::TooLong { limit: 8 }));
                break;
            }
        }
    }
    // An opening refuses it, too, before it creates the queue.
    let settings = Settings::new().with_deaths(at("nowhere"));
    let opened = open(&world.store.fresh(), &world.runner, settings).await;
    assert!(matches!(
        opened,
        Err(Error::Deaths {
            reason: DeathsRefusal::Missing,
            ..
        })
    ));
}
