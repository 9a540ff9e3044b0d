//! Items of a group or a kind, and members of a batch: listed and changed by commands and on pages.

use conformance::stores::TestStore;
use console::{Action, Error, Filter, ItemsAction, parse_items_of};
use export_queue::hc_dequeue::{
    Batch, BatchRef, Delivery, Enqueue, Error as DequeueError, Handlers, ItemRef, ItemsOf, Job,
    Jobs, Outcome, PlaceKind, Settings, WorkerOptions,
};
use export_queue::keyspace::{Ids, OpenOptions, Subspace};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::common::program::Filled;
use crate::common::{LONG, REASONS, World, assert_valid, enqueue, job, valid};
use crate::limits::take;
use crate::web::site::TestSite;

conformance::on_every_store!(threads:
    items_that_belong_together_are_listed_page_by_page,
    items_that_belong_together_are_changed_and_no_others,
    items_that_belong_together_are_changed_in_every_place_of_an_action,
    what_names_no_items_is_refused,
);

/// Enqueues two items of a group that are members of a batch and have a kind, and one of another group without one.
async fn add(world: &World, place: PlaceKind) -> (BatchRef, [ItemRef; 2]) {
    let queue = &world.jobs;
    let open = |tr| async move { queue.open_batch(&tr, &Batch::new()).await };
    let batch = world.runner.run(open).await.unwrap();
    let mut options = Enqueue::new();
    if place == PlaceKind::Delayed {
        options = options.with_delay(crate::common::LONG);
    }
    let other = options.clone().with_group("other");
    let options = options.with_group("acme").with_kind("invoice");
    let options = options.with_batch(&batch);
    let first = enqueue(&world.runner, queue, &job(7), &options).await;
    enqueue(&world.runner, queue, &job(8), &other).await;
    let second = enqueue(&world.runner, queue, &job(9), &options).await;
    (batch, [first, second])
}

#[derive(Serialize, Deserialize)]
struct Invoice(Value);

impl Job for Invoice {
    const KIND: &'static str = "invoice";
}

/// Adds a dead letter of the group `acme`, one that has stayed a member of a batch, and one of the kind `invoice`.
async fn add_letters(world: &World) {
    let queue = &world.jobs;
    let batch = &Batch::new().with_dead_letters_staying();
    let open = |tr| async move { queue.open_batch(&tr, batch).await };
    let batch = world.runner.run(open).await.unwrap();
    for options in [
        Enqueue::new().with_group("acme"),
        Enqueue::new().with_batch(&batch),
    ] {
        let options = options.with_priority(9);
        let item = enqueue(&world.runner, queue, &job(7), &options).await;
        take(world, item).await.discard("no").await.unwrap();
    }
    let options = Enqueue::new().with_kind("invoice");
    let item = enqueue(&world.runner, queue, &job(7), &options).await;
    let options = OpenOptions::new().with_ids(world.ids.clone());
    let subspace = world.root.subspace(&"jobs");
    let jobs = Jobs::open_with(&world.runner, subspace, Settings::new(), options);
    let discard = async |_: Delivery<Invoice>| Outcome::discard("no");
    let handlers = Handlers::new().work(discard);
    let jobs = jobs.await.unwrap();
    let worker = jobs.work(&world.runner, WorkerOptions::new(), handlers);
    let worker = worker.await.unwrap();
    let console = world.console();
    let name = &world.name("jobs");
    conformance::until(async || {
        let shown = console.item(name, &item.to_string()).await.unwrap();
        shown.place == Some(PlaceKind::Dead)
    })
    .await;
    worker.shut_down(LONG).await.unwrap();
}

/// Adds an item of the group `acme` to each place: queued, delayed, held and dead.
pub(crate) async fn add_everywhere(world: &World) {
    let first = Enqueue::new().with_group("acme").with_priority(9);
    let queue = &world.jobs;
    let dead = enqueue(&world.runner, queue, &job(7), &first).await;
    take(world, dead).await.discard("no").await.unwrap();
    let held = enqueue(&world.runner, queue, &job(7), &first).await;
    // Its process is killed, or it ends with the test.
    std::mem::forget(take(world, held).await);
    enqueue(&world.runner, queue, &job(7), &first).await;
    let later = first.with_delay(LONG);
    enqueue(&world.runner, queue, &job(7), &later).await;
}

/// Returns what the two items belong to.
fn together(batch: &BatchRef) -> [ItemsOf; 3] {
    [
        ItemsOf::group("acme"),
        ItemsOf::batch(batch),
        ItemsOf::kind("invoice"),
    ]
}

