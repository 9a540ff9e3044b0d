//! Listings show for each record whether it decodes, and never fail because one does not.

use std::time::Duration;

use crate::common::World;
use conformance::stores::TestStore;
use hc_dequeue::microqueue::{ItemId, Listed};
use hc_dequeue::{
    Cursor, Enqueue, Error, ItemPage, ListedItem, Place, PlaceKind, Queue, Result, Settings,
};
use keyspace::codec::{Json, Raw};
use keyspace::tuple::{Versionstamp as TupleVersionstamp, pack};
use keyspace::{
    Bytes, Database, Isolation, KeyValue, OpenOptions, RangeQuery, Subspace, Transaction,
    TransactionOption, Tx, Undecodable, read_all,
};

conformance::on_every_store!(
    a_payload_that_does_not_decode_is_listed_with_its_bytes,
    a_record_of_another_format_is_listed_as_it_is,
    a_place_is_listed_page_by_page_and_damaged_records_with_the_rest,
    a_damaged_row_ends_the_listing_of_no_place,
    waiting_items_are_not_listed_after_an_enqueue_in_the_same_transaction,
    a_cursor_of_another_queue_or_place_or_of_no_listing_is_refused,
    a_tool_opens_a_queue_of_any_codec_and_creates_none,
);

type Names = Queue<String>;

/// Returns the rows in a part of the queue.
async fn rows(world: &World, part: &str) -> Vec<KeyValue> {
    let (begin, end) = world.queue.subspace().subspace(&part).range();
    let query = &RangeQuery::keys(begin, end);
    let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    world.runner.run(rows).await.unwrap()
}

/// Damages a row.
async fn set(world: &World, row: &KeyValue, value: &[u8]) {
    let set = |tr: Tx<_>| async move {
        tr.set(row.key(), value);
        Ok::<_, Error>(())
    };
    world.runner.run(set).await.unwrap();
}

/// A queue with two items, 1 and 2, after a dead letter, 0.
async fn world(store: &TestStore) -> World {
    let world = World::with_defaults(store).await;
    world.enqueue([0, 1, 2]).await;
    let consumer = world.consumer().await;
    let first = consumer.dequeue().await.unwrap().unwrap();
    first.discard("no good").await.unwrap();
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world
}

/// Lists the waiting items and the dead letters.
async fn list<T, C>(world: &World, queue: &Queue<T, C>) -> Result<(Vec<Listed<T>>, Vec<Listed<T>>)>
where
    T: std::fmt::Debug + PartialEq + Send + Sync + 'static,
    C: keyspace::codec::Codec<T>,
{
    let list = |tr| async move {
        let items = queue.list(&tr, PlaceKind::Queued, None, 10).await?;
        let letters = queue.list(&tr, PlaceKind::Dead, None, 10).await?;
        Ok::<_, Error>((items, letters))
    };
    let (items, letters) = world.runner.run(list).await?;
    let values = |page: ItemPage<T>| {
        let values = page.items.into_iter().map(|listed| Listed {
            id: listed.item.id(),
            value: listed.status.and_then(|status| status.value),
        });
        values.collect()
    };
    Ok((values(items), values(letters)))
}

#[track_caller]
fn undecodable<T: std::fmt::Debug>(listed: &Listed<T>) -> (ItemId, &Undecodable) {
    (listed.id, listed.value.as_ref().unwrap_err())
}

