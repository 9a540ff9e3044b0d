//! Copies of open stores on disks that lose power, fill up and fail. A copy that was reported as done
//! survives a power loss, and a copy that fails leaves the store as it was.

use std::sync::Arc;

use futures::FutureExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::Options;
use super::disk::{Disk, Fault};
use super::workload::Workload;
use super::{new_store, open_on, path};
use crate::contract::env::{Environment, ManualClock};
use crate::stores::embedded::engine::{Committer, Engine};

/// More commits than the window has room for, so that rows are in each layer of the store.
const COMMITS: usize = 60;

/// An open store with rows, and what it must contain.
struct SourceStore {
    rng: StdRng,
    workload: Workload,
    disk: Disk,
    engine: Engine,
    committer: Committer,
}

impl SourceStore {
    fn new(seed: u64) -> Result<Self, String> {
        let disk = Disk::with(new_store());
        let store = open_on(&disk).unwrap();
        let environment = Environment::seeded(0, Arc::new(ManualClock::new()));
        let (engine, committer) =
            Engine::prepare(store, &Options::new().with_environment(environment));
        let mut source = Self {
            rng: StdRng::seed_from_u64(seed),
            workload: Workload::default(),
            disk,
            engine,
            committer,
        };
        (0..COMMITS).try_for_each(|_| source.commit())?;
        Ok(source)
    }

    fn commit(&mut self) -> Result<(), String> {
        let (number, request) = self.workload.next(&mut self.rng);
        let commit = self.engine.commit(request);
        self.committer.step().unwrap();
        let commit = commit.now_or_never().expect("the batch was judged");
        self.workload.acknowledge(number, commit.unwrap(), true)
    }

    /// Checks that the files on a disk, which has lost power, contain all commits.
    fn check(&mut self, disk: &Disk) -> Result<(), String> {
        let left = Disk::with(disk.image_after_power_loss(&mut self.rng));
        let opened = open_on(&left).map_err(|error| format!("does not open: {error}"));
        self.workload.check(&mut opened?)
    }
}

/// Copies stores, with a fault at each call for the disk of the copy, until a copy needs no more calls.
/// `plant` is applied to the disk of each copy. Returns the number of copies that failed.
fn copy_with_faults(fault: Fault, plant: impl Fn(&Disk)) -> Result<usize, String> {
    const POWER_LOSSES: usize = 4;
    let mut source = SourceStore::new(0)?;
    let mut failed = 0;
    for calls in 1.. {
        let disk = Disk::new(Vec::new());
        disk.fail_after(calls, fault);
        plant(&disk);
        let copied = source.engine.copy_to(Arc::new(disk.clone()), path());
        let is_over = !disk.has_failed();
        match copied {
            Ok(()) => (0..POWER_LOSSES).try_for_each(|_| source.check(&disk))?,
            Err(_) => failed += 1,
        }
        if is_over {
            break;
        }
        let store = source.disk.clone();
        source.check(&store)?;
        source.commit()?;
    }
    Ok(failed)
}

#[test]
fn a_copy_that_is_done_survives_a_power_loss_and_one_that_fails_harms_nothing() {
    for fault in [
        Fault::PowerLoss,
        Fault::Error,
        Fault::Full,
        Fault::ShortWrite,
    ] {
        let failed = copy_with_faults(fault, |_| {});
        assert!(
            failed.as_ref().is_ok_and(|&failed| failed > 5),
            "{fault:?}: {failed:?}"
        );
    }
}

#[test]
fn the_check_finds_a_copy_that_is_done_before_it_is_flushed() {
    let found = copy_with_faults(Fault::PowerLoss, Disk::ignore_flushes).unwrap_err();
    let is_found = ["does not open", "cannot be read"].map(|text| found.contains(text));
    assert!(is_found.contains(&true), "{found}");
}
