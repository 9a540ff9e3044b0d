//! Stored text, names and arguments that would act on a terminal or on a page. All of them are shown, and none acts.

use std::time::Duration;

use crate::common::program::{Filled, Finished, run};
use crate::common::{LONG, World, enqueue, hex};
use crate::web::site::TestSite;
use console::WebOptions;
use export_queue::combine::{CombineQueue, Unobserved};
use export_queue::hc_dequeue::{Backoff, Enqueue, Error, Queue, Schedule, Settings, WorkerOptions};
use export_queue::keyspace::codec::{Codec, DecodeError, Json};
use export_queue::keyspace::{self, Bytes, OpenOptions, Subspace, Tx, tuple};
use export_queue::microqueue::MicroQueue;
use export_queue::{BoxError, ExportQueue, Exporter, SequencedExport, Start, async_trait};
use serde_json::{Value, json};

/// Clears the screen, begins a line of its own, turns the text around, and hides a part of it.
const HOSTILE: &str = "\u{1b}[2J\u{7}\u{8}\r\nforged line\t\u{7f}\u{9b}31m\u{85}\u{202e}gpj.exe\u{2066}\u{61c}\
    \u{200b}\u{feff}\u{ad}\u{3164}\u{2028}forged too\u{2029}\u{e0041}\u{200f}'\"<b>";

/// Panics if an output has a character that acts on a terminal or shows nothing, or a line that is not the program's.
#[track_caller]
fn assert_harmless(what: &str, output: &str) {
    let visible = "gpj.exeforged line31m[2J'\"<b>too ";
    let hostile = |char: &char| {
        (char.is_control() && *char != '\n')
            || (HOSTILE.contains(*char) && !visible.contains(*char) && *char != '\n')
    };
    let found: Vec<_> = output.chars().filter(hostile).collect();
    assert!(found.is_empty(), "{what}: {found:?} in {output:?}");
    let forged = output.lines().find(|line| line.starts_with("forged"));
    assert_eq!(forged, None, "{what}: {output}");
}

#[track_caller]
fn assert_all_harmless(what: &[&str], finished: &Finished) {
    for output in [&finished.out, &finished.err] {
        assert_harmless(&format!("{what:?}"), output);
    }
}

/// A codec whose name is hostile, too.
#[derive(Clone, Default)]
struct Sealed;

impl Codec<String> for Sealed {
    const NAME: &'static str = HOSTILE;