async fn a_payload_that_does_not_decode_is_listed_with_its_bytes(store: TestStore) {
    let world = world(&store).await;
    let (whole, whole_letters) = list(&world, &world.queue).await.unwrap();
    // Opens the same items as values of another type.
    let runner = &world.runner;
    let subspace = world.queue.subspace().clone();
    let names = Names::open(runner, subspace).await;
    let (items, letters) = list(&world, &names.unwrap()).await.unwrap();
    let item_rows = rows(&world, "i").await;
    let letter_rows = rows(&world, "d").await;
    assert_eq!((items.len(), letters.len()), (2, 1));
    for (payload, listed, whole, row) in [
        (0, &letters[0], &whole_letters[0], &letter_rows[0]),
        (1, &items[0], &whole[0], &item_rows[0]),
        (2, &items[1], &whole[1], &item_rows[1]),
    ] {
        let (id, undecodable) = undecodable(listed);
        assert_eq!(id, whole.id);
        assert_eq!(
            (&undecodable.key[..], undecodable.codec),
            (row.key(), "MessagePack")
        );
        assert_eq!(undecodable.bytes[..], [payload]);
    }
}

async fn a_record_of_another_format_is_listed_as_it_is(store: TestStore) {
    let world = world(&store).await;
    let (whole, whole_letters) = list(&world, &world.queue).await.unwrap();
    let item = &rows(&world, "i").await[0];
    let letter = &rows(&world, "d").await[0];
    // Change the format byte that follows the one of microqueue, and then that one.
    let mut newer = item.value().to_vec();
    newer[1] = 2;
    set(&world, item, &newer).await;
    set(&world, letter, b"\x07?").await;

    let (items, letters) = list(&world, &world.queue).await.unwrap();
    assert_eq!((&items[1], items.len(), letters.len()), (&whole[1], 2, 1));
    let (id, found) = undecodable(&items[0]);
    assert_eq!(
        (id, &found.key[..], &found.bytes[..]),
        (whole[0].id, item.key(), &newer[1..])
    );
    assert!(
        found.reason.contains("format 2 is newer"),
        "{}",
        found.reason
    );
    let (id, found) = undecodable(&letters[0]);
    assert_eq!((id, &found.key[..]), (whole_letters[0].id, letter.key()));
    assert_eq!(found.bytes, b"\x07?"[..]);

    // A consumer gets the other item, and this one stays.
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!(delivery.id(), items[1].id);
    delivery.release().await.unwrap();
    assert_eq!(list(&world, &world.queue).await.unwrap(), (items, letters));
}

async fn page(world: &World, place: PlaceKind, after: Option<&Cursor>) -> Result<ItemPage<u64>> {
    let queue = &world.queue;
    let page = |tr| async move { queue.list(&tr, place, after, 2).await };
    world.runner.run(page).await
}

