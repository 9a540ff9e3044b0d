//! Looking at queues of every recipe on every store.

use crate::common::{ATTEMPTS, QUEUES, REASONS, World, assert_unchanged, hex, job, valid};
use conformance::stores::TestStore;
use console::report::{Item, Items, Life, Queue, QueueState};
use console::{Console, Error, MAX_ROWS};
use export_queue::hc_dequeue::{Error as DequeueError, ItemRef};
use export_queue::keyspace::{Ids, Subspace};
use serde_json::{Value, json};

conformance::on_every_store!(threads:
    queues_of_every_recipe_are_listed_with_how_they_stand,
    a_queue_is_shown_as_the_list_of_queues_has_it,
    items_of_every_place_are_listed_page_by_page,
    an_item_is_found_wherever_it_is,
    sessions_schedules_and_settings_are_shown,
    what_is_not_there_or_malformed_is_refused,
    a_queue_of_another_recipe_is_refused,
    a_record_that_does_not_decode_is_listed_with_the_reason,
    counts_are_shown_when_the_first_item_does_not_decode,
    looking_writes_nothing,
);

fn state(queue: &Queue) -> Value {
    let mut state = serde_json::to_value(&queue.state).unwrap();
    let object = state.as_object_mut().unwrap();
    // They depend on the time.
    for changing in ["oldest_seconds", "lag_seconds"] {
        object.remove(changing);
    }
    for subscription in object.get_mut("subscriptions").into_iter() {
        for subscription in subscription.as_array_mut().unwrap() {
            subscription.as_object_mut().unwrap().remove("lag_seconds");
        }
    }
    state
}

async fn queues_of_every_recipe_are_listed_with_how_they_stand(store: TestStore) {
    let world = World::new(&store).await;
    let all = valid(world.console().queues(None, 100).await.unwrap());
    assert_eq!(all.next, None);
    let names: Vec<_> = all.queues.iter().map(|queue| queue.name.clone()).collect();
    assert_eq!(names, QUEUES.map(|name| world.name(name)));
    let prefix = hex(world.root.subspace(&"counts").bytes());
    assert_eq!(all.queues[0].prefix, prefix);
    let [counts, events, jobs, mail, newer, orders, sealed] = &all.queues[..] else {
        panic!("{all:?}");
    };
    for (queue, codecs) in [
        (counts, &["MessagePack"; 3][..]),
        (events, &["MessagePack"; 2]),
        (jobs, &["MessagePack"]),
        (mail, &["Tuple"]),
        (orders, &["Json"]),
        (sealed, &["Sealed"]),
    ] {
        assert_eq!(queue.codecs, codecs, "{}", queue.name);
    }
    let mut of_counts = state(counts);
    let bytes = of_counts
        .as_object_mut()
        .unwrap()
        .remove("pending_bytes")
        .unwrap();
    assert!(bytes.as_u64().unwrap() > 3);
    assert_eq!(
        of_counts,
        json!({ "recipe": "combine", "buckets": 2, "pending_updates": 3, "has_more": false, "set_aside": 1,
            "has_more_set_aside": false, "sessions": 0 })
    );
    assert_eq!(
        state(jobs),
        json!({ "recipe": "hc-dequeue", "paused": false, "queued": 5, "delayed": 2, "held": 2, "dead": 3,
            "completed": 1, "cancelled": 1, "removed": 0, "sessions": 1 })
    );
    assert_eq!(
        state(mail),
        json!({ "recipe": "microqueue", "items": 3, "has_more": false })
    );
    assert_eq!(
        state(orders),
        json!({ "recipe": "hc-dequeue", "paused": true, "queued": 2, "delayed": 0, "held": 0, "dead": 0,
            "completed": 0, "cancelled": 0, "removed": 0, "sessions": 0 })
    );
    for (queue, recipe, problem) in [
        (newer, "hc-dequeue", "format 99 is newer"),
        (
            sealed,
            "vault",
            "this version does not know the recipe vault: upgrade it",
        ),
    ] {
        let QueueState::Unreadable {
            registered,
            problem: found,
        } = &queue.state
        else {
            panic!("{queue:?}");
        };
        assert_eq!(registered, recipe);
        assert!(found.contains(problem), "{found}");
    }
    let QueueState::ExportQueue(events) = &events.state else {
        panic!("{events:?}");
    };
    let [mirror, slow] = &events.subscriptions[..] else {
        panic!("{events:?}");
    };
    assert_eq!((&*mirror.name, &*slow.name), ("mirror", "slow"));
    assert_eq!((mirror.pending_entries, slow.pending_entries), (0, 4));
    assert_eq!((mirror.dead, slow.dead), (2, 0));
    assert_eq!((mirror.lag_seconds, slow.pending_bytes > 0), (None, true));
    assert!(slow.lag_seconds.unwrap() >= 0.0);
    assert!(slow.holds_log_back && !mirror.holds_log_back);
    assert!(!slow.paused && !slow.has_more && !mirror.has_more_dead);
}

