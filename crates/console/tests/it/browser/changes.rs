//! Changes by clicking, where they are turned on, and none where they are not.

use console::WebOptions;
use export_queue::hc_dequeue::{End, ItemRef, Place, Stats};
use serde_json::Value;

use crate::browser::driver::{Driver, View};
use crate::browser::window::{Window, assert_none, serve, world};
use crate::common::{World, assert_queues_unchanged};

in_a_browser!(
    items_are_changed_by_clicking,
    selected_items_are_changed_at_once,
    a_queue_is_paused_and_resumed_by_clicking,
    with_changes_off_no_page_has_anything_to_click,
    with_changes_off_a_script_changes_nothing,
    with_changes_on_a_script_needs_the_token_and_our_origin,
);

/// Sends a form to each path as a script does, and returns the statuses.
const SEND: &str = "return Promise.all(arguments[1].split(' ').map(async path => { \
    const sent = await fetch(path, { method: 'POST', \
        headers: { 'content-type': 'application/x-www-form-urlencoded' }, body: arguments[0] }); \
    return sent.status; }))";

async fn stats(world: &World) -> Stats {
    let jobs = &world.jobs;
    let read = |tr| async move { jobs.stats(&tr).await };
    world.runner.run(read).await.unwrap()
}

/// Returns where an item is.
async fn place(world: &World, item: &ItemRef) -> Option<Place> {
    let jobs = &world.jobs;
    let read = |tr| async move { jobs.status(&tr, item).await };
    let status = world.runner.run(read).await.unwrap();
    status.map(|status| status.place)
}

/// Returns how an item left the queue, if it did.
async fn end(world: &World, item: &ItemRef) -> Option<End> {
    match place(world, item).await? {
        Place::Done { end, .. } => Some(end),
        _ => None,
    }
}

async fn open_item(window: &Window, base: &str, item: &ItemRef) {
    window.go(&format!("{base}/queues/jobs/item/{item}")).await;
}

/// Waits for the notice that a change leaves.
async fn notice(window: &Window, text: &str) {
    window
        .wait(".notice", |notice| notice.starts_with(text))
        .await;
}

async fn items_are_changed_by_clicking(driver: &Driver) {
    let world = world().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    let items = &world.items;
    let before = stats(&world).await;

    open_item(&window, &base, &items.queued[0]).await;
    window.click("button[value=cancel]").await;
    notice(&window, "Cancelled 1 item;").await;
    assert_eq!(end(&world, &items.queued[0]).await, Some(End::Cancelled));

    open_item(&window, &base, &items.delayed[0]).await;
    window.click("button[value=expedite]").await;
    notice(&window, "Made 1 item ready.").await;
    assert_eq!(place(&world, &items.delayed[0]).await, Some(Place::Queued));

    open_item(&window, &base, &items.dead[0]).await;
    window.click("button[value=redrive]").await;
    notice(&window, "Put 1 item back into the queue.").await;
    assert_eq!(place(&world, &items.dead[0]).await, Some(Place::Queued));

    open_item(&window, &base, &items.dead[1]).await;
    let visible = "return document.querySelector('button[value=purge]').checkVisibility()";
    assert!(!window.value::<bool>(visible).await, "a second click");
    window.click("summary").await;
    window.click("button[value=purge]").await;
    notice(&window, "Removed 1 item for good.").await;
    assert_eq!(end(&world, &items.dead[1]).await, Some(End::Removed));

    let after = stats(&world).await;
    let mut expected = before;
    expected.queued += 1;
    expected.delayed -= 1;
    expected.dead -= 2;
    expected.cancelled += 1;
    expected.removed += 1;
    assert_eq!(after, expected);
}

async fn selected_items_are_changed_at_once(driver: &Driver) {
    let world = world().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&format!("{base}/queues/jobs/items/queued")).await;
    let box_of = |item: &ItemRef| format!("input[value='{item}']");
    window.click(&box_of(&world.items.queued[1])).await;
    window.click(&box_of(&world.items.queued[3])).await;
    window.click("button[value=cancel]").await;
    notice(&window, "Cancelled 2 items;").await;
    assert_eq!(window.count("tbody tr").await, 3);
    assert_eq!(stats(&world).await.queued, 3);

    window.go(&format!("{base}/queues/jobs/items/dead")).await;
    window.click("#select-all").await;
    window.click("button[value=redrive]").await;
    notice(&window, "Put 3 items back into the queue.").await;
    let after = stats(&world).await;
    assert_eq!((after.queued, after.dead), (6, 0));
}