async fn items_that_belong_together_are_listed_page_by_page(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    for place in [PlaceKind::Queued, PlaceKind::Delayed] {
        let (batch, items) = add(&world, place).await;
        for of in together(&batch) {
            for limit in [1, 100] {
                let mut listed = Vec::new();
                let mut after = None;
                loop {
                    let page = console.items_of(jobs, place.name(), &of, after.as_deref(), limit);
                    let page = valid(page.await.unwrap());
                    assert_eq!(page.count, None);
                    listed.extend(page.items.into_iter().map(|item| item.item));
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(listed, items.map(|item| item.to_string()), "{of:?} {limit}");
            }
        }
        for item in items {
            let item = item.to_string();
            console.change(jobs, Action::Cancel, &item).await.unwrap();
        }
    }
}

async fn items_that_belong_together_are_changed_and_no_others(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    for (of, tenant, expected) in [(0, None, 2), (1, None, 2), (2, None, 2), (0, Some(9), 1)] {
        let (batch, items) = add(&world, PlaceKind::Delayed).await;
        let mut filter = Filter::default();
        filter.items = Some(together(&batch)[of].clone());
        filter.payload = tenant.map(|tenant: u64| format!("\"tenant\":{tenant}"));
        assert!(!filter.is_empty());
        let selection = console.select(jobs, PlaceKind::Delayed, &filter).await;
        let selection = selection.unwrap();
        assert_eq!(selection.count(), expected);
        let change = console.change_all(jobs, Action::Expedite, &selection, |_| {});
        assert_eq!(valid(change.await.unwrap()).changed, expected);
        // The last one matches each filter.
        let shown = console.item(jobs, &items[1].to_string()).await.unwrap();
        assert_eq!(shown.place, Some(PlaceKind::Queued));
        let selection = console.select(jobs, PlaceKind::Queued, &filter).await;
        let selection = selection.unwrap();
        let change = console.change_all(jobs, Action::Cancel, &selection, |_| {});
        assert_eq!(change.await.unwrap().changed, expected);
    }
    let other = &ItemsOf::group("other");
    let others = console.items_of(jobs, "delayed", other, None, 10).await;
    assert_eq!(others.unwrap().items.len(), 4);
}

async fn items_that_belong_together_are_changed_in_every_place_of_an_action(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let acme = &ItemsOf::group("acme");
    let counts = async || {
        let mut counts = Vec::new();
        for place in ["queued", "delayed", "held", "dead"] {
            let page = console.items_of(jobs, place, acme, None, 100).await;
            let items = page.unwrap().items.into_iter();
            // An item that is held leaves the queue when its session lets go of it.
            counts.push(items.filter(|item| !item.cancelled).count());
        }
        counts
    };
    let all = async || {
        let page = console.items(jobs, "dead", None, 100).await.unwrap();
        page.items.len()
    };
    add_everywhere(&world).await;
    let steps: [(ItemsAction, u64, [usize; 4], &str); 7] = [
        (ItemsAction::Redrive, 1, [2, 1, 1, 0], "back in the queue"),
        (ItemsAction::Redrive, 0, [2, 1, 1, 0], "back in the queue"),
        (
            ItemsAction::Clear,
            3,
            [0, 0, 1, 0],
            "removed from the queue",
        ),
        (ItemsAction::Purge, 0, [0, 0, 1, 0], "done"),
        (
            ItemsAction::Cancel,
            1,
            [0, 0, 0, 0],
            "1 of them when their sessions let go of them",
        ),
        (
            ItemsAction::Cancel,
            0,
            [0, 0, 0, 0],
            "removed from the queue",
        ),
        (ItemsAction::Purge, 0, [0, 0, 0, 0], "done"),
    ];
    for (action, changed, left, told) in steps {
        let change = console.change_items_of(jobs, action, acme).await;
        let change = valid(change.unwrap());
        assert_eq!(
            (&*change.action, change.changed),
            (action.name(), changed),
            "{change:?}"
        );
        assert!(change.outcome.contains(told), "{change:?}");
        assert_eq!(counts().await, left, "{action:?}");
    }
    for (action, changed, left) in [
        (ItemsAction::Purge, 1, [1, 1, 1, 0]),
        (ItemsAction::Cancel, 3, [0, 0, 0, 0]),
    ] {
        if action == ItemsAction::Purge {
            add_everywhere(&world).await;
        }
        let change = console.change_items_of(jobs, action, acme).await;
        assert_eq!(change.unwrap().changed, changed, "{action:?}");
        assert_eq!(counts().await, left, "{action:?}");
    }
    // No other item was touched.
    assert_eq!(all().await, REASONS.len());
    let queued = console.items(jobs, "queued", None, 100).await.unwrap();
    assert_eq!(queued.items.len(), world.items.queued.len());
}

async fn what_names_no_items_is_refused(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let orders = &world.orders().await;
    let open = |tr| async move { orders.open_batch(&tr, &Batch::new()).await };
    let foreign = world.runner.run(open).await.unwrap();
    for (of, named) in [
        (ItemsOf::group(""), "group"),
        (ItemsOf::batch(&foreign), "batch"),
        (ItemsOf::kind(""), "kind"),
    ] {
        let listed = console.items_of(jobs, "queued", &of, None, 1).await;
        let mut filter = Filter::default();
        filter.items = Some(of.clone());
        let selected = console.select(jobs, PlaceKind::Queued, &filter).await;
        let mut refusals = vec![listed.map(drop), selected.map(drop)];
        for action in ItemsAction::ALL {
            let changed = console.change_items_of(jobs, action, &of).await;
            refusals.push(changed.map(drop));
        }
        for refused in refusals {
            match refused {
                Err(Error::Dequeue(DequeueError::Group { .. })) => assert_eq!(named, "group"),
                Err(Error::Dequeue(DequeueError::ForeignRef { .. })) => assert_eq!(named, "batch"),
                Err(Error::Dequeue(DequeueError::Kind { .. })) => assert_eq!(named, "kind"),
                other => panic!("{other:?}"),
            }
        }
    }
    for (group, batch, kind) in [
        (None, Some("none"), None),
        (Some("a"), Some("b"), None),
        (Some("a"), None, Some("b")),
        (None, Some("a"), Some("b")),
    ] {
        let refused = parse_items_of(group, batch, kind);
        assert!(
            matches!(refused, Err(Error::Malformed { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn the_program_lists_and_cancels_items_that_belong_together() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            add(world, PlaceKind::Queued).await;
        })
    });
    let batches = store.json(&["batches", "jobs"]);
    let batch = batches["batches"][0]["batch"].as_str().unwrap();
    for of in [
        ["--group", "acme"],
        ["--batch", batch],
        ["--kind", "invoice"],
        ["--group", "0x61636d65"],
    ] {
        let listed = store.json(&[&["list", "jobs"][..], &of].concat());
        assert_valid("Items", &listed);
        assert_eq!(listed["items"].as_array().unwrap().len(), 2, "{of:?}");
    }
    for both in [
        ["--group", "a", "--batch", batch],
        ["--kind", "a", "--group", "a"],
    ] {
        let both = [&["list", "jobs"][..], &both].concat();
        store.run(&both).assert_refused(2, "cannot be used with");
    }
    let empty = ["list", "jobs", "--kind", ""];
    store.run(&empty).assert_refused(2, "use 1 to 100 bytes");
    let named = ["cancel", "jobs", "01", "--group", "a"];
    store.run(&named).assert_refused(2, "cannot be used with");
    let none = ["list", "jobs", "--batch", "x"];
    store.run(&none).assert_refused(2, "as `batches` prints it");
    let cancel = store.run(&["cancel", "jobs", "--group", "acme", "--yes"]);
    let told = "2 queued, 0 delayed, 0 held, 0 dead items of `jobs` match";
    assert!(cancel.err.contains(told), "{cancel:?}");
    let left = store.json(&["list", "jobs", "--batch", batch]);
    assert_eq!(left["items"].as_array().unwrap().len(), 0);
}

#[test]
fn the_program_cancels_and_clears_what_belongs_together_in_every_place() {
    for (action, told, changed) in [
        ("cancel", "1 queued, 1 delayed, 1 held, 1 dead items", 4),
        ("clear", "1 queued, 1 delayed items", 2),
    ] {
        let store = Filled::with(|world| Box::pin(add_everywhere(world)));
        let others = ["queued", "delayed", "held", "dead"].map(|place| store.count(place) - 1);
        let none = store.run(&[action, "jobs", "--group", "nobody"]);
        assert!(none.out.contains("there were none"), "{none:?}");
        let command = [action, "jobs", "--group", "acme"];
        let asked = store.run(&command);
        asked.assert_refused(2, &format!("add --yes to {action} them"));
        let finished = store.run(&[&command[..], &["--yes", "--json"]].concat());
        assert!(finished.err.contains(told), "{finished:?}");
        let change: Value = serde_json::from_str(&finished.out).unwrap();
        assert_valid("Change", &change);
        assert_eq!(change["changed"], changed);
        let left = ["queued", "delayed", "held", "dead"].map(|place| store.count(place));
        let [queued, delayed, held, dead] = others;
        // The session that has the held item has not let go of it.
        let dead = if action == "cancel" { dead } else { dead + 1 };
        assert_eq!(left, [queued, delayed, held + 1, dead], "{action}");
    }
    let store = Filled::embedded();
    for (command, reason) in [
        (&["clear", "jobs"][..], "required"),
        (
            &["clear", "jobs", "--group", "a", "--kind", "a"],
            "cannot be used with",
        ),
        (&["clear", "mail", "--group", "a"], "recipe microqueue"),
    ] {
        store.run(command).assert_refused(2, reason);
    }
}

#[test]
fn a_place_or_another_filter_narrows_which_items_of_a_group_are_cancelled() {
    for (options, told) in [
        (&["--place", "delayed"][..], "1 delayed items"),
        (&["--attempts", "0", "--older-than", "0s"], "1 queued items"),
    ] {
        let store = Filled::with(|world| Box::pin(add_everywhere(world)));
        let command = [
            &["cancel", "jobs", "--group", "acme", "--yes", "--json"],
            options,
        ];
        let finished = store.run(&command.concat());
        assert!(finished.err.contains(told), "{finished:?}");
        let change: Value = serde_json::from_str(&finished.out).unwrap();
        assert_eq!(change["changed"], 1, "{options:?}");
    }
}

#[test]
fn the_program_redrives_and_purges_the_one_dead_letter_that_a_filter_matches() {
    for action in ["redrive", "purge"] {
        let store = Filled::with(|world| Box::pin(add_letters(world)));
        let batches = store.json(&["batches", "jobs"]);
        let batch = batches["batches"][0]["batch"].as_str().unwrap();
        let filters = [
            ["--group", "acme"],
            ["--batch", batch],
            ["--kind", "invoice"],
        ];
        let mut dead = store.count("dead");
        assert_eq!(dead, (REASONS.len() + filters.len()) as u64);
        for [option, value] in filters {
            let command = [action, "jobs", option, value, "--yes", "--json"];
            let finished = store.run(&command);
            assert!(finished.err.contains("1 dead items"), "{finished:?}");
            let change: Value = serde_json::from_str(&finished.out).unwrap();
            assert_eq!(change["changed"], 1, "{command:?}");
            dead -= 1;
            assert_eq!(store.count("dead"), dead, "{command:?}");
            let place = if action == "redrive" {
                "queued"
            } else {
                "dead"
            };
            let left = store.json(&["list", "jobs", "--place", place, option, value]);
            let left = left["items"].as_array().unwrap().len();
            assert_eq!(left, usize::from(action == "redrive"), "{command:?}");
        }
    }
}

#[test]
fn the_program_expedites_the_delayed_items_that_a_filter_matches() {
    for option in ["--group", "--batch", "--kind"] {
        let store = Filled::with(|world| {
            Box::pin(async move {
                add(world, PlaceKind::Delayed).await;
            })
        });
        let batches = store.json(&["batches", "jobs"]);
        let value = match option {
            "--group" => "acme",
            "--batch" => batches["batches"][0]["batch"].as_str().unwrap(),
            _ => "invoice",
        };
        let delayed = store.count("delayed");
        let change = store.json(&["expedite", "jobs", option, value, "--yes"]);
        assert_eq!(change["changed"], 2, "{option}");
        assert_eq!(store.count("delayed"), delayed - 2, "{option}");
    }
}

#[tokio::test]
async fn pages_list_the_items_that_belong_together() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let (batch, items) = add(&world, PlaceKind::Queued).await;
    let site = TestSite::read_only(&world.runner);
    let group = site.shown("/queues/jobs/group/0x61636d65").await.text;
    let link = "/queues/jobs/items/queued?group=0x61636d65";
    assert!(group.contains(link), "{group}");
    let of_batch = format!("/queues/jobs/items/queued?batch={batch}");
    assert!(
        site.shown(&format!("/queues/jobs/batch/{batch}"))
            .await
            .text
            .contains(&of_batch)
    );
    for (path, told) in [
        (link, "of the group <code>acme</code>"),
        (&*of_batch, "of the batch"),
        (
            "/queues/jobs/items/queued?kind=invoice",
            "of the kind <code>invoice</code>",
        ),
    ] {
        let page = site.shown(path).await.text;
        assert!(page.contains(told), "{page}");
        assert_eq!(page.matches("/queues/jobs/item/").count(), items.len());
        // The other places list the same items.
        let query = path.split_once('?').unwrap().1;
        assert!(page.contains(&format!("/items/dead?{query}")), "{page}");
        let listed = site.shown(&format!("/api{path}&limit=1")).await.json();
        assert_valid("Items", &listed);
        let next = listed["next"].as_str().unwrap();
        let rest = site.shown(&format!("/api{path}&after={next}")).await.json();
        assert_eq!(rest["items"][0]["item"], items[1].to_string());
    }
}
