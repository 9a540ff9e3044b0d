//! The programs of the tutorial, of the recipes, of the tenants, of the nightly run, of the orders, of the bills and of
//! the import. Each checks what it shows.

use std::sync::Arc;
use std::time::Duration;

use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use hc_dequeue::testing::{ManualWall, drain_process};
use hc_dequeue::{BoxError, Delivery, Outcome, PlaceKind, TransactionHandler};
use keyspace::{Environment, Tx};

#[path = "../../examples/bills.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod bills;
#[path = "../../examples/import.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod import;
#[path = "../../examples/jobs.rs"]
mod jobs;
#[path = "../../examples/nightly.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod nightly;
#[path = "../../examples/orders.rs"]
#[expect(dead_code, reason = "its `main` is not run")]
mod orders;
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
    each_order_is_done_or_undone_once_even_if_outcomes_of_commits_are_unknown,
    a_step_that_is_redriven_before_its_order_is_undone_does_nothing,
    a_test_bills_counts_and_exports_orders_without_a_worker,
    an_import_survives_a_deployment,
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

async fn each_order_is_done_or_undone_once_even_if_outcomes_of_commits_are_unknown(
    store: TestStore,
) {
    orders::run(&store.runner(), &store.root).await.unwrap();
    let mut faults = 0;
    for seed in 0..3 {
        let store = store.fresh();
        let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
        let chaos = Chaos::new(store.db.clone(), env, Faults::all(0.03));
        let runner = store.runner_on(chaos.clone());
        orders::run(&runner, &store.root).await.unwrap();
        faults += chaos.tally().commits;
    }
    assert!(faults > 2, "{faults}");
}

async fn a_step_that_is_redriven_before_its_order_is_undone_does_nothing(store: TestStore) {
    let runner = &store.runner();
    let shop = &orders::Shop::open(runner, &store.root).await.unwrap();
    // Nothing is in stock, and nothing can be shipped there.
    let order = 0;
    runner
        .run(async |tr: Tx<_>| shop.place(&tr, order).await)
        .await
        .unwrap();
    let before_the_callback = async |tr: Tx<_>, job: Delivery<orders::Job>| match job.value() {
        orders::Job::Settle(_) => Ok(Outcome::snooze(Duration::from_secs(3600))),
        _ => shop.handle(tr, job).await,
    };
    let drained = drain_process(runner, &shop.jobs, before_the_callback).await;
    let drained = drained.unwrap();
    assert_eq!((drained.dead, drained.snoozed), (1, 1));

    let redrive = async |tr: Tx<_>| {
        shop.add(&tr, "stock", 0, 1);
        let dead = shop.jobs.list(&tr, PlaceKind::Dead, None, 1).await?;
        Ok::<_, BoxError>(shop.jobs.redrive(&tr, &dead.items[0].item).await?)
    };
    assert!(runner.run(redrive).await.unwrap());
    drain_process(runner, &shop.jobs, before_the_callback)
        .await
        .unwrap();
    let settle = async |tr: Tx<_>| {
        let callback = shop.jobs.list(&tr, PlaceKind::Delayed, None, 1).await?;
        Ok::<_, BoxError>(shop.jobs.expedite(&tr, &callback.items[0].item).await?)
    };
    assert!(runner.run(settle).await.unwrap());
    let handle = async |tr: Tx<_>, job: Delivery<orders::Job>| shop.handle(tr, job).await;
    drain_process(runner, &shop.jobs, handle).await.unwrap();

    let mut numbers = Vec::new();
    for name in ["stock", "account", "shipped", "undone"] {
        let number = async |tr: Tx<_>| shop.number(&tr, name, order).await;
        numbers.push(runner.run(number).await.unwrap());
    }
    assert_eq!(numbers, [1, 0, 0, 1]);
}

async fn a_test_bills_counts_and_exports_orders_without_a_worker(store: TestStore) {
    bills::run(&store.runner(), &store.root).await.unwrap();
}

async fn an_import_survives_a_deployment(store: TestStore) {
    import::run(&store.runner(), &store.root).await.unwrap();
}

#[test]
fn all_recipes_do_what_they_say() {
    recipes::main().unwrap();
    jobs::main().unwrap();
}
