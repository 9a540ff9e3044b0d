//! Changing queues of every recipe on every store.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::common::{
    AGE, LONG, REASONS, RETAINED, World, assert_queues_unchanged, assert_unchanged, hex, job, valid,
};
use conformance::stores::TestStore;
use conformance::timeout;
use console::report::{DequeueState, QueueState};
use console::{Action, Console, Error, Filter};
use export_queue::hc_dequeue::{Error as DequeueError, ItemRef, PlaceKind};
use export_queue::keyspace::Environment;
use futures::FutureExt;

conformance::on_every_store!(threads:
    an_item_is_changed_where_the_action_finds_it_and_else_not,
    a_filter_counts_and_changes_exactly_what_matches,
    items_of_each_place_are_cancelled_at_once,
    a_bulk_change_that_is_dropped_keeps_what_was_done,
    a_bulk_change_leaves_alone_what_comes_after_the_selection,
    an_item_that_fails_after_the_selection_is_not_expedited_again,
    a_record_that_does_not_decode_stops_no_bulk_change,
    an_action_changes_nothing_in_another_place,
    a_paused_queue_grants_nothing_until_it_is_resumed,
    settings_are_changed_and_those_that_cannot_work_are_refused,
    a_dedupe_id_is_released_by_its_text_or_its_digits,
    an_item_gets_another_priority,
    a_schedule_of_a_clock_that_was_ahead_is_set_right,
    damage_is_found_and_repaired,
    what_was_set_aside_is_redriven_and_purged,
    dead_letters_of_a_subscription_are_purged,
    a_subscription_is_paused_and_resumed,
    what_a_recipe_does_not_have_is_not_changed,
);

/// A filter with some conditions.
fn filter(edit: impl FnOnce(&mut Filter)) -> Filter {
    let mut filter = Filter::default();
    edit(&mut filter);
    filter
}

async fn state(console: &Console, queue: &str) -> DequeueState {
    match console.queue(queue).await.unwrap().state {
        QueueState::HcDequeue(state) => state,
        other => panic!("{other:?}"),
    }
}

/// Returns where an item is, and `none` where it is nowhere.
async fn place(console: &Console, queue: &str, item: &ItemRef) -> &'static str {
    match console.item(queue, &item.to_string()).await {
        Ok(item) => item.place_name(),
        Err(Error::Missing { .. }) => "none",
        Err(error) => panic!("{error}"),
    }
}

async fn an_item_is_changed_where_the_action_finds_it_and_else_not(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let items = &world.items;
    // An item of each place; where each action brings it to, if anywhere.
    let places = [
        (Action::Expedite, &items.queued[0], None),
        (Action::Expedite, &items.held[0], None),
        (Action::Expedite, &items.dead[0], None),
        (Action::Expedite, &items.done[0], None),
        (Action::Expedite, &items.delayed[0], Some("queued")),
        (Action::Redrive, &items.queued[0], None),
        (Action::Redrive, &items.delayed[1], None),
        (Action::Redrive, &items.done[0], None),
        (Action::Redrive, &items.dead[0], Some("queued")),
        (Action::Purge, &items.queued[0], None),
        (Action::Purge, &items.held[0], None),
        (Action::Purge, &items.dead[1], Some("done")),
        (Action::Cancel, &items.done[0], None),
        (Action::Cancel, &items.queued[0], Some("done")),
        (Action::Cancel, &items.delayed[1], Some("done")),
        (Action::Cancel, &items.held[0], Some("held")),
    ];
    for (action, item, expected) in places {
        let before = place(&console, jobs, item).await;
        let changed = console.change(jobs, action, &item.to_string()).await;
        match expected {
            Some(_) => {
                let change = valid(changed.unwrap());
                assert_eq!((&change.queue, &*change.action), (jobs, action.name()));
                assert_eq!(change.changed, 1);
            }
            None => assert!(
                matches!(changed, Err(Error::Missing { .. })),
                "{action:?} {before}: {changed:?}"
            ),
        }
        let after = place(&console, jobs, item).await;
        assert_eq!(after, expected.unwrap_or(before), "{action:?} {before}");
    }
    let held = console.item(jobs, &items.held[0].to_string()).await;
    assert!(held.unwrap().cancelled);
    let audit = valid(console.audit(jobs, false).await.unwrap());
    assert_eq!(audit.findings, []);
}

