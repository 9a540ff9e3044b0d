//! Rows that must agree with other rows: each damage is found alone, and repaired.

use std::time::Duration;

use conformance::stores::TestStore;
use futures::{StreamExt, stream};
use hc_dequeue::session::SessionId;
use hc_dequeue::{
    Audit, Cancelled, Consumer, Delivery, Enqueue, Error, Finding, ItemRef, OnRepeat, Schedule,
    Settings,
};
use keyspace::{Bytes, Subspace, Transaction, Tx};

use crate::common::{AT_ONCE, LONG, World};

conformance::on_every_store!(
    a_queue_with_something_of_each_kind_is_clean,
    an_item_that_has_lost_its_dedupe_id_to_another_is_clean,
    an_item_that_is_kept_for_another_time_than_the_settings_say_is_clean,
    a_pointer_is_found_and_repaired,
    an_entry_of_items_that_are_done_is_found_and_repaired,
    a_row_of_a_dedupe_id_is_found_and_repaired_wherever_its_item_is,
    the_rows_of_a_dedupe_id_of_no_item_are_found_and_removed,
    a_dedupe_id_of_a_delayed_item_without_a_pointer_stays,
    a_dedupe_id_of_an_item_whose_session_is_gone_stays,
    a_cancel_stamp_of_no_session_is_found_and_removed,
    an_entry_of_schedules_is_found_and_repaired,
    an_entry_of_an_owner_of_schedules_is_found_and_repaired,
    a_row_that_does_not_decode_is_found_and_stays,
    more_than_an_audit_lists_is_repaired_by_several,
);

/// A wall time in milliseconds that is not reached during a test: no session sweeps rows that are kept until then.
const LATER: u64 = 1 << 45;

/// A queue with a deduplicated item in each place, a done item, and a schedule.
struct Full {
    world: World,
    queued: ItemRef,
    delayed: ItemRef,
    dead: ItemRef,
    held: Delivery<u64>,
    done: ItemRef,
    _consumer: Consumer<u64>,
}

/// The dedupe id of each item is the name of its place.
async fn full(store: &TestStore) -> Full {
    // No heartbeat comes while a test changes rows.
    let settings = Settings::new()
        .with_lease(LONG)
        .with_keep_done(LONG)
        .with_dedupe_retention(LONG);
    let world = World::new(store, settings).await;
    let consumer = world.consumer().await;
    let named = |name: &'static str| Enqueue::new().with_dedupe(name);
    let done = world.enqueue_ref(1, &named("done")).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.complete().await.unwrap();
    let dead = world.enqueue_ref(2, &named("dead")).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    world.enqueue_ref(3, &named("held")).await;
    let held = consumer.dequeue().await.unwrap().unwrap();
    let queued = world.enqueue_ref(4, &named("queued")).await;
    let delayed = world
        .enqueue_ref(5, &named("delayed").with_delay(LONG))
        .await;
    world.schedule("nightly", "@daily").await;
    Full {
        world,
        queued,
        delayed,
        dead,
        held,
        done,
        _consumer: consumer,
    }
}

impl World {
    pub(crate) async fn schedule(&self, name: &str, cron: &str) {
        let queue = &self.queue;
        let schedule = &Schedule::new(cron);
        let write = |tr| async move { queue.schedule(&tr, name, schedule, &7).await.map(drop) };
        self.runner.run(write).await.unwrap();
    }

    pub(crate) async fn audit(&self) -> Audit {
        self.queue.audit(&self.runner).await.unwrap()
    }

    /// Writes some keys, or clears them.
    async fn write_all(&self, rows: &[(Vec<u8>, Option<Vec<u8>>)]) {
        for (key, value) in rows {
            self.write(key, value.as_deref()).await;
        }
    }

    /// Returns the key of the only row of a part of the queue.
    async fn only(&self, part: &str) -> Vec<u8> {
        let rows = self.rows(part).await;
        assert_eq!(rows.len(), 1, "{part}");
        rows[0].key().to_vec()
    }

    fn dedupe_rows(&self, dedupe: &str) -> [Vec<u8>; 2] {
        ["k", "n"].map(|part| self.key(part).pack(&dedupe.as_bytes()))
    }
}

/// Returns the id of an item in the form that rows contain.
fn id_bytes(item: &ItemRef) -> Vec<u8> {
    item.to_bytes()[5..].to_vec()
}

