//! Damaged rows: runs the body of the fuzz target `record` on rows with seeded damage.

mod body;
use crate::common::{memory, rows};
use conformance::fuzz::damage;
use conformance::scale;
use microqueue::keyspace::codec::{Bincode, Codec, Json, MessagePack, Tuple};
use microqueue::keyspace::{Database, KeyValue, OwnedTransaction, Subspace};
use microqueue::{MicroQueue, Order};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Returns the row of a queue with one value.
async fn row<T, C: Codec<T> + Default>(order: Order, value: T) -> KeyValue {
    let queue: MicroQueue<T, C> = MicroQueue::new(Subspace::from("q")).with_order(order);
    let db = memory();
    let mut tr = db.begin().unwrap();
    queue.enqueue(&tr, &value).await.unwrap();
    tr.commit().await.unwrap();
    rows(&db).await.remove(0)
}

#[tokio::test]
async fn damaged_rows_are_items_or_corrupt_and_never_a_panic() {
    let mut rng = StdRng::seed_from_u64(0x5eed);
    let mut whole = Vec::new();
    for order in [Order::Commit, Order::Index] {
        whole.extend([
            row::<_, Bincode>(order, vec!["a".repeat(300), "b".to_owned()]).await,
            row::<_, MessagePack>(order, vec!["a".repeat(300), "b".to_owned()]).await,
            row::<_, Tuple>(order, ("a\0".to_owned(), vec![0_u8, 1], -5_i64)).await,
            row::<_, Json>(order, vec![None, Some(1.5_f64)]).await,
        ]);
    }
    let prefix_bytes = Subspace::from("q").bytes().len();
    for _ in 0..scale(2_000, 200_000) {
        for row in &whole {
            let key = damage(&row.key()[prefix_bytes..], &mut rng);
            let value = damage(row.value(), &mut rng);
            let input = [&[key.len() as u8], key.as_slice(), value.as_slice()].concat();
            body::record(&input);
        }
    }
}
