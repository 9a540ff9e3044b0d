//! The body of the fuzz target, which a plain test also runs.

use futures::executor::block_on;
use microqueue::keyspace::codec::{Bincode, Codec, Json, MessagePack, Tuple};
use microqueue::keyspace::{self, Database, Store, Subspace, Transaction};
use microqueue::{Error, MicroQueue, Order};

thread_local! {
    static STORE: Store = keyspace::open("memory:").expect("a store in memory opens");
}

/// Puts a row into the subspace of a queue and reads the queue. The first byte of the input is the length
/// of the key after the prefix.
pub(crate) fn record(input: &[u8]) {
    let Some((&key_bytes, row)) = input.split_first() else {
        return;
    };
    let (key, value) = row.split_at(row.len().min(key_bytes.into()));
    for order in [Order::Commit, Order::Index] {
        look::<Vec<String>, Bincode>(order, key, value);
        look::<Vec<String>, MessagePack>(order, key, value);
        look::<(String, Vec<u8>, i64), Tuple>(order, key, value);
        look::<Vec<Option<f64>>, Json>(order, key, value);
    }
}

fn look<T, C: Codec<T> + Default>(order: Order, key: &[u8], value: &[u8]) {
    let queue: MicroQueue<T, C> = MicroQueue::new(Subspace::from("q")).with_order(order);
    let key = [queue.subspace().bytes(), key].concat();
    let (begin, end) = queue.subspace().range();
    if !(begin..end).contains(&key) {
        return;
    }
    let tr = STORE
        .with(Database::begin)
        .expect("a store in memory serves");
    tr.set(&key, value);
    match block_on(queue.peek(&tr)) {
        Ok(item) => {
            let undecodable = item.expect("it is there").value.err();
            assert!(undecodable.is_none_or(|found| found.key == key));
        }
        Err(Error::Keyspace(keyspace::Error::Corrupt { key: named, .. })) => assert_eq!(named, key),
        Err(error) => panic!("{error:?}"),
    }
}
