//! Runs the examples on every store, twice: a second run starts from what the first one left.

use std::fmt::Debug;

use conformance::stores::TestStore;
use examples::{append, inverted_index, payments, rollup, word_count};
use keyspace::{Runner, Store, Subspace};

conformance::on_every_store!(threads:
    the_text_is_in_the_order_of_commits,
    the_index_is_in_step_with_the_values,
    each_payment_is_booked_once,
    every_level_sums_up_what_was_measured,
    words_are_counted_as_documents_come_and_go,
);

async fn twice<E: Debug>(
    store: TestStore,
    example: impl AsyncFn(&Runner<Store>, &Subspace) -> Result<(), E>,
) {
    for _run in 0..2 {
        example(&store.runner(), &store.root).await.unwrap();
    }
}

async fn the_text_is_in_the_order_of_commits(store: TestStore) {
    twice(store, append::run).await;
}

async fn the_index_is_in_step_with_the_values(store: TestStore) {
    twice(store, inverted_index::run).await;
}

async fn each_payment_is_booked_once(store: TestStore) {
    twice(store, payments::run).await;
}

async fn every_level_sums_up_what_was_measured(store: TestStore) {
    twice(store, rollup::run).await;
}

async fn words_are_counted_as_documents_come_and_go(store: TestStore) {
    twice(store, word_count::run).await;
}
