//! What the benchmarks share: stores to run on, runs of many tasks, the queues and the
//! adders that are compared with each other, and the tables and plots of the results.

pub mod adder;
pub mod arguments;
#[cfg(feature = "fdb")]
pub mod cluster;
pub mod contender;
pub mod figures;
pub mod load;
pub mod meter;
pub mod plot;
pub mod process;
pub mod shift;
pub mod stage;
pub mod statistics;
pub mod table;
pub mod workload;

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use keyspace::embedded::{Embedded, Options};
use keyspace::url::StoreUrl;
use keyspace::{Database, Environment, OwnedTransaction, Transaction};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// An embedded store in a folder of its own, which goes with it.
pub struct TempStore {
    /// The store.
    pub db: Embedded,
    folder: TempDir,
}

impl TempStore {
    /// Opens a new store, durable at each acknowledgement.
    ///
    /// # Panics
    /// If the temporary folder cannot hold a store.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        let db = Options::new().open(folder.path().join("store"));
        Self {
            db: db.expect("a new store can be made there"),
            folder,
        }
    }

    /// Returns the URL of the store.
    #[must_use]
    pub fn url(&self) -> StoreUrl {
        let path = self.folder.path().join("store");
        StoreUrl::Embedded { path }
    }

    /// Closes the store in good order, and opens it again.
    ///
    /// # Panics
    /// If the store fails.
    pub fn reopen(&mut self) {
        self.db.close().expect("the disk has room");
        let db = Options::new().open(self.folder.path().join("store"));
        self.db = db.expect("it was closed in good order");
    }

    /// Returns the size of the store's file in bytes.
    ///
    /// # Panics
    /// If the file is gone.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let file = std::fs::metadata(self.folder.path().join("store"));
        file.expect("the store has a file").len()
    }
}

impl Default for TempStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the number of the machine's cores.
///
/// # Panics
/// If the system does not report it.
#[must_use]
pub fn cores() -> usize {
    let cores = std::thread::available_parallelism();
    cores.expect("the system counts its cores").get()
}

/// Returns the processor time that this process has used, in all its threads.
///
/// # Panics
/// If the system counts backwards.
#[must_use]
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a process has not used less than no time")
}

/// Returns a figure about the memory of this process: see [`memory_bytes_of`].
#[must_use]
pub fn memory_bytes(figure: &str) -> Option<u64> {
    memory_bytes_of("self", figure)
}

/// Returns a figure about the memory of the process with this id: `VmRSS` is the resident memory, and `VmHWM` its peak.
/// `None` if the system does not report it in `/proc`.
#[must_use]
pub fn memory_bytes_of(process: &str, figure: &str) -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(process).join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns a runtime with this many workers.
///
/// # Panics
/// If the system cannot start threads.
#[must_use]
pub fn runtime(workers: usize) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_time()
        .build();
    runtime.expect("the system can start threads")
}

/// Returns a runtime whose tasks can use sockets, with a worker for each core. Its workers wait for the network as
/// well, so it is not for what uses no socket.
///
/// # Panics
/// If the system cannot start threads.
#[must_use]
pub fn runtime_with_sockets() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores())
        .enable_all()
        .build();
    runtime.expect("the system can start threads")
}

/// Commits rows in transactions of one thousand.
///
/// # Panics
/// If a commit fails.
pub async fn fill<V: AsRef<[u8]>>(db: &Embedded, rows: impl Iterator<Item = ([u8; 16], V)>) {
    const ROWS_PER_COMMIT: usize = 1_000;
    let mut tr = db.begin().expect("the store serves");
    for (number, (key, value)) in rows.enumerate() {
        tr.set(&key, value.as_ref());
        if (number + 1) % ROWS_PER_COMMIT == 0 {
            tr.commit().await.expect("nothing conflicts");
            tr.reset();
        }
    }
    tr.commit().await.expect("nothing conflicts");
}

/// Runs `count` operations divided among `tasks` tasks; returns the time from first to last.
///
/// # Panics
/// If an operation panics.
pub async fn run_tasks<F, Fut>(
    env: &Environment,
    tasks: usize,
    count: u64,
    operation: F,
) -> Duration
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let started = env.now();
    let running: Vec<_> = (0..tasks as u64)
        .map(|task| {
            let operation = operation.clone();
            tokio::spawn(async move {
                let mut number = task;
                while number < count {
                    operation(number).await;
                    number += tasks as u64;
                }
            })
        })
        .collect();
    for task in running {
        task.await.expect("no operation panics");
    }
    env.now() - started
}
