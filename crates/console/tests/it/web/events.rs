//! Server-sent events, and how often the sampler looks at the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{Method, StatusCode};
use conformance::stores::TestStore;
use export_queue::keyspace::env::ManualClock;
use export_queue::keyspace::{Database, DatabaseOption, Result, Runner, Store, Subspace};
use futures::{FutureExt, StreamExt};
use tower::ServiceExt;

use crate::web::site::{JsonJobs, PATIENCE, TestSite, enqueue, open, request, runner_on};

const SECOND: Duration = Duration::from_secs(1);

/// A store that counts the transactions that are begun.
#[derive(Clone)]
struct Counted {
    db: Store,
    begun: Arc<AtomicUsize>,
}

impl Database for Counted {
    type Transaction = <Store as Database>::Transaction;

    fn begin(&self) -> Result<Self::Transaction> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.db.begin()
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

/// A console over one queue, with a clock.
struct WatchedQueue {
    runner: Runner<Counted>,
    queue: JsonJobs,
    clock: ManualClock,
    begun: Arc<AtomicUsize>,
    site: TestSite,
}

impl WatchedQueue {
    async fn new() -> Self {
        let clock = ManualClock::new();
        let begun = Arc::default();
        let counted = Counted {
            db: TestStore::memory().db,
            begun: Arc::clone(&begun),
        };
        let runner = runner_on(counted, &clock);
        let queue = open(&runner, Subspace::from("jobs")).await;
        let site = TestSite::read_only(&runner);
        Self {
            runner,
            queue,
            clock,
            begun,
            site,
        }
    }

    async fn enqueue(&self, values: &[&str]) {
        enqueue(&self.runner, &self.queue, values).await;
    }

    /// Returns how many transactions were begun since the last call.
    fn begun(&self) -> usize {
        self.begun.swap(0, Ordering::Relaxed)
    }

