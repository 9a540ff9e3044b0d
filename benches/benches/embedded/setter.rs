//! Tasks that set rows, one durable commit after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::shift::{self, Act, Burst, Work};
use benches::statistics::percentile;
use keyspace::embedded::Embedded;
use keyspace::{Database, Environment, OwnedTransaction, Transaction};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::runtime::Runtime;

use crate::keys::{VALUE, any_spread, ascending};

/// A task that sets rows, a fixed number per commit, until enough are set.
pub(crate) struct Setter<K> {
    pub(crate) db: Embedded,
    /// Chooses the next key.
    pub(crate) next_key: K,
    pub(crate) rows_per_commit: u64,
    /// How many rows are still to be set, by all tasks together.
    pub(crate) rows_left: Arc<AtomicU64>,
}

impl<K: FnMut() -> [u8; 16] + Send + 'static> Work for Setter<K> {
    async fn act(&mut self, _deadline: Duration) -> Act {
        let take = |left: u64| left.checked_sub(self.rows_per_commit);
        let taken = self
            .rows_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_err() {
            return Act::Over;
        }
        let mut tr = self.db.begin().expect("the store serves");
        loop {
            for _ in 0..self.rows_per_commit {
                tr.set(&(self.next_key)(), &VALUE);
            }
            match tr.commit().await {
                Ok(_) => return Act::Done,
                // The queue of commits is full for a moment.
                Err(error) => tr.on_error(error).await.expect("the store serves"),
            }
        }
    }
}

/// Longer than any number of rows takes.
pub(crate) const NO_HURRY: Duration = Duration::from_secs(3_600);

/// Returns how many rows are left to set if only the time is limited.
pub(crate) fn no_limit() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(u64::MAX))
}

/// Returns a source of keys in ascending order from one on. Its clones share it.
pub(crate) fn in_order(first: u64) -> impl FnMut() -> [u8; 16] + Clone + Send + 'static {
    let next = Arc::new(AtomicU64::new(first));
    move || ascending(next.fetch_add(1, Ordering::Relaxed))
}

/// Returns a source of keys of random rows, of `rows` rows.
pub(crate) fn scattered(rows: u64, seed: u64) -> impl FnMut() -> [u8; 16] + Send + use<> {
    let mut rng = StdRng::seed_from_u64(seed);
    move || any_spread(&mut rng, rows)
}

/// Has tasks work for a time.
pub(crate) fn work<W: Work>(
    runtime: &Runtime,
    workers: impl IntoIterator<Item = W>,
    time: Duration,
) -> Burst {
    runtime.block_on(shift::work(&Environment::system(), workers, time))
}

/// Returns how many acts there were in a second.
pub(crate) fn rate(burst: &Burst) -> f64 {
    burst.done_in_time as f64 / burst.lasted.as_secs_f64()
}

/// Returns a percentile of the durations of the acts, in seconds.
pub(crate) fn latency(mut burst: Burst, percent: usize) -> f64 {
    burst.took_micros.sort_unstable();
    let micros = percentile(&burst.took_micros, percent);
    micros.map_or(f64::NAN, |micros| f64::from(micros) / 1e6)
}
