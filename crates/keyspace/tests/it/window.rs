//! Reads while the rows move from the window to the runs.

use std::collections::{BTreeMap, VecDeque};

use conformance::scale;
use keyspace::embedded::{Embedded, EmbeddedTransaction, Options};
use keyspace::{
    Bytes, Database, Isolation, MutationOp, OwnedTransaction, RangeQuery, Transaction, read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

type Rows = BTreeMap<Vec<u8>, Bytes>;

/// The number of old versions that are read again.
const OLD: usize = 20;

fn key(rng: &mut StdRng) -> Vec<u8> {
    format!("key/{:03}", rng.random_range(0..200)).into_bytes()
}

/// Stages one write, and applies it to the model.
fn write(tr: &EmbeddedTransaction, model: &mut Rows, rng: &mut StdRng) {
    let key = key(rng);
    match rng.random_range(0..6) {
        0 => {
            tr.clear(&key);
            model.remove(&key);
        }
        1 => {
            let end = format!("key/{:03}", rng.random_range(0..200)).into_bytes();
            let begin = key.clone().min(end.clone());
            let end = key.max(end);
            tr.clear_range(&begin, &end);
            model.retain(|key, _| !(&begin..&end).contains(&key));
        }
        2 => {
            let old = model.get(&key).cloned().unwrap_or_default();
            tr.atomic(MutationOp::AppendIfFits, &key, b"+");
            model.insert(key, [&old[..], b"+"].concat().into());
        }
        _ => {
            // Values are so large that several parts wait to be moved.
            let value = vec![rng.random(); rng.random_range(0..20_000)];
            tr.set(&key, &value);
            model.insert(key, value.into());
        }
    }
}

async fn assert_reads(tr: &EmbeddedTransaction, model: &Rows, rng: &mut StdRng) {
    let one = key(rng);
    let other = key(rng);
    let value = tr.get(&one, Isolation::Snapshot).await.unwrap();
    assert_eq!(value.as_deref(), model.get(&one).map(|value| &value[..]));
    let begin = one.clone().min(other.clone());
    let end = one.max(other);
    let mut query = RangeQuery::keys(begin.clone(), end.clone());
    query.reverse = rng.random();
    let mut rows = read_all(tr, query.clone(), Isolation::Snapshot)
        .await
        .unwrap();
    if query.reverse {
        rows.reverse();
    }
    let rows = rows.iter().map(|row| (row.key(), row.value()));
    let expected = model.range(begin..end);
    assert!(rows.eq(expected.map(|(key, value)| (&key[..], &value[..]))));
}

async fn run(db: &Embedded, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = Rows::new();
    let mut old: VecDeque<(EmbeddedTransaction, Rows)> = VecDeque::new();
    for _ in 0..scale(1_000, 20_000) {
        let mut tr = db.begin().unwrap();
        for _ in 0..rng.random_range(1..5) {
            write(&tr, &mut model, &mut rng);
        }
        tr.commit().await.unwrap();
        let tr = db.begin().unwrap();
        tr.read_version().await.unwrap();
        assert_reads(&tr, &model, &mut rng).await;
        old.push_back((tr, model.clone()));
        if old.len() > OLD {
            old.pop_front();
        }
        let (tr, model) = &old[rng.random_range(0..old.len())];
        assert_reads(tr, model, &mut rng).await;
    }
}

#[tokio::test]
async fn every_version_reads_the_same_while_parts_are_frozen_and_moved() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new().with_window_bytes(64 << 10);
    run(&options.memory().unwrap(), 1).await;
    let path = folder.path().join("store");
    let db = options.open(&path).unwrap();
    run(&db, 2).await;
    db.close().unwrap();
}
