//! A store that fails in the ways that FoundationDB can fail, for tests.
//!
//! [`Chaos`] wraps any [`Database`]. It fails commits and reads with FoundationDB's codes. It reports
//! `commit_unknown_result` for commits that happened, for commits that did not, and for commits that *will
//! still happen*. It lets watches fire early or late. Faults are drawn from the random numbers of its
//! [`Environment`], or scripted commit by commit. The store can also be stopped for a while, or slowed
//! down.
//!
//! A *late landing* is the fault by which queues lose and duplicate items: the client has received an error
//! and begun its next attempt, while the old commit is still under way. Here, a late commit lands after a
//! given number of later attempts have begun, on any transaction of the wrapper. It keeps the read version
//! that it had when commit was called. A transaction without one gets its read version when it lands.
//!
//! The wrapper differs from the wrapped store in two ways. [`Transaction::read_version`] is obtained when
//! its future is polled, because late commits land there. The backoff restarts after a commit that was
//! applied, or is under way, although the client got `commit_unknown_result`.
//!
//! [`Transaction::read_version`]: keyspace::Transaction::read_version

mod transaction;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{Code, Database, DatabaseOption, Environment, OwnedTransaction, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

pub use self::transaction::ChaosTransaction;

/// The probabilities of faults, from 0 to 1. All are 0 by default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Faults {
    /// A commit is refused with `not_committed`.
    pub not_committed: f64,
    /// A commit is refused with `transaction_too_old`.
    pub too_old_at_commit: f64,
    /// A commit is applied and reported as `commit_unknown_result`.
    pub unknown_applied: f64,
    /// A commit is lost and reported as `commit_unknown_result`.
    pub unknown_lost: f64,
    /// A commit is reported as `commit_unknown_result` and applied later.
    pub unknown_late: f64,
    /// The largest number of later attempts that begin before a late commit lands.
    pub max_landing_attempts: u32,
    /// A read fails with `transaction_too_old`.
    pub too_old_at_read: f64,
    /// A read fails with `future_version`.
    pub future_version: f64,
    /// A watch fires as soon as it is armed.
    pub early_watch: f64,
    /// A watch fires later than it should.
    pub late_watch: f64,
    /// The longest delay of a late watch.
    pub max_watch_delay: Duration,
}

impl Faults {
    /// Returns faults that all have the same probability. With a probability of 0.2 or more, no commit
    /// succeeds.
    #[must_use]
    pub fn all(probability: f64) -> Self {
        Self {
            not_committed: probability,
            too_old_at_commit: probability,
            unknown_applied: probability,
            unknown_lost: probability,
            unknown_late: probability,
            max_landing_attempts: 4,
            too_old_at_read: probability,
            future_version: probability,
            early_watch: probability,
            late_watch: probability,
            max_watch_delay: Duration::from_millis(10),
        }
    }
}

/// The fault of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// No fault.
    None,
    /// The commit is refused with `not_committed`.
    NotCommitted,
    /// The commit is refused with `transaction_too_old`.
    TooOld,
    /// The commit is reported as `commit_unknown_result`.
    Unknown(Fate),
    /// The commit never gets an answer: its future can only be dropped.
    Silent(Fate),
}

/// The fate of a commit whose outcome is unknown to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The commit has happened. If the store refuses it, its error is reported instead.
    Applied,
    /// The commit never happens.
    Lost,
    /// The commit happens later, unless the store refuses it then.
    Late(Landing),
}

/// When a late commit reaches the store: once `attempts` later attempts have begun, just before the next
/// step `before` of any transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landing {
    /// The number of later attempts that begin first. The retry of the same transaction counts.
    pub attempts: u32,
    /// The step that the commit precedes.
    pub before: LandingPoint,
}

/// A step of a later attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LandingPoint {
    /// Before the attempt's read version or its commit, whichever comes first. The attempt can see the late
    /// commit.
    ReadVersion,
    /// Before the attempt's commit. If the attempt has a read version by then, it cannot see the late
    /// commit.
    Commit,
}

/// The number of faults so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultTally {
    /// Reads that failed.
    pub reads: usize,
    /// Commits that were refused, reported as unknown, or never answered.
    pub commits: usize,
    /// Late commits that landed and took effect.
    pub landed: usize,
    /// Late commits that the store refused when they landed.
    pub refused: usize,
    /// Watches that fired early or late.
    pub watches: usize,
}

