//! Two versions of the record format on one queue at the same time: this one, and one that has added fields.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::microqueue::{ItemId, MicroQueue};
use hc_dequeue::{Consumer, Delivery, Enqueue, Enqueued, Error, PlaceKind};
use keyspace::codec::Raw;
use keyspace::{
    Bytes, Environment, Isolation, MutationOp, RangeQuery, Transaction, Versionstamp, read_all,
};

conformance::on_every_store!(what_a_newer_version_has_added_goes_wherever_the_item_goes);

/// The payloads of the items, with the fields that their version has added: nothing in this version, and the smallest
/// and the largest possible field in the newer one.
const ITEMS: [(u8, &[u8]); 4] = [(0, &[]), (1, &[7]), (2, &[]), (3, &[9; 1000])];

/// The tag of the field that the newer version has added.
const NEW: u8 = 99;

/// Enqueues as the newer version does, with the payload as the dedupe id.
async fn enqueue_as_newer(world: &World, payload: u8, extension: &[u8]) {
    let queue = world.queue.subspace();
    let items = &MicroQueue::<Bytes, Raw>::new(queue.subspace(&"i"));
    let counter = &queue.pack(&("c", "queued"));
    let [token_row, id_row] = &["k", "n"].map(|part| queue.pack(&(part, &[payload][..])));
    let length = &(extension.len() as u16).to_be_bytes()[..];
    let dedupe_id = &[7, 0, 1, payload][..];
    // Random bytes, times, and the rank of priority 0.
    let token = &[&[payload; 32][..], &[10]].concat()[..];
    let new = &[&[NEW], length, extension].concat()[..];
    // Format, dedupe id, token, new field, end, payload.
    let record = &[&[1], dedupe_id, &[8, 0, 33], token, new, &[0, payload]].concat();
    let enqueue = world.runner.run(|tr| async move {
        let record = Bytes::copy_from_slice(record);
        let staged = items.enqueue(&tr, &record).await?;
        let ItemId::Commit { versionstamp, call } = staged.at(Versionstamp::INCOMPLETE) else {
            panic!("items are in commit order");
        };
        // The offset of the versionstamp in the value.
        let place = 0_u32.to_le_bytes();
        let id = [&versionstamp.as_bytes()[..], &call.to_be_bytes(), &place].concat();
        tr.set(token_row, &[token, &call.to_be_bytes()].concat());
        tr.atomic(MutationOp::SetVersionstampedValue, id_row, &id);
        tr.atomic(MutationOp::Add, counter, &1_i64.to_le_bytes());
        Ok::<_, Error>(())
    });
    enqueue.await.unwrap();
}

/// Returns the new field of a record, and its payload.
fn read(record: &[u8]) -> (&[u8], u8) {
    // The format of microqueue, and the record's own.
    let mut rest = &record[2..];
    let mut extension = &[][..];
    while rest[0] != 0 {
        let length = u16::from_be_bytes([rest[1], rest[2]]).into();
        let (field, next) = rest[3..].split_at(length);
        if rest[0] == NEW {
            extension = field;
        }
        rest = next;
    }
    assert_eq!(rest.len(), 2);
    (extension, rest[1])
}

