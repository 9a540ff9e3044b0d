//! Time, randomness and call numbers: everything a run depends on beside its input.
//!
//! Nothing in these crates asks the machine for the time or for a random number by itself. It asks
//! an [`Environment`], so that a whole run is reproducible from a seed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// A future that can be put behind `dyn`.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a fixed, arbitrary origin. Never goes back.
    fn now(&self) -> Duration;

    /// Returns the wall time, for display and for what the user means by it (deliver at 09:00).
    fn wall(&self) -> SystemTime;

    /// Waits.
    fn sleep(&self, duration: Duration) -> BoxFuture<()>;
}

/// Time, randomness and call numbers. Clones share all three.
#[derive(Clone)]
pub struct Environment {
    clock: Arc<dyn Clock>,
    rng: Arc<Mutex<StdRng>>,
    calls: Arc<AtomicU64>,
}

impl Environment {
    /// Returns the machine's own: its clocks, a random generator seeded by the operating system,
    /// and the one call counter of the process. Sleeping needs a tokio runtime with time enabled.
    #[must_use]
    pub fn system() -> Self {
        static CALLS: OnceLock<Arc<AtomicU64>> = OnceLock::new();
        let calls = CALLS.get_or_init(|| Arc::new(AtomicU64::new(0)));
        Self {
            clock: Arc::new(SystemClock {
                origin: system_now(),
            }),
            rng: Arc::new(Mutex::new(StdRng::from_os_rng())),
            calls: calls.clone(),
        }
    }

    /// Returns an environment whose randomness and call numbers follow from `seed`.
    ///
    /// Its call numbers begin at zero: two such environments must not write into one queue.
    #[must_use]
    pub fn seeded(seed: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
            calls: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Returns the time since a fixed, arbitrary origin. Never goes back.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Returns the wall time.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    /// Waits.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        self.clock.sleep(duration)
    }

    /// Returns a number that no other call in this environment gets: what tells stamped keys of
    /// one transaction apart.
    #[must_use]
    pub fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns `count` consecutive call numbers by their first.
    #[must_use]
    pub fn next_calls(&self, count: u64) -> u64 {
        self.calls.fetch_add(count, Ordering::Relaxed)
    }

    /// Fills a buffer with random bytes.
    pub fn fill_random(&self, buffer: &mut [u8]) {
        self.rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fill_bytes(buffer);
    }

    /// Returns `N` random bytes.
    #[must_use]
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill_random(&mut bytes);
        bytes
    }

    /// Returns a uniformly distributed number `0.0 <= x < 1.0`.
    #[must_use]
    pub fn random_unit(&self) -> f64 {
        const BITS: u32 = 53;
        let bits = u64::from_le_bytes(self.random_bytes()) >> (64 - BITS);
        bits as f64 / (1u64 << BITS) as f64
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

struct SystemClock {
    origin: Instant,
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that asks the machine"
    )]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that waits"
    )]
    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that asks the machine"
)]
fn system_now() -> Instant {
    Instant::now()
}