async fn a_queue_with_something_of_each_kind_is_clean(store: TestStore) {
    let full = full(&store).await;
    for (part, count) in [
        ("o", 1),
        ("x", 1),
        ("z", 1),
        ("k", 4),
        ("n", 4),
        ("e", 1),
        ("f", 1),
    ] {
        assert_eq!(full.world.count(part).await, count, "{part}");
    }
    full.world.check().await;
}

async fn an_item_that_has_lost_its_dedupe_id_to_another_is_clean(store: TestStore) {
    let full = full(&store).await;
    let Full { world, held, .. } = &full;
    let again = Enqueue::new()
        .with_dedupe("held")
        .with_on_repeat(OnRepeat::Replace);
    let later = world.enqueue_ref(9, &again).await;
    assert_ne!(later.id(), held.id());
    world.check().await;
    assert_eq!(world.cancel(&later).await, Cancelled::Removed);
    assert_eq!(world.count("k").await, 3);
    world.check().await;
    held.release().await.unwrap();
    world.check().await;
}

async fn an_item_that_is_kept_for_another_time_than_the_settings_say_is_clean(store: TestStore) {
    let full = full(&store).await;
    let Full { world, .. } = &full;
    let queue = &world.queue;
    for keep_done in [Duration::ZERO, 2 * LONG] {
        let settings = &Settings::new().with_keep_done(keep_done);
        let configure = |tr: Tx<_>| async move { queue.configure(&tr, settings).await };
        world.runner.run(configure).await.unwrap();
        world.check().await;
        assert_eq!(world.count("z").await, 1);
    }
}

async fn a_pointer_is_found_and_repaired(store: TestStore) {
    for value in [None, Some(vec![0; 9]), Some(vec![1, 4]), Some(vec![7; 3])] {
        let full = full(&store).await;
        let Full { world, delayed, .. } = &full;
        let pointer = world.rows("o").await.remove(0);
        let finding = Finding::NoPointer {
            item: *delayed,
            key: world.only("t").await.into(),
        };
        world.write(pointer.key(), value.as_deref()).await;
        world.finds_and_repairs(&[finding]).await;
        assert_eq!(world.rows("o").await, [pointer]);
    }
    let full = full(&store).await;
    let Full { world, queued, .. } = &full;
    let stray = queued.id().key_in(&world.key("o"));
    world.write(&stray, Some(&[0; 9])).await;
    let finding = Finding::StrayPointer { item: *queued };
    world.finds_and_repairs(&[finding]).await;
    assert_eq!(world.count("o").await, 1);
}

async fn an_entry_of_items_that_are_done_is_found_and_repaired(store: TestStore) {
    let full = full(&store).await;
    let Full {
        world,
        done,
        queued,
        ..
    } = &full;
    let entry = world.only("z").await;
    let of_entry: (u64, keyspace::tuple::Versionstamp, u64) =
        world.key("z").unpack(&entry).unwrap();
    world.write(&entry, None).await;
    let finding = Finding::NoKeepTime {
        item: *done,
        until_millis: of_entry.0,
    };
    world.finds_and_repairs(&[finding]).await;
    assert_eq!(world.only("z").await, entry);

    // One entry of an item that is not done, and one of the done item under another time.
    for item in [*queued, *done] {
        let stray = item.id().key_in(&world.key("z").subspace(&LATER));
        world.write(&stray, Some(b"")).await;
        let until_millis = LATER;
        let finding = Finding::StrayKeepTime { item, until_millis };
        world.finds_and_repairs(&[finding]).await;
        assert_eq!(world.only("z").await, entry);
    }

    world.write(&world.only("x").await, None).await;
    let finding = Finding::StrayKeepTime {
        item: *done,
        until_millis: of_entry.0,
    };
    world.finds_and_repairs(&[finding]).await;
    assert_eq!(world.count("z").await, 0);
}

async fn a_row_of_a_dedupe_id_is_found_and_repaired_wherever_its_item_is(store: TestStore) {
    for place in ["queued", "delayed", "held", "granted", "dead"] {
        for damage in 0..5 {
            let full = full(&store).await;
            let item = match place {
                "queued" => full.queued,
                "delayed" => full.delayed,
                "dead" => full.dead,
                _ => full.held.item_ref(),
            };
            let dedupe = if place == "granted" { "held" } else { place };
            let world = &full.world;
            if place == "granted" {
                grant_again(&full).await;
            }
            let before = [world.rows("k").await, world.rows("n").await];
            let [token, named] = world.dedupe_rows(dedupe);
            let rows = match damage {
                0 => vec![(token, None)],
                1 => vec![(named, None)],
                2 => vec![(token, None), (named, None)],
                3 => vec![(token, Some(vec![7; 16]))],
                _ => vec![(named, Some(id_bytes(&full.done)))],
            };
            world.write_all(&rows).await;
            let dedupe = Bytes::from(dedupe);
            world
                .finds_and_repairs(&[Finding::NoDedupe { item, dedupe }])
                .await;
            assert_eq!([world.rows("k").await, world.rows("n").await], before);
        }
    }
}