async fn a_queue_is_shown_as_the_list_of_queues_has_it(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let all = console.queues(None, 100).await.unwrap().queues;
    for queue in &all {
        let one = valid(console.queue(&queue.name).await.unwrap());
        assert_eq!(
            (&one.name, &one.prefix, state(&one)),
            (&queue.name, &queue.prefix, state(queue))
        );
    }
    for limit in [1, 2, 3, 7, 8] {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let page = valid(console.queues(after.as_deref(), limit).await.unwrap());
            assert!(page.queues.len() <= limit);
            names.extend(page.queues.into_iter().map(|queue| queue.name));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(names, QUEUES.map(|name| world.name(name)), "{limit}");
    }
    // A page may begin after a queue that is not there any more.
    let after = world.name("jobs2");
    let rest = console.queues(Some(&after), 100).await.unwrap().queues;
    assert_eq!(rest[0].name, world.name("mail"));
}

/// Returns all items of a place, page by page.
async fn every_item(console: &Console, queue: &str, place: &str, limit: usize) -> Vec<Item> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page: Items = valid(
            console
                .items(queue, place, after.as_deref(), limit)
                .await
                .unwrap(),
        );
        assert!(page.items.len() <= limit, "{place}: {page:?}");
        assert_eq!((&*page.queue, page.place.name()), (queue, place));
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

