//! Time, randomness and call numbers: everything that a run depends on besides its input.
//!
//! All code in these crates gets time and random numbers from an [`Environment`], never from the machine
//! directly. A whole run can therefore be reproduced from a seed.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tokio::sync::watch;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a fixed, arbitrary origin. Never goes back.
    fn now(&self) -> Duration;

    /// Returns the wall time, for display and for times that users give (deliver at 09:00).
    fn wall(&self) -> SystemTime;

    /// Waits for `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Time, randomness and call numbers. Clones share all three.
#[derive(Clone)]
pub struct Environment {
    clock: Arc<dyn Clock>,
    rng: Arc<Mutex<StdRng>>,
    calls: Arc<AtomicU64>,
    #[cfg(test)]
    shortage: Arc<Shortage>,
}

/// Which threads, runtimes and sockets cannot be made, counted from now on. For tests.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    made: AtomicU64,
    missing: Mutex<std::ops::Range<u64>>,
}

#[cfg(test)]
impl Environment {
    /// Returns an environment that has its own count of what is made.
    pub(crate) fn with_shortage(&self) -> Self {
        Self {
            shortage: Arc::default(),
            ..self.clone()
        }
    }

    /// Lets the things with these numbers fail. Returns how many were made before.
    pub(crate) fn miss(&self, missing: std::ops::Range<u64>) -> u64 {
        *self.shortage.missing.lock() = missing;
        self.shortage.made.swap(0, Ordering::SeqCst)
    }
}

impl Environment {
    /// Fails if a test says that the system has no more threads or descriptors.
    #[cfg_attr(
        not(test),
        expect(
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "a test decides"
        )
    )]
    pub(crate) fn check_room(&self) -> std::io::Result<()> {
        #[cfg(test)]
        {
            let number = self.shortage.made.fetch_add(1, Ordering::SeqCst);
            if self.shortage.missing.lock().contains(&number) {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(())
    }

    /// Returns the machine's environment: its clocks, a random generator seeded by the operating system,
    /// and a call counter. All calls in a process share these. Sleeping needs a tokio runtime with time
    /// enabled.
    #[must_use]
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Environment> = OnceLock::new();
        let system = SYSTEM.get_or_init(|| Self {
            clock: Arc::new(SystemClock {
                origin: system_now(),
            }),
            rng: Arc::new(Mutex::new(StdRng::from_os_rng())),
            calls: Arc::new(AtomicU64::new(0)),
            #[cfg(test)]
            shortage: Arc::default(),
        });
        system.clone()
    }

    /// Returns an environment whose randomness and call numbers are determined by `seed`.
    ///
    /// Its call numbers begin at zero, so two such environments must not write to the same queue.
    #[must_use]
    pub fn seeded(seed: u64, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
            calls: Arc::new(AtomicU64::new(0)),
            #[cfg(test)]
            shortage: Arc::default(),
        }
    }

    /// Returns an environment with another clock and the same randomness and call numbers.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            ..self.clone()
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

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }

    /// Waits for a future, for up to `limit`. Returns `None` if the future is not ready by then.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is up, or when the future of this call is dropped.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }

    /// Reserves `count` consecutive call numbers and returns the first.
    ///
    /// A call number distinguishes the keys to which one commit gives the same versionstamp. It is unique among the
    /// environments that share its counter.
    #[must_use]
    pub fn next_calls(&self, count: u64) -> u64 {
        self.calls.fetch_add(count, Ordering::Relaxed)
    }

    /// Returns `N` random bytes.
    #[must_use]
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.rng.lock().fill_bytes(&mut bytes);
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
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
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

/// A clock that moves only when a test or its sleepers advance it. Clones are the same clock.
///
/// It begins at zero, and its wall time begins at the Unix epoch.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use keyspace::Environment;
/// use keyspace::env::ManualClock;
///
/// let clock = ManualClock::new();
/// let env = Environment::seeded(7, Arc::new(clock.clone()));
/// clock.advance(Duration::from_secs(3));
/// assert_eq!(env.now(), Duration::from_secs(3));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    time: Arc<watch::Sender<Duration>>,
    sleepers_advance: bool,
}

impl ManualClock {
    /// Returns a clock that moves only by [`advance`](Self::advance). A sleep lasts until the clock has
    /// reached its end.
    #[must_use]
    pub fn new() -> Self {
        Self {
            time: Arc::new(watch::Sender::new(Duration::ZERO)),
            sleepers_advance: false,
        }
    }

