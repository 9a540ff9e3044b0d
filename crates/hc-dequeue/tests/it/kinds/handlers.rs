//! Handlers and their options, by kind.

use std::sync::Arc;
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{logged_warnings, until};
use hc_dequeue::testing::drain_jobs;
use hc_dequeue::{
    Backoff, Batch, Call, Delivery, Enqueue, Error, Handlers, Job, JobOptions, MAX_KIND_BYTES,
    MAX_KINDS, Outcome, Place, Schedule, Settings, Stats, WorkerOptions,
};
use keyspace::Store;
use keyspace::names::queue_name;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Invoice, Letter, Mail, SOON, World};
use crate::common::LONG;

conformance::on_every_store!(
    each_kind_has_its_attempts_its_backoff_its_time_limit_and_its_priority,
    an_enqueue_comes_before_the_options_of_the_kind,
    jobs_come_from_schedules_and_batches,
    a_hook_sees_each_call_and_its_outcome,
    log_and_metrics_tell_the_kind_of_a_job,
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
            .with_backoff(Backoff::new(SOON, SOON))
    }
}

/// A job whose handler hangs until its time limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Hanging;

impl Job for Hanging {
    const KIND: &'static str = "hanging";

    fn options() -> JobOptions {
        Careful::options().with_time_limit(Duration::from_millis(20))
    }
}

/// A job of more kinds than a worker takes.
#[derive(Serialize, Deserialize)]
struct Manifold;

impl Job for Manifold {
    const KIND: &'static str = "000";
    const ALIASES: &'static [&'static str] = &NUMBERS;
}

/// The numbers from 1 to 500, in three digits.
static NUMBERS: [&str; MAX_KINDS] = {
    let mut numbers = [""; MAX_KINDS];
    let mut number = 0;
    while number < MAX_KINDS {
        numbers[number] = match std::str::from_utf8(&DIGITS[number]) {
            Ok(digits) => digits,
            Err(_) => panic!("digits are ASCII"),
        };
        number += 1;
    }
    numbers
};

static DIGITS: [[u8; 3]; MAX_KINDS] = {
    let mut digits = [[b'0'; 3]; MAX_KINDS];
    let mut number = 0;
    while number < MAX_KINDS {
        let value = number + 1;
        digits[number][0] += (value / 100) as u8;
        digits[number][1] += (value / 10 % 10) as u8;
        digits[number][2] += (value % 10) as u8;
        number += 1;
    }
    digits
};

async fn each_kind_has_its_attempts_its_backoff_its_time_limit_and_its_priority(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let fails = world.submit(&Careful(1)).await;
    let hangs = world.submit(&Hanging).await;
    let waits = world.submit(&Mail(3)).await;
    let careful = async |_: Delivery<Careful>| Outcome::retry("no luck");
    let hanging = async |_: Delivery<Hanging>| std::future::pending::<()>().await;
    let mail = async |_: Delivery<Mail>| Outcome::retry("no luck either");
    // The worker's own backoff is long.
    let options = WorkerOptions::new().with_backoff(Backoff::new(LONG * 60, LONG * 60));
    let handlers = Handlers::new().work(careful).work(hanging).work(mail);
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

async fn log_and_metrics_tell_the_kind_of_a_job(store: TestStore) {
    crate::common::install_recorder();
    // The first call begins the log.
    let _ = logged_warnings("");
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    let queue = queue_name(world.jobs.queue().subspace());
    let pay = async |invoice: Delivery<Invoice>| match invoice.value().cents {
        1 => Outcome::Done,
        2 => Outcome::retry("no money"),
        _ => Outcome::discard("no invoice"),
    };
    let handlers = Handlers::new().work(world.note::<Mail>()).work(pay);
    let worker = world.work(WorkerOptions::new(), handlers).await;
    for cents in 1..=3 {
        world.submit(&Invoice { cents }).await;
    }
    world.submit(&Mail(1)).await;
    world.jobs.queue().wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();

    // Some lines have it as a text in quotes.
    let of_queue = [format!("queue={queue}"), format!("queue={queue:?}")];
    let logged = |text: &str| {
        let mut lines = logged_warnings(text);
        lines.retain(|line| of_queue.iter().any(|queue| line.contains(queue)));
        lines
    };
    let dead = logged("an item is a dead letter");
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(dead.iter().all(|line| line.contains(r#"kind="invoice""#)));
    for (text, reason) in [
        ("a handler failed", "no money"),
        ("a handler has discarded an item", "no invoice"),
    ] {
        let of_reason = logged(text);
        let [line] = &of_reason[..] else {
            panic!("one line: {of_reason:?}");
        };
        for field in ["attempt=1", r#"kind="invoice""#, reason] {
            assert!(line.contains(field), "{line}");
        }
    }
    let recorded = |metric, labels: &str| crate::common::recorded(metric, queue.clone() + labels);
    for (labels, count) in [
        ("invoicedone", 1),
        ("invoicediscarded", 1),
        ("invoicedead", 2),
        ("maildone", 1),
        ("maildead", 0),
        ("done", 0),
        ("dead", 0),
    ] {
        let counted = recorded("hc_dequeue_outcomes", labels).len();
        assert_eq!(counted, count, "{labels}");
    }
    for (labels, count) in [("invoice", 3), ("mail", 1), ("", 0)] {
        let calls = recorded("hc_dequeue_handler_seconds", labels).len();
        assert_eq!(calls, count, "{labels}");
    }
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
        (
            none().work(async |_: Delivery<Manifold>| {}),
            "number of kinds of 501 is too high: set at most 500",
        ),
    ] {
        let refused = world
            .jobs
            .work(&world.runner, WorkerOptions::new(), handlers);
        assert_eq!(refused.await.err().unwrap().to_string(), expected);
    }
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
