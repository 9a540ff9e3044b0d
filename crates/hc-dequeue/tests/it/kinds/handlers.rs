//! Handlers and their options, by kind.

use std::sync::Arc;
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::testing::drain_jobs;
use hc_dequeue::{
    Backoff, Batch, Call, Delivery, Enqueue, Error, Handlers, Job, JobOptions, MAX_KIND_BYTES,
    MAX_KINDS, Outcome, Place, Schedule, Settings, Stats, WorkerOptions,
};
use keyspace::Store;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Invoice, Letter, Mail, SOON, World};
use crate::common::LONG;

conformance::on_every_store!(
    each_kind_has_its_attempts_its_backoff_its_time_limit_and_its_priority,
    an_enqueue_comes_before_the_options_of_the_kind,
    jobs_come_from_schedules_and_batches,
    a_hook_sees_each_call_and_its_outcome,
    what_cannot_be_a_kind_is_refused_before_anything_is_done,
    a_drain_handles_the_jobs_that_have_handlers,
);

/// A job whose options are its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Careful(u64);

impl Job for Careful {
    const KIND: &'static str = "careful";

    fn options() -> JobOptions {
        JobOptions::new()
            .with_max_attempts(2)
            .with_priority(3)
            .with_time_limit(Duration::from_millis(20))
            .with_backoff(Backoff::new(SOON, SOON))
    }
}

