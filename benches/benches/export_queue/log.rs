//! A log of entries, and an exporter that does nothing but count them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::load::digest;
use benches::run_tasks;
use benches::stage::Stage;
use export_queue::{
    BoxError, ExportQueue, Exporter, SequencedExport, Start, WorkerOptions, async_trait,
};
use keyspace::{Environment, RunOptions, Runner, Store, Subspace};

/// How many entries are added in a commit.
pub(crate) const ENTRIES_PER_COMMIT: u64 = 1_000;

/// How many tasks add them.
const FILLERS: usize = 8;

/// Longer than a batch takes.
const GRACE: Duration = Duration::from_secs(60);

/// A log of entries of some 25 bytes.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) runner: Runner<Store>,
    pub(crate) queue: ExportQueue<String, u64>,
    pub(crate) entries: u64,
}

impl Log {
    /// Makes a log, and lets the store digest it.
    pub(crate) async fn fill(stage: &Stage, place: &Subspace, commits: u64) -> Self {
        let options = RunOptions::default().with_ledger_subspace(place.subspace(&"ledger"));
        let runner = Runner::with_options(stage.db().clone(), options);
        let subspace = place.subspace(&"queue");
        let queue = ExportQueue::open(&runner, subspace).await;
        let log = Self {
            runner,
            queue: queue.expect("nothing conflicts"),
            entries: commits * ENTRIES_PER_COMMIT,
        };
        let env = Environment::system();
        let filler = log.clone();
        let add = move |commit| {
            let log = filler.clone();
            async move { log.add(commit * ENTRIES_PER_COMMIT).await }
        };
        run_tasks(&env, FILLERS, commits, add).await;
        digest(log.entries).await;
        log
    }

    async fn add(&self, first: u64) {
        let numbers = first..first + ENTRIES_PER_COMMIT;
        let entries: Vec<_> = numbers
            .map(|number| (format!("what has the number {number}"), number))
            .collect();
        let queue = &self.queue;
        let entries = &entries;
        let add = |tr| async move {
            queue
                .add_all(&tr, entries.iter().map(|(key, value)| (key, value)))
                .await
        };
        self.runner.run(add).await.expect("nothing conflicts");
    }

    /// Lets a worker export everything, and returns how long it took.
    pub(crate) async fn export(&self, options: WorkerOptions) -> Duration {
        let runner = &self.runner;
        let counter = Arc::new(Counter::default());
        let subscription = self
            .queue
            .subscribe(runner, "counter", Start::Oldest)
            .await
            .expect("nothing conflicts");
        let began = runner.environment().now();
        let worker = subscription.work(runner, options, counter.clone()).await;
        let idle = subscription.wait_idle(runner).await;
        let took = runner.environment().now() - began;
        idle.expect("the store serves");
        let worker = worker.expect("nothing conflicts");
        worker.shut_down(GRACE).await.expect("the store serves");
        assert_eq!(counter.0.load(Ordering::Relaxed), self.entries);
        took
    }
}

/// Counts entries.
#[derive(Default)]
struct Counter(AtomicU64);

#[async_trait]
impl Exporter<String, u64> for Counter {
    async fn export(&self, batch: &[SequencedExport<String, u64>]) -> Result<(), BoxError> {
        self.0.fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
