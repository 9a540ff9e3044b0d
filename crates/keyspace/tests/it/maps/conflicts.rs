//! The conflict ranges that the documentation of [`Map`] states.

use std::ops::AsyncFnOnce;

use conformance::stores::TestStore;
use keyspace::{Code, Database, Error, Map, OwnedTransaction, Store, Transaction};

conformance::on_every_store!(the_methods_of_a_map_conflict_as_documented);

type Numbers = Map<u64, u64>;
type Transactions = <Store as Database>::Transaction;

/// Runs two transactions that begin at the same time, and commits the second one after the first. Returns whether the
/// second one fails.
async fn conflicts(
    store: &TestStore,
    first: impl AsyncFnOnce(&Transactions),
    second: impl AsyncFnOnce(&Transactions),
) -> bool {
    let mut one = store.db.begin().unwrap();
    let mut other = store.db.begin().unwrap();
    let _ = other.read_version().await.unwrap();
    first(&one).await;
    one.commit().await.unwrap();
    second(&other).await;
    // So that it is not read-only.
    other.set(&store.root.pack(&"written"), b"");
    match other.commit().await {
        Ok(_) => false,
        Err(Error::Store(Code::NOT_COMMITTED)) => true,
        Err(error) => panic!("{error:?}"),
    }
}

async fn the_methods_of_a_map_conflict_as_documented(store: TestStore) {
    let runner = store.runner();
    let subspace = store.root.subspace(&"numbers");
    let numbers = &Numbers::open(&runner, subspace).await.unwrap();
    // The even keys below 20.
    let fill = async || {
        let fill = async |tr| {
            numbers.rows().clear(&tr);
            (0..10).try_for_each(|key| numbers.set(&tr, &(2 * key), &key))
        };
        runner.run(fill).await.unwrap();
    };
    let snapshot = &numbers.snapshot();
    let set = |key: u64| async move |tr: &Transactions| numbers.set(tr, &key, &77).unwrap();
    macro_rules! touches {
        ($key:literal, |$tr:ident| $call:expr) => {{
            fill().await;
            let call = async |$tr: &Transactions| {
                let _ = $call;
            };
            conflicts(&store, set($key), call).await
        }};
    }
    assert!(touches!(4, |tr| numbers.get(tr, &4).await.unwrap()));
    assert!(!touches!(5, |tr| numbers.get(tr, &4).await.unwrap()));
    assert!(!touches!(4, |tr| snapshot.get(tr, &4).await.unwrap()));
    assert!(touches!(4, |tr| numbers.contains(tr, &4).await.unwrap()));
    assert!(touches!(6, |tr| numbers
        .get_many(tr, &[4, 6])
        .await
        .unwrap()));
    assert!(!touches!(5, |tr| numbers
        .get_many(tr, &[4, 6])
        .await
        .unwrap()));
    assert!(!touches!(4, |tr| numbers.set(tr, &4, &1).unwrap()));
    assert!(!touches!(4, |tr| numbers.remove(tr, &4).unwrap()));
    assert!(touches!(4, |tr| numbers
        .update(tr, &4, |_| Some(1))
        .await
        .unwrap()));
    assert!(touches!(4, |tr| snapshot
        .update(tr, &4, |_| Some(1))
        .await
        .unwrap()));
    assert!(touches!(2, |tr| numbers
        .range(2..)
        .first(tr)
        .await
        .unwrap()));
    assert!(!touches!(3, |tr| numbers
        .range(2..)
        .first(tr)
        .await
        .unwrap()));
    assert!(touches!(100, |tr| numbers
        .range(50..)
        .first(tr)
        .await
        .unwrap()));
    assert!(!touches!(100, |tr| numbers
        .range(50..100)
        .last(tr)
        .await
        .unwrap()));
    assert!(touches!(16, |tr| numbers
        .range(4..17)
        .last(tr)
        .await
        .unwrap()));
    assert!(touches!(7, |tr| numbers
        .range(4..)
        .page(tr, None, 2)
        .await
        .unwrap()));
    assert!(!touches!(9, |tr| numbers
        .range(4..)
        .page(tr, None, 2)
        .await
        .unwrap()));
    assert!(touches!(7, |tr| numbers
        .range(4..)
        .count(tr, 2)
        .await
        .unwrap()));
    assert!(!touches!(9, |tr| numbers
        .range(4..)
        .count(tr, 2)
        .await
        .unwrap()));
    assert!(!touches!(7, |tr| numbers.range(4..9).clear(tr)));
}
