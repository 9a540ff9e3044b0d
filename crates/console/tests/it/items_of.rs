//! Items of a group or a kind, and members of a batch: listed and changed by commands and on pages.

use conformance::stores::TestStore;
use console::{Action, Error, Filter, parse_items_of};
use export_queue::hc_dequeue::{
    Batch, BatchRef, Enqueue, Error as DequeueError, ItemRef, ItemsOf, PlaceKind,
};
use export_queue::keyspace::{Ids, Subspace};

use crate::common::program::Filled;
use crate::common::{World, assert_valid, enqueue, job, valid};
use crate::web::site::TestSite;

conformance::on_every_store!(threads:
    items_that_belong_together_are_listed_page_by_page,
    items_that_belong_together_are_changed_and_no_others,
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
        filter.items = Some(of);
        let selected = console.select(jobs, PlaceKind::Queued, &filter).await;
        for refused in [listed.map(drop), selected.map(drop)] {
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
    assert!(cancel.err.contains("2 queued items"), "{cancel:?}");
    let left = store.json(&["list", "jobs", "--batch", batch]);
    assert_eq!(left["items"].as_array().unwrap().len(), 0);
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
