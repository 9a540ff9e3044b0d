//! One store in memory, its chaos, and a runner on it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use keyspace::chaos::{Chaos, Faults};
use keyspace::conformance::history::Recorded;
use keyspace::embedded::Options;
use keyspace::env::ManualClock;
use keyspace::{
    Code, Database, Embedded, Environment, Error, OwnedTransaction, RunOptions, Runner, Transaction,
};

use crate::saboteur::{Plant, Saboteur, ledgers};

pub(crate) type TestDatabase = Saboteur<Chaos<Recorded<Embedded>>>;

pub(crate) struct World {
    pub(crate) store: Embedded,
    /// The store, where nothing fails, with a record of its transactions.
    pub(crate) db: Recorded<Embedded>,
    pub(crate) chaos: Chaos<Recorded<Embedded>>,
    pub(crate) clock: ManualClock,
    pub(crate) env: Environment,
    pub(crate) saboteur: TestDatabase,
}

/// What the closures in these tests fail with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the closure refused")]
    Refused,
    #[error(transparent)]
    Store(#[from] Error),
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults, plant: Plant) -> Self {
        Self::with_clock(ManualClock::moved_by_sleepers(), seed, faults, plant)
    }

    fn with_clock(clock: ManualClock, seed: u64, faults: Faults, plant: Plant) -> Self {
        let env = Environment::seeded(seed, Arc::new(clock.clone()));
        let store = Options::new().environment(env.clone()).memory().unwrap();
        let db = Recorded::new(store.clone()).now_or_never();
        let db = db.expect("a store in memory answers at once").unwrap();
        let chaos = Chaos::new(db.clone(), env.clone(), faults);
        let saboteur = Saboteur {
            db: chaos.clone(),
            plant,
            interlude: None,
            no_news: Code::COMMIT_UNKNOWN_RESULT,
        };
        Self {
            store,
            db,
            chaos,
            clock,
            env,
            saboteur,
        }
    }

    /// A world where nothing goes wrong but what a test scripts.
    pub(crate) fn calm() -> Self {
        Self::new(0, Faults::default(), Plant::Nothing)
    }

    /// A calm world whose clock only the test moves.
    pub(crate) fn still() -> Self {
        Self::with_clock(ManualClock::new(), 0, Faults::default(), Plant::Nothing)
    }

    /// Moves the clock whenever nothing else can be done.
    pub(crate) async fn let_time_pass<F: Future>(&self, future: F) -> F::Output {
        let mut future = Box::pin(future);
        let step = Duration::from_millis(100);
        let tick = async || {
            tokio::task::yield_now().await;
            self.clock.advance(step);
        };
        loop {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = tick() => {}
            }
        }
    }

    pub(crate) fn options(&self) -> RunOptions {
        RunOptions::default().environment(self.env.clone())
    }

    /// A runner with a slot in its pool, so that the next commit is that of an operation.
    pub(crate) async fn runner(&self) -> Runner<TestDatabase> {
        self.runner_with(self.options()).await
    }

    pub(crate) async fn runner_with(&self, options: RunOptions) -> Runner<TestDatabase> {
        let runner = Runner::with_options(self.saboteur.clone(), options);
        drop(runner.receipt().await.unwrap());
        runner
    }

    /// Sets what happens between two attempts of a transaction.
    pub(crate) fn between_attempts<F, Fut>(&mut self, interlude: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.saboteur.interlude = Some(Arc::new(move || Box::pin(interlude())));
    }

    /// Clears all ledgers between two attempts of a transaction.
    pub(crate) fn sweep_between_attempts(&mut self) {
        let db = self.db.clone();
        self.between_attempts(move || {
            let db = db.clone();
            async move { clear_ledgers(&db).await }
        });
    }
}

/// What a sweep does, however old the ledgers are.
pub(crate) async fn clear_ledgers(db: &impl Database) {
    let mut tr = db.begin().unwrap();
    let (begin, end) = ledgers().range();
    tr.clear_range(&begin, &end);
    tr.commit().await.unwrap();
}
