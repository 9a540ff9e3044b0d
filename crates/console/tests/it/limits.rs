//! Groups of items: how they stand, their limits, and why an item with a group has not started.

use crate::common::program::Filled;
use crate::common::{LONG, World, assert_queues_unchanged, assert_valid, enqueue, job, valid};
use crate::web::site::TestSite;
use axum::http::StatusCode;
use conformance::stores::TestStore;
use console::report::{Audit, Group, Item};
use console::{Action, Console, Error, WebOptions};
use export_queue::hc_dequeue::{
    Delivery, Enqueue, Error as DequeueError, GroupLimits, ItemRef, PlaceKind,
};
use export_queue::keyspace::{self, Ids, Subspace, Transaction, Tx};
use serde_json::Value;

conformance::on_every_store!(threads:
    groups_are_listed_with_their_slots_and_their_limits,
    limits_are_replaced_and_reset,
    a_group_is_paused_and_resumed_and_keeps_its_limits,
    a_group_says_which_items_have_its_slots,
    limits_that_contradict_each_other_change_nothing,
    an_item_says_why_it_has_not_started,
    limits_that_do_not_decode_hide_nothing_and_can_be_replaced,
    slots_and_notices_that_are_wrong_are_found_and_repaired,
);

/// Enqueues an item that comes before all those without a group.
pub(crate) async fn add(world: &World, group: &'static [u8]) -> ItemRef {
    let options = Enqueue::new().with_group(group).with_priority(9);
    enqueue(&world.runner, &world.jobs, &job(7), &options).await
}

/// Takes the next item, which must be this one.
pub(crate) async fn take(world: &World, item: ItemRef) -> Delivery<Value> {
    let delivery = world.consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(delivery.item_ref(), item);
    delivery
}

/// Replaces the limits of a group, and returns what has become of them.
pub(crate) async fn set(
    console: &Console,
    queue: &str,
    group: &str,
    limits: GroupLimits,
) -> String {
    let change = console.limit(queue, Some(group), &limits);
    valid(change.await.unwrap()).outcome
}

fn row(group: &Group) -> String {
    let limits = if group.own_limits { "own" } else { "default" };
    let slots = group.slots_text();
    format!(
        "{}: {}, {slots}, {} waiting, {limits}",
        group.group, group.state, group.waiting
    )
}

async fn groups_are_listed_with_their_slots_and_their_limits(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let list = async |after: Option<&str>, limit| {
        let page = console.groups(jobs, after, limit).await;
        valid(page.unwrap())
    };
    let none = list(None, 10).await;
    assert!(none.groups.is_empty() && none.next.is_none());
    assert_eq!(none.default_limits.unwrap().to_string(), "no limit");
    set(&console, jobs, "acme", GroupLimits::new().with_limit(2)).await;
    set(
        &console,
        jobs,
        "idle",
        GroupLimits::ordered().with_weight(3),
    )
    .await;
    let first = add(&world, b"acme").await;
    let second = add(&world, b"acme").await;
    add(&world, b"acme").await;
    let one = take(&world, first).await;
    let group = valid(console.group(jobs, "acme").await.unwrap());
    assert_eq!(row(&group), "acme: ready, 1 of 2, 2 waiting, own");
    let two = take(&world, second).await;
    add(&world, b"\xff\x00").await;
    let all = list(None, 10).await;
    let rows: Vec<_> = all.groups.iter().map(row).collect();
    assert_eq!(
        rows,
        [
            "acme: at its limit, 2 of 2, 1 waiting, own",
            "idle: idle, 0 of 1, 0 waiting, own",
            "0xff00: ready, 0, no limit, 1 waiting, default",
        ]
    );
    let limits = all.groups[1].limits.as_ref().unwrap();
    assert_eq!(limits.to_string(), "at most 1, until end, weight 3");
    // A group without items has a state, too.
    let group = console.group(jobs, "unused").await.unwrap();
    assert_eq!(row(&group), "unused: idle, 0, no limit, 0 waiting, default");
    for limit in 1..=4 {
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let page = list(after.as_deref(), limit).await;
            assert!(page.groups.len() <= limit);
            paged.extend(page.groups);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, all.groups, "{limit}");
    }
    assert_eq!(list(None, 3).await.next, None);
    drop([one, two]);
}

