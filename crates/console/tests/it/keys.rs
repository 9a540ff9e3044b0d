//! Looking at keys: those of combine queues, what is kept of entries and updates, and keys of the store.

use std::collections::BTreeSet;

use crate::common::program::Filled;
use crate::common::{Counts, Update, World, hex, valid};
use conformance::stores::TestStore;
use console::Combiner;
use console::report::Key;
use export_queue::combine::{LastWriter, Max, Min};
use export_queue::keyspace::Subspace;
use export_queue::keyspace::names::queue_name;
use export_queue::keyspace::tuple::Versionstamp;
use export_queue::microqueue::blocks::WHOLE_BLOCK;
use serde_json::{Value, json};

conformance::on_every_store!(threads:
    a_key_of_a_combine_queue_has_a_value_for_each_combiner,
    what_is_set_aside_and_dead_letters_of_exports_are_listed_page_by_page,
    a_block_says_how_much_of_it_was_folded_or_exported,
    keys_have_the_queue_and_the_part_that_they_belong_to,
    rows_of_lanes_and_batches_say_what_they_are,
    the_value_of_a_key_is_decoded_where_an_application_chose_it,
);

async fn a_key_of_a_combine_queue_has_a_value_for_each_combiner(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let value = |payload: Option<console::report::Payload>| payload.and_then(|one| one.value);
    // The key, the combiner; the settled value, the exact one, and whether that is known.
    let counts = world.name("counts");
    for (key, combiner, settled, exact, pending) in [
        ("ada", Some(Combiner::Sum), Some(3), Some(12), 2),
        ("ada", None, Some(3), None, 2),
        ("eve", Some(Combiner::Sum), None, Some(6), 1),
        ("big", None, Some(i64::MAX), Some(i64::MAX), 0),
        ("none", None, None, None, 0),
    ] {
        let is_known = combiner.is_some() || pending == 0;
        let found = valid(console.combine_key(&counts, key, combiner).await.unwrap());
        assert_eq!(found.key.value, Some(json!(key)));
        assert_eq!(value(found.settled), settled.map(Value::from), "{key}");
        assert_eq!(value(found.combined), settled.map(Value::from), "{key}");
        assert_eq!(value(found.exact), exact.map(Value::from), "{key}");
        assert_eq!(found.exact_known, is_known, "{key}");
        assert_eq!((found.pending.len(), found.has_more), (pending, false));
    }
    // What the library makes of the same updates is what the console says.
    let least = world.open_counts("least", Min).await;
    let most = world.open_counts("most", Max).await;
    for (name, combiner, queue) in [
        ("least", Combiner::Min, least),
        ("most", Combiner::Max, most),
    ] {
        assert_exact(&world, name, combiner, &queue, [5, 7, 4, 9, 6]).await;
    }
    let last = world.open_counts("last", LastWriter).await;
    for updates in [
        [1, 2, 3, 4, 5].map(Some),
        [Some(1), Some(2), None, Some(3), None],
    ] {
        assert_exact(&world, "last", Combiner::LastWriter, &last, updates).await;
    }
}

/// Panics if the exact value of a key is not that of the library.
async fn assert_exact<U: Update + Copy>(
    world: &World,
    name: &str,
    combiner: Combiner,
    queue: &Counts<U>,
    updates: [U; 5],
) {
    let updates = updates.map(|update| ("a", update));
    world.add(queue, &updates[..2]).await;
    world.combine(queue).await;
    world.add(queue, &updates[2..]).await;
    let found = valid(
        world
            .console()
            .combine_key(&world.name(name), "a", Some(combiner))
            .await
            .unwrap(),
    );
    let key = &"a".to_owned();
    let exact = world
        .runner
        .run(|tr| async move { queue.exact(&tr, key, &Default::default()).await })
        .await
        .unwrap();
    let value = found.exact.and_then(|payload| payload.value);
    assert_eq!(value, exact.map(Value::from), "{name}");
    assert_eq!(found.pending.len(), 3);
}

async fn what_is_set_aside_and_dead_letters_of_exports_are_listed_page_by_page(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    let counts = &world.name("counts");
    let aside = valid(console.set_aside(counts, None, 10).await.unwrap());
    let [one] = &aside.set_aside[..] else {
        panic!("{aside:?}");
    };
    assert_eq!((&*one.kind, &aside.next), ("update", &None));
    let reason = &one.failure.as_ref().unwrap().reason;
    assert!(reason.contains("the sum fits its type"), "{reason}");
    assert_eq!(one.key.as_ref().unwrap().value, Some(json!("big")));
    assert_eq!(one.update.as_ref().unwrap().value, Some(json!(1)));
    let page = valid(console.set_aside(counts, None, 1).await.unwrap());
    assert_eq!((page.set_aside.len(), page.next), (1, None));
    let rest = console.set_aside(counts, Some(&one.id), 1).await.unwrap();
    assert_eq!((rest.set_aside.len(), rest.next), (0, None));

    let events = &world.name("events");
    let letters = async |after: Option<&str>, limit| {
        let letters = console.letters(events, "mirror", after, limit).await;
        valid(letters.unwrap())
    };
    let all = letters(None, 10).await;
    assert_eq!((all.items.len(), &all.next, all.count), (2, &None, None));
    for letter in &all.items {
        assert_eq!((letter.place_name(), letter.attempts), ("dead", 1));
        assert_eq!(letter.failure.as_ref().unwrap().reason, "unlucky number");
        assert_eq!(letter.key.as_ref().unwrap().value, Some(json!("key 13")));
        assert_eq!(letter.payload.as_ref().unwrap().value, Some(json!(13)));
    }
    let first = letters(None, 1).await;
    assert_eq!(
        (&first.items[..], first.next.as_ref()),
        (&all.items[..1], Some(&all.items[0].item))
    );
    assert_eq!(
        letters(first.next.as_deref(), 10).await.items,
        &all.items[1..]
    );
    let none = console.letters(events, "slow", None, 10).await.unwrap();
    assert_eq!(none.items, []);
}

