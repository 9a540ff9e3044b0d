//! Damaged blocks: runs the body of the fuzz target `block` on blocks with seeded damage.

mod body;

use conformance::fuzz::damage;
use conformance::scale;
use microqueue::blocks::BlockLogs;
use microqueue::keyspace::{
    self, Database, Environment, Isolation, OwnedTransaction, RangeQuery, Subspace, read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[tokio::test]
async fn damaged_blocks_are_blocks_or_refused_and_never_a_panic() {
    let db = keyspace::open("memory:").unwrap();
    let logs = BlockLogs::new(Subspace::from("logs"), 1, Environment::system());
    let mut tr = db.begin().unwrap();
    for keys in [1, 3, 40] {
        let mut batch = logs.batch();
        for key in 0..keys {
            let key = vec![b'k'; key];
            batch.push(0, &key, &key.repeat(10)).unwrap();
        }
        batch.stage(&tr).unwrap();
    }
    tr.commit().await.unwrap();
    let tr = db.begin().unwrap();
    let (begin, end) = logs.subspace(0).range();
    let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot)
        .await
        .unwrap();
    assert_eq!(rows.len(), 3);

    let mut rng = StdRng::seed_from_u64(0x5eed);
    for row in &rows {
        body::block(row.value());
    }
    for _ in 0..scale(20_000, 1_000_000) {
        let row = &rows[rng.random_range(0..rows.len())];
        body::block(&damage(row.value(), &mut rng));
    }
}