fn refs(items: &[ItemRef]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

async fn items_of_every_place_are_listed_page_by_page(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let queue = &world.name("jobs");
    let items = &world.items;
    let places = [
        ("queued", &items.queued, Some(5)),
        ("delayed", &items.delayed, Some(2)),
        ("held", &items.held, Some(2)),
        ("dead", &items.dead, Some(3)),
        ("done", &items.done, None),
    ];
    for (place, expected, count) in places {
        let page = console.items(queue, place, None, 2).await.unwrap();
        assert_eq!(page.count, count, "{place}");
        for limit in 1..=6 {
            let mut listed = every_item(&console, queue, place, limit).await;
            assert!(listed.iter().all(|item| item.place_name() == place));
            // Where they are listed by another order than that of their enqueueing.
            listed.sort_by(|a, b| a.item.cmp(&b.item));
            let listed: Vec<_> = listed.into_iter().map(|item| item.item).collect();
            let mut expected = refs(expected);
            expected.sort();
            assert_eq!(listed, expected, "{place} by {limit}");
        }
    }
    let queued = every_item(&console, queue, "queued", 100).await;
    let payloads = queued
        .into_iter()
        .map(|item| item.payload.unwrap().value.unwrap());
    assert!(payloads.eq((10..15).map(job)));
    let orders = every_item(&console, &world.name("orders"), "queued", 100).await;
    let payload = orders[0].payload.as_ref().unwrap();
    assert_eq!((&*payload.codec, &payload.value), ("Json", &Some(job(0))));
    // A limit of zero would be none.
    let one = console.items(queue, "queued", None, 0).await.unwrap();
    assert_eq!(one.items.len(), 1);
}

async fn an_item_is_found_wherever_it_is(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let queue = &world.name("jobs");
    let items = &world.items;
    for (place, items) in [
        ("queued", &items.queued),
        ("delayed", &items.delayed),
        ("held", &items.held),
        ("dead", &items.dead),
        ("done", &items.done),
    ] {
        for item in refs(items) {
            let shown = valid(console.item(queue, &item).await.unwrap());
            assert_eq!((shown.place_name(), &shown.item), (place, &item));
            assert_eq!(shown.until.is_some(), place == "delayed");
            assert_eq!(shown.session.is_some(), place == "held");
            assert_eq!(shown.ended.is_some(), place == "done");
            assert_eq!(shown.problem, None);
        }
    }
    let show = async |item: &ItemRef| console.item(queue, &item.to_string()).await.unwrap();
    for (index, item) in items.dead.iter().enumerate() {
        let shown = show(item).await;
        let attempts = ATTEMPTS[index];
        assert_eq!((shown.attempts, shown.deaths), (attempts, 0));
        assert_eq!(shown.deliveries, attempts + 1);
        assert!(!shown.cancelled);
        assert_eq!(shown.failure.unwrap().reason, REASONS[index]);
        assert_eq!(shown.payload.unwrap().value, Some(job(index as u64)));
    }
    let old = show(&items.dead[0]).await;
    let new = show(&items.dead[1]).await;
    assert!(old.enqueued < new.enqueued && old.granted > old.enqueued);
    let [held, cancelled] = [&items.held[0], &items.held[1]];
    assert!(!show(held).await.cancelled && show(cancelled).await.cancelled);
    let progress = show(held).await.progress.unwrap();
    assert_eq!(progress.to_string(), "3 of 4: greeting <b>");
    assert_eq!(show(cancelled).await.progress, None);
    let checkpoint = show(held).await.checkpoint.unwrap();
    assert_eq!(checkpoint.value, Some(json!("page 3")));
    assert_eq!(show(held).await.steps, ["greet", "wave"]);
    let done = show(&items.done[0]).await;
    let ended = show(&items.done[1]).await;
    assert_eq!(done.end.as_deref(), Some("completed"));
    assert_eq!(done.result.unwrap().value, Some(json!("sent")));
    assert_eq!(
        (ended.end.as_deref(), ended.result),
        (Some("cancelled"), None)
    );
}

async fn sessions_schedules_and_settings_are_shown(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let queue = &world.name("jobs");
    let sessions = valid(console.sessions(queue, None, 10).await.unwrap()).sessions;
    let [session] = &sessions[..] else {
        panic!("{sessions:?}");
    };
    assert_eq!(
        (session.life, session.held, session.has_more),
        (Life::Alive, Some(2), false)
    );
    assert_eq!((session.lease_seconds, session.wanted), (60.0, Some(0)));
    let rest = valid(
        console
            .sessions(queue, Some(&session.session), 10)
            .await
            .unwrap(),
    );
    assert_eq!((rest.sessions.len(), rest.next), (0, None));
    let refused = console.sessions(queue, Some("7"), 10).await;
    assert_eq!(kind(refused), "malformed");
    let held = console
        .item(queue, &world.items.held[0].to_string())
        .await
        .unwrap();
    assert_eq!(
        (held.session, held.granted),
        (Some(session.session.clone()), session.oldest_grant)
    );
    for (queue, expected) in [("orders", 0), ("counts", 0), ("events", 0)] {
        let sessions = valid(
            console
                .sessions(&world.name(queue), None, 10)
                .await
                .unwrap(),
        );
        assert_eq!(sessions.sessions.len(), expected, "{queue}");
    }
    let all = valid(console.schedules(queue, None, None, 10).await.unwrap());
    assert_eq!((all.schedules.len(), &all.next), (2, &None));
    let first = &all.schedules[0];
    let options = first.options.as_deref();
    assert_eq!(options, Some("dedupe greetings, max attempts 3"));
    assert_eq!(
        (
            &*first.name,
            first.cron.as_deref(),
            first.time_zone.as_deref()
        ),
        ("new year", Some("0 0 1 1 *"), Some("UTC"))
    );
    assert!(
        first
            .next
            .unwrap()
            .to_string()
            .ends_with("-01-01T00:00:00.000Z")
    );
    assert_eq!(first.payload.as_ref().unwrap().value, Some(job(30)));
    let page = valid(console.schedules(queue, None, None, 1).await.unwrap());
    assert_eq!(
        (&page.schedules[..], page.next.as_deref()),
        (&all.schedules[..1], Some("new year"))
    );
    let page = console.schedules(queue, None, Some("new year"), 10).await;
    assert_eq!(page.unwrap().schedules, &all.schedules[1..]);
    let second = &all.schedules[1];
    assert_eq!(
        (&first.owner, second.owner.as_deref()),
        (&None, Some("calendar"))
    );
    for (owner, expected) in [("calendar", &all.schedules[1..]), ("calendar2", &[])] {
        let of_owner = console.schedules(queue, Some(owner), None, 10).await;
        assert_eq!(valid(of_owner.unwrap()).schedules, expected);
    }
    let settings = valid(console.settings(queue).await.unwrap());
    assert_eq!(
        (settings.lease_seconds, settings.keep_done_seconds),
        (60.0, 3600.0)
    );
}

/// Returns the error's variant in short.
#[track_caller]
fn kind<T: std::fmt::Debug>(refused: Result<T, Error>) -> &'static str {
    match refused.unwrap_err() {
        Error::NoQueue { .. } => "no queue",
        Error::WrongRecipe { .. } => "wrong recipe",
        Error::Unreadable { .. } => "unreadable",
        Error::Malformed { .. } => "malformed",
        Error::Missing { .. } => "missing",
        Error::Dequeue(
            DequeueError::MalformedRef(_)
            | DequeueError::ForeignRef { .. }
            | DequeueError::MalformedCursor,
        ) => "malformed",
        error => panic!("{error:?}"),
    }
}