/// Adds a block that was set aside after 7 of its updates were folded, and one that became a dead letter after 3 of its
/// entries were exported.
async fn add_blocks(world: &World) {
    type DeadPlace = (Versionstamp, u64, u16);
    let counts = world.root.subspace(&"counts").subspace(&"q");
    let update = &world.rows(&counts).await[0];
    let (bucket, part, stamp, call, _): (u32, String, Versionstamp, u64, u16) =
        counts.unpack(update.key()).unwrap();
    let block = counts.pack(&(bucket, part, stamp, call, WHOLE_BLOCK));
    world.set(&block, b"\x01\x03odd\0\x07block").await;
    let mirror = world.root.subspace(&"events").subspace(&("d", "mirror"));
    let letter = &world.rows(&mirror).await[0];
    let (stamp, call, _): DeadPlace = mirror.unpack(letter.key()).unwrap();
    let block = mirror.pack(&(stamp, call, WHOLE_BLOCK));
    world.set(&block, b"\x01\0\0\0\x01\x03odd\0\x03block").await;
}

async fn a_block_says_how_much_of_it_was_folded_or_exported(store: TestStore) {
    let world = World::new(&store).await;
    add_blocks(&world).await;
    let console = world.console();
    let aside = valid(
        console
            .set_aside(&world.name("counts"), None, 10)
            .await
            .unwrap(),
    )
    .set_aside;
    let folded = aside.iter().map(|one| (&*one.kind, one.folded));
    assert_eq!(folded.collect::<Vec<_>>(), [("update", 0), ("block", 7)]);
    let letters = valid(
        console
            .letters(&world.name("events"), "mirror", None, 10)
            .await
            .unwrap(),
    )
    .items;
    let exported: Vec<_> = letters.iter().map(|letter| letter.exported).collect();
    assert_eq!(exported.iter().max(), Some(&3), "{exported:?}");
    assert_eq!(exported.iter().filter(|count| **count == 0).count(), 2);
    let whole = serde_json::to_value(&aside[0]).unwrap();
    assert!(whole.get("folded").is_none(), "{whole}");
}

#[test]
fn the_tables_show_how_much_of_a_block_was_folded_or_exported() {
    let store = Filled::with(|world| Box::pin(add_blocks(world)));
    let aside = store.run(&["combine", "counts", "--set-aside"]);
    assert!(aside.out.contains("block, 7 folded"), "{aside:?}");
    let letters = store.run(&["list", "events", "--subscription", "mirror"]);
    assert!(
        letters.out.contains("odd (3 entries were exported)"),
        "{letters:?}"
    );
}

