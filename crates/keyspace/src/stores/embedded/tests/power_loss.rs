//! Power losses and kills at every step. No acknowledged commit is lost, commits are whole, the surviving
//! commits are the first ones, and new versionstamps are newer than all earlier ones.

use std::sync::Arc;
use std::time::Duration;

use conformance::scale;
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::{Durability, Options};
use super::disk::{Disk, Fault, Image};
use super::workload::{Workload, stamp_key};
use super::{new_store, open_on, seeds};
use crate::contract::env::{Environment, ManualClock};
use crate::contract::error::{Code, OpenError};
use crate::contract::limits::RECOVERY_VERSIONS;
use crate::stores::embedded::disk::open::OpenedStore;
use crate::stores::embedded::engine::Engine;
use crate::stores::embedded::log::effect::Effect;

/// The number of power losses in the life of one store.
const LOSSES: usize = 8;

/// A store that is opened again and again, on the remaining content of its disk.
struct Life {
    rng: StdRng,
    durability: Durability,
    disk: Disk,
    workload: Workload,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let durability = match rng.random_range(0..4) {
            0 => Durability::Relaxed {
                interval: Duration::from_secs(1),
            },
            _ => Durability::Immediate,
        };
        Self {
            rng,
            durability,
            disk: Disk::with(new_store()),
            workload: Workload::default(),
        }
    }

    /// Opens the store and commits until the power fails or the process is killed, each time on the
    /// remaining content, and then once more without a loss. `plant` is applied to each store before the
    /// commits.
    fn run(mut self, plant: impl Fn(&Disk, &mut OpenedStore)) -> Result<(), String> {
        for _ in 0..LOSSES {
            // Few calls end during the recovery, more during the commits, and many during the clean
            // shutdown.
            let max_calls = 1 << self.rng.random_range(0..10);
            let calls = self.rng.random_range(1..=max_calls);
            self.disk.fail_after(calls, Fault::PowerLoss);
            self.open_and_commit(&plant)?;
            if self.rng.random_range(0..4) > 0 {
                self.workload.power_was_lost();
                let left = self.disk.image_after_power_loss(&mut self.rng);
                self.disk = Disk::with(left);
            } else {
                // The process was killed. Its writes are there, possibly only in the cache.
                self.disk.go_on();
            }
        }
        self.disk.fail_after(usize::MAX, Fault::PowerLoss);
        self.open_and_commit(&plant)
    }

    fn open_and_commit(&mut self, plant: &impl Fn(&Disk, &mut OpenedStore)) -> Result<(), String> {
        let disk = self.disk.clone();
        let mut store = match open_on(&disk) {
            Ok(store) => store,
            Err(_) if disk.has_failed() => return Ok(()),
            Err(error) => return Err(format!("does not open: {error}")),
        };
        self.workload.check(&mut store)?;
        plant(&disk, &mut store);
        self.commit(store)
    }

    fn commit(&mut self, store: OpenedStore) -> Result<(), String> {
        const ROUNDS: usize = 30;
        let clock = ManualClock::new();
        let environment = Environment::seeded(0, Arc::new(clock.clone()));
        let options = Options::new()
            .with_durability(self.durability)
            .with_environment(environment);
        let is_durable = !matches!(self.durability, Durability::Relaxed { .. });
        let (engine, mut committer) = Engine::prepare(store, &options);
        for _ in 0..ROUNDS {
            clock.advance(Duration::from_millis(self.rng.random_range(0..1000)));
            let sent: Vec<_> = (0..self.rng.random_range(1..4))
                .map(|_| {
                    let (number, request) = self.workload.next(&mut self.rng);
                    (number, engine.commit(request))
                })
                .collect();
            let stepped = committer.step();
            for (number, commit) in sent {
                match commit.now_or_never().expect("the batch was judged") {
                    Ok(commit) => self.workload.acknowledge(number, commit, is_durable)?,
                    Err(error) => assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT)),
                }
            }
            if stepped.is_err() {
                return Ok(());
            }
        }
        if committer.close().is_ok() {
            self.workload.all_is_durable();
        }
        Ok(())
    }
}

/// Returns the report of the first life that goes wrong.
fn first_failure(plant: impl Fn(&Disk, &mut OpenedStore)) -> Option<String> {
    seeds(scale(200, 2_000).div_ceil(LOSSES)).find_map(|seed| {
        let failure = Life::new(seed).run(&plant).err()?;
        Some(format!(
            "the store {failure}; to repeat: TEST_SEED={seed} cargo test -p fdbq-keyspace power_loss"
        ))
    })
}

#[test]
fn a_power_loss_takes_nothing_that_was_acknowledged_and_leaves_commits_whole_and_in_order() {
    assert_eq!(first_failure(|_, _| {}), None);
}

#[test]
fn the_check_finds_commits_acknowledged_before_they_are_flushed() {
    let failure = first_failure(|disk, _| disk.ignore_flushes()).unwrap();
    assert!(
        ["was acknowledged", "does not open", "cannot be read"]
            .map(|text| failure.contains(text))
            .contains(&true),
        "{failure}"
    );
}

#[test]
fn the_check_finds_versionstamps_from_a_clock_that_went_back() {
    let failure = first_failure(|_, store| {
        store.version = RECOVERY_VERSIONS;
    });
    let failure = failure.unwrap();
    // Their batches may be taken for ones that the runs already contain.
    let is_found = |text: &&str| failure.contains(*text);
    let found = [
        "is not newer than all before",
        "was acknowledged",
        "follows Some",
    ];
    assert!(found.iter().any(is_found), "{failure}");
}

#[test]
fn the_check_finds_half_a_commit() {
    let failure = first_failure(|_, store| {
        let half = Effect::Set {
            key: b"row/00",
            value: b"half",
        };
        store.commit(&[half]).ok();
    });
    assert!(failure.unwrap().contains("is not the state after commit"));
}

#[test]
fn the_check_finds_a_commit_lost_from_the_middle() {
    let failure = first_failure(|_, store| {
        let begin = &stamp_key(2);
        let end = &stamp_key(3);
        store.commit(&[Effect::ClearRange { begin, end }]).ok();
    });
    assert!(failure.unwrap().contains("commit 2 has no stamp"));
}

#[test]
fn a_log_that_ends_before_what_the_runs_have_is_refused() {
    let disk = Disk::with(new_store());
    let mut store = open_on(&disk).unwrap();
    let set = |key| Effect::Set { key, value: b"" };
    store.commit(&[set(b"a")]).unwrap();
    let older = disk.image();
    store.commit(&[set(b"b")]).unwrap();
    store.checkpoint().unwrap();
    store.commit(&[set(b"c")]).unwrap();
    let newer = disk.image();
    drop(store);
    assert!(open_on(&Disk::with(newer.clone())).is_ok());
    let mixed = Image {
        slots: older.slots,
        ..newer
    };
    let refused = open_on(&Disk::with(mixed)).err().unwrap();
    assert!(
        matches!(refused, OpenError::LogMissing { .. }),
        "{refused:?}"
    );
}
