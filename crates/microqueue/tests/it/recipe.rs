//! The layout of FoundationDB's *Queues* recipe, shared with its Python and Java versions.
//!
//! The expected bytes are derived by hand from the specification of the tuple layer: `02 .. 00` is a
//! string, `01 .. 00` a byte string in which a zero is followed by `ff`, and `14 + n` a positive integer
//! of `n` bytes, big-endian.

use crate::common::{rows, set_committed};
use conformance::stores::TestStore;
use keyspace::env::ManualClock;
use microqueue::keyspace::codec::{Raw, Tuple};
use microqueue::keyspace::{self, Bytes, Database, Environment, OwnedTransaction, Subspace};
use microqueue::{MicroQueue, Order, SUFFIX_BYTES};

conformance::on_every_store!(
    an_empty_queue_begins_at_index_one_as_python_and_java_begin,
    a_java_value_is_a_tuple_of_one_element,
    indexes_go_on_over_the_edges_of_their_lengths,
    items_from_python_are_dequeued_in_order,
    items_from_java_are_dequeued,
);

type PythonQueue = MicroQueue<Bytes, Raw>;
type JavaQueue = MicroQueue<String, Tuple>;

/// The recipes' `fdb.Subspace(('Q',))` and `new Subspace(Tuple.from("Q"))`.
fn queue<T, C: keyspace::codec::Codec<T> + Default>() -> MicroQueue<T, C> {
    MicroQueue::new(Subspace::from("Q")).with_order(Order::Index)
}

/// A key as the recipe writes it: `index` as packed, then these 20 bytes.
fn recipe_key(index: &[u8], suffix: [u8; SUFFIX_BYTES]) -> Vec<u8> {
    let mut key = [b"\x02Q\x00", index, b"\x01"].concat();
    for byte in suffix {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.push(0);
    key
}

/// Enqueues with known suffixes, and returns them.
async fn enqueue_seeded<T, C: keyspace::codec::Codec<T> + Default>(
    db: &impl Database,
    values: &[T],
) -> Vec<[u8; SUFFIX_BYTES]> {
    let env = || Environment::seeded(7, std::sync::Arc::new(ManualClock::new()));
    let queue: MicroQueue<T, C> = queue().with_environment(env());
    let mut tr = db.begin().unwrap();
    for value in values {
        queue.enqueue(&tr, value).await.unwrap();
    }
    tr.commit().await.unwrap();
    let env = env();
    values.iter().map(|_| env.random_bytes()).collect()
}

async fn an_empty_queue_begins_at_index_one_as_python_and_java_begin(store: TestStore) {
    let db = store.fresh().part();
    let values = [&b"a\x00b"[..], b""].map(Bytes::from_static);
    let suffixes = enqueue_seeded::<_, Raw>(&db, &values).await;
    let rows = rows(&db).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].key(), recipe_key(b"\x15\x01", suffixes[0]));
    assert_eq!(rows[0].value(), &b"a\x00b"[..]);
    assert_eq!(rows[1].key(), recipe_key(b"\x15\x02", suffixes[1]));
    assert_eq!(rows[1].value(), &b""[..]);
}

async fn a_java_value_is_a_tuple_of_one_element(store: TestStore) {
    let db = store.fresh().part();
    let suffixes = enqueue_seeded::<_, Tuple>(&db, &["Alice".to_owned()]).await;
    let rows = rows(&db).await;
    assert_eq!(rows[0].key(), recipe_key(b"\x15\x01", suffixes[0]));
    assert_eq!(rows[0].value(), &b"\x02Alice\x00"[..]);
}

async fn indexes_go_on_over_the_edges_of_their_lengths(store: TestStore) {
    for (last, next) in [
        (&b"\x15\xfe"[..], &b"\x15\xff"[..]),
        (b"\x15\xff", b"\x16\x01\x00"),
        (b"\x16\xff\xff", b"\x17\x01\x00\x00"),
        (b"\x17\xff\xff\xff", b"\x18\x01\x00\x00\x00"),
    ] {
        let db = store.fresh().part();
        set_committed(&db, &recipe_key(last, [0; SUFFIX_BYTES]), b"last").await;
        let next_value = Bytes::from_static(b"next");
        let suffixes = enqueue_seeded::<_, Raw>(&db, &[next_value]).await;
        let rows = rows(&db).await;
        assert_eq!(rows[1].key(), recipe_key(next, suffixes[0]));
        assert_eq!(rows[1].value(), &b"next"[..]);
    }
}

async fn items_from_python_are_dequeued_in_order(store: TestStore) {
    let db = store.fresh().part();
    // The order of indexes, and for the same index the order of the random bytes.
    for (index, first, value) in [
        (&b"\x15\xff"[..], 9, &b"second"[..]),
        (b"\x15\xff", 0, b"first"),
        (b"\x16\x01\x00", 0, b"third"),
        (b"\x17\x01\x00\x00", 0, b"fourth"),
    ] {
        let mut suffix = [0x80; SUFFIX_BYTES];
        suffix[0] = first;
        set_committed(&db, &recipe_key(index, suffix), value).await;
    }
    let queue: PythonQueue = queue();
    let mut tr = db.begin().unwrap();
    let mut values = Vec::new();
    while let Some(item) = queue.dequeue(&tr).await.unwrap() {
        values.push(item.value);
    }
    assert_eq!(values, [&b"first"[..], b"second", b"third", b"fourth"]);
    tr.commit().await.unwrap();
    assert!(rows(&db).await.is_empty());
}

async fn items_from_java_are_dequeued(store: TestStore) {
    let db = store.fresh().part();
    let key = recipe_key(b"\x15\x01", [3; SUFFIX_BYTES]);
    set_committed(&db, &key, b"\x02Alice\x00").await;
    let queue: JavaQueue = queue();
    let item = queue.dequeue(&db.begin().unwrap()).await.unwrap().unwrap();
    assert_eq!(item.value, "Alice");
}