async fn limits_are_replaced_and_reset(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let four = GroupLimits::new().with_limit(4);
    let told = set(&console, jobs, "acme", four).await;
    assert_eq!(told, "at most 4; before: no limit, by default");
    let all = GroupLimits::ordered()
        .with_dead_letters_blocking()
        .with_weight(3);
    // The same group, by its digits.
    let told = set(&console, jobs, "0x61636d65", all).await;
    let ordered = "at most 1, until end, dead letters block, weight 3";
    assert_eq!(told, format!("{ordered}; before: at most 4"));
    let told = valid(console.reset_limits(jobs, "acme").await.unwrap());
    assert_eq!((&*told.action, told.changed), ("limit", 0));
    assert_eq!(
        told.outcome,
        format!("no limit, by default; before: {ordered}")
    );

    let ordered = &GroupLimits::ordered();
    let change = console.limit(jobs, None, ordered).await.unwrap();
    assert_eq!(
        valid(change).outcome,
        "default limits: at most 1, until end; before: no limit"
    );
    let default = valid(console.default_limits(jobs).await.unwrap());
    assert_eq!((default.limit, default.until_end), (Some(1), true));
    let group = console.group(jobs, "acme").await.unwrap();
    assert_eq!((group.limits, group.own_limits), (Some(default), false));
}

async fn a_group_is_paused_and_resumed_and_keeps_its_limits(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let item = add(&world, b"acme").await;
    set(&console, jobs, "acme", GroupLimits::ordered()).await;
    let told = console.set_group_paused(jobs, "acme", true).await.unwrap();
    assert_eq!(&*valid(told).action, "pause-group");
    let group = valid(console.group(jobs, "acme").await.unwrap());
    assert_eq!(row(&group), "acme: paused, 0 of 1, 1 waiting, own");
    assert!(group.paused);
    // Another item comes first, whatever its priority is.
    let delivery = take(&world, world.items.queued[0]).await;
    delivery.complete().await.unwrap();
    let told = console.set_group_paused(jobs, "0x61636d65", false).await;
    assert_eq!(&*valid(told.unwrap()).action, "resume-group");
    take(&world, item).await.complete().await.unwrap();
    assert!(!console.group(jobs, "acme").await.unwrap().paused);
}

async fn a_group_says_which_items_have_its_slots(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let limits = GroupLimits::new().with_limit(3).with_until_end();
    set(&console, jobs, "acme", limits.with_dead_letters_blocking()).await;
    let mut items = Vec::new();
    for _ in 0..3 {
        items.push(add(&world, b"acme").await);
    }
    let mut held = Vec::new();
    for item in &items {
        held.push(take(&world, *item).await);
    }
    let items: Vec<_> = items.iter().map(ItemRef::to_string).collect();
    held[1].discard("no").await.unwrap();
    held[2].retry_after(LONG, "later").await.unwrap();
    let group = valid(console.group(jobs, "acme").await.unwrap());
    let places = group
        .holders
        .iter()
        .map(|item| (&item.item, item.place.unwrap()));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [
            (&items[0], PlaceKind::Held),
            (&items[1], PlaceKind::Dead),
            (&items[2], PlaceKind::Delayed)
        ]
    );
    // A listing does not look.
    let listed = valid(console.groups(jobs, None, 10).await.unwrap());
    assert_eq!(listed.groups[0].holders, []);
}

async fn limits_that_contradict_each_other_change_nothing(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let none = GroupLimits::new();
    let before = world.written().await;
    for (limits, reason) in [
        (none.with_until_end(), "there is no limit: set one"),
        (
            none.with_limit(1).with_dead_letters_blocking(),
            "failing items do not",
        ),
        (none.with_weight(0), "from 1 to 1,000"),
        (none.with_weight(1_001), "from 1 to 1,000"),
    ] {
        for group in [None, Some("acme")] {
            let refused = console.limit(jobs, group, &limits).await;
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, Error::Dequeue(DequeueError::GroupLimits { .. })),
                "{refused}"
            );
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }
    let long = "k".repeat(256);
    for group in ["", &long] {
        for refused in [
            console.limit(jobs, Some(group), &none).await.map(drop),
            console.set_group_paused(jobs, group, true).await.map(drop),
            console.reset_limits(jobs, group).await.map(drop),
            console.group(jobs, group).await.map(drop),
        ] {
            assert!(
                matches!(refused, Err(Error::Dequeue(DequeueError::Group { .. }))),
                "{refused:?}"
            );
        }
    }
    for queue in ["mail", "events", "counts"] {
        let name = &world.name(queue);
        for refused in [
            console.limit(name, None, &none).await.map(drop),
            console.set_group_paused(name, "acme", true).await.map(drop),
            console.reset_limits(name, "acme").await.map(drop),
            console.groups(name, None, 1).await.map(drop),
            console.group(name, "acme").await.map(drop),
            console.default_limits(name).await.map(drop),
        ] {
            assert!(
                matches!(refused, Err(Error::WrongRecipe { .. })),
                "{queue}: {refused:?}"
            );
        }
    }
    assert_queues_unchanged(&world, &before, &world.written().await);
}