    fn encode(&self, value: &String, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.extend_from_slice(value.as_bytes());
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<String, DecodeError> {
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// An exporter that refuses everything.
struct Refuses;

#[async_trait]
impl Exporter<String, String> for Refuses {
    async fn export(&self, _: &[SequencedExport<String, String>]) -> Result<(), BoxError> {
        Err(HOSTILE.into())
    }
}

/// Adds queues of all recipes with hostile names, and hostile text in every field that an application chooses.
async fn add_hostile(world: &World) {
    let place = |recipe: &str| world.root.subspace(&("hostile", recipe, HOSTILE));
    let jobs = place("jobs");
    let micro = place("micro");
    add_items(world, jobs).await;
    let options = OpenOptions::new()
        .with_codec(Sealed)
        .with_ids(world.ids.clone());
    let micro = &MicroQueue::<String, Sealed>::open_with(&world.runner, micro, options)
        .await
        .unwrap();
    let text = &HOSTILE.to_owned();
    let add = |tr| async move { micro.enqueue(&tr, text).await.map(drop) };
    world.runner.run(add).await.unwrap();
    add_counts(world, place("counts")).await;
    add_exports(world, place("exports")).await;
    let ids = &world.ids;
    let unknown = &place("unknown");
    let register = |tr| async move { ids.register(&tr, unknown, HOSTILE, &[HOSTILE]).await };
    world.runner.run(register).await.unwrap();
    let key = [world.root.bytes(), b"\x1b[2J\xff", HOSTILE.as_bytes()].concat();
    world.set(&key, HOSTILE.as_bytes()).await;
    world.set(&place("row").pack(&HOSTILE), b"1").await;
}

async fn add_items(world: &World, subspace: Subspace) {
    let options = OpenOptions::new()
        .with_codec(Json)
        .with_ids(world.ids.clone());
    let settings = Settings::new().with_keep_done(LONG).with_lease(LONG);
    let jobs = Queue::<Value, Json>::open_with(&world.runner, subspace, settings, options)
        .await
        .unwrap();
    let value = &json!({ HOSTILE: [HOSTILE] });
    let consumer = jobs
        .consumer(&world.runner, WorkerOptions::default())
        .await
        .unwrap();
    for place in ["dead", "done", "delayed", "held"] {
        let id = format!("{place}{HOSTILE}");
        enqueue(&world.runner, &jobs, value, &Enqueue::new().with_dedupe(id)).await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        let hostile = &delivery;
        let progress = |tr| async move { hostile.set_progress(&tr, 1, 2, HOSTILE).await };
        world.runner.run(progress).await.unwrap();
        let done = |_| async { Ok::<_, Error>(()) };
        delivery.step(HOSTILE, done).await.unwrap();
        let checkpoint = |tr| async move { hostile.set_checkpoint(&tr, HOSTILE.as_bytes()).await };
        world.runner.run(checkpoint).await.unwrap();
        match place {
            "dead" => delivery.discard(HOSTILE).await.unwrap(),
            "done" => {
                delivery.set_result(HOSTILE).unwrap();
                delivery.complete().await.unwrap();
            }
            "delayed" => delivery.retry_after(LONG, HOSTILE).await.unwrap(),
            // They are held as long as the test takes.
            _ => std::mem::forget(delivery),
        }
    }
    let with_group = Enqueue::new().with_group(HOSTILE).with_kind(HOSTILE);
    enqueue(&world.runner, &jobs, value, &with_group).await;
    std::mem::forget(consumer);
    let options = Enqueue::new()
        .with_dedupe(HOSTILE)
        .with_group(HOSTILE)
        .with_kind(HOSTILE);
    let nightly = Schedule::new("0 4 * * *").with_enqueue_options(options);
    let jobs = &jobs;
    let schedule = &nightly;
    let add = |tr: Tx<_>| async move {
        for name in [HOSTILE, "z\u{1b}"] {
            let _ = jobs.schedule(&tr, name, schedule, value).await?;
        }
        Ok::<_, Error>(())
    };
    world.runner.run(add).await.unwrap();
}

/// Panics for one key, so that its update is set aside with a hostile reason.
#[allow(
    clippy::ptr_arg,
    reason = "a combiner takes a reference to the key's type"
)]
fn refuse(key: &String, _: Option<String>, updates: Vec<String>) -> Option<String> {
    assert!(!key.starts_with("bad"), "{HOSTILE}");
    updates.last().cloned()
}

async fn add_counts(world: &World, subspace: Subspace) {
    let options = OpenOptions::new()
        .with_codec(Json)
        .with_ids(world.ids.clone());
    let settings = export_queue::combine::Settings::new().with_bucket_count(1);
    let counts = &CombineQueue::<String, String, String, Json>::open_with(
        &world.runner,
        subspace,
        settings,
        refuse,
        options,
    )
    .await
    .unwrap();
    let text = &HOSTILE.to_owned();
    for key in [HOSTILE.to_owned(), format!("bad{HOSTILE}")] {
        let key = &key;
        let add = |tr| async move { counts.add(&tr, key, text).await };
        world.runner.run(add).await.unwrap();
    }
    let worker = counts
        .work(&world.runner, WorkerOptions::default(), Unobserved)
        .await
        .unwrap();
    let idle = counts.wait_idle(&world.runner);
    conformance::timeout(LONG, idle).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
}

async fn add_exports(world: &World, subspace: Subspace) {
    let options = OpenOptions::new()
        .with_codec(Json)
        .with_ids(world.ids.clone());
    let settings = export_queue::Settings::new().with_bucket_count(1);
    let exports =
        &ExportQueue::<String, String, Json>::open_with(&world.runner, subspace, settings, options)
            .await
            .unwrap();
    let text = &HOSTILE.to_owned();
    let subscription = exports
        .subscribe(&world.runner, HOSTILE, Start::Oldest)
        .await
        .unwrap();
    let add = |tr| async move { exports.add(&tr, text, text).await };
    world.runner.run(add).await.unwrap();
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    let options = WorkerOptions::new()
        .with_backoff(backoff)
        .with_dead_letter_after(1);
    let worker = subscription
        .work(&world.runner, options, Refuses)
        .await
        .unwrap();
    let idle = subscription.wait_idle(&world.runner);
    conformance::timeout(LONG, idle).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
}

fn hostile_store() -> Filled {
    Filled::with(|world| Box::pin(add_hostile(world)))
}

/// Returns the names of the hostile queues as the program prints them, by their recipes.
fn names(store: &Filled) -> impl Fn(&str) -> String {
    let queues = store.json(&["queues"]);
    let names: Vec<_> = queues["queues"].as_array().unwrap().clone();
    move |place| {
        let mut names = names.iter().map(|queue| queue["name"].as_str().unwrap());
        let prefix = format!("hostile/{place}/");
        names
            .find(|name| name.starts_with(&prefix))
            .unwrap()
            .to_owned()
    }
}

/// Returns a text as strings of the program's output have it.
fn visible(text: &str) -> String {
    console::terminal::line(text)
}

#[test]
fn stored_text_is_shown_by_every_command_and_does_nothing() {
    let store = hostile_store();
    let name = names(&store);
    let [jobs, micro, counts, exports, unknown] =
        ["jobs", "micro", "counts", "exports", "unknown"].map(name);
    let items = |place: &str| {
        let items = store.json(&["list", &jobs, "--place", place]);
        items["items"][0]["item"].as_str().unwrap().to_owned()
    };
    let [dead, done, delayed, queued] = ["dead", "done", "delayed", "queued"].map(items);
    let key = Value::from(HOSTILE).to_string();
    let row = format!(
        "raw:{}",
        hex(&tuple::pack(&("hostile", "row", HOSTILE, HOSTILE)))
    );
    let reason = visible(HOSTILE);
    let commands: &[(&[&str], &str)] = &[
        (&["queues"], &jobs),
        (&["queues", "--limit", "7"], "more: --after="),
        (&["stats", &jobs], r"\u202egpj.exe"),
        (&["stats", &micro], &reason),
        (&["stats", &unknown], &reason),
        (&["list", &jobs], &reason),
        (&["list", &jobs, "--kind", HOSTILE], &reason),
        (&["list", &jobs, "--place", "dead"], &reason),
        (&["list", &jobs, "--place", "delayed"], &reason),
        (&["list", &jobs, "--place", "held"], r"\u001b[2J"),
        (&["list", &jobs, "--place", "done"], "completed"),
        (&["show", &jobs, &dead], r"\u202egpj.exe"),
        (&["show", &jobs, &done], r"\u202egpj.exe"),
        (&["show", &jobs, &delayed], r"\u202egpj.exe"),
        (&["show", &jobs, &queued], r"\u202egpj.exe"),
        (&["groups", &jobs], &reason),
        (&["kinds", &jobs], &reason),
        (&["limit", &jobs, HOSTILE], r"\u202egpj.exe"),
        (&["limit", &jobs, HOSTILE, "--at-most", "4"], "at most 4"),
        (&["batches", &jobs], "no batches"),
        (&["sessions", &jobs], "SESSION"),
        (&["schedules", &jobs], &reason),
        (
            &["schedules", &jobs, "--limit", "1"],
            r"more: --after=$'\x1b[2J",
        ),
        (&["configure", &jobs], &jobs),
        (&["audit", &jobs], &jobs),
        (&["combine", &counts], &counts),
        (&["combine", &counts, &key], r"\u202egpj.exe"),
        (&["combine", &counts, "--set-aside"], r"\u202egpj.exe"),
        (&["exports", &exports], &reason),
        (&["list", &exports, "--subscription", HOSTILE], &reason),
        (&["sessions", &exports], ""),
        (&["ls", "--limit", "1000"], r"raw:1b5b324aff"),
        (&["ls", "hostile", "--limit", "1000"], &jobs),
        (&["get", &row], r"\u202egpj.exe"),
    ];
    for (command, text) in commands {
        let finished = store.run(command);
        assert_eq!(finished.status, 0, "{command:?}: {finished:?}");
        assert_all_harmless(command, &finished);
        assert!(
            finished.out.contains(text),
            "{command:?}: {text}\n{}",
            finished.out
        );
        // A document means what is stored.
        let json = store.run(&[command, &["--json"][..]].concat());
        assert_all_harmless(command, &json);
        serde_json::from_str::<Value>(&json.out).unwrap();
    }
    let shown = store.json(&["show", &jobs, &dead]);
    assert_eq!(shown["failure"]["reason"], HOSTILE);
    assert_eq!(shown["payload"]["value"], json!({ HOSTILE: [HOSTILE] }));
    // A name can be typed as it was printed.
    let paused = store.run(&["pause", &jobs]);
    assert_eq!(paused.status, 0);
    assert_all_harmless(&["pause"], &paused);
    let all = ["redrive", &*jobs, "--reason", HOSTILE, "--yes"];
    let redriven = store.run(&all);
    assert!(
        redriven.out.ends_with(": redrive: 1: done\n"),
        "{redriven:?}"
    );
    assert_all_harmless(&all, &redriven);
}

#[test]
fn an_argument_that_is_echoed_does_nothing() {
    let store = hostile_store();
    let path = store.folder.path().join(HOSTILE.replace('/', ""));
    let no_store = format!("embedded:{}", path.display());
    let commands: &[&[&str]] = &[
        &[HOSTILE],
        &["stats", HOSTILE],
        &["list", "jobs", "--place", HOSTILE],
        &["list", "jobs", "--after", HOSTILE],
        &["list", "events", "--subscription", HOSTILE],
        &["list", "jobs", "--kind", &HOSTILE.repeat(2)],
        &["kinds", HOSTILE],
        &["list", HOSTILE, "--subscription", HOSTILE],
        &["show", "jobs", HOSTILE],
        &["cancel", "jobs", HOSTILE],
        &["purge", "events", "--subscription", "mirror", HOSTILE],
        &["purge", "counts", HOSTILE],
        &["redrive", "jobs", "--older-than", HOSTILE],
        &["redrive", HOSTILE, "--all"],
        &["sessions", "jobs", "--after", HOSTILE],
        &["groups", HOSTILE],
        &["limit", HOSTILE, "a"],
        &["limit", "jobs", "a", "--at-most", HOSTILE],
        &["batches", HOSTILE],
        &["batches", "jobs", "--after", HOSTILE],
        &["batch", "jobs", HOSTILE],
        &["close-batch", "jobs", HOSTILE],
        &["cancel-batch", "jobs", HOSTILE],
        &["queues", "--after", HOSTILE],
        &["queues", "--limit", HOSTILE],
        &["combine", "counts", "--combiner", HOSTILE, "a"],
        &["combine", HOSTILE, "a"],
        &["ls", HOSTILE],
        &["ls", "--after", HOSTILE],
        &["get", HOSTILE],
        &["configure", "jobs", "--lease", HOSTILE],
        &["serve", "--listen", HOSTILE],
        &["pause", HOSTILE],
        &["audit", HOSTILE],
        &["queues", "--frobnicate", HOSTILE],
        &["backup", "/none\u{1b}[2J\nforged/copy"],
    ];
    for command in commands {
        let finished = store.run(command);
        assert_ne!(finished.status, 0, "{command:?}");
        assert!(!finished.err.is_empty(), "{command:?}");
        assert_all_harmless(command, &finished);
    }
    for db in [&no_store, HOSTILE, "embedded:\u{1b}[2J/forged"] {
        let finished = run(&["queues", "--db", db]);
        assert_ne!(finished.status, 0, "{db:?}");
        assert_all_harmless(&[db], &finished);
    }
    let long = "x".repeat(100_000);
    for command in [
        &["stats", &long][..],
        &["show", "jobs", &long],
        &["get", &long],
    ] {
        let finished = store.run(command);
        assert!(finished.err.len() < 5_000, "{}", finished.err.len());
    }
}

/// If a single text is printed as it is, the checks of this file see it.
#[test]
fn text_that_is_not_escaped_is_noticed() {
    for text in [HOSTILE, "a\rb", "\u{202e}", "\u{200b}", "a\tb", "a\nforged"] {
        let checked = std::panic::catch_unwind(|| assert_harmless("planted", text));
        assert!(checked.is_err(), "{text:?}");
    }
    assert_harmless("escaped", &visible(HOSTILE));
}

#[tokio::test]
async fn pages_show_hidden_characters_as_codes() {
    let store = conformance::stores::TestStore::memory().db;
    let world = World::on(store, Subspace::all(), keyspace::Ids::default()).await;
    add_hostile(&world).await;
    let router = console::router(world.console(), WebOptions::new().allow_changes(true));
    let site = TestSite { router };
    let queues = site.shown("/api/queues").await.json();
    let names = queues["queues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|queue| queue["name"].as_str().unwrap().to_owned());
    let segments = names
        .filter(|name| name.starts_with("hostile/"))
        .map(|name| {
            let bytes = name.bytes().map(|byte| format!("%{byte:02X}"));
            (name.clone(), bytes.collect::<String>())
        });
    let mut paths = vec![
        "/".to_owned(),
        "/queues/no\u{202e}ne".replace('\u{202e}', "%E2%80%AE"),
    ];
    for (name, segment) in segments {
        paths.push(format!("/queues/{segment}"));
        if name.starts_with("hostile/jobs") {
            let places = [
                "items/dead",
                "items/delayed",
                "items/held",
                "items/done",
                "items/queued",
            ];
            let rest = places
                .iter()
                .chain(&["groups", "batches", "sessions", "schedules"]);
            paths.extend(rest.map(|rest| format!("/queues/{segment}/{rest}")));
            let dead = site
                .shown(&format!("/api/queues/{segment}/items/dead"))
                .await
                .json();
            let item = dead["items"][0]["item"].as_str().unwrap();
            paths.push(format!("/queues/{segment}/item/{item}"));
            let kind: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
            paths.push(format!("/queues/{segment}/items/queued?kind={kind}"));
        }
    }
    assert!(paths.len() > 12, "{paths:?}");
    for path in &paths {
        let page = site.get(path).await.text;
        // A page has lines of its own.
        let text = page.replace(['\n', '\r', '\t'], " ");
        assert_harmless(path, &text);
        assert!(page.contains("202e"), "{path}: {page}");
    }
}
