//! What listings tell of records that do not decode.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use conformance::stores::TestStore;
use hc_dequeue::{Error, HighContentionQueue, Result, Settings};
use keyspace::{Isolation, RangeQuery, read_all};

conformance::on_every_store!(an_item_that_does_not_decode_is_named_by_its_key);

/// Returns the keys in a part of the queue.
async fn keys(world: &World, part: &str) -> Vec<Vec<u8>> {
    let (begin, end) = world.queue.subspace().subspace(&part).range();
    let query = &RangeQuery::keys(begin, end);
    let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    let rows = world.runner.run(rows).await.unwrap();
    rows.iter().map(|row| row.key().to_vec()).collect()
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(listed: Result<T>, key: &[u8]) {
    match listed.unwrap_err() {
        Error::Keyspace(keyspace::Error::Corrupt { key: found, .. }) => assert_eq!(found, key),
        other => panic!("expected a corrupt record, found {other:?}"),
    }
}

async fn an_item_that_does_not_decode_is_named_by_its_key(store: TestStore) {
    type Names = HighContentionQueue<String>;
    let world = World::with_defaults(&store).await;
    world.enqueue([1, 2]).await;
    let consumer = world.consumer().await;
    let first = consumer.dequeue().await.unwrap().unwrap();
    first.reject().await.unwrap();

    // The same items as values of another type.
    let (runner, subspace) = (&world.runner, world.queue.subspace().clone());
    let names = Names::open(runner, subspace, Settings::default()).await;
    let names = &names.unwrap();
    let (item, letter) = (&keys(&world, "i").await[0], &keys(&world, "d").await[0]);
    let peek = |tr| async move { names.peek(&tr).await };
    assert_corrupt(runner.run(peek).await, item);
    let items = |tr| async move { names.items(&tr, None, 10).await };
    assert_corrupt(runner.run(items).await, item);
    let letters = |tr| async move { names.dead_letters(&tr, None, 10).await };
    assert_corrupt(runner.run(letters).await, letter);
}