async fn an_item_says_why_it_has_not_started(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let show = async |item: ItemRef| -> Item {
        valid(console.item(jobs, &item.to_string()).await.unwrap())
    };
    let why = async |item: ItemRef| show(item).await.not_started.unwrap_or_default();
    let without_group = show(world.items.queued[0]).await;
    assert_eq!(
        (without_group.group, without_group.not_started),
        (None, None)
    );

    let first = add(&world, b"acme").await;
    let shown = show(first).await;
    assert_eq!(shown.group.as_deref(), Some("acme"));
    assert!(!shown.has_slot);
    assert_eq!(why(first).await, "it waits for its turn");
    console.set_paused(jobs, true).await.unwrap();
    assert_eq!(why(first).await, "the queue is paused");
    console.set_paused(jobs, false).await.unwrap();
    console.set_group_paused(jobs, "acme", true).await.unwrap();
    assert_eq!(why(first).await, "its group is paused");
    console.set_group_paused(jobs, "acme", false).await.unwrap();
    set(&console, jobs, "acme", GroupLimits::new().with_limit(0)).await;
    assert_eq!(why(first).await, "the limit of its group is zero");
    let blocking = GroupLimits::ordered().with_dead_letters_blocking();
    set(&console, jobs, "acme", blocking).await;

    let delivery = take(&world, first).await;
    let second = add(&world, b"acme").await;
    let shown = show(first).await;
    assert!(shown.has_slot && shown.not_started.is_none());
    assert_eq!(why(second).await, "its group is at its limit (1 of 1)");
    delivery.discard("no").await.unwrap();
    assert!(show(first).await.has_slot);
    assert_eq!(
        why(second).await,
        format!("a dead letter of its group keeps a slot: redrive or purge {first}")
    );
    let letter = first.to_string();
    let purge = console.change(jobs, Action::Purge, &letter);
    purge.await.unwrap();
    assert_eq!(why(second).await, "it waits for its turn");
    // A listing does not look.
    let queued = console
        .items(jobs, "queued", None, 100)
        .await
        .unwrap()
        .items;
    let listed = queued.iter().find(|item| item.item == second.to_string());
    assert_eq!(listed.unwrap().group.as_deref(), Some("acme"));
    assert_eq!(listed.unwrap().not_started, None);
}

async fn limits_that_do_not_decode_hide_nothing_and_can_be_replaced(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let item = add(&world, b"acme").await;
    add(&world, b"zeta").await;
    let limits = |group: &[u8]| world.jobs.subspace().pack(&("l", group, "k"));
    world.set(&limits(b"acme"), b"\x63newer").await;
    let listed = valid(console.groups(jobs, None, 10).await.unwrap()).groups;
    let [acme, zeta] = &listed[..] else {
        panic!("{listed:?}");
    };
    assert_eq!((&*acme.group, &*acme.state), ("acme", "unreadable"));
    assert_eq!((&acme.limits, acme.waiting), (&None, 1));
    assert_eq!(row(zeta), "zeta: ready, 0, no limit, 1 waiting, default");
    let shown = valid(console.item(jobs, &item.to_string()).await.unwrap());
    let why = shown.not_started.unwrap();
    assert!(why.contains("do not decode"), "{why}");
    let told = set(&console, jobs, "acme", GroupLimits::ordered()).await;
    assert_eq!(told, "at most 1, until end; before: unreadable");

    world.set(&limits(b""), b"\x63newer").await;
    let page = valid(console.groups(jobs, None, 10).await.unwrap());
    let states: Vec<_> = page.groups.iter().map(|group| &*group.state).collect();
    assert_eq!(states, ["ready", "unreadable"]);
    assert_eq!(page.default_limits, None);
    let refused = console.default_limits(jobs).await;
    assert!(matches!(refused, Err(Error::Dequeue(_))), "{refused:?}");
    let none = &GroupLimits::new();
    let told = console.limit(jobs, None, none).await.unwrap().outcome;
    assert_eq!(told, "default limits: no limit; before: unreadable");
    let listed = console.groups(jobs, None, 10).await.unwrap().groups;
    assert_eq!(row(&listed[0]), "acme: ready, 0 of 1, 1 waiting, own");
}

