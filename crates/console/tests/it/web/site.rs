//! A console over a store with queues in it, and requests to it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use conformance::stores::TestStore;
use console::{Console, WebOptions};
use export_queue::hc_dequeue::keyspace::codec::{Codec, Json};
use export_queue::hc_dequeue::{Enqueue, Error, Queue, Schedule, Settings, WorkerOptions};
use export_queue::keyspace::env::ManualClock;
use export_queue::keyspace::limits::END_OF_KEYSPACE;
use export_queue::keyspace::{
    Database, Environment, Isolation, OpenOptions, RangeQuery, RunOptions, Runner, Store, Subspace,
    Transaction, Tx,
};
use serde_json::Value;
use tower::ServiceExt;

/// What would run as a script, or end an attribute, if it was not escaped.
pub(crate) const EVIL: &str = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>";

/// A guard of tests, not a part of them.
pub(crate) const PATIENCE: Duration = conformance::HANG;

pub(crate) type JsonJobs = Queue<String, Json>;

/// A store in memory with the system's clock.
pub(crate) fn runner() -> Runner<Store> {
    Runner::new(TestStore::memory().db)
}

/// A store in memory whose environment has a clock that a test moves.
pub(crate) fn runner_with_clock() -> (Runner<Store>, ManualClock) {
    let clock = ManualClock::new();
    (runner_on(TestStore::memory().db, &clock), clock)
}

pub(crate) fn runner_on<D: Database>(db: D, clock: &ManualClock) -> Runner<D> {
    let env = Environment::seeded(1, Arc::new(clock.clone()));
    Runner::with_options(db, RunOptions::default().with_environment(env))
}

pub(crate) async fn open<D: Database>(runner: &Runner<D>, subspace: Subspace) -> JsonJobs {
    let settings = Settings::new().with_keep_done(Duration::from_secs(3_600));
    JsonJobs::open_with(runner, subspace, settings, OpenOptions::default())
        .await
        .unwrap()
}

pub(crate) async fn enqueue<D: Database>(runner: &Runner<D>, queue: &JsonJobs, values: &[&str]) {
    let values = &Vec::from_iter(values.iter().map(|value| (*value).to_owned()));
    let add = |tr: Tx<D::Transaction>| async move {
        queue.enqueue_all(&tr, values).await?;
        Ok::<_, Error>(())
    };
    runner.run(add).await.unwrap();
}

/// Fills the queue `orders/<evil>` with an evil item in every place but `held`, and an evil schedule.
pub(crate) async fn evil_queue(runner: &Runner<Store>) -> JsonJobs {
    let queue = open(runner, Subspace::from(("orders", EVIL))).await;
    enqueue(runner, &queue, &[EVIL, EVIL]).await;
    let consumer = queue
        .consumer(runner, WorkerOptions::default())
        .await
        .unwrap();
    let dead = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
    dead.discard(EVIL).await.unwrap();
    let done = consumer.dequeue_within(PATIENCE).await.unwrap().unwrap();
    done.set_result(EVIL).unwrap();
    let evil = &done;
    let progress = |tr: Tx<_>| async move { evil.set_progress(&tr, 1, 2, EVIL).await };
    runner.run(progress).await.unwrap();
    done.complete().await.unwrap();
    consumer.shut_down(PATIENCE).await.unwrap();
    let value = &EVIL.to_owned();
    let schedule = &Schedule::new("0 4 * * *");
    let later = &Enqueue::new().with_delay(Duration::from_secs(3_600));
    let add = &queue;
    let rest = |tr: Tx<_>| async move {
        let _ = add.enqueue_with(&tr, value, later).await?;
        let _ = add.schedule(&tr, EVIL, schedule, value).await?;
        add.set_schedule_owner(&tr, EVIL, Some(EVIL)).await?;
        Ok::<_, Error>(())
    };
    runner.run(rest).await.unwrap();
    enqueue(runner, &queue, &[EVIL]).await;
    queue
}

/// The name of [`evil_queue`] as a segment of a path.
pub(crate) fn evil_segment() -> String {
    let name = format!("orders/{}", Value::from(EVIL));
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A router, and what its requests have.
pub(crate) struct TestSite {
    pub(crate) router: Router,
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// Returns the value of an attribute, from its first place on.
    pub(crate) fn after(&self, text: &str) -> &str {
        let (_, after) = self.text.split_once(text).expect(text);
        &after[..after.find('"').unwrap()]
    }
}

impl TestSite {
    pub(crate) fn new<D: Database>(runner: &Runner<D>, options: WebOptions) -> Self {
        let router = console::router(Console::new(runner), options);
        Self { router }
    }

    pub(crate) fn read_only<D: Database>(runner: &Runner<D>) -> Self {
        Self::new(runner, WebOptions::new())
    }

    pub(crate) fn with_changes<D: Database>(runner: &Runner<D>) -> Self {
        Self::new(runner, WebOptions::new().allow_changes(true))
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn request(&self, method: Method, path: &str) -> Answer {
        self.send(request(method, path, Body::empty())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path).await
    }

    /// Returns an answer that must be a success.
    pub(crate) async fn shown(&self, path: &str) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        answer
    }

    pub(crate) async fn token(&self) -> String {
        let answer = self.shown("/api/token").await.json();
        answer["token"].as_str().unwrap().to_owned()
    }

    /// Sends a form of one of our pages.
    pub(crate) async fn post(&self, path: &str, fields: &str) -> Answer {
        let mut request = request(Method::POST, path, Body::from(fields.to_owned()));
        let headers = request.headers_mut();
        let form = "application/x-www-form-urlencoded".parse().unwrap();
        headers.insert("content-type", form);
        headers.insert("origin", "http://localhost:8080".parse().unwrap());
        headers.insert("sec-fetch-site", "same-origin".parse().unwrap());
        self.send(request).await
    }
}

pub(crate) fn request(method: Method, path: &str, body: Body) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.header("host", "localhost:8080").body(body).unwrap()
}

/// Returns all rows of a store.
pub(crate) async fn rows(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let tr = store.begin().unwrap();
    let all = RangeQuery::keys(&b""[..], END_OF_KEYSPACE);
    let batch = tr.get_range(&all, Isolation::Snapshot).await.unwrap();
    assert!(!batch.more);
    let rows = batch.rows.iter();
    rows.map(|row| (row.to_key().to_vec(), row.value().to_vec()))
        .collect()
}

/// Checks that the codec's name is that of the tests' payloads.
#[test]
fn the_queues_of_these_tests_hold_json() {
    let mut bytes = Vec::new();
    Json.encode(&EVIL.to_owned(), &mut bytes).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), EVIL);
}