async fn a_filter_counts_and_changes_exactly_what_matches(store: TestStore) {
    let hour_ago = Environment::system().wall() - AGE / 2;
    let filters = [
        (Filter::default(), &[0, 1, 2][..]),
        (filter(|f| f.reason = Some("connection".into())), &[0, 1]),
        (filter(|f| f.reason = Some("Connection".into())), &[]),
        (filter(|f| f.attempts = 1), &[1]),
        (filter(|f| f.attempts = 2), &[1]),
        (filter(|f| f.attempts = 3), &[]),
        (filter(|f| f.payload = Some("\"tenant\":2".into())), &[2]),
        (filter(|f| f.payload = Some("<b>".into())), &[0, 1, 2]),
        (filter(|f| f.enqueued_before = Some(hour_ago)), &[0]),
        (
            filter(|f| {
                f.reason = Some("connection".into());
                f.payload = Some("\"tenant\":1".into());
                f.attempts = 2;
            }),
            &[1],
        ),
        (
            filter(|f| {
                f.reason = Some(REASONS[2].into());
                f.enqueued_before = Some(hour_ago);
            }),
            &[],
        ),
    ];
    for (number, (filter, expected)) in filters.into_iter().enumerate() {
        // One after the other: redriving and purging.
        let (action, changed) = match number % 2 {
            0 => (Action::Redrive, "queued"),
            _ => (Action::Purge, "done"),
        };
        let world = World::new(&store).await;
        let console = world.console();
        let jobs = &world.name("jobs");
        let selection = console
            .select(jobs, PlaceKind::Dead, &filter)
            .await
            .unwrap();
        assert_eq!(selection.count(), expected.len() as u64, "{filter:?}");
        let mut shown = Vec::new();
        let change = valid(
            timeout(
                LONG,
                console.change_all(jobs, action, &selection, |n| shown.push(n)),
            )
            .await
            .unwrap(),
        );
        assert_eq!(change.changed, expected.len() as u64, "{filter:?}");
        assert_eq!(shown.last(), Some(&change.changed));
        for (index, item) in world.items.dead.iter().enumerate() {
            let is = if expected.contains(&index) {
                changed
            } else {
                "dead"
            };
            assert_eq!(place(&console, jobs, item).await, is, "{index} {filter:?}");
        }
    }
}

async fn items_of_each_place_are_cancelled_at_once(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let all = &Filter::default();
    for (action, place, count, changed) in [
        (Action::Expedite, PlaceKind::Delayed, 2, 2),
        (Action::Cancel, PlaceKind::Delayed, 0, 0),
        (Action::Cancel, PlaceKind::Queued, 7, 7),
        // They stay until their session lets go of them.
        (Action::Cancel, PlaceKind::Held, 2, 2),
    ] {
        let selection = console.select(jobs, place, all).await.unwrap();
        assert_eq!(selection.count(), count);
        let change = valid(
            timeout(LONG, console.change_all(jobs, action, &selection, |_| {}))
                .await
                .unwrap(),
        );
        assert_eq!(change.changed, changed, "{place:?}");
    }
    let state = state(&console, jobs).await;
    assert_eq!((state.queued, state.delayed, state.held), (0, 0, 2));
    for item in &world.items.held {
        let held = console.item(jobs, &item.to_string()).await;
        assert!(held.unwrap().cancelled);
    }
}