async fn slots_and_notices_that_are_wrong_are_found_and_repaired(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    add(&world, b"acme").await;
    let slots = &world.jobs.subspace().pack(&("l", &b"acme"[..], "a"));
    let (begin, end) = &world.jobs.subspace().subspace(&"hs").range();
    let kinds = |audit: Audit| {
        let kinds = audit.findings.into_iter().map(|finding| finding.kind);
        kinds.collect::<Vec<_>>()
    };
    for expected in ["slots-off", "no-notice"] {
        let damage = |tr: Tx<_>| async move {
            match expected {
                "slots-off" => tr.set(slots, &7_i64.to_le_bytes()),
                _ => tr.clear_range(begin, end),
            }
            Ok::<_, keyspace::Error>(())
        };
        world.runner.run(damage).await.unwrap();
        for repair in [false, true] {
            let audit = valid(console.audit(jobs, repair).await.unwrap());
            assert_eq!(kinds(audit), [expected], "{repair}");
        }
        assert_eq!(console.audit(jobs, false).await.unwrap().findings, []);
    }
}

#[test]
fn the_program_lists_and_changes_limits() {
    let store = Filled::with(|world| {
        Box::pin(async move {
            add(world, b"tenant 7").await;
        })
    });
    let steps: [(&[&str], &str); 4] = [
        (
            &["tenant 7", "--at-most", "4", "--until-end"],
            "at most 4, until end; before: no limit, by default",
        ),
        (
            &["--ordered", "--weight", "2"],
            "default limits: at most 1, until end, weight 2; before: no limit",
        ),
        (
            &["tenant 7", "--reset"],
            "at most 1, until end, weight 2, by default; before: at most 4, until end",
        ),
        (
            &["tenant 7", "--no-limit"],
            "no limit; before: at most 1, until end, weight 2, by default",
        ),
    ];
    for (options, told) in steps {
        assert_limited(&store, options, told);
    }
    let listed = store.run(&["groups", "jobs"]).out;
    let words: Vec<_> = listed.split_whitespace().collect();
    let words = words.join(" ");
    for text in [
        "GROUP STATE NEXT START SLOTS WAITING WEIGHT UNTIL END DEAD BLOCK RATE LIMITS",
        "tenant 7 ready 0, no limit 1 own",
        "default limits: at most 1, until end, weight 2",
    ] {
        assert!(words.contains(text), "{text}: {listed}");
    }
    assert_valid("Groups", &store.json(&["groups", "jobs"]));
    // Items with groups are listed after the others.
    let queued = store.json(&["list", "jobs"]);
    let item = queued["items"].as_array().unwrap().last().unwrap();
    let item = item["item"].as_str().unwrap();
    let shown = store.run(&["show", "jobs", item]).out;
    for text in ["tenant 7", "it waits for its turn"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

#[test]
fn limits_that_contradict_each_other_are_a_wrong_command() {
    let store = Filled::embedded();
    let wrong: [(&[&str], &str); 5] = [
        (&["a", "--until-end"], "there is no limit: set one"),
        (
            &["a", "--at-most", "1", "--dead-letters-block"],
            "failing items do not",
        ),
        (&["a", "--weight", "0"], "from 1 to 1,000"),
        (&["a", "--ordered", "--at-most", "2"], "cannot be used with"),
        (&["--reset"], "required"),
    ];
    for (options, reason) in wrong {
        let finished = store.run(&[&["limit", "jobs"][..], options].concat());
        finished.assert_refused(2, reason);
    }
    let pause = ["pause", "jobs", "--group", ""];
    store.run(&pause).assert_refused(2, "use 1 to 255 bytes");
    for command in [
        &["groups", "mail"][..],
        &["limit", "mail", "a", "--ordered"],
        &["pause", "mail", "--group", "a"],
    ] {
        store.run(command).assert_refused(2, "recipe microqueue");
    }
    store
        .run(&["groups", "none"])
        .assert_refused(3, "console queues");
    let groups = store.json(&["groups", "jobs"]);
    assert_eq!(groups["groups"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn the_page_of_groups_changes_limits() {
    let store = TestStore::memory().db;
    let world = World::on(store, Subspace::all(), Ids::default()).await;
    // A page shows its first character as a code.
    let item = add(&world, "\u{202e}7".as_bytes()).await;
    let options = WebOptions::new().allow_changes(true);
    let router = console::router(world.console(), options);
    let site = TestSite { router };
    let token = site.token().await;
    let groups = "/queues/jobs/groups";
    let page = site.shown(groups).await;
    let group = page.after(r#"form="limits" name="group" value=""#);
    assert_eq!(group, "0xe280ae37");
    for (fields, text) in [
        (
            format!("group={group}&action=set&at_most=4&until_end=yes&weight="),
            "0 of 4",
        ),
        (
            format!("group={group}&action=remove&limit=until-end"),
            "0 of 4",
        ),
        (format!("group={group}&action=pause"), "<td>paused</td>"),
        (format!("group={group}&action=resume"), "<td>ready</td>"),
        (format!("group={group}&action=reset"), "<td>default</td>"),
        (
            "group=&action=set&at_most=9".to_owned(),
            "Limits by default: at most 9",
        ),
    ] {
        let answer = site.post(groups, &format!("token={token}&{fields}")).await;
        assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
        let next = answer.headers["location"].to_str().unwrap();
        let page = site.shown(next).await.text;
        let notices = [
            "The limits were changed.",
            "Paused: nothing of the group",
            "Resumed: items of the group",
        ];
        assert!(notices.iter().any(|notice| page.contains(notice)), "{page}");
        assert!(page.contains(text), "{text}: {page}");
    }
    for (fields, text) in [
        ("action=set", "select a group"),
        (
            "group=&action=reset",
            "the default limits cannot be reset or paused",
        ),
        (
            "group=&action=pause",
            "the default limits cannot be reset or paused",
        ),
        ("group=a&action=remove", "select the limit to remove"),
        (
            "group=a&action=remove&limit=x",
            "select the limit to remove",
        ),
        ("group=a&action=set&at_most=x", "a limit is no number"),
        (
            "group=a&action=set&until_end=yes",
            "there is no limit: set one",
        ),
        ("group=a&action=set&weight=0", "out of range"),
        (
            "group=a&action=explode",
            "an action is set, remove, reset, pause or resume",
        ),
    ] {
        let answer = site.post(groups, &format!("token={token}&{fields}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields}");
        assert!(answer.text.contains(text), "{text}: {}", answer.text);
    }
    let fields = format!("token={token}&group=a&action=pause");
    let change = site.post(&format!("/api{groups}"), &fields).await.json();
    assert_valid("Change", &change);
    let listed = site.shown(&format!("/api{groups}")).await.json();
    assert_valid("Groups", &listed);
    assert_eq!(listed["groups"][0]["paused"], true);
    let one = site
        .shown(&format!("/api/queues/jobs/group/{group}"))
        .await
        .json();
    assert_valid("Group", &one);
    let page = site
        .shown(&format!("/queues/jobs/group/{group}"))
        .await
        .text;
    assert!(
        page.contains("No item has a slot.") && page.contains("pause"),
        "{page}"
    );
    let page = site.shown(&format!("/queues/jobs/item/{item}")).await;
    assert!(page.text.contains("queued: it waits for its turn"));
}

/// Runs the command `limit` with these options. Panics unless it prints what it did.
pub(crate) fn assert_limited(store: &Filled, options: &[&str], told: &str) {
    let finished = store.run(&[&["limit", "jobs"][..], options].concat());
    let expected = format!("jobs: limit: {told}\n");
    assert_eq!(finished.out, expected, "{finished:?}");
}
