//! A process from the queue's point of view: its own runtime with one consumer, and perhaps a worker. It can be stopped
//! for a while, and killed at any moment.

use std::sync::{Arc, mpsc};
use std::thread;

use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::let_pass;
use conformance::stores::TestStore;
use hc_dequeue::{Consumer, Delivery, Worker, WorkerOptions};
use keyspace::{Environment, RunOptions, Runner, Store, Tx};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::common::{Queue, open, settings};
use crate::model::history::{Starts, count_done};

pub(crate) struct Process {
    pub(crate) consumer: Consumer<u64>,
    /// Its connection to the store. Commits of a dead process may still be in flight on it.
    pub(crate) chaos: Chaos<Store>,
    runtime: Handle,
    /// Dropping this kills the process.
    _alive: oneshot::Sender<()>,
    /// Dropping this lets the process continue.
    stopped: Option<mpsc::Sender<()>>,
}

impl Process {
    /// Starts a process. If `worker_starts` is there, the process has a worker besides its consumer, which notes what
    /// it starts.
    pub(crate) async fn start(
        store: &TestStore,
        faults: &Faults,
        options: WorkerOptions,
        worker_starts: Option<Arc<Starts>>,
    ) -> Self {
        let chaos = Chaos::new(store.db.clone(), Environment::system(), faults.clone());
        let runner = runner(store, chaos.clone());
        let (alive, killed) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let store = store.clone();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let work = async {
                let queue = open(&store, &runner, settings()).await.unwrap();
                let consumer = queue.consumer(&runner, options.clone());
                let consumer = consumer.await.unwrap();
                let _worker = match worker_starts {
                    Some(starts) => Some(work(&store, &runner, &queue, options, starts).await),
                    None => None,
                };
                // The thread that starts a process waits for this message, unless the test has failed.
                let _ = ready.send((consumer, Handle::current()));
                let _ = killed.await;
            };
            runtime.block_on(work);
            // Dropping the runtime drops its tasks, wherever they are.
        });
        let (consumer, runtime) = is_ready.await.unwrap();
        Self {
            consumer,
            chaos,
            runtime,
            _alive: alive,
            stopped: None,
        }
    }

    /// Stops the process until it is resumed: nothing of it runs, including its heartbeats.
    pub(crate) fn stop(&mut self) {
        let (go_on, stopped) = mpsc::channel::<()>();
        self.runtime.spawn(async move {
            // Blocks the only thread of the runtime.
            let _ = stopped.recv();
        });
        self.stopped = Some(go_on);
    }

    pub(crate) fn go_on(&mut self) {
        self.stopped = None;
    }

    /// Makes one of the next commits the last one: it is never answered, whether or not it succeeds.
    pub(crate) fn hang_at(&self, commit: usize, fate: Fate) {
        let before = std::iter::repeat_n(CommitFault::None, commit);
        self.chaos.script(before.chain([CommitFault::Silent(fate)]));
    }
}

/// Runs a worker whose handlers take very different times, and some of which fail once, or each time.
async fn work(
    store: &TestStore,
    runner: &Runner<Chaos<Store>>,
    queue: &Queue,
    options: WorkerOptions,
    starts: Arc<Starts>,
) -> Worker<u64> {
    let store = store.clone();
    let handler = move |tr: Tx<_>, delivery: Delivery<u64>| {
        let store = store.clone();
        starts.note(&delivery);
        async move {
            let value = *delivery.value();
            if value % 32 == 31 {
                // Longer than some leases.
                let_pass(settings().lease()).await;
            }
            if value % 8 == 7 && delivery.attempt() == 1 || value % 16 == 5 {
                return Err("not yet");
            }
            count_done(&tr, &store, &delivery, None);
            Ok(())
        }
    };
    let options = options.with_concurrency(2);
    queue.process(runner, options, handler).await.unwrap()
}

/// The possible ends of a commit whose outcome no process learns.
pub(crate) const FATES: [Fate; 3] = [
    Fate::Applied,
    Fate::Lost,
    Fate::Late(Landing {
        attempts: 2,
        before: LandingPoint::Commit,
    }),
];

pub(crate) fn runner(store: &TestStore, chaos: Chaos<Store>) -> Runner<Chaos<Store>> {
    runner_with(store, chaos, RunOptions::default())
}

pub(crate) fn runner_with(
    store: &TestStore,
    chaos: Chaos<Store>,
    options: RunOptions,
) -> Runner<Chaos<Store>> {
    let options = options.with_ledger_subspace(store.root.subspace(&"ledgers"));
    Runner::with_options(chaos, options)
}
