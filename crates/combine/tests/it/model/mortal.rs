//! A worker that can be stopped for a while and killed at any moment, with an observer that fails.

use std::fmt::Debug;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use combine::{Backoff, BoxError, Change, ChangeObserver, Worker, WorkerOptions};
use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use keyspace::{Environment, RunOptions, Runner, Store, Transaction};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::common::{Log, Queue, Stored};

/// How long a shutdown may take before it counts as a death.
const SHUT_DOWN: Duration = Duration::from_millis(300);

pub(crate) struct Mortal {
    worker: Worker,
    /// Its access to the store. Commits of dead workers may still be in flight there.
    pub(crate) chaos: Chaos<Store>,
}

impl Mortal {
    pub(crate) async fn start<U, V>(
        store: &TestStore,
        faults: &Faults,
        queue: &Queue<U, V>,
        observer: Moody<V>,
        rng: &mut StdRng,
    ) -> Self
    where
        U: Stored,
        V: Stored + Clone + PartialEq + Debug,
    {
        let chaos = Chaos::new(store.db.clone(), Environment::system(), faults.clone());
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        let options = WorkerOptions::new()
            .with_concurrency(rng.random_range(1..=4))
            .with_time_limit(Duration::from_millis(50))
            .with_poll_interval(Duration::from_millis(rng.random_range(20..1_000)))
            .with_backoff(backoff)
            .with_max_batch_bytes(*[1, 300, 3_000, 1 << 20].choose(rng).unwrap())
            .with_takeover_after(Duration::from_millis(rng.random_range(50..500)));
        let runner = runner(store, chaos.clone(), RunOptions::default());
        let worker = queue.work(&runner, options, observer).await.unwrap();
        Self { worker, chaos }
    }

    /// Makes one of the next commits the last one: it is never answered, whether or not it happens.
    pub(crate) fn hang(&self, rng: &mut StdRng) {
        let fates = [
            Fate::Applied,
            Fate::Lost,
            Fate::Late(Landing {
                attempts: 2,
                before: LandingPoint::Commit,
            }),
        ];
        let before = std::iter::repeat_n(CommitFault::None, rng.random_range(0..8));
        let last = CommitFault::Silent(*fates.choose(rng).unwrap());
        self.chaos.script(before.chain([last]));
    }

    /// Ends the worker as gracefully as possible. Returns its access to the store.
    pub(crate) async fn shut_down(self, grace: Duration) -> Chaos<Store> {
        // If the worker or its access to the store hangs, the worker is dropped.
        let shut_down = self.worker.shut_down(grace);
        if let Some(ended) = Environment::system().timeout(SHUT_DOWN, shut_down).await {
            ended.unwrap();
        }
        self.chaos
    }
}

pub(crate) fn runner(
    store: &TestStore,
    chaos: Chaos<Store>,
    options: RunOptions,
) -> Runner<Chaos<Store>> {
    let options = options.with_ledger_subspace(store.root.subspace(&"ledgers"));
    Runner::with_options(chaos, options)
}

/// Records its changes, and then fails every third time. Occasionally it hangs.
pub(crate) struct Moody<V> {
    pub(crate) log: Log<V>,
    pub(crate) calls: AtomicU32,
}

impl<V> ChangeObserver<String, V> for Moody<V>
where
    V: Stored + Clone + PartialEq + Debug,
{
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, V>],
    ) -> Result<(), BoxError> {
        self.log.observe(tr, changes).await?;
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            third if third % 3 == 2 => Err("on purpose".into()),
            rare if rare % 16 == 15 => pending().await,
            _ => Ok(()),
        }
    }
}
