//! Times at the ends of what can be stored. None may stop a listing, in any format.

use std::time::{Duration, SystemTime};

use crate::common::program::Filled;
use crate::common::{LONG, World, at_wall, enqueue, job, valid};
use crate::web::site::TestSite;
use conformance::stores::TestStore;
use console::report::{Items, Time};
use console::{Action, WebOptions};
use export_queue::hc_dequeue::{Consumer, Delivery, Enqueue, ItemRef};
use serde_json::Value;

conformance::on_every_store!(threads:
    an_extreme_time_stops_no_listing_and_no_page,
);

/// How the items of [`add_extremes`] are named: by the place where they are, and since or until when.
pub(crate) struct Extremes {
    delayed: [ItemRef; 4],
    old: ItemRef,
    dead: ItemRef,
    done: ItemRef,
    held: ItemRef,
}

/// A wall time in the year 12000.
const YEAR_12000: Duration = Duration::from_secs(10_030 * 31_556_952);

/// Adds items to `jobs` with times at both ends, and processes whose clocks are there.
async fn add_extremes(world: &World) -> Extremes {
    let configure = |settings: export_queue::hc_dequeue::Settings| {
        settings
            .with_keep_done(Duration::MAX)
            .with_dedupe_retention(Duration::MAX)
    };
    let name = world.name("jobs");
    world.console().configure(&name, configure).await.unwrap();
    let runner = &world.runner;
    let jobs = &world.jobs;
    let epoch = SystemTime::UNIX_EPOCH;
    let day = Duration::from_secs(86_400);
    let latest = epoch
        .checked_add(Duration::from_secs(i64::MAX as u64 / 2))
        .unwrap();
    let add = async |options: Enqueue| enqueue(runner, jobs, &job(1), &options).await;
    let beyond = add(Enqueue::new().with_delay(Duration::MAX)).await;
    let late = add(Enqueue::new().with_due_time(latest)).await;
    // What waits already comes first.
    for _ in 0..world.items.queued.len() {
        world
            .consumer
            .dequeue_within(LONG)
            .await
            .unwrap()
            .unwrap()
            .complete()
            .await
            .unwrap();
    }
    let retried = add(Enqueue::new()).await;
    let delivery = world.consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery
        .retry_after(Duration::MAX, "much later")
        .await
        .unwrap();
    let snoozed = add(Enqueue::new()).await;
    let delivery = world.consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.snooze(Duration::MAX).await.unwrap();
    // The clock of the year 12000 would make them ready.
    for item in &world.items.delayed {
        let console = world.console();
        let item = item.to_string();
        let cancel = console.change(&name, Action::Cancel, &item);
        cancel.await.unwrap();
    }
    let ahead = at_wall(world, "ahead", YEAR_12000).await;
    let dead = enqueue(&ahead.runner, &ahead.jobs, &job(2), &Enqueue::new()).await;
    let delivery = take(&ahead.consumer, &dead).await;
    delivery
        .discard("it failed in the year 12000")
        .await
        .unwrap();
    let done = enqueue(&ahead.runner, &ahead.jobs, &job(3), &Enqueue::new()).await;
    let delivery = take(&ahead.consumer, &done).await;
    delivery.complete().await.unwrap();
    let held = enqueue(&ahead.runner, &ahead.jobs, &job(5), &Enqueue::new()).await;
    let kept = take(&ahead.consumer, &held).await;
    // They live as long as the test.
    std::mem::forget((kept, ahead));
    let old = add(Enqueue::new().with_due_time(epoch - day)).await;
    Extremes {
        delayed: [beyond, late, retried, snoozed],
        old,
        dead,
        done,
        held,
    }
}

/// Takes an item, and completes those before it: the clock of the year 12000 also fires schedules.
async fn take(consumer: &Consumer<Value>, item: &ItemRef) -> Delivery<Value> {
    loop {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        if delivery.item_ref() == *item {
            return delivery;
        }
        delivery.complete().await.unwrap();
    }
}

fn references(items: &Items) -> Vec<String> {
    items.items.iter().map(|item| item.item.clone()).collect()
}