async fn what_is_not_there_or_malformed_is_refused(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let name = |name| world.name(name);
    let jobs = &name("jobs");
    let counts = &name("counts");
    let events = &name("events");
    for missing in [&*name("none"), &name("jobs/m"), "a b", "", "raw:0", "/"] {
        assert_eq!(kind(console.queue(missing).await), "no queue", "{missing}");
        assert_eq!(
            kind(console.items(missing, "dead", None, 1).await),
            "no queue"
        );
    }
    for unreadable in [&name("newer"), &name("sealed")] {
        assert_eq!(kind(console.settings(unreadable).await), "unreadable");
    }
    for malformed in ["", "0", "xyz", "00", &"0".repeat(200)] {
        assert_eq!(kind(console.item(jobs, malformed).await), "malformed");
    }
    let orders = console.items(&name("orders"), "queued", None, 1).await;
    let foreign = &orders.unwrap().items[0].item;
    assert_eq!(kind(console.item(jobs, foreign).await), "malformed");
    // The cursor of another place, and of another queue.
    let page = console.items(jobs, "queued", None, 1).await.unwrap();
    for token in [page.next.as_deref().unwrap(), "", "zz", "00"] {
        let refused = console.items(jobs, "dead", Some(token), 1).await;
        assert_eq!(kind(refused), "malformed", "{token}");
    }
    assert_eq!(
        kind(console.items(jobs, "lost", None, 1).await),
        "malformed"
    );
    assert_eq!(kind(console.queues(Some("a b"), 1).await), "no queue");
    assert_eq!(
        kind(console.letters(events, "none", None, 1).await),
        "missing"
    );
    let refused = console.letters(events, "mirror", Some("7"), 1).await;
    assert_eq!(kind(refused), "malformed");
    assert_eq!(
        kind(console.set_aside(counts, Some("7"), 1).await),
        "malformed"
    );
    for prefix in ["a b", "raw:0"] {
        assert_eq!(kind(console.keys(Some(prefix), None, 1).await), "malformed");
        assert_eq!(kind(console.key(prefix).await), "malformed");
    }
    assert_eq!(kind(console.keys(None, Some("x"), 1).await), "malformed");
    assert_eq!(kind(console.key(&name("none")).await), "missing");
    // The page after the last key of a prefix, and keys that no store has.
    for (prefix, after) in [
        (Some(&**jobs), "fe"),
        (None, "ffff"),
        (Some("raw:ffff"), ""),
    ] {
        let page = console.keys(prefix, Some(after), 1).await.unwrap();
        assert_eq!((page.keys, page.next), (Vec::new(), None));
    }
    assert_eq!(kind(console.key("raw:ff02").await), "missing");
}

async fn a_queue_of_another_recipe_is_refused(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    for queue in ["mail", "counts", "events", "jobs"] {
        let name = &world.name(queue);
        let is = |recipe: &str| queue == recipe;
        let wrong = "wrong recipe";
        if !is("jobs") {
            assert_eq!(kind(console.items(name, "dead", None, 1).await), wrong);
            assert_eq!(kind(console.item(name, "00").await), wrong);
            assert_eq!(kind(console.schedules(name, None, None, 1).await), wrong);
            assert_eq!(kind(console.settings(name).await), wrong);
            assert_eq!(kind(console.groups(name, None, 1).await), wrong);
            assert_eq!(kind(console.batches(name, None, 1).await), wrong);
            assert_eq!(kind(console.batch(name, "00").await), wrong);
            assert_eq!(kind(console.audit(name, false).await), wrong);
        }
        if !is("counts") {
            assert_eq!(kind(console.set_aside(name, None, 1).await), wrong);
            assert_eq!(kind(console.combine_key(name, "a", None).await), wrong);
        }
        if !is("events") {
            let refused = console.letters(name, "mirror", None, 1).await;
            assert_eq!(kind(refused), wrong);
        }
        if is("mail") {
            assert_eq!(kind(console.sessions(name, None, 10).await), wrong);
        }
    }
}