    /// Returns a clock that each sleep moves forward to its own end, after yielding once to other tasks.
    ///
    /// A seeded simulation on this clock never waits. Overlapping sleeps do not end in the order of their
    /// lengths: each one moves the clock when it is first polled. The same holds for the sleeps of
    /// timeouts, so an operation with a time limit reaches that limit.
    #[must_use]
    pub fn moved_by_sleepers() -> Self {
        Self {
            sleepers_advance: true,
            ..Self::new()
        }
    }

    /// Moves the clock forward and wakes the sleepers whose time is up.
    pub fn advance(&self, duration: Duration) {
        self.time.send_modify(|now| *now += duration);
    }

    fn advance_to(&self, time: Duration) {
        self.time.send_modify(|now| *now = time.max(*now));
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.time.borrow()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        let due = self.now().saturating_add(duration);
        Box::pin(async move {
            if clock.sleepers_advance {
                clock.advance_to(due);
                tokio::task::yield_now().await;
            }
            clock
                .time
                .subscribe()
                .wait_for(|now| *now >= due)
                .await
                .expect("the sleeper itself holds the sending half");
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn clocks_and_environments_cross_threads() {
        fn assert_shared<T: Send + Sync + Clone + 'static>() {}
        assert_shared::<Environment>();
        assert_shared::<ManualClock>();
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(SECOND);
        assert_eq!(clock.clone().now(), SECOND);
        assert_eq!(clock.wall(), SystemTime::UNIX_EPOCH + SECOND);
    }

    #[test]
    fn a_sleep_on_a_manual_clock_lasts_until_its_time_has_passed() {
        let clock = ManualClock::new();
        let mut long = clock.sleep(2 * SECOND);
        let mut short = clock.sleep(SECOND);
        assert!(short.as_mut().now_or_never().is_none());
        clock.advance(SECOND);
        assert!(short.as_mut().now_or_never().is_some());
        assert!(long.as_mut().now_or_never().is_none());
        clock.advance(SECOND);
        assert!(long.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_sleeper_is_woken_by_the_advance_that_reaches_its_time() {
        let clock = ManualClock::new();
        let sleeper = tokio::spawn(clock.sleep(2 * SECOND));
        tokio::task::yield_now().await;
        clock.advance(SECOND);
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(SECOND);
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_sleep_moves_the_clock_that_sleepers_move() {
        let clock = ManualClock::moved_by_sleepers();
        clock.sleep(3 * SECOND).await;
        assert_eq!(clock.now(), 3 * SECOND);
        let first = clock.sleep(SECOND);
        let second = clock.sleep(2 * SECOND);
        second.await;
        first.await;
        assert_eq!(clock.now(), 5 * SECOND);
    }

    #[tokio::test]
    async fn a_timeout_is_over_when_the_clock_says_so() {
        let clock = ManualClock::new();
        let env = Environment::seeded(1, Arc::new(clock.clone()));
        let mut never = Box::pin(env.timeout(2 * SECOND, std::future::pending::<()>()));
        assert!(never.as_mut().now_or_never().is_none());
        clock.advance(SECOND);
        assert!(never.as_mut().now_or_never().is_none());
        clock.advance(SECOND);
        assert_eq!(never.await, None);
        assert_eq!(env.timeout(Duration::ZERO, async { 7 }).await, Some(7));
    }

    #[test]
    fn one_seed_gives_one_course_of_randomness_and_call_numbers() {
        let course = |seed| {
            let env = Environment::seeded(seed, Arc::new(ManualClock::new()));
            let first = env.next_calls(3);
            (env.random_bytes::<16>(), first, env.next_calls(1))
        };
        assert_eq!(course(1), course(1));
        assert_eq!(course(1).1, 0);
        assert_eq!(course(1).2, 3);
        assert_ne!(course(1).0, course(2).0);
    }

    #[test]
    fn system_environments_share_one_call_counter() {
        let one = Environment::system();
        let other = Environment::system();
        let first = one.next_calls(1);
        assert!(other.next_calls(1) > first);
    }

    #[test]
    fn environments_that_differ_in_the_clock_share_call_numbers_and_randomness() {
        let one = Environment::seeded(1, Arc::new(ManualClock::new()));
        let clock = ManualClock::new();
        let other = one.with_clock(Arc::new(clock.clone()));
        clock.advance(SECOND);
        assert_eq!((one.now(), other.now()), (Duration::ZERO, SECOND));
        assert_eq!((one.next_calls(1), other.next_calls(1)), (0, 1));
        assert_ne!(one.random_bytes::<16>(), other.random_bytes::<16>());
    }

    #[test]
    fn random_units_lie_in_the_unit_interval() {
        let env = Environment::seeded(5, Arc::new(ManualClock::new()));
        let units: Vec<f64> = (0..1000).map(|_| env.random_unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!(units.iter().any(|&unit| unit < 0.1) && units.iter().any(|&unit| unit > 0.9));
    }
}