/// Turns the held item into one that is granted and not collected.
async fn grant_again(full: &Full) {
    type Held = (Vec<u8>, keyspace::tuple::Versionstamp, u64);
    let world = &full.world;
    let row = world.rows("h").await.remove(0);
    let (session, stamp, call): Held = world.key("h").unpack(row.key()).unwrap();
    let grant = world.key("g").pack(&(session.as_slice(), stamp, call, 0));
    let id = id_bytes(&full.held.item_ref());
    // The record lacks the format byte of microqueue.
    let part = [&[1, 0, 0, 0, 1][..], &id, &row.value()[1..]].concat();
    world
        .write_all(&[(row.key().to_vec(), None), (grant, Some(part))])
        .await;
}

async fn the_rows_of_a_dedupe_id_of_no_item_are_found_and_removed(store: TestStore) {
    let full = full(&store).await;
    let world = &full.world;
    let [token, named] = world.dedupe_rows("stray");
    let of = |item: ItemRef| (named.clone(), Some(id_bytes(&item)));
    let has_token = (token.clone(), Some(vec![7; 16]));
    let rows_and_named = [
        (vec![has_token.clone()], None),
        (vec![of(full.queued)], Some(full.queued)),
        (vec![has_token.clone(), of(full.queued)], Some(full.queued)),
        (vec![has_token.clone(), of(full.done)], Some(full.done)),
        (vec![has_token, (named.clone(), Some(vec![7]))], None),
    ];
    for (rows, named) in rows_and_named {
        world.write_all(&rows).await;
        let finding = Finding::StrayDedupe {
            dedupe: Bytes::from("stray"),
            named,
        };
        world.finds_and_repairs(&[finding]).await;
        assert_eq!((world.count("k").await, world.count("n").await), (4, 4));
    }
}

async fn a_dedupe_id_of_a_delayed_item_without_a_pointer_stays(store: TestStore) {
    let full = full(&store).await;
    let Full { world, delayed, .. } = &full;
    world.write(&world.only("o").await, None).await;
    let [finding] = &world.audit().await.findings[..] else {
        panic!("one finding");
    };
    assert!(matches!(finding, Finding::NoPointer { item, .. } if item == delayed));
    world.finds_and_repairs(std::slice::from_ref(finding)).await;
    assert_eq!(world.count("k").await, 4);
}

async fn a_dedupe_id_of_an_item_whose_session_is_gone_stays(store: TestStore) {
    let full = full(&store).await;
    let Full { world, held, .. } = &full;
    assert_eq!(world.cancel(&held.item_ref()).await, Cancelled::Requested);
    let state = world.only("s").await;
    let bytes: Vec<u8> = world.key("s").unpack(&state).unwrap();
    let session = SessionId(bytes.try_into().unwrap());
    world.write(&state, None).await;
    world
        .finds_and_repairs(&[Finding::NoSession { session }])
        .await;
    // The item was cancelled, and has left the queue together with its id.
    assert_eq!((world.count("k").await, world.count("a").await), (3, 0));
}

async fn a_cancel_stamp_of_no_session_is_found_and_removed(store: TestStore) {
    let full = full(&store).await;
    let Full { world, held, .. } = &full;
    assert_eq!(world.cancel(&held.item_ref()).await, Cancelled::Requested);
    world.check().await;
    let session = SessionId([9; 16]);
    let stamp = world.key("a").pack(&session.0.as_slice());
    world.write(&stamp, Some(&[0; 10])).await;
    world
        .finds_and_repairs(&[Finding::StrayCancel { session }])
        .await;
    assert_eq!(world.count("a").await, 1);
}