async fn a_record_that_does_not_decode_is_listed_with_the_reason(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let queue = &world.name("jobs");
    let letters = world.rows(&world.jobs.subspace().subspace(&"d")).await;
    world.set(letters[1].key(), b"\x63newer").await;
    let items = every_item(&console, queue, "dead", 10).await;
    assert_eq!(items.len(), 3);
    assert_eq!(items[1].item, world.items.dead[1].to_string());
    assert_eq!(
        (items[1].place, &items[1].payload, &items[0].problem),
        (None, &None, &None)
    );
    let problem = items[1].problem.as_ref().unwrap();
    assert!(problem.contains("does not decode"), "{problem}");
}

async fn counts_are_shown_when_the_first_item_does_not_decode(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let queue = &world.name("jobs");
    let waiting = world.rows(&world.jobs.subspace().subspace(&"i")).await;
    world.set(waiting[0].key(), b"\x63newer").await;
    let QueueState::HcDequeue(state) = valid(console.queue(queue).await.unwrap()).state else {
        panic!("its settings decode");
    };
    // The age is that of the next item, which sessions grant.
    assert!(state.queued == 5 && state.oldest_seconds.is_some());
    let problem = state.problem.unwrap();
    assert!(problem.contains("does not decode"), "{problem}");
}

async fn looking_writes_nothing(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let before = world.written().await;
    let all = valid(console.queues(None, 100).await.unwrap());
    for queue in all.queues {
        let name = &*queue.name;
        // Some are refused, which writes nothing either.
        let _ = console.queue(name).await;
        for place in ["queued", "delayed", "held", "dead", "done"] {
            let _ = console.items(name, place, None, 10).await;
        }
        let _ = console.sessions(name, None, 10).await;
        let _ = console.schedules(name, None, None, 10).await;
        let _ = console.settings(name).await;
        let _ = console.groups(name, None, 10).await;
        let _ = console.group(name, "acme").await;
        let _ = console.default_limits(name).await;
        let _ = console.batches(name, None, 10).await;
        let _ = console.audit(name, false).await;
        let _ = console.set_aside(name, None, 10).await;
        let _ = console.combine_key(name, "ada", None).await;
        let _ = console.letters(name, "mirror", None, 10).await;
        let _ = console.keys(Some(name), None, 100).await;
        let _ = console.key(name).await;
    }
    for item in &world.items.held {
        console
            .item(&world.name("jobs"), &item.to_string())
            .await
            .unwrap();
    }
    assert_unchanged(&before, &world.written().await);
}

#[tokio::test]
async fn a_long_listing_is_paged_and_counted_by_the_counter() {
    let store = TestStore::memory().db;
    // With short keys and values, so that it is the number of rows that ends a page.
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    let console = world.console();
    let queue = "jobs";
    for _ in 0..6 {
        let jobs = &world.jobs;
        let payloads = &vec![Value::Null; 500];
        let enqueue = |tr| async move { jobs.enqueue_all(&tr, payloads).await.map(drop) };
        world.runner.run(enqueue).await.unwrap();
    }
    for (limit, pages) in [(usize::MAX, 4), (MAX_ROWS, 4), (100, 31)] {
        let mut items = 0;
        let mut count = 0;
        let mut after = None;
        loop {
            let page = console
                .items(queue, "queued", after.as_deref(), limit)
                .await
                .unwrap();
            assert_eq!(page.count, Some(3_005));
            assert!(page.items.len() <= limit.min(MAX_ROWS));
            (items, count) = (items + page.items.len(), count + 1);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(items, 3_005);
        // A store may end a page before.
        assert!(count >= pages, "{count}");
    }
    let keys = console.keys(Some(queue), None, usize::MAX).await.unwrap();
    assert!(keys.keys.len() <= MAX_ROWS && keys.next.is_some());
}
