//! The conflict ranges that the documentation of [`Map`] states.

use std::ops::AsyncFnOnce;

use conformance::stores::TestStore;
use keyspace::{Code, Database, Error, Map, OwnedTransaction, Runner, Store, Transaction};

use super::in_test;

conformance::on_every_store!(
    calls_of_one_row_conflict_as_documented,
    calls_of_many_rows_conflict_as_documented,
);

type StoreTransaction = <Store as Database>::Transaction;

struct World {
    store: TestStore,
    runner: Runner<Store>,
    numbers: Map<u64, u64>,
}

impl World {
    async fn new(store: TestStore) -> Self {
        let runner = store.runner();
        let subspace = store.root.subspace(&"numbers");
        let numbers = Map::open_with(&runner, subspace, in_test(&store));
        let numbers = numbers.await.unwrap();
        Self {
            store,
            runner,
            numbers,
        }
    }

    /// Returns whether a call fails beside a commit that sets this key, in a map of the even keys below 20.
    async fn meets(&self, key: u64, call: impl AsyncFnOnce(&StoreTransaction)) -> bool {
        let numbers = &self.numbers;
        let fill = async |tr| {
            numbers.rows().clear(&tr).await?;
            for key in 0..10 {
                numbers.set(&tr, &(2 * key), &key).await?;
            }
            Ok::<_, Error>(())
        };
        self.runner.run(fill).await.unwrap();
        let mut tr = self.store.db.begin().unwrap();
        tr.read_version().await.unwrap();
        let set = async |tr| numbers.set(&tr, &key, &77).await;
        self.runner.run(set).await.unwrap();
        call(&tr).await;
        // So that it is not read-only.
        tr.set(&self.store.root.pack(&"written"), b"");
        match tr.commit().await {
            Ok(_) => false,
            Err(Error::Store(Code::NOT_COMMITTED)) => true,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Asserts beside the commits of which keys a call fails, and beside which it does not.
macro_rules! assert_conflicts {
    ($world:ident: $($call:expr => |$tr:ident| with $with:tt, without $without:tt;)*) => {
        $(
            for (keys, expected) in [(&$with[..], true), (&$without[..], false)] {
                for key in keys {
                    let call = async |$tr: &StoreTransaction| {
                        let _ = $call;
                    };
                    let meets = $world.meets(*key, call).await;
                    assert_eq!(meets, expected, "{} beside {key}", stringify!($call));
                }
            }
        )*
    };
}

async fn calls_of_one_row_conflict_as_documented(store: TestStore) {
    let world = World::new(store).await;
    let numbers = &world.numbers;
    let snapshot = &numbers.snapshot();
    assert_conflicts! { world:
        numbers.get(tr, &4).await.unwrap() => |tr| with [4], without [5];
        snapshot.get(tr, &4).await.unwrap() => |tr| with [], without [4];
        numbers.contains(tr, &4).await.unwrap() => |tr| with [4], without [5];
        numbers.get_many(tr, &[4, 6]).await.unwrap() => |tr| with [4, 6], without [5];
        numbers.set(tr, &4, &1).await.unwrap() => |tr| with [], without [4];
        numbers.remove(tr, &4).await.unwrap() => |tr| with [], without [4];
        numbers.update(tr, &4, |_| Some(1)).await.unwrap() => |tr| with [4], without [5];
        snapshot.update(tr, &4, |_| Some(1)).await.unwrap() => |tr| with [4], without [5];
    }
}

async fn calls_of_many_rows_conflict_as_documented(store: TestStore) {
    let world = World::new(store).await;
    let numbers = &world.numbers;
    let snapshot = &numbers.snapshot();
    assert_conflicts! { world:
        numbers.range(2..).first(tr).await.unwrap() => |tr| with [2], without [1, 3];
        numbers.range(50..).first(tr).await.unwrap() => |tr| with [50, 100], without [49];
        numbers.range(4..17).last(tr).await.unwrap() => |tr| with [16], without [15, 17];
        snapshot.range(2..).first(tr).await.unwrap() => |tr| with [], without [2];
        numbers.range(4..).page(tr, None, 2).await.unwrap() => |tr| with [4, 7, 8], without [3, 9];
        numbers.range(4..).count(tr, 2).await.unwrap() => |tr| with [4, 7, 8], without [3, 9];
        numbers.range(4..9).clear(tr).await.unwrap() => |tr| with [], without [4, 7];
    }
}