async fn a_place_is_listed_page_by_page_and_damaged_records_with_the_rest(store: TestStore) {
    let world = World::with_defaults(&store).await;
    // Items that are enqueued later have an earlier due time.
    let mut items = Vec::new();
    for value in 0..5 {
        let delay = Duration::from_secs(3600 - value);
        let item = world
            .enqueue_ref(value, &Enqueue::new().with_delay(delay))
            .await;
        items.push(item);
    }
    items.reverse();
    let damaged = &rows(&world, "t").await[2];
    set(&world, damaged, b"\x01\x02").await;

    let mut listed = Vec::new();
    let mut after = None;
    let mut pages = 0;
    loop {
        let page = page(&world, PlaceKind::Delayed, after.as_ref())
            .await
            .unwrap();
        listed.extend(page.items);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(pages >= 3);
    let listed_items: Vec<_> = listed.iter().map(|listed| listed.item).collect();
    assert_eq!(listed_items, items);
    let undecodable = |listed: &ListedItem<_>| listed.status.is_err();
    let damage: Vec<_> = listed.iter().map(undecodable).collect();
    assert_eq!(damage, [false, false, true, false, false]);
    let first = listed[0].status.as_ref().unwrap();
    assert!(matches!(first.place, Place::Delayed { .. }));
    assert_eq!((&first.value, first.granted), (&Ok(4), None));
}

/// Returns the packed end of a row's key in a part of the queue, and the start of the row's value: before the format
/// of the record.
fn row_of(part: &str, call: u64) -> (Vec<u8>, Vec<u8>) {
    let session = &[7_u8; 16][..];
    let stamp = TupleVersionstamp::complete([1; 10], 0);
    let key = match part {
        "t" => pack(&(99_u64, stamp, call)),
        "h" => pack(&(session, stamp, call)),
        "g" => pack(&(session, stamp, call, 0)),
        _ => pack(&(stamp, call)),
    };
    let value = match part {
        // The number of parts of the grant, and the item.
        "g" => [&[1, 0, 0, 0, 1][..], &[1; 10], &call.to_be_bytes()].concat(),
        _ => vec![1],
    };
    (key, value)
}

/// A record with the payload 7. A done item also has an end.
fn record_of(part: &str) -> Vec<u8> {
    let end = [&[10, 0, 17][..], &[0; 17]].concat();
    let end = if part == "x" { end } else { Vec::new() };
    [&[1][..], &end, &[0, 7]].concat()
}

/// Lists a place row by row.
async fn list_slowly(world: &World, place: PlaceKind) -> (Vec<ListedItem<u64>>, Vec<Undecodable>) {
    let queue = &world.queue;
    let mut items = Vec::new();
    let mut strays = Vec::new();
    let mut after = None;
    for _ in 0..100 {
        let after_last = after.as_ref();
        let read = |tr| async move { queue.list(&tr, place, after_last, 1).await };
        let page = world.runner.run(read).await.unwrap();
        items.extend(page.items);
        strays.extend(page.strays);
        after = page.next;
        if after.is_none() {
            return (items, strays);
        }
    }
    panic!("the listing does not end");
}

async fn a_damaged_row_ends_the_listing_of_no_place(store: TestStore) {
    for (part, place) in [
        ("i", PlaceKind::Queued),
        ("t", PlaceKind::Delayed),
        ("g", PlaceKind::Held),
        ("h", PlaceKind::Held),
        ("d", PlaceKind::Dead),
        ("x", PlaceKind::Done),
    ] {
        let world = World::with_defaults(&store).await;
        let subspace = world.queue.subspace().subspace(&part);
        let stray = &subspace.pack(&"no such key");
        let record = record_of(part);
        let mut rows = vec![(stray.clone(), b"?".to_vec())];
        for (call, record) in [
            (1, &record[..]),
            (2, b"\xff"),
            (3, b"\x01\0\x07"),
            (4, &record),
        ] {
            let (key, value) = row_of(part, call);
            let key = [subspace.bytes(), &key].concat();
            rows.push((key, [&value, record].concat()));
        }
        let headless = [subspace.bytes(), &row_of(part, 5).0].concat();
        rows.push((headless.clone(), b"?".to_vec()));
        let rows = &rows;
        let written = Ok::<_, Error>(());
        let write = |tr: Tx<_>| {
            let written = written.clone();
            async move {
                rows.iter().for_each(|(key, value)| tr.set(key, value));
                written
            }
        };
        world.runner.run(write).await.unwrap();

        let (items, strays) = list_slowly(&world, place).await;
        let read: Vec<_> = items.iter().map(|item| item.status.is_ok()).collect();
        // A record without an end is whole, but not in the place of done items.
        let third = part != "x";
        let mut keys: Vec<_> = strays.iter().map(|stray| stray.key.to_vec()).collect();
        if part == "g" {
            // The value says which item a grant contains.
            assert_eq!(read, [true, false, third, true]);
            keys.retain(|key| *key != headless);
        } else {
            assert_eq!(read, [true, false, third, true, false], "{part}");
        }
        assert_eq!(keys, std::slice::from_ref(stray), "{part}");
        let whole = items[3].status.as_ref().unwrap();
        assert_eq!(whole.value, Ok(7), "{part}");
        let damaged = items[1].status.as_ref().unwrap_err();
        assert_eq!(damaged.key, rows[2].0, "{part}");
    }
}

async fn waiting_items_are_not_listed_after_an_enqueue_in_the_same_transaction(store: TestStore) {
    for waiting in [0, 3] {
        for sees_own_writes in [true, false] {
            let world = World::with_defaults(&store).await;
            world.enqueue(0..waiting).await;
            let tr = store.db.begin().unwrap();
            if !sees_own_writes {
                tr.set_option(TransactionOption::SnapshotRywDisable)
                    .unwrap();
            }
            // The read version is known, so that the unreadable range begins after the items.
            tr.read_version().await.unwrap();
            let queue = &world.queue;
            queue.enqueue(&tr, &9).await.unwrap();
            let refused = queue.list(&tr, PlaceKind::Queued, None, 1).await;
            assert!(matches!(refused, Err(Error::ReadAfterWrite)));
            let dead = queue.list(&tr, PlaceKind::Dead, None, 1).await.unwrap();
            assert_eq!((dead.items, dead.next), (Vec::new(), None));
        }
    }
}

async fn a_cursor_of_another_queue_or_place_or_of_no_listing_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue(0..3).await;
    let first = page(&world, PlaceKind::Queued, None).await.unwrap();
    let cursor = first.next.unwrap();
    let rest = page(&world, PlaceKind::Queued, Some(&cursor))
        .await
        .unwrap();
    assert_eq!((rest.items.len(), rest.next), (1, None));
    let refused = page(&world, PlaceKind::Dead, Some(&cursor)).await;
    assert!(matches!(refused, Err(Error::MalformedCursor)));
    let subspace = world.store.root.subspace(&"other queue");
    let other = Queue::<u64>::open(&world.runner, subspace);
    let other = &other.await.unwrap();
    let after = Some(&cursor);
    let list = |tr| async move { other.list(&tr, PlaceKind::Queued, after, 2).await };
    let refused = world.runner.run(list).await;
    assert!(matches!(refused, Err(Error::MalformedCursor)));
    for text in ["", "0", "xy"] {
        assert!(matches!(
            text.parse::<Cursor>(),
            Err(Error::MalformedCursor)
        ));
    }
    let other: Cursor = "7a7a".parse().unwrap();
    let refused = page(&world, PlaceKind::Queued, Some(&other)).await;
    assert!(matches!(refused, Err(Error::MalformedCursor)));
}