/// Panics unless the items are in these parts of the queue, in the order of the payloads, with their added fields.
async fn are_in(world: &World, parts: [&'static str; 4]) {
    let mut found = BTreeMap::new();
    for part in ["i", "l", "t", "h", "d"] {
        let (begin, end) = world.queue.subspace().subspace(&part).range();
        let query = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        for row in world.runner.run(rows).await.unwrap() {
            let (extension, payload) = read(row.value());
            let twice = found.insert(payload, (part, extension.to_vec()));
            assert_eq!(twice, None);
        }
    }
    let there = parts
        .into_iter()
        .zip(ITEMS)
        .map(|(part, (payload, extension))| (payload, (part, extension.to_vec())));
    assert_eq!(found, there.collect());
    world.check().await;
}

async fn redrive_all(world: &World) {
    let queue = &world.queue;
    let redrive = |tr| async move {
        for letter in queue
            .list(&tr, PlaceKind::Dead, None, ITEMS.len())
            .await?
            .items
        {
            assert!(queue.redrive(&tr, &letter.item).await?);
        }
        Ok::<_, Error>(())
    };
    world.runner.run(redrive).await.unwrap();
}

/// Redrives four dead letters while two sessions wait, of which the first fulfills both requests. Returns the
/// deliveries.
async fn redrive_to_both(
    world: &World,
    one: &Consumer<u64>,
    another: &Consumer<u64>,
) -> Vec<Delivery<u64>> {
    let redrive = async {
        world.until_requested(2).await;
        redrive_all(world).await;
    };
    let (some, others, ()) = tokio::join!(
        one.dequeue_batch_within(2, LONG),
        another.dequeue_batch_within(2, LONG),
        redrive
    );
    let mut held = some.unwrap();
    held.extend(others.unwrap());
    held
}

fn ids(deliveries: &[Delivery<u64>]) -> Vec<ItemId> {
    deliveries.iter().map(Delivery::id).collect()
}

async fn what_a_newer_version_has_added_goes_wherever_the_item_goes(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for (payload, extension) in ITEMS {
        match extension {
            [] => world.enqueue([payload.into()]).await,
            added => enqueue_as_newer(&world, payload, added).await,
        }
    }
    are_in(&world, ["i"; 4]).await;
    assert_eq!(world.values().await, [0, 1, 2, 3]);

    let consumer = world.consumer().await;
    let held = consumer.dequeue_batch(4).await.unwrap();
    let in_order = ids(&held);
    are_in(&world, ["h"; 4]).await;
    consumer.shut_down(Duration::ZERO).await.unwrap();
    are_in(&world, ["l"; 4]).await;

    let consumer = world.consumer().await;
    for delivery in consumer.dequeue_batch(4).await.unwrap() {
        delivery.nack().await.unwrap();
    }
    are_in(&world, ["l"; 4]).await;

    for delivery in consumer.dequeue_batch(4).await.unwrap() {
        delivery
            .retry_after(Duration::from_millis(1), "not now")
            .await
            .unwrap();
    }
    are_in(&world, ["t"; 4]).await;
    let due = Environment::system().wall() + Duration::from_millis(1);
    until(async || Environment::system().wall() > due).await;
    // A session that takes an item promotes all delayed ones that are due.
    let mut held = vec![consumer.dequeue().await.unwrap().unwrap()];
    are_in(&world, ["h", "l", "l", "l"]).await;

    held.extend(consumer.dequeue_batch(3).await.unwrap());
    for delivery in held {
        delivery.discard("no good").await.unwrap();
    }
    are_in(&world, ["d"; 4]).await;
    redrive_all(&world).await;
    are_in(&world, ["i"; 4]).await;

    for delivery in consumer.dequeue_batch(4).await.unwrap() {
        delivery.discard("no good").await.unwrap();
    }
    let another = world.consumer().await;
    let held = redrive_to_both(&world, &consumer, &another).await;
    are_in(&world, ["h"; 4]).await;
    let mut again = ids(&held);
    again.sort_unstable();
    assert_eq!(again, in_order);

    let once = Enqueue::new().with_dedupe(&[3][..]);
    let repeated = world.enqueue_with(3, &once).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);
    let held = &held;
    let ack = |tr| async move {
        for delivery in held {
            delivery.ack(&tr).await?;
        }
        Ok::<_, Error>(())
    };
    world.runner.run(ack).await.unwrap();
    assert_eq!(world.stats().await.completed, 4);
    let staged = world.enqueue_with(3, &once).await.unwrap();
    assert!(matches!(staged, Enqueued::Staged(_)));
    world.check().await;
}
