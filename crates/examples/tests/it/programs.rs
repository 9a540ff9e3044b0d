//! The programs of the tutorial, of the recipes, of the tenants and of the nightly run. Each checks what it shows.

use conformance::stores::TestStore;

#[path = "../../examples/jobs.rs"]
mod jobs;
#[path = "../../examples/nightly.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod nightly;
#[path = "../../examples/recipes.rs"]
mod recipes;
#[path = "../../examples/shop.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod shop;
#[path = "../../examples/tenants.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod tenants;

conformance::on_every_store!(threads:
    the_shop_of_the_tutorial_sells_what_is_ordered,
    tenants_share_a_queue_within_their_limits,
    the_report_of_a_nightly_run_starts_when_all_customers_are_billed,
);

async fn the_shop_of_the_tutorial_sells_what_is_ordered(store: TestStore) {
    shop::run(&store.runner(), &store.root).await.unwrap();
}

async fn tenants_share_a_queue_within_their_limits(store: TestStore) {
    tenants::run(&store.runner(), &store.root).await.unwrap();
}

async fn the_report_of_a_nightly_run_starts_when_all_customers_are_billed(store: TestStore) {
    nightly::run(&store.runner(), &store.root).await.unwrap();
}

#[test]
fn all_recipes_do_what_they_say() {
    recipes::main().unwrap();
    jobs::main().unwrap();
}
