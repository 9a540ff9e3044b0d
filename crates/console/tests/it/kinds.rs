//! Kinds of items: which of them wait, which sessions take, and which no worker knows.

use conformance::stores::TestStore;
use console::Error;
use console::report::{Kind, QueueState};
use export_queue::hc_dequeue::{
    Delivery, Enqueue, GroupLimits, Handlers, ItemRef, Job, Jobs, Outcome, PlaceKind, Schedule,
    Settings, Worker, WorkerOptions,
};
use export_queue::keyspace::{Bytes, Ids, OpenOptions, Subspace, Tx};
use serde::{Deserialize, Serialize};

use crate::common::program::Filled;
use crate::common::{LONG, World, assert_valid, enqueue, job, valid};
use crate::web::site::TestSite;

conformance::on_every_store!(threads:
    kinds_that_wait_are_shown_with_the_sessions_that_take_them,
    an_item_whose_kind_no_session_takes_says_so_and_so_do_those_that_wait_for_it,
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

/// Starts a worker that knows invoices, and snoozes them.
async fn worker(world: &World) -> Worker<Bytes> {
    let options = OpenOptions::new().with_ids(world.ids.clone());
    let subspace = world.root.subspace(&"jobs");
    let jobs = Jobs::open_with(&world.runner, subspace, Settings::new(), options);
    let snooze = async |_: Delivery<Invoice>| Outcome::snooze(LONG);
    let handlers = Handlers::new().work(snooze);
    let jobs = jobs.await.unwrap();
    let worker = jobs.work(&world.runner, WorkerOptions::new(), handlers);
    worker.await.unwrap()
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
    let worker = worker(&world).await;
    conformance::until(async || kinds().await == [invoice(1)]).await;
    assert!(!kinds().await[0].is_unknown());
    assert_eq!(unknown().await, [""; 0]);
    worker.shut_down(LONG).await.unwrap();
    conformance::until(async || unknown().await == ["invoice"]).await;
}

async fn an_item_whose_kind_no_session_takes_says_so_and_so_do_those_that_wait_for_it(
    store: TestStore,
) {
    let world = World::new(&store).await;
    let console = &world.console();
    let name = &world.name("jobs");
    let add = async |options: Enqueue| enqueue(&world.runner, &world.jobs, &job(7), &options).await;
    let why = async |item: ItemRef| {
        let item = console.item(name, &item.to_string()).await.unwrap();
        valid(item).not_started
    };
    let invoice = Enqueue::new().with_kind("invoice");
    let queued = add(invoice.clone()).await;
    let delayed = add(invoice.clone().with_delay(LONG)).await;
    let own = "no session takes its kind `invoice`";
    assert_eq!(why(queued).await.as_deref(), Some(own));
    assert_eq!(why(delayed).await.as_deref(), Some(own));
    assert_eq!(why(world.items.dead[0]).await, None);

    let first = add(invoice.with_group("acme")).await;
    let second = add(Enqueue::new().with_group("acme")).await;
    let blocker = format!("no session takes the kind `invoice` of {first}");
    let group = async || valid(console.group(name, "acme").await.unwrap());
    let turn = "it waits for its turn";
    // Only in an ordered group, items wait for those before them.
    assert_eq!(why(second).await.as_deref(), Some(turn));
    assert_eq!(group().await.not_started.as_ref(), Some(&blocker));
    let ordered = GroupLimits::ordered();
    console.limit(name, Some("acme"), &ordered).await.unwrap();
    assert_eq!(why(first).await.as_deref(), Some(own));
    assert_eq!(why(second).await, Some(format!("{turn}: {blocker}")));
    let listed = valid(console.groups(name, None, 10).await.unwrap());
    assert_eq!(listed.groups[0].not_started, None);

    // A worker lets the first one keep the slot, and another one would have to take it.
    let worker = worker(&world).await;
    conformance::until(async || {
        let item = console.item(name, &first.to_string()).await.unwrap();
        item.place == Some(PlaceKind::Delayed)
    })
    .await;
    let at_limit = "its group is at its limit (1 of 1)";
    assert_eq!(why(first).await, None);
    assert_eq!(why(second).await.as_deref(), Some(at_limit));
    assert_eq!(group().await.not_started, None);
    worker.shut_down(LONG).await.unwrap();
    conformance::until(async || group().await.not_started.as_ref() == Some(&blocker)).await;
    assert_eq!(why(second).await, Some(format!("{at_limit}: {blocker}")));
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
    let why = "no session takes its kind `invoice`";
    assert!(shown.contains(why), "{shown}");
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
        (
            &*item,
            &[link, "queued: no session takes its kind `invoice`"],
        ),
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

/// Enqueues an invoice of the group `acme`.
async fn add_to_group(world: &World) -> ItemRef {
    let options = Enqueue::new().with_kind("invoice").with_group("acme");
    enqueue(&world.runner, &world.jobs, &job(7), &options).await
}

#[test]
fn the_program_says_that_a_group_waits_for_a_kind_that_no_session_takes() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            add_to_group(world).await;
        })
    });
    let listed = store.json(&["list", "jobs", "--group", "acme"]);
    let item = listed["items"][0]["item"].as_str().unwrap();
    let why = format!("no session takes the kind `invoice` of {item}");
    let shown = store.run(&["limit", "jobs", "acme"]).out;
    assert!(shown.contains(&why), "{shown}");
    let shown = store.json(&["limit", "jobs", "acme"]);
    assert_valid("Group", &shown);
    assert_eq!(shown["not_started"], why);
}

#[tokio::test]
async fn the_page_of_a_group_says_that_it_waits_for_a_kind_that_no_session_takes() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let item = add_to_group(&world).await;
    let site = TestSite::read_only(&world.runner);
    let page = site.shown("/queues/jobs/group/acme").await.text;
    let why = format!("ready: no session takes the kind `invoice` of {item}");
    assert!(page.contains(&why), "{page}");
}
