//! Runs the examples on every store. Each verifies its own claims and removes its values at the end, so a
//! second run starts from the same state.

use conformance::stores::TestStore;

/// An example, as a module.
macro_rules! example {
    ($name:ident, $path:literal) => {
        #[path = $path]
        #[expect(dead_code, reason = "its `main` is not run")]
        mod $name;
    };
}

example!(append, "../../examples/append.rs");
example!(inverted_index, "../../examples/inverted_index.rs");
example!(rollup, "../../examples/rollup.rs");
example!(word_count, "../../examples/word_count.rs");

conformance::on_every_store!(threads:
    the_text_is_in_the_order_of_commits,
    the_index_is_in_step_with_the_values,
    every_level_sums_up_what_was_measured,
    words_are_counted_as_documents_come_and_go,
);

async fn the_text_is_in_the_order_of_commits(store: TestStore) {
    for _run in 0..2 {
        append::run(&store.runner(), &store.root).await.unwrap();
    }
}

async fn the_index_is_in_step_with_the_values(store: TestStore) {
    for _run in 0..2 {
        inverted_index::run(&store.runner(), &store.root)
            .await
            .unwrap();
    }
}

async fn every_level_sums_up_what_was_measured(store: TestStore) {
    for _run in 0..2 {
        rollup::run(&store.runner(), &store.root).await.unwrap();
    }
}

async fn words_are_counted_as_documents_come_and_go(store: TestStore) {
    for _run in 0..2 {
        word_count::run(&store.runner(), &store.root).await.unwrap();
    }
}