async fn keys_have_the_queue_and_the_part_that_they_belong_to(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    // Each key is of one of these parts, and each of these parts has a key.
    let parts: [(&str, &[&str]); 7] = [
        (
            "counts",
            &[
                "settings",
                "wake stamp",
                "block of updates",
                "reported value",
                "state of the passes",
                "set aside",
            ],
        ),
        (
            "events",
            &[
                "settings",
                "wake stamp",
                "block of entries",
                "position",
                "dead letter",
            ],
        ),
        (
            "jobs",
            &[
                "settings",
                "wake stamp",
                "counter",
                "queued item",
                "delayed item",
                "held item",
                "dead letter",
                "done item",
                "time until which a done item is kept",
                "pointer to an item",
                "retained dedupe id",
                "schedule",
                "schedule of an owner",
                "time of a schedule",
                "session",
                "heartbeat",
                "cancel stamp",
            ],
        ),
        ("mail", &["item"]),
        ("newer", &["settings"]),
        (
            "orders",
            &["settings", "pause", "counter", "queued item", "wake stamp"],
        ),
        ("sealed", &[]),
    ];
    for (queue, parts) in parts {
        let name = world.name(queue);
        let rows = world.rows(&world.root.subspace(&queue)).await;
        let mut keys = Vec::new();
        let mut after = None;
        loop {
            let page = valid(
                console
                    .keys(Some(&name), after.as_deref(), 4)
                    .await
                    .unwrap(),
            );
            assert!(page.keys.len() <= 4);
            keys.extend(page.keys);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let digits: Vec<_> = keys.iter().map(|key| key.hex.clone()).collect();
        let expected: Vec<_> = rows.iter().map(|row| hex(row.key())).collect();
        assert_eq!(digits, expected, "{queue}");
        let mut found = BTreeSet::new();
        for key in &keys {
            assert_eq!(key.queue.as_deref(), Some(&*name));
            assert!(key.part.is_some() || queue == "sealed", "{key:?}");
            assert_eq!(key.value, None);
            found.extend(key.part.clone());
            let shown: Key = valid(console.key(&key.name).await.unwrap());
            assert_eq!(
                (&shown.hex, &shown.tuple, shown.value_bytes),
                (&key.hex, &key.tuple, key.value_bytes)
            );
            assert!(shown.value.is_some());
        }
        let missing: Vec<_> = parts.iter().filter(|part| !found.remove(**part)).collect();
        assert!(
            missing.is_empty() && found.is_empty(),
            "{queue}: {missing:?} {found:?}"
        );
    }
}

async fn rows_of_lanes_and_batches_say_what_they_are(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    // No session of this queue changes them.
    let orders = world.root.subspace(&"orders");
    let lane = orders.subspace(&("l", &b"a"[..]));
    let defaults = orders.subspace(&("l", &b""[..]));
    let batch = orders.subspace(&("B", &[7_u8; 16][..]));
    let stamp = Versionstamp::complete([1; 10], 0);
    for (key, part) in [
        (lane.pack(&(10, stamp.clone(), 0)), "queued item in a lane"),
        (lane.pack(&"a"), "slots in use"),
        (lane.pack(&"k"), "limits of a group"),
        (lane.pack(&"v"), "tokens of a group"),
        (lane.pack(&"p"), "version until which a group is parked"),
        (orders.pack(&("hp", 7, &b"a"[..])), "parked group"),
        (orders.pack(&("t", 7, stamp, 0)), "delayed item"),
        (lane.pack(&"f"), "gate of a group"),
        (defaults.pack(&"k"), "limits of a group"),
        (defaults.pack(&"m"), "mark of changed default limits"),
        (orders.pack(&("hs", 10, 7, &b"a"[..])), "notice of a lane"),
        (batch.bytes().to_vec(), "batch"),
        (batch.pack(&"o"), "mark of an open batch"),
        (batch.pack(&"p"), "pending members of a batch"),
        (batch.pack(&"c"), "completed members of a batch"),
        (batch.pack(&"d"), "dead letters of a batch"),
        (batch.pack(&"x"), "cancelled members of a batch"),
        (orders.pack(&("Bs", &[7_u8; 16][..])), "notice of a batch"),
    ] {
        world.set(&key, b"value").await;
        let name = queue_name(&Subspace::from_bytes(&key[..]));
        let shown: Key = valid(console.key(&name).await.unwrap());
        assert_eq!(shown.part.as_deref(), Some(part), "{name}");
    }
}

async fn the_value_of_a_key_is_decoded_where_an_application_chose_it(store: TestStore) {
    let world = World::new(&store).await;
    let console = world.console();
    for (queue, part, values) in [
        (
            "mail",
            "item",
            &[json!(["to 1", 1]), json!(["to 2", 2]), json!(["to 3", 3])][..],
        ),
        ("counts", "reported value", &[json!(3), json!(i64::MAX)]),
    ] {
        let keys = console.keys(Some(&world.name(queue)), None, 100).await;
        let mut found = Vec::new();
        for key in keys.unwrap().keys {
            if key.part.as_deref() == Some(part) {
                let value = console.key(&key.name).await.unwrap().value.unwrap();
                found.push(value.value.unwrap());
            }
        }
        found.sort_by_key(ToString::to_string);
        assert_eq!(found, values);
    }
    // A record of the recipe's own.
    let settings = console.key(&world.name("jobs/m")).await.unwrap();
    let value = settings.value.unwrap();
    assert_eq!((&*value.codec, value.value), ("record", None));
    assert_eq!(value.hex.unwrap().len(), 2 * value.bytes);
    // In the subspace of a microqueue, but none of its items.
    let mail = world.root.subspace(&"mail");
    world.set(&mail.pack(&"foreign"), b"value").await;
    let shown = valid(console.key(&world.name("mail/foreign")).await.unwrap());
    assert_eq!((shown.queue, shown.part), (Some(world.name("mail")), None));
    let value = shown.value.unwrap();
    assert_eq!(value.value, Some(json!("value")));
    // Not a tuple, and no queue's.
    let key = [world.root.bytes(), b"\xfe"].concat();
    world.set(&key, b"value").await;
    let name = format!("raw:{}", hex(&key));
    let shown = valid(console.key(&name).await.unwrap());
    assert_eq!(
        (&shown.name, shown.tuple, shown.queue, shown.part),
        (&name, None, None, None)
    );
}