    async fn listen(&self, path: &str) -> BodyDataStream {
        let request = request(Method::GET, path, Body::empty());
        let response = self.site.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        response.into_body().into_data_stream()
    }
}

/// Returns the next event: its kind, and its text.
async fn next(events: &mut BodyDataStream) -> (String, String) {
    let bytes = conformance::timeout(PATIENCE, events.next()).await;
    let text = String::from_utf8(bytes.unwrap().unwrap().to_vec()).unwrap();
    let (kind, data) = text.split_once("\ndata: ").unwrap();
    let data: String = serde_json::from_str(data.trim_end()).unwrap();
    (kind.replace("event: ", ""), data)
}

/// Lets all other tasks do what they can without the clock.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn listeners_see_what_moves() {
    let world = WatchedQueue::new().await;
    let mut overview = world.listen("/events").await;
    let mut queue = world.listen("/events/queues/jobs").await;
    let (kind, html) = next(&mut overview).await;
    assert_eq!(kind, "state");
    assert!(html.contains(r#"data-label="Queued">0<"#), "{html}");
    assert!(next(&mut queue).await.1.contains("Queued <b>0</b>"));
    world.enqueue(&["a", "b"]).await;
    for _ in 0..10 {
        world.clock.advance(SECOND);
        next(&mut queue).await;
        next(&mut overview).await;
    }
    world.clock.advance(SECOND);
    assert!(
        next(&mut overview)
            .await
            .1
            .contains(r#"data-label="Queued">2<"#)
    );
    let (_, html) = next(&mut queue).await;
    assert!(
        html.contains("Queued <b>2</b>") && html.contains("<polyline"),
        "{html}"
    );
    // A page that is loaded meanwhile begins with the same history.
    assert!(world.site.shown("/").await.text.contains("<polyline"));
}

#[tokio::test]
async fn rates_are_differences_of_the_counters() {
    let world = WatchedQueue::new().await;
    let mut queue = world.listen("/events/queues/jobs").await;
    next(&mut queue).await;
    let mut html = String::new();
    for _ in 0..10 {
        world.enqueue(&["a", "b", "c"]).await;
        world.clock.advance(SECOND);
        html = next(&mut queue).await.1;
    }
    assert!(html.contains("<dt>In</dt><dd>3.0/s</dd>"), "{html}");
    assert!(html.contains("<dt>Out</dt><dd>0/s</dd>"), "{html}");
}

#[tokio::test]
async fn the_store_is_looked_at_once_a_second_however_many_listen() {
    let world = WatchedQueue::new().await;
    let mut one = world.listen("/events").await;
    world.begun();
    next(&mut one).await;
    settle().await;
    let each = world.begun();
    assert!(each > 0);
    let mut listeners = vec![one];
    for _ in 0..9 {
        listeners.push(world.listen("/events").await);
    }
    settle().await;
    assert_eq!(world.begun(), 0, "nothing before the second is over");
    for _ in 0..5 {
        world.clock.advance(SECOND / 2);
        settle().await;
        assert_eq!(world.begun(), 0, "nothing in the middle of a second");
        world.clock.advance(SECOND / 2);
        for listener in &mut listeners {
            next(listener).await;
        }
        settle().await;
        assert_eq!(world.begun(), each);
    }
    // One that comes back at once waits for its turn.
    listeners.clear();
    listeners.push(world.listen("/events").await);
    settle().await;
    assert_eq!(world.begun(), 0);
}

#[tokio::test]
async fn without_listeners_nothing_looks_at_the_store_and_no_task_stays() {
    let world = WatchedQueue::new().await;
    world.begun();
    world.clock.advance(60 * SECOND);
    settle().await;
    assert_eq!(world.begun(), 0);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let mut listener = world.listen("/events").await;
    next(&mut listener).await;
    assert_eq!(tasks(), before + 1);
    let WatchedQueue { site, begun, .. } = &world;
    drop(listener);
    begun.store(0, Ordering::Relaxed);
    for _ in 0..3 {
        world.clock.advance(SECOND);
        settle().await;
    }
    assert_eq!(begun.load(Ordering::Relaxed), 0);
    assert_eq!(tasks(), before);
    site.shown("/").await;
}

#[tokio::test]
async fn a_slow_listener_gets_the_newest_state_and_nothing_else() {
    let world = WatchedQueue::new().await;
    let mut slow = world.listen("/events/queues/jobs").await;
    let mut quick = world.listen("/events/queues/jobs").await;
    // The first look may have been over before the second listener came.
    settle().await;
    world.clock.advance(SECOND);
    next(&mut quick).await;
    for _ in 0..50 {
        world.enqueue(&["a"]).await;
        world.clock.advance(SECOND);
        next(&mut quick).await;
    }
    assert!(next(&mut slow).await.1.contains("Queued <b>50</b>"));
    assert!(slow.next().now_or_never().is_none(), "no backlog");
}

#[tokio::test]
async fn a_queue_is_listened_to_by_any_spelling_of_its_name() {
    let world = WatchedQueue::new().await;
    open(&world.runner, Subspace::from(".")).await;
    let page = world.site.shown("/queues/%22.%22").await;
    assert_eq!(page.after("data-events=\""), "/events/queues/%22.%22");
    let mut events = world.listen("/events/queues/%22.%22").await;
    let (kind, text) = next(&mut events).await;
    assert_eq!(kind, "state", "{text}");
}

#[tokio::test]
async fn listeners_are_bounded() {
    let world = WatchedQueue::new().await;
    let mut listeners = Vec::new();
    for _ in 0..100 {
        listeners.push(world.listen("/events").await);
    }
    for path in ["/events", "/events/queues/jobs"] {
        let refused = conformance::timeout(PATIENCE, world.site.get(path)).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    world.site.shown("/").await;
    listeners.pop();
    listeners.push(world.listen("/events/queues/jobs").await);
}

#[tokio::test]
async fn a_queue_that_goes_away_is_trouble_and_comes_back() {
    let world = WatchedQueue::new().await;
    let mut events = world.listen("/events/queues/jobs").await;
    next(&mut events).await;
    let subspace = &Subspace::from("jobs");
    let ids = &export_queue::keyspace::Ids::default();
    let remove = |tr| async move {
        ids.unregister(&tr, subspace);
        Ok::<_, export_queue::keyspace::Error>(())
    };
    world.runner.run(remove).await.unwrap();
    world.clock.advance(SECOND);
    let (kind, text) = next(&mut events).await;
    assert_eq!(kind, "trouble");
    assert!(text.contains("no longer exists"));
    open(&world.runner, Subspace::from("jobs")).await;
    world.clock.advance(SECOND);
    assert_eq!(next(&mut events).await.0, "state");
}
