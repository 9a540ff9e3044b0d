//! Runs the examples on every store, twice: a second run starts from what the first one left.

use std::fmt::Debug;

use conformance::stores::TestStore;
use examples::{inverted_index, payments};
use keyspace::{Runner, Store, Subspace};

conformance::on_every_store!(threads:
    the_index_is_in_step_with_the_values,
    each_payment_is_booked_once,
);

async fn twice<E: Debug>(
    store: TestStore,
    example: impl AsyncFn(&Runner<Store>, &Subspace) -> Result<(), E>,
) {
    for _run in 0..2 {
        example(&store.runner(), &store.root).await.unwrap();
    }
}

async fn the_index_is_in_step_with_the_values(store: TestStore) {
    twice(store, inverted_index::run).await;
}

async fn each_payment_is_booked_once(store: TestStore) {
    twice(store, payments::run).await;
}
