//! Steps of a handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, World};
use conformance::chaos::{Chaos, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use futures::join;
use hc_dequeue::testing::{drain, drain_process};
use hc_dequeue::{
    Delivery, Error, MAX_CHECKPOINT_BYTES, MAX_STEP_NAME_BYTES, MAX_STEPS, Outcome, StepRefusal,
    WorkerOptions,
};
use keyspace::{Code, Environment, Isolation, MutationOp, Runner, Store, Transaction, Tx};

use super::{Item, next, patient, set};

conformance::on_every_store!(
    a_step_runs_once_across_deliveries,
    a_step_takes_effect_once_even_if_outcomes_of_commits_are_unknown,
    a_step_whose_commit_comes_late_takes_effect_once,
    a_failed_step_runs_again,
    a_step_may_set_a_checkpoint_and_progress,
    steps_of_one_delivery_at_the_same_time_are_all_done,
    a_step_cannot_acknowledge_its_item,
    a_step_that_takes_too_long_says_so,
    steps_that_cannot_be_recorded_are_refused,
    a_step_in_the_transaction_that_completes_its_item_is_refused,
);

/// Counts a call of a step in its transaction.
fn take_effect(world: &World, tr: &impl Transaction, step: &str) {
    let key = world.store.root.pack(&("effect", step));
    tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
}

async fn effects(world: &World, step: &str) -> u64 {
    let key = &world.store.root.pack(&("effect", step));
    let read = async |tr: Tx<_>| tr.get(key, Isolation::Snapshot).await;
    let count = world.runner.run(read).await.unwrap();
    count.map_or(0, |count| u64::from_le_bytes(count[..].try_into().unwrap()))
}

/// Runs a step that counts its effects and returns a number.
async fn run(world: &World, delivery: &Item, name: &str, result: u64) -> Result<u64, Error> {
    let step = async |tr: Tx<_>| {
        take_effect(world, &tr, name);
        Ok(result)
    };
    delivery.step(name, step).await
}

fn refusal<T>(refused: Result<T, Error>) -> StepRefusal {
    match refused {
        Err(Error::Step { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it ran"),
    }
}

async fn a_step_runs_once_across_deliveries(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let steps = async |item: Item| {
        let attempt = item.attempt();
        let first = run(&world, &item, "first", attempt).await?;
        if attempt == 1 {
            return Ok(Outcome::retry_after(Duration::ZERO, "after the first"));
        }
        let second = run(&world, &item, "second", attempt).await?;
        assert_eq!((first, second), (1, 2));
        match attempt {
            2 => Err(Error::MalformedCursor),
            _ => Ok(Outcome::Done),
        }
    };
    let consumer = world.quick_consumer(WorkerOptions::new()).await;
    for attempt in 1..=3 {
        let delivery = next(&consumer).await;
        match steps(delivery.clone()).await {
            Ok(Outcome::Done) => world.ack(&delivery).await.unwrap(),
            _ => delivery.nack().await.unwrap(),
        }
        let expected = [1, u64::from(attempt > 1)];
        let found = [
            effects(&world, "first").await,
            effects(&world, "second").await,
        ];
        assert_eq!(found, expected);
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

/// Lets a worker handle twenty items in three steps, each of which may fail after any of them.
async fn work_in_steps(world: &World, runner: &Runner<Chaos<Store>>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let root = world.store.root.clone();
    let handler = move |item: Item| {
        let root = root.clone();
        let calls = calls.clone();
        async move {
            for step in ["a", "b", "c"] {
                let key = &root.pack(&("effect", step, *item.value()));
                let count = async |tr: Tx<_>| {
                    tr.atomic(MutationOp::Add, key, &1_u64.to_le_bytes());
                    Ok::<_, Error>(())
                };
                item.step(step, count).await?;
                if calls.fetch_add(1, Ordering::Relaxed) % 4 == 3 {
                    return Ok(Outcome::retry_after(Duration::ZERO, "again"));
                }
            }
            Ok::<_, Error>(Outcome::Done)
        }
    };
    let options = WorkerOptions::new().with_concurrency(4);
    let worker = world.queue.work(runner, options, handler).await.unwrap();
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
}

async fn a_step_takes_effect_once_even_if_outcomes_of_commits_are_unknown(store: TestStore) {
    let mut faults = 0;
    for seed in 0..3 {
        let settings = hc_dequeue::Settings::new()
            .with_lease(Duration::from_secs(1))
            .with_max_attempts(1_000);
        let world = World::new(&store, settings).await;
        world.enqueue(0..20).await;
        let env = Environment::seeded(seed, Arc::new(hc_dequeue::testing::ManualWall::new()));
        let chaos = Chaos::new(world.store.db.clone(), env, Faults::all(0.05));
        let runner = world.store.runner_on(chaos.clone());
        work_in_steps(&world, &runner).await;
        chaos.flush().await;
        for step in ["a", "b", "c"] {
            for value in 0..20_u64 {
                let key = &world.store.root.pack(&("effect", step, value));
                let read = async |tr: Tx<_>| tr.get(key, Isolation::Snapshot).await;
                let count = world.runner.run(read).await.unwrap();
                let once = 1_u64.to_le_bytes();
                assert_eq!(
                    count.as_deref(),
                    Some(&once[..]),
                    "{step} of {value}, seed {seed}"
                );
            }
        }
        assert_eq!(world.stats().await.completed, 20);
        world.check().await;
        faults += chaos.tally().commits;
    }
    assert!(faults > 2, "{faults}");
}

async fn a_step_whose_commit_comes_late_takes_effect_once(store: TestStore) {
    let late = |before| {
        Fate::Late(Landing {
            attempts: 1,
            before,
        })
    };
    for fate in [
        Fate::Applied,
        Fate::Lost,
        late(LandingPoint::ReadVersion),
        late(LandingPoint::Commit),
    ] {
        let world = World::with_defaults(&store).await;
        world.enqueue([7]).await;
        let chaos = Chaos::new(
            world.store.db.clone(),
            Environment::system(),
            Faults::default(),
        );
        let runner = world.store.runner_on(chaos.clone());
        let consumer = world.queue.consumer(&runner, WorkerOptions::new()).await;
        let consumer = consumer.unwrap();
        let delivery = next(&consumer).await;
        chaos.script([conformance::chaos::CommitFault::Unknown(fate)]);
        assert_eq!(run(&world, &delivery, "late", 7).await.unwrap(), 7);
        chaos.flush().await;
        assert_eq!(effects(&world, "late").await, 1, "{fate:?}");
        delivery.release().await.unwrap();
        let delivery = next(&consumer).await;
        assert_eq!(run(&world, &delivery, "late", 8).await.unwrap(), 7);
        assert_eq!(effects(&world, "late").await, 1, "{fate:?}");
        consumer.shut_down(Duration::ZERO).await.unwrap();
        world.check().await;
    }
}

async fn a_failed_step_runs_again(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let fail = async |tr: Tx<_>| {
        take_effect(&world, &tr, "charge");
        Err::<u64, _>(Error::MalformedCursor)
    };
    let failed = delivery.step("charge", fail).await;
    assert!(matches!(failed, Err(Error::MalformedCursor)));
    assert_eq!(effects(&world, "charge").await, 0);
    // Also one that is dropped while it runs.
    let hang = async |_: Tx<_>| std::future::pending::<Result<u64, Error>>().await;
    assert!(futures::poll!(Box::pin(delivery.step("charge", hang))).is_pending());
    assert_eq!(run(&world, &delivery, "charge", 7).await.unwrap(), 7);
    assert_eq!(effects(&world, "charge").await, 1);
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn a_step_may_set_a_checkpoint_and_progress(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let step = async |tr: Tx<_>| {
        delivery.set_checkpoint(&tr, b"half").await?;
        delivery.set_progress(&tr, 1, 2, "").await
    };
    delivery.step("import", step).await.unwrap();
    set(&world.runner, &delivery, b"most").await.unwrap();
    let status = world.status(&delivery.item_ref()).await.unwrap();
    assert_eq!(status.progress.unwrap().done, 1);
    delivery.release().await.unwrap();
    let delivery = next(&consumer).await;
    assert_eq!(super::checkpoint(&delivery), b"most");
    // It does not run again.
    delivery.step("import", step).await.unwrap();
    delivery.release().await.unwrap();
    assert_eq!(super::checkpoint(&next(&consumer).await), b"most");
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn steps_of_one_delivery_at_the_same_time_are_all_done(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let steps = join!(
        run(&world, &delivery, "a", 1),
        run(&world, &delivery, "b", 2),
        run(&world, &delivery, "a", 3),
    );
    assert_eq!((steps.0.unwrap(), steps.1.unwrap()), (1, 2));
    assert_eq!(refusal(steps.2), StepRefusal::Repeated);
    for step in ["a", "b"] {
        assert_eq!(effects(&world, step).await, 1);
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn a_step_cannot_acknowledge_its_item(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let end = async |tr: Tx<_>| {
        take_effect(&world, &tr, "end");
        delivery.ack(&tr).await
    };
    let refused = delivery.step("end", end).await;
    assert!(matches!(refused, Err(Error::DeliveryLost { .. })));
    assert_eq!(effects(&world, "end").await, 0);
    assert_eq!(world.count("h").await, 1);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

async fn a_step_that_takes_too_long_says_so(store: TestStore) {
    // The step sets the clock forward instead of taking time.
    let clock = Still::new();
    let world = clock.world(&store, patient()).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let calls = AtomicUsize::new(0);
    let step = async |millis| {
        let step = async |_: Tx<_>| {
            calls.fetch_add(1, Ordering::Relaxed);
            clock.advance(Duration::from_millis(millis));
            Err::<(), _>(Error::from(keyspace::Error::from(
                Code::TRANSACTION_TOO_OLD,
            )))
        };
        refusal(delivery.step("slow", step).await)
    };
    let took = Duration::from_secs(6);
    assert_eq!(step(6_000).await, StepRefusal::TooSlow { took });
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

async fn steps_that_cannot_be_recorded_are_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let limit = MAX_STEP_NAME_BYTES;
    for bytes in [0, limit + 1] {
        let name = "a".repeat(bytes);
        let refused = refusal(run(&world, &delivery, &name, 1).await);
        assert_eq!(refused, StepRefusal::Name { bytes, limit });
    }
    let longest = "a".repeat(limit);
    assert_eq!(run(&world, &delivery, &longest, 1).await.unwrap(), 1);
    let again = run(&world, &delivery, &longest, 1).await;
    assert_eq!(refusal(again), StepRefusal::Repeated);
    // One whose result has another type than the one that is stored.
    delivery.release().await.unwrap();
    let delivery = next(&consumer).await;
    let text = async |_: Tx<_>| Ok::<_, Error>(String::new());
    let other = refusal(delivery.step(&longest, text).await);
    assert!(matches!(other, StepRefusal::OtherResult { .. }), "{other}");
    // A result takes the bytes of its MessagePack.
    let large = async |bytes| {
        let step = async |tr: Tx<_>| {
            take_effect(&world, &tr, "large");
            Ok::<_, Error>("a".repeat(bytes))
        };
        delivery.step("large", step).await
    };
    let left = MAX_CHECKPOINT_BYTES - (3 + limit + 1);
    let largest = left - "large".len() - 3 - 3;
    let refused = refusal(large(largest + 1).await);
    let bytes = MAX_CHECKPOINT_BYTES + 1;
    let limit = MAX_CHECKPOINT_BYTES;
    assert_eq!(refused, StepRefusal::NoRoom { bytes, limit });
    assert_eq!(effects(&world, "large").await, 0);
    large(largest).await.unwrap();
    assert_eq!(effects(&world, "large").await, 1);
    // Nor is there room for a checkpoint.
    let refused = set(&world.runner, &delivery, b"1").await;
    let Err(Error::CheckpointTooLong { bytes, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(bytes, MAX_CHECKPOINT_BYTES + 1);
    consumer.shut_down(Duration::ZERO).await.unwrap();

    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    for step in 0..MAX_STEPS {
        run(&world, &delivery, &step.to_string(), 1).await.unwrap();
    }
    let refused = refusal(run(&world, &delivery, "more", 1).await);
    assert_eq!(refused, StepRefusal::TooMany { limit: MAX_STEPS });
    assert_eq!(effects(&world, "more").await, 0);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

async fn a_step_in_the_transaction_that_completes_its_item_is_refused(store: TestStore) {
    let world = World::new(&store, hc_dequeue::Settings::new().with_max_attempts(1)).await;
    world.enqueue([7]).await;
    let key = &world.store.root.pack(&"read");
    let refusals = &parking_lot::Mutex::new(Vec::new());
    // Without the refusal, the step's commit would let this transaction fail, and the repeated step would be another
    // one of its name.
    let handler = async |tr: Tx<_>, item: Item| {
        tr.get(key, Isolation::Serializable).await?;
        let stepped = run(&world, &item, "first", 1).await;
        refusals
            .lock()
            .push(stepped.clone().map_err(|error| error.to_string()));
        stepped.map(|_| ())
    };
    let drained = drain_process(&world.runner, &world.queue, handler)
        .await
        .unwrap();
    assert_eq!((drained.completed, drained.dead), (0, 1));
    let text = "step \"first\": the handler runs in the transaction that completes the item: do the step's \
                work there, or handle such items with `work`";
    assert_eq!(*refusals.lock(), [Err(text.to_owned())]);
    assert_eq!(effects(&world, "first").await, 0);
    world.check().await;
}

#[tokio::test]
async fn a_handler_in_a_drain_has_steps() {
    let store = TestStore::memory();
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let handler = async |item: Delivery<u64>| {
        let step = async |_: Tx<_>| Ok::<_, Error>(*item.value());
        assert_eq!(item.step("seven", step).await?, 7);
        Ok::<_, Error>(())
    };
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    assert_eq!(drained.completed, 1);
}