async fn each_kind_has_its_attempts_its_backoff_its_time_limit_and_its_priority(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let fails = world.submit(&Careful(1)).await;
    let hangs = world.submit(&Careful(2)).await;
    let waits = world.submit(&Mail(3)).await;
    let careful = async |job: Delivery<Careful>| {
        if job.value().0 == 2 {
            std::future::pending::<()>().await;
        }
        Outcome::retry("no luck")
    };
    let mail = async |_: Delivery<Mail>| Outcome::retry("no luck either");
    // The worker's own backoff is long.
    let options = WorkerOptions::new().with_backoff(Backoff::new(LONG * 60, LONG * 60));
    let handlers = Handlers::new().work(careful).work(mail);
    let worker = world.work(options, handlers).await;
    until(async || world.stats().await.dead == 2).await;
    until(async || world.stats().await.delayed == 1).await;
    for (item, reason) in [(&fails, "no luck"), (&hangs, "its time limit has passed")] {
        let queue = world.jobs.queue();
        let status = |tr| async move { queue.status(&tr, item).await };
        let status = world.runner.run(status).await.unwrap().unwrap();
        assert_eq!((status.place, status.attempts), (Place::Dead, 2));
        assert_eq!(status.priority, 3);
        assert_eq!(status.failure.unwrap().reason, reason);
    }
    assert!(matches!(
        world.place(&waits).await,
        Some(Place::Delayed { .. })
    ));
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn an_enqueue_comes_before_the_options_of_the_kind(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = Enqueue::new().with_priority(0).with_max_attempts(1);
    let item = &world.submit_with(&Careful(1), options).await;
    let handlers = Handlers::new().work(async |_: Delivery<Careful>| Outcome::retry("no luck"));
    let worker = world.work(WorkerOptions::new(), handlers).await;
    until(async || world.stats().await.dead == 1).await;
    let queue = world.jobs.queue();
    let status = |tr| async move { queue.status(&tr, item).await };
    let status = world.runner.run(status).await.unwrap().unwrap();
    assert_eq!((status.attempts, status.priority), (1, 0));
    worker.shut_down(LONG).await.unwrap();
}

async fn jobs_come_from_schedules_and_batches(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let jobs = &world.jobs;
    let handlers = Handlers::new()
        .work(world.note::<Mail>())
        .work(world.note::<Invoice>());
    let worker = world.work(WorkerOptions::new(), handlers).await;
    let open = |tr| async move {
        let (then, options) = jobs.prepare(&Invoice { cents: 1 }, Enqueue::new())?;
        let batch = Batch::new().with_callback(then, options);
        let batch = jobs.queue().open_batch(&tr, &batch).await?;
        let member = Enqueue::new().with_batch(&batch);
        let _ = jobs.enqueue_with(&tr, &Mail(1), member).await?;
        jobs.queue().close_batch(&tr, &batch)
    };
    world.runner.run(open).await.unwrap();
    world.until_handled(2).await;
    assert_eq!(world.handled(), ["Mail(1)", "Invoice { cents: 1 }"]);
    let schedule = |tr| async move {
        let (mail, options) = jobs.prepare(&Mail(2), Enqueue::new())?;
        let each_second = Schedule::new("* * * * * *").with_enqueue_options(options);
        jobs.queue()
            .schedule(&tr, "mails", &each_second, &mail)
            .await
    };
    for expected in ["Created", "Unchanged"] {
        let scheduled = world.runner.run(schedule).await.unwrap();
        assert_eq!(format!("{scheduled:?}"), expected);
    }
    world.until_handled(1).await;
    assert_eq!(world.handled()[0], "Mail(2)");
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn a_hook_sees_each_call_and_its_outcome(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    let fail = async |mail: Delivery<Mail>| match mail.value().0 {
        1 => Ok(()),
        2 => Err(std::io::Error::other("no network")),
        _ => panic!("no mail"),
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let hook = move |call: Call| {
        let notes = notes.clone();
        async move {
            let kind = call.kind().to_owned();
            assert!(call.attempt() == 1 && call.is_last_attempt());
            let outcome = call.run().await;
            notes.lock().push((kind, outcome.clone()));
            outcome
        }
    };
    let handlers = Handlers::new().work(fail).around(hook);
    let options = WorkerOptions::new().with_concurrency(1);
    let worker = world.work(options, handlers).await;
    for number in 1..=3 {
        world.submit(&Mail(number)).await;
    }
    until(async || world.stats().await.dead == 2).await;
    worker.shut_down(LONG).await.unwrap();
    let outcomes = [
        Outcome::Done,
        Outcome::retry("no network"),
        Outcome::retry("it panicked: no mail"),
    ];
    let expected = outcomes.map(|outcome| ("mail".to_owned(), outcome));
    assert_eq!(*seen.lock(), expected);
}

async fn what_cannot_be_a_kind_is_refused_before_anything_is_done(store: TestStore) {
    #[derive(Serialize, Deserialize)]
    struct Empty;

    impl Job for Empty {
        const KIND: &'static str = "";
    }

    #[derive(Serialize, Deserialize)]
    struct Long;

    impl Job for Long {
        const KIND: &'static str = match std::str::from_utf8(&[b'a'; MAX_KIND_BYTES + 1]) {
            Ok(kind) => kind,
            Err(_) => "",
        };
    }

    let world = World::with_defaults(&store).await;
    let refused = [
        world.jobs.submit(&world.runner, &Empty).await.unwrap_err(),
        world.jobs.submit(&world.runner, &Long).await.unwrap_err(),
    ];
    let texts = refused.map(|error| error.to_string());
    let of = |bytes| format!("kind of {bytes} bytes: use 1 to 100 bytes");
    assert_eq!(texts, [of(0), of(101)]);
    let none = || Handlers::<Store>::new();
    for (handlers, expected) in [
        (
            none(),
            "a worker of jobs has no handlers: register one for each type of jobs that it takes",
        ),
        (none().work(async |_: Delivery<Empty>| {}), &*of(0)),
        (none().work(async |_: Delivery<Long>| {}), &of(101)),
        (
            none()
                .work(async |_: Delivery<Mail>| {})
                .work(async |_: Delivery<Letter>| {}),
            "two handlers are for the kind `letter`: register one for each kind",
        ),
    ] {
        let refused = world
            .jobs
            .work(&world.runner, WorkerOptions::new(), handlers);
        assert_eq!(refused.await.err().unwrap().to_string(), expected);
    }
    assert_eq!(MAX_KINDS, 500);
    let Stats { queued, .. } = world.stats().await;
    assert_eq!((queued, world.count("s").await), (0, 0));
}

async fn a_drain_handles_the_jobs_that_have_handlers(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for number in 0..3 {
        world.submit(&Mail(number)).await;
        world.submit(&Invoice { cents: number }).await;
    }
    world.submit(&Careful(7)).await;
    let handlers = || {
        Handlers::new()
            .work(world.note::<Mail>())
            .work(async |_: Delivery<Careful>| Outcome::retry("no luck"))
    };
    let drained = drain_jobs(&world.runner, &world.jobs, handlers()).await;
    let drained = drained.unwrap();
    assert_eq!((drained.completed, drained.retried), (3, 1));
    let Stats { queued, .. } = world.stats().await;
    assert_eq!(queued, 3);
    assert_eq!(world.handled(), ["Mail(0)", "Mail(1)", "Mail(2)"]);
    let none = drain_jobs(&world.runner, &world.jobs, Handlers::new()).await;
    assert!(matches!(none, Err(Error::NoHandlers)));
}
