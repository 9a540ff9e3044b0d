//! One store, its chaos, and a runner on it.

use std::sync::Arc;
use std::time::Duration;

use conformance::chaos::{Chaos, Faults};
use conformance::history::Recorded;
use conformance::part::Part;
use conformance::stores::TestStore;
use keyspace::embedded::Options;
use keyspace::env::ManualClock;
use keyspace::{
    Code, Database, Environment, Error, OwnedTransaction, RunOptions, Runner, Store, Transaction,
};

use crate::ledger::saboteur::{Plant, Saboteur, ledgers};

pub(crate) type TestDatabase = Saboteur<Chaos<Recorded<Part<Store>>>>;

pub(crate) struct World {
    /// The store without faults, with a record of its transactions.
    pub(crate) db: Recorded<Part<Store>>,
    pub(crate) chaos: Chaos<Recorded<Part<Store>>>,
    /// The clock and random numbers of everything except the store. A [timed](World::timed) store uses them
    /// too.
    pub(crate) clock: ManualClock,
    pub(crate) env: Environment,
    pub(crate) saboteur: TestDatabase,
}

/// The error of the closures in these tests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the closure refused")]
    Refused,
    #[error(transparent)]
    Store(#[from] Error),
}

impl World {
    /// Returns a world in its own part of a store.
    pub(crate) async fn new(store: &TestStore, seed: u64, faults: Faults, plant: Plant) -> Self {
        let clock = ManualClock::moved_by_sleepers();
        let part = store.fresh().part();
        Self::on(part, environment(&clock, seed), clock, faults, plant).await
    }

    /// Returns a world with only the faults that a test scripts.
    pub(crate) async fn calm(store: &TestStore) -> Self {
        Self::new(store, 0, Faults::default(), Plant::Nothing).await
    }

    /// Returns a world in memory whose store also uses its clock.
    pub(crate) async fn timed(clock: ManualClock, seed: u64, faults: Faults, plant: Plant) -> Self {
        let env = environment(&clock, seed);
        let store = Options::new()
            .with_environment(env.clone())
            .memory()
            .unwrap();
        let part = Part::new(store.into(), "");
        Self::on(part, env, clock, faults, plant).await
    }

    /// Returns a timed world with only the faults that a test scripts.
    pub(crate) async fn calm_and_timed() -> Self {
        let clock = ManualClock::moved_by_sleepers();
        Self::timed(clock, 0, Faults::default(), Plant::Nothing).await
    }

    /// Returns a timed and calm world whose clock only the test moves.
    pub(crate) async fn still() -> Self {
        Self::timed(ManualClock::new(), 0, Faults::default(), Plant::Nothing).await
    }

    async fn on(
        part: Part<Store>,
        env: Environment,
        clock: ManualClock,
        faults: Faults,
        plant: Plant,
    ) -> Self {
        let db = Recorded::new(part).await.unwrap();
        let chaos = Chaos::new(db.clone(), env.clone(), faults);
        let saboteur = Saboteur {
            db: chaos.clone(),
            plant,
            interlude: None,
            no_news: Code::COMMIT_UNKNOWN_RESULT,
        };
        Self {
            db,
            chaos,
            clock,
            env,
            saboteur,
        }
    }

    /// Moves the clock whenever no task can run.
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
        RunOptions::default().with_environment(self.env.clone())
    }

    /// Returns a runner with a slot in its pool, so that its next commit is that of an operation.
    pub(crate) async fn runner(&self) -> Runner<TestDatabase> {
        self.runner_with(self.options()).await
    }

    pub(crate) async fn runner_with(&self, options: RunOptions) -> Runner<TestDatabase> {
        let runner = Runner::with_options(self.saboteur.clone(), options);
        drop(runner.receipt().await.unwrap());
        runner
    }

    /// Sets the event between two attempts of a transaction.
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

fn environment(clock: &ManualClock, seed: u64) -> Environment {
    Environment::seeded(seed, Arc::new(clock.clone()))
}

/// Does what a sweep does, however young the ledgers are.
pub(crate) async fn clear_ledgers(db: &impl Database) {
    let mut tr = db.begin().unwrap();
    let (begin, end) = ledgers().range();
    tr.clear_range(&begin, &end);
    tr.commit().await.unwrap();
}