/// A database with faults. Clones share the store, the faults and the commits under way.
///
/// # Examples
///
/// ```
/// use conformance::chaos::{Chaos, CommitFault, Fate, Faults};
/// use keyspace::{Environment, Error, Runner, Transaction};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = keyspace::open("memory:")?;
/// let chaos = Chaos::new(db, Environment::system(), Faults::default());
/// let runner = Runner::new(chaos.clone());
/// runner.run(|_| async { Ok::<_, Error>(()) }).await?;
///
/// chaos.script([CommitFault::Unknown(Fate::Applied)]);
/// let attempt = runner
///     .run(async |tr| {
///         tr.set(b"key", b"value");
///         Ok::<_, Error>(tr.attempt().number)
///     })
///     .await?;
/// assert_eq!(attempt, 1);
/// # Ok(())
/// # }
/// ```
pub struct Chaos<D: Database> {
    db: D,
    shared: Arc<ChaosShared<D::Transaction>>,
}

struct ChaosShared<T> {
    environment: Environment,
    faults: Faults,
    state: Mutex<ChaosState<T>>,
    is_stopped: watch::Sender<bool>,
}

struct ChaosState<T> {
    script: VecDeque<CommitFault>,
    attempts_begun: u64,
    outstanding: Vec<Outstanding<T>>,
    tally: FaultTally,
    latency: Duration,
}

/// A commit under way.
struct Outstanding<T> {
    tr: T,
    /// The number of attempts that will have begun when the commit lands.
    due: u64,
    before: LandingPoint,
}

impl<D: Database> Chaos<D> {
    /// Wraps a database. The environment's random numbers decide which faults happen.
    pub fn new(db: D, environment: Environment, faults: Faults) -> Self {
        Self {
            db,
            shared: Arc::new(ChaosShared {
                environment,
                faults,
                state: Mutex::new(ChaosState {
                    script: VecDeque::new(),
                    attempts_begun: 0,
                    outstanding: Vec::new(),
                    tally: FaultTally::default(),
                    latency: Duration::ZERO,
                }),
                is_stopped: watch::Sender::new(false),
            }),
        }
    }

    /// Adds the faults of the next commits that write something, one fault for each commit. After the last
    /// one, faults are drawn at random again. A script that is not used up yet comes first.
    pub fn script(&self, faults: impl IntoIterator<Item = CommitFault>) {
        self.lock().script.extend(faults);
    }

    /// Stops the store until [`go_on`](Self::go_on): reads and commits wait, as on an unavailable cluster.
    pub fn stop(&self) {
        self.shared.is_stopped.send_replace(true);
    }

    /// Ends a [`stop`](Self::stop): the store answers again, including the calls that have waited.
    pub fn go_on(&self) {
        self.shared.is_stopped.send_replace(false);
    }

    /// Makes each read version, each read and each commit of writes take this long on the environment's
    /// clock.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Waits while the store is stopped.
    fn gate(&self) -> impl Future<Output = ()> + Send + use<D> {
        let mut stopped = self.shared.is_stopped.subscribe();
        async move {
            // The sender lives as long as this handle, so the wait does not fail.
            let _ = stopped.wait_for(|stopped| !stopped).await;
        }
    }

    /// Waits while the store is stopped, and then for the latency.
    fn answer(&self) -> impl Future<Output = ()> + Send + use<D> {
        let gate = self.gate();
        let environment = self.shared.environment.clone();
        let latency = self.lock().latency;
        async move {
            gate.await;
            if !latency.is_zero() {
                environment.sleep(latency).await;
            }
        }
    }

    /// Lets every commit under way reach the store.
    ///
    /// # Cancel safety
    /// Dropping the future may lose the commit that is landing.
    pub async fn flush(&self) {
        while let Some(late) = self.take_outstanding(|_, _| true) {
            self.land(late).await;
        }
    }

    /// Returns the number of faults so far.
    #[must_use]
    pub fn tally(&self) -> FaultTally {
        self.lock().tally
    }

