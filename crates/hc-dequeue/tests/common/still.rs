//! A clock that stands still, for tests of time limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::{World, open};
use conformance::stores::TestStore;
use conformance::until;
use futures::future::BoxFuture;
use hc_dequeue::Settings;
use keyspace::env::{Clock, ManualClock};
use keyspace::run::RunOptions;
use keyspace::{Environment, Isolation, RangeQuery, Runner, Store, read_all};

/// A clock that stands still until it is moved. Sleeps also end after their real time, so that retries go on. The wall
/// clock shows another time whenever it is read.
#[derive(Debug, Clone)]
pub(crate) struct Still {
    clock: ManualClock,
    began: SystemTime,
    reads: Arc<AtomicU64>,
}

impl Still {
    pub(crate) fn new() -> Self {
        Self {
            clock: ManualClock::new(),
            began: Environment::system().wall(),
            reads: Arc::default(),
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Moves the clock to the time of the next heartbeats, and returns after each session has written one.
    pub(crate) async fn next_heartbeats(&self, world: &World, lease: Duration) {
        let (begin, end) = world.key("b").range();
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        let before = &world.runner.run(read).await.unwrap();
        self.advance(lease / 3);
        until(async || {
            let now = world.runner.run(read).await.unwrap();
            now.iter().zip(before).all(|(now, before)| now != before)
        })
        .await;
    }

    /// Returns a world with this clock.
    pub(crate) async fn world(&self, store: &TestStore, settings: Settings) -> World {
        let store = store.fresh();
        let runner = self.runner(&store);
        let queue = open(&store, &runner, settings).await.unwrap();
        World {
            store,
            runner,
            queue,
        }
    }

    /// Returns a runner of a process with this clock.
    pub(crate) fn runner(&self, store: &TestStore) -> Runner<Store> {
        Runner::with_options(store.db.clone(), self.options(store))
    }

    pub(crate) fn options(&self, store: &TestStore) -> RunOptions {
        let seed = u64::from_le_bytes(Environment::system().random_bytes());
        RunOptions::default()
            .with_ledger_subspace(store.root.subspace(&"ledgers"))
            .with_environment(Environment::seeded(seed, Arc::new(self.clone())))
    }
}

impl Clock for Still {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        self.began + self.now() + Duration::from_millis(reads)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let moved = self.clock.sleep(duration);
        let real = Environment::system().sleep(duration);
        Box::pin(async move {
            tokio::select! {
                () = moved => {}
                () = real => {}
            }
        })
    }
}