async fn a_bulk_change_that_is_dropped_keeps_what_was_done(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let payloads = &(0..600).map(job).collect::<Vec<_>>();
    let queue = &world.jobs;
    let enqueue = |tr| async move { queue.enqueue_all(&tr, payloads).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let all = Filter::default();
    let mut last = 0;
    let selection = console.select(jobs, PlaceKind::Queued, &all).await.unwrap();
    let change = console.change_all(jobs, Action::Cancel, &selection, |changed| {
        // No transaction has more rows than that.
        assert!(changed - last <= 128, "{last} {changed}");
        last = changed;
        assert!(changed < 300, "stop here");
    });
    AssertUnwindSafe(change).catch_unwind().await.unwrap_err();
    assert!((300..428).contains(&last), "{last}");
    assert_eq!(state(&console, jobs).await.queued, 605 - last);
    // The rest comes with the next one.
    let change = timeout(
        LONG,
        console.change_all(jobs, Action::Cancel, &selection, |_| {}),
    )
    .await
    .unwrap();
    assert_eq!(change.changed, 605 - last);
    assert_eq!(state(&console, jobs).await.queued, 0);
}

async fn a_bulk_change_leaves_alone_what_comes_after_the_selection(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    for filter in [Filter::default(), filter(|f| f.payload = Some("t".into()))] {
        let selection = console
            .select(jobs, PlaceKind::Queued, &filter)
            .await
            .unwrap();
        let queue = &world.jobs;
        let payloads = &[job(1), job(2)];
        let enqueue = |tr| async move { queue.enqueue_all(&tr, payloads).await.map(drop) };
        world.runner.run(enqueue).await.unwrap();
        let change = timeout(
            LONG,
            console.change_all(jobs, Action::Cancel, &selection, |_| {}),
        )
        .await
        .unwrap();
        assert_eq!(change.changed, selection.count());
        assert_eq!(state(&console, jobs).await.queued, 2);
    }
}

async fn an_item_that_fails_after_the_selection_is_not_expedited_again(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let queue = &world.jobs;
    let all = &Filter::default();
    // Nothing else is waiting.
    let waiting = console.select(jobs, PlaceKind::Queued, all).await.unwrap();
    let cancel = console.change_all(jobs, Action::Cancel, &waiting, |_| {});
    cancel.await.unwrap();
    let selection = console.select(jobs, PlaceKind::Delayed, all).await.unwrap();
    let [first, second] = world.items.delayed[..] else {
        panic!("there are two delayed items");
    };
    let expedite = |tr| async move { queue.expedite(&tr, &first).await };
    assert!(world.runner.run(expedite).await.unwrap());
    let delivery = timeout(LONG, world.consumer.dequeue()).await.unwrap();
    delivery.unwrap().retry_after(LONG, "again").await.unwrap();
    assert_eq!(place(&console, jobs, &first).await, "delayed");
    let change = console.change_all(jobs, Action::Expedite, &selection, |_| {});
    assert_eq!(timeout(LONG, change).await.unwrap().changed, 1);
    assert_eq!(place(&console, jobs, &first).await, "delayed");
    assert_eq!(place(&console, jobs, &second).await, "queued");
}

async fn a_record_that_does_not_decode_stops_no_bulk_change(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let letters = world.rows(&world.jobs.subspace().subspace(&"d")).await;
    world.set(letters[1].key(), b"\x63newer").await;
    let all = Filter::default();
    let selection = console.select(jobs, PlaceKind::Dead, &all).await.unwrap();
    assert_eq!(selection.count(), 3);
    let purge = console.change_all(jobs, Action::Purge, &selection, |_| {});
    assert_eq!(timeout(LONG, purge).await.unwrap().changed, 2);
    let left = console.items(jobs, "dead", None, 10).await.unwrap().items;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].item, world.items.dead[1].to_string());
}