async fn an_entry_of_schedules_is_found_and_repaired(store: TestStore) {
    let full = full(&store).await;
    let Full { world, .. } = &full;
    let entry = world.only("f").await;
    let (time_millis, _): (u64, String) = world.key("f").unpack(&entry).unwrap();
    let schedule = "nightly".to_owned();
    world.write(&entry, None).await;
    let finding = Finding::NoFireTime {
        schedule: schedule.clone(),
        time_millis,
    };
    world.finds_and_repairs(&[finding]).await;
    assert_eq!(world.only("f").await, entry);

    let stray = world.key("f").pack(&(time_millis + 1, "nightly"));
    world.write(&stray, Some(b"")).await;
    let finding = |time_millis| Finding::StrayFireTime {
        schedule: schedule.clone(),
        time_millis,
    };
    world.finds_and_repairs(&[finding(time_millis + 1)]).await;
    assert_eq!(world.only("f").await, entry);

    world.write(&world.only("e").await, None).await;
    world.finds_and_repairs(&[finding(time_millis)]).await;
    assert_eq!(world.count("f").await, 0);
}

async fn an_entry_of_an_owner_of_schedules_is_found_and_repaired(store: TestStore) {
    let full = full(&store).await;
    let Full { world, .. } = &full;
    let queue = &world.queue;
    let own = async |tr| queue.set_schedule_owner(&tr, "nightly", Some("shop")).await;
    assert!(world.runner.run(own).await.unwrap());
    let entry = world.only("eo").await;
    let names = |schedule: &str, owner: &str| (schedule.to_owned(), owner.to_owned());
    world.write(&entry, None).await;
    let (schedule, owner) = names("nightly", "shop");
    world
        .finds_and_repairs(&[Finding::NoOwnedSchedule { schedule, owner }])
        .await;
    assert_eq!(world.only("eo").await, entry);

    // A schedule that does not exist, and one of another owner.
    let strays = [names("nightly", "billing"), names("weekly", "shop")];
    for (schedule, owner) in &strays {
        let stray = world.key("eo").pack(&(owner, schedule));
        world.write(&stray, Some(b"")).await;
    }
    let findings = strays.map(|(schedule, owner)| Finding::StrayOwnedSchedule { schedule, owner });
    world.finds_and_repairs(&findings).await;
    assert_eq!(world.only("eo").await, entry);
}

async fn a_row_that_does_not_decode_is_found_and_stays(store: TestStore) {
    let parts = [
        "t", "o", "d", "x", "z", "k", "n", "y", "a", "e", "f", "i", "h", "g", "s", "b", "r", "c",
    ];
    let cases = parts
        .into_iter()
        .flat_map(|part| [(part, true), (part, false)]);
    stream::iter(cases)
        .for_each_concurrent(AT_ONCE, |(part, names_no_record)| {
            is_found_and_stays(&store, part, names_no_record)
        })
        .await;
}

async fn is_found_and_stays(store: &TestStore, part: &str, names_no_record: bool) {
    let full = full(store).await;
    let Full { world, queued, .. } = &full;
    if part == "g" {
        grant_again(&full).await;
    }
    let key = match part {
        // The values in these parts have no known format.
        "o" | "z" | "k" | "n" | "a" | "f" => world.key(part).pack(&"no such key"),
        "c" => world.key(part).pack(&"dead"),
        "r" => queued.id().key_in(&world.key(part)),
        _ if names_no_record => world.key(part).pack(&"no such key"),
        _ => world.only(part).await,
    };
    world.write(&key, Some(b"\xff")).await;
    let key = Bytes::from(key);
    let undecodable = Finding::Undecodable { key };
    for _ in 0..2 {
        let audit = world.queue.audit(&world.runner).await.unwrap();
        let mut findings = audit.findings;
        // A counter counts rows.
        findings.retain(|finding| !matches!(finding, Finding::CounterOff { .. }));
        assert_eq!(findings, std::slice::from_ref(&undecodable), "{part}");
        let _ = world.queue.repair(&world.runner).await.unwrap();
    }
}

async fn more_than_an_audit_lists_is_repaired_by_several(store: TestStore) {
    let full = full(&store).await;
    let Full { world, queued, .. } = &full;
    let index: &Subspace = &world.key("z");
    let id = queued.id();
    let write = |tr: Tx<_>| async move {
        for time in LATER..LATER + 1_010 {
            tr.set(&id.key_in(&index.subspace(&time)), b"");
        }
        Ok::<_, Error>(())
    };
    world.runner.run(write).await.unwrap();
    let audit = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(audit.findings.len(), 1_001);
    assert_eq!(audit.findings.last(), Some(&Finding::More { part: "z" }));
    let audit = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(audit.findings.len(), 10);
    world.check().await;
}
