//! A queue that never rests: does memory or the file grow with the number of items?
//!
//! `cargo xtask bench soak [-- <cycles>]`, 10,000,000 by default. 64 tasks
//! enqueue and dequeue items on one durable store, with a backlog of 10,000. The table
//! has a line for each tenth of the way. `cargo test` runs a few thousand.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use benches::arguments::Arguments;
use benches::{TempStore, cores, memory_bytes, runtime};
use keyspace::codec::Raw;
use keyspace::embedded::Embedded;
use keyspace::{Bytes, Environment, Runner, Subspace};
use microqueue::MicroQueue;
use tokio::sync::Semaphore;

const CYCLES: u64 = 10_000_000;
const BACKLOG: usize = 10_000;
const PRODUCERS: usize = 62;
/// Consumers conflict at the head of the queue, so a few take large batches.
const CONSUMERS: usize = 2;
const ENQUEUE_BATCH: usize = 100;
const DEQUEUE_BATCH: usize = 1_000;
const VALUE: Bytes = Bytes::from_static(&[7; 100]);

/// What the tasks share.
struct Soak {
    queue: MicroQueue<Bytes, Raw>,
    runner: Runner<Embedded>,
    env: Environment,
    store: TempStore,
    cycles: u64,
    /// Items that producers have claimed to enqueue, the backlog included.
    claimed: AtomicU64,
    taken: AtomicU64,
    /// When the current tenth began.
    tenth_began: Mutex<Duration>,
    /// Room in the queue, in items: keeps the backlog where it is.
    room: Semaphore,
}

fn main() -> io::Result<()> {
    // `cargo bench` passes a flag of its own to every benchmark.
    let cycles = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let extent = Arguments::get().extent();
    let cycles = cycles.unwrap_or(extent.choose(5_000, CYCLES, CYCLES));
    let store = TempStore::new();
    let env = Environment::system();
    let soak = Arc::new(Soak {
        queue: MicroQueue::new(Subspace::from("soak")),
        runner: Runner::new(store.db.clone()),
        tenth_began: Mutex::new(env.now()),
        env,
        store,
        cycles,
        claimed: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        room: Semaphore::new(BACKLOG),
    });
    let mut out = io::stdout();
    writeln!(
        out,
        "{:>12} {:>10} {:>12} {:>12}",
        "cycles", "items/s", "resident MiB", "file MiB"
    )?;
    runtime(cores()).block_on(async {
        let producers = (0..PRODUCERS).map(|_| tokio::spawn(produce(soak.clone())));
        let consumers = (0..CONSUMERS).map(|_| tokio::spawn(consume(soak.clone())));
        for task in producers.chain(consumers).collect::<Vec<_>>() {
            task.await.expect("no task panics");
        }
    });
    Ok(())
}

async fn produce(soak: Arc<Soak>) {
    let values = &vec![VALUE; ENQUEUE_BATCH][..];
    let queue = &soak.queue;
    let total = soak.cycles + BACKLOG as u64;
    while soak
        .claimed
        .fetch_add(ENQUEUE_BATCH as u64, Ordering::Relaxed)
        < total
    {
        let room = soak.room.acquire_many(ENQUEUE_BATCH as u32).await;
        room.expect("the semaphore stays open").forget();
        soak.runner
            .run(|tr| async move { queue.enqueue_all(&tr, values).await })
            .await
            .expect("nothing conflicts");
    }
}

async fn consume(soak: Arc<Soak>) {
    let tenth = (soak.cycles / 10).max(1);
    let queue = &soak.queue;
    loop {
        let items = soak
            .runner
            .run(|tr| async move { queue.dequeue_batch(&tr, DEQUEUE_BATCH).await })
            .await
            .expect("conflicts are retried");
        let count = items.len() as u64;
        soak.room.add_permits(items.len());
        let before = soak.taken.fetch_add(count, Ordering::Relaxed);
        if before / tenth != (before + count) / tenth {
            report(&soak, before + count, tenth).expect("standard output is there");
        }
        if before + count >= soak.cycles {
            return;
        }
    }
}

fn report(soak: &Soak, cycles: u64, tenth: u64) -> io::Result<()> {
    const MIB: f64 = (1 << 20) as f64;
    let now = soak.env.now();
    let began = {
        let mut began = soak
            .tenth_began
            .lock()
            .expect("no holder of the lock panics");
        std::mem::replace(&mut *began, now)
    };
    let rate = tenth as f64 / (now - began).as_secs_f64();
    let resident = memory_bytes("VmRSS").map_or_else(
        || "unknown".to_owned(),
        |bytes| format!("{:.1}", bytes as f64 / MIB),
    );
    let file = soak.store.file_bytes() as f64 / MIB;
    let line = format!("{cycles:>12} {rate:>10.0} {resident:>12} {file:>12.1}");
    writeln!(io::stdout(), "{line}")
}
