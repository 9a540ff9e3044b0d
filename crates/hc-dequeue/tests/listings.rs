//! Listings tell of each record whether it decodes, and never fail because one does not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::World;
use conformance::stores::TestStore;
use hc_dequeue::microqueue::{ItemId, Listed};
use hc_dequeue::{DeadLetter, Error, HighContentionQueue, Result, Settings};
use keyspace::{Isolation, KeyValue, RangeQuery, Transaction, Tx, Undecodable, read_all};

conformance::on_every_store!(
    a_payload_that_does_not_decode_is_listed_with_its_bytes,
    a_record_of_another_format_is_listed_as_it_is,
);

type Names = HighContentionQueue<String>;

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
    first.reject("no good").await.unwrap();
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world
}

/// Lists what waits, the first of it by itself, and the dead letters.
async fn list<T, C>(
    world: &World,
    queue: &HighContentionQueue<T, C>,
) -> Result<(Vec<Listed<T>>, Vec<Listed<T>>)>
where
    T: std::fmt::Debug + PartialEq + Send + Sync + 'static,
    C: keyspace::codec::Codec<T>,
{
    let list = |tr| async move {
        let items = queue.items(&tr, None, 10).await?;
        assert_eq!(queue.peek(&tr).await?.as_ref(), items.first());
        Ok::<_, Error>((items, queue.dead_letters(&tr, None, 10).await?))
    };
    let (items, letters) = world.runner.run(list).await?;
    let listed = |DeadLetter { item, value, .. }| Listed {
        id: item.id(),
        value,
    };
    Ok((items, letters.into_iter().map(listed).collect()))
}

#[track_caller]
fn undecodable<T: std::fmt::Debug>(listed: &Listed<T>) -> (ItemId, &Undecodable) {
    (listed.id, listed.value.as_ref().unwrap_err())
}

async fn a_payload_that_does_not_decode_is_listed_with_its_bytes(store: TestStore) {
    let world = world(&store).await;
    let (whole, whole_letters) = list(&world, &world.queue).await.unwrap();
    // The same items as values of another type.
    let (runner, subspace) = (&world.runner, world.queue.subspace().clone());
    let names = Names::open(runner, subspace, Settings::default()).await;
    let (items, letters) = list(&world, &names.unwrap()).await.unwrap();
    let (item_rows, letter_rows) = (rows(&world, "i").await, rows(&world, "d").await);
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
    let (item, letter) = (&rows(&world, "i").await[0], &rows(&world, "d").await[0]);
    // After microqueue's own format byte, and that byte itself.
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

    // What takes it refuses it, and it stays.
    let consumer = world.consumer().await;
    let refused = consumer.dequeue().await.unwrap_err();
    let text = format!("{refused:?}");
    assert!(text.contains("format 2 is newer"), "{text}");
    assert_eq!(list(&world, &world.queue).await.unwrap(), (items, letters));
}