async fn an_action_changes_nothing_in_another_place(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let all = Filter::default();
    let before = world.written().await;
    for action in Action::ALL {
        for place in PlaceKind::ALL {
            if !action.places().contains(&place) {
                let selection = console.select(jobs, place, &all).await.unwrap();
                let change = console.change_all(jobs, action, &selection, |_| {});
                let refused = change.await.unwrap_err();
                assert!(matches!(refused, Error::WrongPlace { .. }), "{refused}");
            }
        }
    }
    assert_unchanged(&before, &world.written().await);
}

async fn a_paused_queue_grants_nothing_until_it_is_resumed(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    for _ in 0..2 {
        let change = valid(console.set_paused(jobs, true).await.unwrap());
        assert_eq!((&*change.action, change.changed), ("pause", 0));
    }
    assert!(state(&console, jobs).await.paused);
    assert!(world.consumer.dequeue().await.unwrap().is_none());
    let change = valid(console.set_paused(jobs, false).await.unwrap());
    assert_eq!(&*change.action, "resume");
    assert!(!state(&console, jobs).await.paused);
    let item = world.consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(item.item_ref(), world.items.queued[0]);
}

async fn settings_are_changed_and_those_that_cannot_work_are_refused(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let before = console.settings(jobs).await.unwrap();
    let changed = valid(
        console
            .configure(jobs, |settings| {
                let keep_done = Duration::from_secs(7);
                settings.with_max_attempts(11).with_keep_done(keep_done)
            })
            .await
            .unwrap(),
    );
    assert_eq!((changed.max_attempts, changed.keep_done_seconds), (11, 7.0));
    assert_eq!(
        (changed.lease_seconds, changed.max_deaths),
        (before.lease_seconds, before.max_deaths)
    );
    assert_eq!(console.settings(jobs).await.unwrap(), changed);
    let refused = console
        .configure(jobs, |settings| settings.with_lease(Duration::ZERO))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::Dequeue(DequeueError::TooShort { .. })),
        "{refused}"
    );
    assert_eq!(console.settings(jobs).await.unwrap(), changed);
}

async fn an_item_gets_another_priority(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    for places in [&world.items.queued, &world.items.delayed, &world.items.dead] {
        let item = &places[1].to_string();
        for priority in [-9, 9, 0] {
            let changed = valid(console.prioritize(jobs, item, priority).await.unwrap());
            assert_eq!((&*changed.action, changed.changed), ("prioritize", 1));
            let shown = valid(console.item(jobs, item).await.unwrap());
            assert_eq!(shown.priority, priority);
        }
        let refused = console.prioritize(jobs, item, 10).await.unwrap_err();
        assert!(refused.to_string().contains("out of range"));
    }
    for gone in [world.items.held[0], world.items.done[0]] {
        let gone = gone.to_string();
        let refused = console.prioritize(jobs, &gone, 1).await.unwrap_err();
        assert!(matches!(refused, Error::Missing { .. }), "{refused}");
    }
    let last = world.items.queued.last().unwrap().to_string();
    console.prioritize(jobs, &last, 1).await.unwrap();
    let listed = console.items(jobs, "queued", None, 10).await.unwrap();
    assert_eq!(listed.items[0].item, last);
}

async fn a_dedupe_id_is_released_by_its_text_or_its_digits(store: TestStore) {
    let digits = format!("0x{}", hex(RETAINED.as_bytes()));
    for id in [RETAINED, &digits] {
        let world = World::new(&store).await;
        let console = world.console();
        let jobs = &world.name("jobs");
        let done = &world.items.done[0].to_string();
        let item = valid(console.item(jobs, done).await.unwrap());
        assert_eq!(item.dedupe.as_deref(), Some(RETAINED));
        let released = valid(console.release_dedupe(jobs, id).await.unwrap());
        assert_eq!(&*released.action, "release-dedupe");
        for gone in [id, "another", "0x", "0xzz"] {
            let refused = console.release_dedupe(jobs, gone).await.unwrap_err();
            assert!(matches!(refused, Error::Missing { .. }), "{refused}");
            let text = refused.to_string();
            assert!(text.contains("` is not there: it is free, or"), "{text}");
        }
        let empty = console.release_dedupe(jobs, "").await.unwrap_err();
        assert!(matches!(
            empty,
            Error::Dequeue(DequeueError::DedupeId { .. })
        ));
    }
}

