//! Scripts in what is stored are shown as text and do not run.

use std::time::Duration;

use console::WebOptions;
use export_queue::hc_dequeue::{
    Batch, Enqueue, Error, GroupLimits, Queue, Rate, Schedule, Settings, WorkerOptions,
};
use export_queue::keyspace::codec::Json;
use export_queue::keyspace::{OpenOptions, Subspace, Tx};
use export_queue::microqueue::MicroQueue;
use export_queue::{ExportQueue, Start};
use serde_json::Value;

use crate::browser::driver::{Driver, View};
use crate::browser::window::{Window, assert_none, serve, world};
use crate::common::{LONG, World, enqueue};

in_a_browser!(stored_scripts_are_text, no_script_runs_but_the_pages_own);

/// Ends an attribute and an element, and runs in every way that markup has.
const HOSTILE: &str = "\"'></p></script><script>window.ran=1;alert(1)</script>\
    <img src=x onerror=window.ran=1><svg onload=window.ran=1></svg>";

/// Returns what is on a page that is not from its own templates, or has run.
const FOREIGN: &str = "const own = ['/static/console.js']; \
    const scripts = [...document.scripts].filter(script => !own.includes(script.getAttribute('src'))); \
    const rest = document.querySelectorAll('img, svg:not(.chart), [onload], [onerror], [style]'); \
    const found = [...scripts, ...rest].map(element => element.outerHTML); \
    if (window.ran !== undefined) found.push('a script ran'); \
    return found";

/// Adds hostile names, payloads, reasons, results, schedules and groups to a world, and batches with such members.
pub(crate) async fn add_hostile(world: &World) {
    let jobs = add_jobs(world).await;
    let value = &Value::from(HOSTILE);
    let consumer = jobs
        .consumer(&world.runner, WorkerOptions::default())
        .await
        .unwrap();
    for place in ["dead", "done", "retried"] {
        enqueue(&world.runner, &jobs, value, &Enqueue::new()).await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        match place {
            "dead" => delivery.discard(HOSTILE).await.unwrap(),
            "done" => {
                delivery.set_result(HOSTILE).unwrap();
                delivery.complete().await.unwrap();
            }
            _ => {
                let retried = delivery.retry_after(LONG, HOSTILE).await;
                retried.unwrap();
            }
        }
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
    enqueue(&world.runner, &jobs, value, &Enqueue::new()).await;
    let jobs = &jobs;
    let schedule = &Schedule::new("0 4 * * *");
    let limits = &GroupLimits::new()
        .with_limit(2)
        .with_rate(Rate::new(1, LONG));
    let add = |tr: Tx<_>| async move {
        let tr = &tr;
        let _ = jobs.schedule(tr, HOSTILE, schedule, value).await?;
        jobs.configure_group(tr, HOSTILE.as_bytes(), Some(limits))
            .await?;
        let parent = jobs.open_batch(tr, &Batch::new()).await?;
        let nested = Batch::new()
            .with_callback(value.clone(), Enqueue::new())
            .with_parent(&parent);
        let nested = jobs.open_batch(tr, &nested).await?;
        let member = Enqueue::new().with_group(HOSTILE).with_batch(&nested);
        let _ = jobs.enqueue_with(tr, value, &member).await?;
        Ok::<_, Error>(())
    };
    world.runner.run(add).await.unwrap();
    add_names(world).await;
}

async fn add_jobs(world: &World) -> Queue<Value, Json> {
    let subspace = world.root.subspace(&("hostile", HOSTILE));
    let settings = Settings::new().with_keep_done(LONG);
    let options = OpenOptions::new()
        .with_codec(Json)
        .with_ids(world.ids.clone());
    Queue::open_with(&world.runner, subspace, settings, options)
        .await
        .unwrap()
}

/// Adds queues of other recipes whose names, and whose subscription's name, are hostile.
async fn add_names(world: &World) {
    let options = || {
        OpenOptions::new()
            .with_codec(Json)
            .with_ids(world.ids.clone())
    };
    let place = |name: &str| -> Subspace { world.root.subspace(&(name, HOSTILE)) };
    let micro = MicroQueue::<String, Json>::open_with(&world.runner, place("micro"), options());
    micro.await.unwrap();
    let settings = export_queue::Settings::new().with_bucket_count(1);
    let exports = ExportQueue::<String, String, Json>::open_with(
        &world.runner,
        place("exports"),
        settings,
        options(),
    )
    .await
    .unwrap();
    let subscribed = exports.subscribe(&world.runner, HOSTILE, Start::Oldest);
    subscribed.await.unwrap();
}

/// Panics if something of what is stored has become an element, has run or has opened a dialog.
async fn assert_harmless(window: &Window, path: &str) {
    assert_eq!(window.dialog().await, None, "{path}");
    let foreign: Vec<String> = window.value(FOREIGN).await;
    assert_none(&foreign, path);
}

async fn stored_scripts_are_text(driver: &Driver) {
    let world = world().await;
    add_hostile(&world).await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    let look = async |path: &str| {
        assert_harmless(&window, path).await;
        if path.contains("hostile") {
            let text = window.text("main").await;
            assert!(text.contains("<script>window.ran=1"), "{path}: {text}");
        }
    };
    let paths = window.crawl(&base, look).await;
    let hostile = paths.iter().filter(|path| path.contains("hostile"));
    // With the pages of two batches.
    assert!(hostile.count() >= 1 + 5 + 5 + 4 + 2, "{paths:#?}");
    assert_places_show(&window, &paths).await;
    // What the events bring, too.
    for path in paths.iter().filter(|path| path.contains("%3Cscript%3E")) {
        if path.matches('/').count() > 2 {
            continue;
        }
        window.go(&format!("{base}{path}")).await;
        window
            .wait("#live-status", |text| text.starts_with("Live"))
            .await;
        assert_harmless(&window, path).await;
    }
    window.go(&base).await;
    window
        .wait("#live-status", |text| text.starts_with("Live"))
        .await;
    assert_harmless(&window, "/").await;
}

/// Panics unless the parts of items and of schedules that are hostile are shown as they were stored.
async fn assert_places_show(window: &Window, paths: &[String]) {
    let shown_at = |end: &str, selector: &'static str| {
        let is_it = |path: &&String| path.contains("hostile") && path.ends_with(end);
        let path = paths.iter().find(is_it).unwrap().clone();
        async move {
            let go = "location.href = arguments[0]";
            let _: () = window.value_of(go, &[&path]).await;
            window.wait(selector, |text| text.contains(HOSTILE)).await;
        }
    };
    shown_at("/items/dead", "td.text").await;
    shown_at("/schedules", "tbody th").await;
    shown_at("/groups", "tbody th").await;
}

async fn no_script_runs_but_the_pages_own(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    let window = driver.open(View::DESKTOP).await;
    for path in ["/", "/queues/jobs", "/queues/jobs/items/dead", "/nothing"] {
        window.go(&format!("{base}{path}")).await;
        let header = "return fetch(location.href) \
                      .then(answer => answer.headers.get('content-security-policy'))";
        let policy: String = window.value(header).await;
        assert!(policy.contains("script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        // If something of what is stored did become an element, it still would not run.
        let add = "const script = document.createElement('script'); \
                   script.textContent = 'window.ran = 1'; document.body.append(script); \
                   const button = document.createElement('button'); \
                   button.setAttribute('onclick', 'window.ran = 1'); document.body.append(button); \
                   button.click(); return window.ran === undefined";
        assert!(window.value::<bool>(add).await, "{path}");
    }
}
