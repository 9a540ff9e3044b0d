//! Kinds of items: which of them wait, which sessions take, and which no worker knows.

use conformance::stores::TestStore;
use console::Error;
use console::report::{Kind, QueueState};
use export_queue::hc_dequeue::{
    Delivery, Enqueue, Handlers, ItemRef, Job, Jobs, Schedule, Settings, WorkerOptions,
};
use export_queue::keyspace::{Ids, OpenOptions, Subspace, Tx};
use serde::{Deserialize, Serialize};

use crate::common::program::Filled;
use crate::common::{LONG, World, assert_valid, enqueue, job, valid};
use crate::web::site::TestSite;

conformance::on_every_store!(threads:
    kinds_that_wait_are_shown_with_the_sessions_that_take_them,
    a_schedule_tells_the_kind_of_its_items,
    only_queues_with_consumers_have_kinds,
);

#[derive(Serialize, Deserialize)]
struct Invoice;

impl Job for Invoice {
    const KIND: &'static str = "invoice";
}

/// Enqueues two invoices. Returns the first one.
async fn add(world: &World) -> ItemRef {
    let options = Enqueue::new().with_kind("invoice");
    let first = enqueue(&world.runner, &world.jobs, &job(7), &options).await;
    enqueue(&world.runner, &world.jobs, &job(8), &options).await;
    first
}

fn invoice(sessions: u64) -> Kind {
    Kind {
        kind: "invoice".to_owned(),
        sessions,
        waiting: 2,
    }
}

async fn kinds_that_wait_are_shown_with_the_sessions_that_take_them(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let name = &world.name("jobs");
    let kinds = async || valid(console.kinds(name).await.unwrap()).kinds;
    let unknown = async || match valid(console.queue(name).await.unwrap()).state {
        QueueState::HcDequeue(state) => state.unknown_kinds,
        other => panic!("{other:?}"),
    };
    assert_eq!(kinds().await, []);
    let item = add(&world).await.to_string();
    assert_eq!(kinds().await, [invoice(0)]);
    assert!(kinds().await[0].is_unknown());
    assert_eq!(unknown().await, ["invoice"]);
    let shown = valid(console.item(name, &item).await.unwrap());
    assert_eq!(shown.kind.as_deref(), Some("invoice"));
    let items = valid(console.items(name, "queued", None, 100).await.unwrap());
    assert!(items.have_kinds());
    let dead = valid(console.items(name, "dead", None, 100).await.unwrap());
    assert!(!dead.have_kinds());
    // A worker that knows the kind takes nothing of a paused queue.
    console.set_paused(name, true).await.unwrap();
    let options = OpenOptions::new().with_ids(world.ids.clone());
    let subspace = world.root.subspace(&"jobs");
    let jobs = Jobs::open_with(&world.runner, subspace, Settings::new(), options);
    let handlers = Handlers::new().work(async |_: Delivery<Invoice>| ());
    let jobs = jobs.await.unwrap();
    let worker = jobs.work(&world.runner, WorkerOptions::new(), handlers);
    let worker = worker.await.unwrap();
    conformance::until(async || kinds().await == [invoice(1)]).await;
    assert!(!kinds().await[0].is_unknown());
    assert_eq!(unknown().await, [""; 0]);
    worker.shut_down(LONG).await.unwrap();
    conformance::until(async || unknown().await == ["invoice"]).await;
}

async fn a_schedule_tells_the_kind_of_its_items(store: TestStore) {
    let world = World::new(&store).await;
    let options = Enqueue::new().with_kind("report").with_max_attempts(3);
    let monthly = &Schedule::new("0 0 1 * *").with_enqueue_options(options);
    let jobs = &world.jobs;
    let schedule = |tr: Tx<_>| async move {
        jobs.schedule(&tr, "a report", monthly, &job(1))
            .await
            .map(drop)
    };
    world.runner.run(schedule).await.unwrap();
    let console = world.console();
    let listed = console.schedules(&world.name("jobs"), None, None, 1).await;
    let first = &valid(listed.unwrap()).schedules[0];
    let told = "kind report, max attempts 3";
    assert_eq!(
        (&*first.name, first.options.as_deref()),
        ("a report", Some(told))
    );
}

async fn only_queues_with_consumers_have_kinds(store: TestStore) {
    let world = World::new(&store).await;
    for queue in ["mail", "counts", "events"] {
        let refused = world.console().kinds(&world.name(queue)).await;
        assert!(
            matches!(refused, Err(Error::WrongRecipe { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn the_program_names_the_kinds_that_no_worker_knows() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            add(world).await;
        })
    });
    let unknown = "no worker knows `invoice`";
    for (command, texts) in [
        (
            &["kinds", "jobs"][..],
            &["invoice", "no worker knows it"][..],
        ),
        (&["stats", "jobs"], &[unknown]),
        (&["queues"], &[unknown]),
        (&["list", "jobs"], &["KIND", "invoice"]),
    ] {
        let shown = store.run(command);
        assert_eq!(shown.status, 0, "{shown:?}");
        for text in texts {
            assert!(shown.out.contains(text), "{text}: {}", shown.out);
        }
    }
    let kinds = store.json(&["kinds", "jobs"]);
    assert_valid("Kinds", &kinds);
    assert_eq!(kinds["kinds"][0]["waiting"], 2);
    let listed = store.json(&["list", "jobs", "--kind", "invoice"]);
    let item = listed["items"][0]["item"].as_str().unwrap();
    let shown = store.run(&["show", "jobs", item]).out;
    let has_kind = |line: &str| line.split_whitespace().eq(["kind", "invoice"]);
    assert!(shown.lines().any(has_kind), "{shown}");
    // Items without a kind need no column for it.
    let dead = store.run(&["list", "jobs", "--place", "dead"]).out;
    assert!(!dead.contains("KIND"), "{dead}");
    let none = store.run(&["kinds", "orders"]);
    assert!(none.out.contains("no items with a kind"), "{none:?}");
}

#[tokio::test]
async fn pages_name_the_kinds_that_no_worker_knows() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let site = TestSite::read_only(&world.runner);
    let queue = "/queues/jobs";
    assert!(!site.shown(queue).await.text.contains("Kinds of items"));
    let item = add(&world).await;
    let link = "/queues/jobs/items/queued?kind=invoice";
    let item = format!("/queues/jobs/item/{item}");
    for (path, texts) in [
        (
            "/",
            &[
                "no worker knows `invoice`",
                "1 with kinds that no worker knows",
            ][..],
        ),
        (
            queue,
            &["no worker knows `invoice`", "no worker knows it", link],
        ),
        (
            "/queues/jobs/items/queued",
            &[">Kind</th>", ">invoice</td>"],
        ),
        (&*item, &[link]),
    ] {
        let page = site.shown(path).await.text;
        for text in texts {
            assert!(page.contains(text), "{path}: {text}: {page}");
        }
    }
    let dead = site.shown("/queues/jobs/items/dead").await.text;
    assert!(!dead.contains(">Kind</th>"), "{dead}");
    let kinds = site.shown("/api/queues/jobs/kinds").await.json();
    assert_valid("Kinds", &kinds);
    assert_eq!(kinds["kinds"][0]["kind"], "invoice");
}