    /// Lets all commits land that are due before `point`.
    async fn land_before(&self, point: LandingPoint) {
        let is_due = |late: &Outstanding<_>, attempts_begun| {
            late.due <= attempts_begun
                && (late.before == point || late.before == LandingPoint::ReadVersion)
        };
        while let Some(late) = self.take_outstanding(is_due) {
            self.land(late).await;
        }
    }

    fn take_outstanding(
        &self,
        choose: impl Fn(&Outstanding<D::Transaction>, u64) -> bool,
    ) -> Option<D::Transaction> {
        let mut state = self.lock();
        let attempts_begun = state.attempts_begun;
        let index = (state.outstanding.iter()).position(|late| choose(late, attempts_begun))?;
        Some(state.outstanding.remove(index).tr)
    }

    async fn land(&self, mut tr: D::Transaction) {
        let result = tr.commit().await;
        let mut state = self.lock();
        match result {
            Ok(_) => state.tally.landed += 1,
            Err(_) => state.tally.refused += 1,
        }
    }

    fn send_late(&self, tr: D::Transaction, landing: Landing) {
        let mut state = self.lock();
        let due = state.attempts_begun + u64::from(landing.attempts);
        state.outstanding.push(Outstanding {
            tr,
            due,
            before: landing.before,
        });
    }

    fn attempt_begins(&self) {
        self.lock().attempts_begun += 1;
    }

    fn next_commit_fault(&self) -> CommitFault {
        let scripted = self.lock().script.pop_front();
        let fault = scripted.unwrap_or_else(|| self.draw_commit_fault());
        if fault != CommitFault::None {
            self.lock().tally.commits += 1;
        }
        fault
    }

    fn draw_commit_fault(&self) -> CommitFault {
        let faults = &self.shared.faults;
        let landing = Landing {
            attempts: (self.random() * (f64::from(faults.max_landing_attempts) + 1.0)) as u32,
            before: if self.random() < 0.5 {
                LandingPoint::ReadVersion
            } else {
                LandingPoint::Commit
            },
        };
        self.draw(&[
            (faults.not_committed, CommitFault::NotCommitted),
            (faults.too_old_at_commit, CommitFault::TooOld),
            (faults.unknown_applied, CommitFault::Unknown(Fate::Applied)),
            (faults.unknown_lost, CommitFault::Unknown(Fate::Lost)),
            (
                faults.unknown_late,
                CommitFault::Unknown(Fate::Late(landing)),
            ),
        ])
        .unwrap_or(CommitFault::None)
    }

    fn draw_read_fault(&self) -> Option<Code> {
        let faults = &self.shared.faults;
        let code = self.draw(&[
            (faults.too_old_at_read, Code::TRANSACTION_TOO_OLD),
            (faults.future_version, Code::FUTURE_VERSION),
        ])?;
        self.lock().tally.reads += 1;
        Some(code)
    }

    fn draw_watch_fault(&self) -> Option<WatchFault> {
        let faults = &self.shared.faults;
        let delay = faults.max_watch_delay.mul_f64(self.random());
        let fault = self.draw(&[
            (faults.early_watch, WatchFault::Early),
            (faults.late_watch, WatchFault::Late(delay)),
        ])?;
        self.lock().tally.watches += 1;
        Some(fault)
    }

    /// Draws at most one of several choices by their probabilities.
    fn draw<F: Copy>(&self, choices: &[(f64, F)]) -> Option<F> {
        let mut rest = self.random();
        for (probability, choice) in choices {
            rest -= probability;
            if rest < 0.0 {
                return Some(*choice);
            }
        }
        None
    }

    fn random(&self) -> f64 {
        self.shared.environment.random_unit()
    }

    fn lock(&self) -> MutexGuard<'_, ChaosState<D::Transaction>> {
        self.shared.state.lock()
    }
}

#[derive(Debug, Clone, Copy)]
enum WatchFault {
    Early,
    Late(Duration),
}

impl<D: Database> Database for Chaos<D> {
    type Transaction = ChaosTransaction<D>;

    fn begin(&self) -> Result<Self::Transaction> {
        let tr = self.db.begin()?;
        self.attempt_begins();
        Ok(ChaosTransaction::new(self.clone(), tr))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

impl<D: Database> Clone for Chaos<D> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<D: Database> fmt::Debug for Chaos<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos")
            .field("faults", &self.shared.faults)
            .field("tally", &self.tally())
            .finish_non_exhaustive()
    }
}
