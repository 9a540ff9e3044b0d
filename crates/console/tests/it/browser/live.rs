//! Pages that move while work runs, without being loaded again.

use std::time::Duration;

use console::WebOptions;
use export_queue::hc_dequeue::{Enqueue, WorkerOptions};

use crate::browser::driver::{Driver, View};
use crate::browser::window::{Window, serve, world};
use crate::common::{LONG, enqueue, job};

in_a_browser!(
    the_overview_moves_while_work_runs,
    the_page_of_a_queue_moves_while_work_runs,
    a_page_says_when_it_does_not_move_any_more,
);

fn cell(queue: &str, label: &str) -> String {
    format!("tr[data-key={queue}] td[data-label={label}]")
}

/// Waits until a row of the overview has these numbers, as (label, number).
async fn wait_for(window: &Window, queue: &str, numbers: &[(&str, &str)]) {
    for (label, number) in numbers {
        let cell = cell(queue, label);
        window.wait(&cell, |text| text == *number).await;
    }
}

/// Marks the document, and all that has been loaded with it.
async fn mark(window: &Window) {
    let _: () = window.value("window.isFirst = true").await;
}

async fn assert_not_reloaded(window: &Window) {
    let is_first: bool = window.value("return window.isFirst === true").await;
    assert!(is_first, "the page was loaded again");
}

async fn the_overview_moves_while_work_runs(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&base).await;
    mark(&window).await;
    let before = [("Queued", "5"), ("Held", "2"), ("Dead", "3")];
    wait_for(&window, "jobs", &before).await;
    for tenant in 40..44 {
        world.enqueue(tenant).await;
    }
    wait_for(&window, "jobs", &[("Queued", "9")]).await;
    let consumer = world
        .jobs
        .consumer(&world.runner, WorkerOptions::default())
        .await
        .unwrap();
    let done = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    done.complete().await.unwrap();
    let dead = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    dead.discard("no such tenant").await.unwrap();
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let after = [
        ("Queued", "6"),
        ("Held", "3"),
        ("Dead", "4"),
        ("Sessions", "2"),
    ];
    wait_for(&window, "jobs", &after).await;
    drop(held);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    wait_for(&window, "jobs", &[("Sessions", "1")]).await;
    assert_not_reloaded(&window).await;
}

async fn the_page_of_a_queue_moves_while_work_runs(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&format!("{base}/queues/jobs")).await;
    mark(&window).await;
    let counts = ["queued", "delayed"].map(|place| format!(".tabs a[href$='/items/{place}'] b"));
    for (selector, before, after) in [(&counts[0], "5", "6"), (&counts[1], "2", "3")] {
        window.wait(selector, |text| text == before).await;
        let delay = if after == "3" { LONG } else { Duration::ZERO };
        let options = Enqueue::new().with_delay(delay);
        enqueue(&world.runner, &world.jobs, &job(50), &options).await;
        window.wait(selector, |text| text == after).await;
    }
    assert_not_reloaded(&window).await;
}

async fn a_page_says_when_it_does_not_move_any_more(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&format!("{base}/queues/jobs")).await;
    let status = "#live-status";
    window.wait(status, |text| text.starts_with("Live")).await;
    let ids = &world.ids;
    let jobs = world.jobs.subspace();
    let remove = |tr| async move {
        ids.unregister(&tr, jobs);
        Ok::<_, export_queue::keyspace::Error>(())
    };
    world.runner.run(remove).await.unwrap();
    let gone = window.wait(status, |text| text.starts_with("Not live"));
    assert!(gone.await.contains("the queue no longer exists"));
}