async fn a_queue_is_paused_and_resumed_by_clicking(driver: &Driver) {
    let world = world().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&format!("{base}/queues/jobs")).await;
    let jobs = &world.jobs;
    let is_paused = |tr| async move { jobs.is_paused(&tr).await };
    let button = "form[action^='/queues/jobs/'] button";
    for (verb, paused) in [("Pause", true), ("Resume", false)] {
        assert_eq!(window.text(button).await, verb);
        window.click(button).await;
        window
            .wait(button, |text| !text.is_empty() && text != verb)
            .await;
        let state = "main .state";
        window
            .wait(state, |text| text.contains("paused") == paused)
            .await;
        assert_eq!(world.runner.run(is_paused).await.unwrap(), paused);
    }
}

async fn with_changes_off_no_page_has_anything_to_click(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    let look = async |path: &str| {
        let controls = "form, button, input, select, textarea";
        let script =
            "return [...document.querySelectorAll(arguments[0])].map(found => found.outerHTML)";
        let found: Vec<String> = window.value_of(script, &[controls]).await;
        assert_none(&found, path);
    };
    let paths = window.crawl(&base, look).await;
    assert_all_pages(&paths, &world);
}

/// Panics unless pages of every kind are among these.
fn assert_all_pages(paths: &[String], world: &World) {
    let items = &world.items;
    let of_items = [&items.queued, &items.delayed, &items.held, &items.dead]
        .into_iter()
        .chain([&items.done])
        .flatten()
        .map(|item| format!("/queues/jobs/item/{item}"));
    let of_queues = crate::common::QUEUES.map(|queue| format!("/queues/{queue}"));
    let rest =
        ["groups", "batches", "sessions", "schedules"].map(|page| format!("/queues/jobs/{page}"));
    for path in of_items.chain(of_queues).chain(rest) {
        assert!(paths.contains(&path), "{path} is not among {paths:#?}");
    }
}

/// Returns the paths of all changes of the world's items, separated by blanks.
fn paths_of_changes(world: &World) -> String {
    let dead = &world.items.dead[0];
    let actions = ["cancel", "expedite", "redrive", "purge"];
    let of_api = actions.map(|action| format!("/api/queues/jobs/item/{dead}/{action}"));
    let rest = [
        format!("/queues/jobs/item/{dead}"),
        "/queues/jobs/items/dead".to_owned(),
        "/queues/jobs/pause".to_owned(),
        "/queues/orders/resume".to_owned(),
        "/api/queues/jobs/pause".to_owned(),
        "/queues/jobs/groups".to_owned(),
        "/queues/jobs/batches".to_owned(),
    ];
    let paths: Vec<_> = of_api.into_iter().chain(rest).collect();
    paths.join(" ")
}

/// Sends all changes as a script of the page does, and panics unless all are refused.
async fn assert_scripts_refused(window: &Window, world: &World, token: &str) {
    let before = world.written().await;
    let form = format!("token={token}&action=redrive&item={}", world.items.dead[0]);
    let statuses: Vec<u16> = window
        .value_of(SEND, &[&form, &paths_of_changes(world)])
        .await;
    assert_eq!(statuses, [403; 11]);
    assert_queues_unchanged(world, &before, &world.written().await);
}

async fn with_changes_off_a_script_changes_nothing(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&base).await;
    assert_eq!(window.text(".mode").await, "read only");
    let script = "return fetch('/api/token').then(answer => answer.status)";
    assert_eq!(window.value::<u16>(script).await, 403);
    assert_scripts_refused(&window, &world, "").await;
}

async fn with_changes_on_a_script_needs_the_token_and_our_origin(driver: &Driver) {
    let world = world().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options.clone()).await;
    let other = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    let token = "return fetch('/api/token').then(answer => answer.json())";
    window.go(&other).await;
    let foreign: Value = window.value(token).await;
    window.go(&base).await;
    let own: Value = window.value(token).await;
    for token in ["", "x", foreign["token"].as_str().unwrap()] {
        assert_scripts_refused(&window, &world, token).await;
    }
    // Another site that has learned the token, and has the browser send our form.
    let before = world.written().await;
    window.go("about:blank").await;
    let submit = "const form = document.createElement('form'); form.method = 'post'; \
                  form.action = arguments[0]; const field = document.createElement('input'); \
                  field.name = 'token'; field.value = arguments[1]; form.append(field); \
                  document.body.append(form); form.submit()";
    let path = format!("{base}/queues/jobs/pause");
    let token = own["token"].as_str().unwrap();
    let _: () = window.value_of(submit, &[&path, token]).await;
    window.wait("h1", |text| text.contains("403")).await;
    assert_queues_unchanged(&world, &before, &world.written().await);
    // The same form of our own page is accepted.
    window.go(&base).await;
    let _: () = window.value_of(submit, &[&path, token]).await;
    window.wait("h1", |text| text == "jobs").await;
    let jobs = &world.jobs;
    let is_paused = |tr| async move { jobs.is_paused(&tr).await };
    assert!(world.runner.run(is_paused).await.unwrap());
}