async fn a_schedule_of_a_clock_that_was_ahead_is_set_right(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    let right = valid(console.reschedule(jobs, "new year").await.unwrap());
    assert_eq!(&*right.outcome, "its next time was right");
    let gone = console.reschedule(jobs, "another").await.unwrap_err();
    assert!(matches!(gone, Error::Missing { .. }), "{gone}");
    let text = "schedule `another` is not there: `console schedules` lists those that there are";
    assert_eq!(gone.to_string(), text);
    // A process whose clock is ten years ahead schedules it anew.
    world.schedule_ahead("new year").await;
    let listed = valid(console.schedules(jobs, None, None, 1).await.unwrap());
    let before = listed.schedules[0].clone();
    assert!(before.expected.is_some(), "{before:?}");
    let changed = valid(console.reschedule(jobs, "new year").await.unwrap());
    assert_eq!(&*changed.outcome, "it fires at its next time");
    let listed = console.schedules(jobs, None, None, 1).await.unwrap();
    let after = &listed.schedules[0];
    assert_eq!((&after.next, &after.expected), (&before.expected, &None));
    assert_eq!(after.payload, before.payload);
}

async fn damage_is_found_and_repaired(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let jobs = &world.name("jobs");
    assert_eq!(console.audit(jobs, false).await.unwrap().findings, []);
    // A counter that is off, and a heartbeat of no session.
    let counters = world.rows(&world.jobs.subspace().subspace(&"c")).await;
    let dead = counters
        .iter()
        .find(|row| row.value() == 3_u64.to_le_bytes());
    world.set(dead.unwrap().key(), &9_u64.to_le_bytes()).await;
    let kinds = |audit: console::report::Audit| {
        let kinds = audit.findings.into_iter().map(|finding| finding.kind);
        kinds.collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let audit = valid(console.audit(jobs, false).await.unwrap());
        assert!(!audit.repaired);
        assert!(
            audit.findings[0].detail.contains("there are 3"),
            "{audit:?}"
        );
        assert_eq!(kinds(audit), ["counter-off"]);
    }
    let repaired = valid(console.audit(jobs, true).await.unwrap());
    assert!(repaired.repaired);
    assert_eq!(kinds(repaired), ["counter-off"]);
    assert_eq!(console.audit(jobs, false).await.unwrap().findings, []);
    assert_eq!(state(&console, jobs).await.dead, 3);
}

async fn what_was_set_aside_is_redriven_and_purged(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let counts = &world.name("counts");
    let aside = async || {
        let page = console.set_aside(counts, None, 10).await.unwrap();
        page.set_aside
    };
    let one = aside().await.remove(0);
    let change = console.change(counts, Action::Redrive, &one.id).await;
    assert_eq!(valid(change.unwrap()).changed, 1);
    assert_eq!(aside().await, []);
    let found = console.combine_key(counts, "big", None).await.unwrap();
    assert_eq!(found.pending.len(), 1);
    for action in [Action::Redrive, Action::Purge] {
        let refused = console.change(counts, action, &one.id).await;
        assert!(matches!(refused, Err(Error::Missing { .. })));
    }
    // It is as it was, and is set aside again.
    let queue = world
        .open_counts("counts", export_queue::combine::Sum)
        .await;
    world.combine(&queue).await;
    let again = aside().await.remove(0);
    assert_eq!((&again.key, &again.update), (&one.key, &one.update));
    console
        .change(counts, Action::Purge, &again.id)
        .await
        .unwrap();
    assert_eq!(aside().await, []);
    let refused = console.change(counts, Action::Purge, "7").await;
    assert!(matches!(refused, Err(Error::Malformed { .. })));
    for action in [Action::Cancel, Action::Expedite] {
        let refused = console.change(counts, action, &one.id).await;
        assert!(matches!(refused, Err(Error::WrongRecipe { .. })));
    }
}