async fn an_extreme_time_stops_no_listing_and_no_page(store: TestStore) {
    let world = World::new(&store).await;
    let added = add_extremes(&world).await;
    let console = world.console();
    let name = &world.name("jobs");
    let list = async |place: &str| valid(console.items(name, place, None, 1_000).await.unwrap());
    let beyond = Time::from_millis(u64::MAX);
    let delayed = list("delayed").await;
    assert_eq!(delayed.items.len(), added.delayed.len());
    for item in &added.delayed {
        let found = delayed
            .items
            .iter()
            .find(|found| found.item == item.to_string())
            .unwrap();
        assert_eq!(found.until, Some(beyond));
        let json = serde_json::to_value(found).unwrap();
        assert_eq!(json["until"], serde_json::Value::Null);
        assert!(json.as_object().unwrap().contains_key("until"));
    }
    for (place, item) in [
        ("queued", &added.old),
        ("dead", &added.dead),
        ("done", &added.done),
        ("held", &added.held),
    ] {
        let items = list(place).await;
        assert!(references(&items).contains(&item.to_string()), "{place}");
        let shown = valid(console.item(name, &item.to_string()).await.unwrap());
        assert_eq!(shown.place_name(), place);
    }
    let dead = console.item(name, &added.dead.to_string()).await.unwrap();
    assert_eq!(dead.failure.unwrap().time, Some(beyond));
    let done = console.item(name, &added.done.to_string()).await.unwrap();
    assert_eq!((done.enqueued, done.ended), (Some(beyond), Some(beyond)));
    let sessions = valid(console.sessions(name, None, 10).await.unwrap()).sessions;
    let of_ahead = sessions.iter().find(|session| session.wall == Some(beyond));
    assert_eq!(of_ahead.unwrap().oldest_grant, Some(beyond));
    valid(console.schedules(name, None, None, 10).await.unwrap());
    let settings = valid(console.settings(name).await.unwrap());
    assert!(settings.keep_done_seconds > 1e15 && settings.dedupe_retention_seconds > 1e15);
    valid(console.queue(name).await.unwrap());
    valid(console.queues(None, 100).await.unwrap());
    // A page after each item, so that each is a cursor.
    let mut after = None;
    let mut seen = 0;
    loop {
        let page = console
            .items(name, "delayed", after.as_deref(), 1)
            .await
            .unwrap();
        seen += page.items.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, delayed.items.len());
    assert_pages(&world, name).await;
    // What is due beyond the calendar can be made ready.
    for item in &added.delayed {
        let item = item.to_string();
        let change = console.change(name, Action::Expedite, &item);
        assert_eq!(change.await.unwrap().changed, 1);
    }
}

/// Panics unless every page of the queue is there to its end.
async fn assert_pages(world: &World, name: &str) {
    let router = console::router(world.console(), WebOptions::new());
    let site = TestSite { router };
    let segment: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let queue = format!("/queues/{segment}");
    for (path, text) in [
        ("", "d "),
        ("/items/queued", ""),
        ("/items/delayed", "until beyond year 9999"),
        ("/items/held", "beyond year 9999"),
        ("/items/dead", "it failed in the year 12000"),
        ("/items/done", "completed beyond year 9999"),
        ("/sessions", "beyond year 9999"),
        ("/schedules", "new year"),
    ] {
        let page = site.shown(&format!("{queue}{path}")).await;
        assert!(page.text.trim_end().ends_with("</html>"), "{path}");
        assert!(page.text.contains(text), "{path}: {}", page.text);
        let json = site.shown(&format!("/api{queue}{path}")).await.json();
        assert!(!json.to_string().contains("beyond"), "{path}: {json}");
    }
    site.shown("/").await;
}

#[test]
fn the_program_lists_what_has_extreme_times() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            add_extremes(world).await;
        })
    });
    for (command, text) in [
        (&["queues"][..], "jobs"),
        (&["stats", "jobs"], "oldest"),
        (&["list", "jobs"], ""),
        (&["list", "jobs", "--place", "delayed"], "beyond year 9999"),
        (&["list", "jobs", "--place", "held"], "beyond year 9999"),
        (&["list", "jobs", "--place", "dead"], "beyond year 9999"),
        (&["list", "jobs", "--place", "done"], "beyond year 9999"),
        (&["sessions", "jobs"], "beyond year 9999"),
        (&["schedules", "jobs"], "new year"),
        (&["configure", "jobs"], "years"),
        (&["audit", "jobs"], "everything agrees"),
        (&["ls", "--limit", "1000"], "delayed item"),
    ] {
        let finished = store.run(command);
        assert_eq!((finished.status, &*finished.err), (0, ""), "{command:?}");
        assert!(finished.out.contains(text), "{command:?}: {}", finished.out);
        store.json(command);
    }
    let forever = ["configure", "jobs", "--keep-done", "500000000000years"];
    assert_eq!(store.run(&forever).status, 0);
}