async fn a_tool_opens_a_queue_of_any_codec_and_creates_none(store: TestStore) {
    type Any = Queue<Bytes, Raw>;
    let world = World::with_defaults(&store).await;
    let root = world.queue.subspace();
    let runner = &world.runner;
    let words = root.subspace(&"words");
    let nothing = root.subspace(&"nothing");
    let subspace = Subspace::from_bytes([words.bytes(), b"!"].concat());
    let options = OpenOptions::new().with_codec(Json);
    let ids = keyspace::ids::Ids::new(nothing.subspace(&"ids"));
    let queue = Queue::<String, Json>::open_with(
        runner,
        subspace.clone(),
        Settings::default(),
        options.with_ids(ids),
    );
    let queue = &queue.await.unwrap();
    let enqueue = |tr| async move { queue.enqueue(&tr, &"one".to_owned()).await };
    runner.run(enqueue).await.unwrap();

    let (any, stored) = &Any::inspect(runner, subspace).await.unwrap().unwrap();
    assert_eq!(stored.codec, "Json");
    let list = |tr| async move { any.list(&tr, PlaceKind::Queued, None, 10).await };
    let page = runner.run(list).await.unwrap();
    let status = page.items[0].status.as_ref().unwrap();
    assert_eq!(status.value.as_deref(), Ok(&b"\"one\""[..]));

    let everything = &world.store.everything();
    let rows = || async {
        let rows = |tr| async move { read_all(&tr, everything.clone(), Isolation::Snapshot).await };
        runner.run(rows).await.unwrap()
    };
    let before = rows().await;
    let found = Any::inspect(runner, nothing.clone()).await;
    assert!(found.unwrap().is_none());
    assert_eq!(rows().await, before);
}