async fn dead_letters_of_a_subscription_are_purged(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let events = &world.name("events");
    let letters = console.letters(events, "mirror", None, 10).await.unwrap();
    let [first, second] = &letters.items[..] else {
        panic!("{letters:?}");
    };
    // Another subscription does not have it.
    let refused = console.purge_letter(events, "slow", &first.item).await;
    assert!(matches!(refused, Err(Error::Missing { .. })));
    let change = console.purge_letter(events, "mirror", &first.item).await;
    assert_eq!(valid(change.unwrap()).changed, 1);
    let refused = console.purge_letter(events, "mirror", &first.item).await;
    assert!(matches!(refused, Err(Error::Missing { .. })));
    let left = console.letters(events, "mirror", None, 10).await.unwrap();
    assert_eq!(&left.items, std::slice::from_ref(second));
    let refused = console.purge_letter(events, "none", &second.item).await;
    assert!(matches!(refused, Err(Error::Missing { .. })));
    let refused = console.purge_letter(events, "mirror", "7").await;
    assert!(matches!(refused, Err(Error::Malformed { .. })));
}

async fn a_subscription_is_paused_and_resumed(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let events = &world.name("events");
    for paused in [true, false] {
        let change = console.set_subscription_paused(events, "slow", paused);
        valid(change.await.unwrap());
        let QueueState::ExportQueue(state) = console.queue(events).await.unwrap().state else {
            panic!("not an export queue");
        };
        let are_paused = state.subscriptions.iter().map(|one| one.paused);
        assert!(are_paused.eq([false, paused]));
    }
    let refused = console.set_subscription_paused(events, "none", true).await;
    assert!(matches!(refused, Err(Error::Missing { .. })));
}

async fn what_a_recipe_does_not_have_is_not_changed(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let all = Filter::default();
    let jobs = &world.name("jobs");
    let letters = console.select(jobs, PlaceKind::Dead, &all).await.unwrap();
    let before = world.written().await;
    for queue in ["mail", "events", "counts"] {
        let name = &world.name(queue);
        let wrong = [
            console.change(name, Action::Cancel, "00").await.map(drop),
            console
                .change_all(name, Action::Purge, &letters, |_| {})
                .await
                .map(drop),
            console.select(name, PlaceKind::Dead, &all).await.map(drop),
            console.set_paused(name, true).await.map(drop),
            console.configure(name, |settings| settings).await.map(drop),
            console.release_dedupe(name, RETAINED).await.map(drop),
            console.prioritize(name, "00", 1).await.map(drop),
            console.reschedule(name, "new year").await.map(drop),
            console.audit(name, true).await.map(drop),
        ];
        for refused in wrong {
            assert!(
                matches!(refused, Err(Error::WrongRecipe { .. })),
                "{queue}: {refused:?}"
            );
        }
    }
    let jobs = &world.name("jobs");
    let refused = console.purge_letter(jobs, "mirror", "00").await;
    assert!(matches!(refused, Err(Error::WrongRecipe { .. })));
    // Nor are items of another queue, or of none.
    let foreign = &console
        .items(&world.name("orders"), "queued", None, 1)
        .await
        .unwrap()
        .items[0]
        .item;
    for reference in [&**foreign, "", "00", &hex(&[0; 40])] {
        for action in Action::ALL {
            let refused = console.change(jobs, action, reference).await.unwrap_err();
            let is_refused = matches!(refused, Error::Dequeue(_) | Error::Malformed { .. });
            assert!(is_refused, "{refused}");
        }
    }
    for queue in ["newer", "sealed"] {
        let refused = console.set_paused(&world.name(queue), true).await;
        assert!(matches!(refused, Err(Error::Unreadable { .. })));
    }
    assert_queues_unchanged(&world, &before, &world.written().await);
}
