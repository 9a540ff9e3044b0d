//! Kinds that no worker knows: they wait, and are shown.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{logged_warnings, until};
use hc_dequeue::{Delivery, Enqueue, GroupLimits, Handlers, WorkerOptions};
use keyspace::Tx;
use keyspace::names::queue_name;

use super::{Invoice, Mail, SOON, World, woken};
use crate::common::{LONG, all_recorded, install_recorder, recorded, settings};

conformance::on_every_store!(
    a_kind_that_no_worker_knows_waits_uncounted_and_is_shown,
    a_due_job_of_a_kind_that_no_worker_knows_is_shown,
    groups_in_which_nothing_waits_hide_no_kind,
    a_kind_that_no_worker_knows_has_a_gauge_and_is_logged,
);

async fn a_kind_that_no_worker_knows_waits_uncounted_and_is_shown(store: TestStore) {
    let world = World::with_defaults(&store).await;
    assert_eq!(world.unknown_kinds().await, [""; 0]);
    let item = world.submit(&Invoice { cents: 7 }).await;
    let delayed = Enqueue::new().with_delay(SOON);
    let due = world.submit_with(&Invoice { cents: 8 }, delayed).await;
    // The delayed one is due, and waits, too.
    let waits = ("invoice".to_owned(), 0, 2);
    until(async || world.kinds().await == [waits.clone()]).await;
    let handlers = Handlers::new().work(world.note::<Mail>());
    let mailer = world.work(WorkerOptions::new(), handlers).await;
    for number in 0..30 {
        world.submit(&Mail(number)).await;
    }
    world.until_handled(30).await;
    until(async || world.stats().await.completed == 30).await;
    assert_eq!(world.unknown_kinds().await, ["invoice"]);
    let of_mailer = ["", "letter", "mail"].map(|kind| (kind.to_owned(), 1, 0));
    assert_eq!(
        world.kinds().await,
        [&[waits][..], &of_mailer[1..]].concat()
    );
    for item in [&item, &due] {
        let queue = world.jobs.queue();
        let status = |tr| async move { queue.status(&tr, item).await };
        let status = world.runner.run(status).await.unwrap().unwrap();
        assert_eq!(status.kind.as_deref(), Some("invoice"));
        assert_eq!(
            (status.attempts, status.deliveries, status.deaths),
            (0, 0, 0)
        );
        let invoice: Invoice = world.jobs.decode(&status.value.unwrap()).unwrap();
        assert!(invoice.cents >= 7);
    }
    let handlers = Handlers::new().work(world.note::<Invoice>());
    let other = world.work(WorkerOptions::new(), handlers).await;
    world.jobs.queue().wait_idle(&world.runner).await.unwrap();
    assert_eq!(world.stats().await.completed, 32);
    for worker in [mailer, other] {
        worker.shut_down(LONG).await.unwrap();
    }
    world.check().await;
}

async fn a_due_job_of_a_kind_that_no_worker_knows_is_shown(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let day = Duration::from_secs(24 * 3_600);
    let jobs = &world.jobs;
    // An item whose delay has passed before it is stored is queued at once: then again, with a longer one.
    let mut soon = SOON;
    loop {
        let enqueue = async |tr| {
            for (cents, delay) in [(1, soon), (2, day)] {
                let delayed = Enqueue::new().with_delay(delay);
                let _ = jobs.enqueue_with(&tr, &Invoice { cents }, delayed).await?;
            }
            Ok::<_, hc_dequeue::Error>(())
        };
        world.runner.run(enqueue).await.unwrap();
        if world.stats().await.queued == 0 {
            break;
        }
        let cleared = jobs.queue().clear(&world.runner).await.unwrap();
        assert_eq!(cleared.removed, 2);
        soon *= 2;
    }
    let handlers = Handlers::new().work(async |_: Delivery<Mail>| {});
    let mailer = world.work(WorkerOptions::new(), handlers).await;
    until(async || world.unknown_kinds().await == ["invoice"]).await;
    let invoices = ("invoice".to_owned(), 0, 1);
    assert_eq!(world.kinds().await[0], invoices);
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed), (0, 2));
    mailer.shut_down(LONG).await.unwrap();
}

async fn groups_in_which_nothing_waits_hide_no_kind(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = world.jobs.queue();
    let limits = &GroupLimits::new().with_limit(7);
    let groups: Vec<_> = (0..2_000).map(|number| format!("group {number}")).collect();
    for some in groups.chunks(500) {
        let configure = async |tr: Tx<_>| {
            for group in some {
                queue
                    .configure_group(&tr, group.as_bytes(), Some(limits))
                    .await?;
            }
            Ok::<_, hc_dequeue::Error>(())
        };
        world.runner.run(configure).await.unwrap();
    }
    let of_last = Enqueue::new().with_group("last");
    world.submit_with(&Invoice { cents: 1 }, of_last).await;
    assert_eq!(world.unknown_kinds().await, ["invoice"]);
    assert_eq!(world.kinds().await, [("invoice".to_owned(), 0, 1)]);
}

async fn a_kind_that_no_worker_knows_has_a_gauge_and_is_logged(store: TestStore) {
    const GAUGE: &str = "hc_dequeue_unknown_kinds";
    install_recorder();
    // The first call begins the log.
    let _ = logged_warnings("");
    let world = World::new(&store, settings()).await;
    let queue = queue_name(world.jobs.queue().subspace());
    world.submit(&Invoice { cents: 7 }).await;
    let mailer = async || {
        let handlers = Handlers::new().work(world.note::<Mail>());
        world.work(woken(), handlers).await
    };
    let first = mailer().await;
    until(async || recorded(GAUGE, queue.clone()) == [1.0]).await;
    let is_told = |line: &String| line.contains(&queue) && line.contains(r#"kinds={"invoice"}"#);
    until(async || {
        logged_warnings("no worker knows these kinds")
            .iter()
            .any(is_told)
    })
    .await;
    // At its first heartbeat, another session has not met the kind, and leaves the gauge as it is.
    let second = mailer().await;
    until(async || world.count("q").await == 2).await;
    assert!(!all_recorded(GAUGE, queue.clone()).contains(&0.0));
    first.shut_down(LONG).await.unwrap();
    second.shut_down(LONG).await.unwrap();
    // No session of this process looks any more.
    assert_eq!(all_recorded(GAUGE, queue).last(), Some(&0.0));
}
