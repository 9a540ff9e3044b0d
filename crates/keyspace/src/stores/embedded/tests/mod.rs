//! Tests of the engine as a whole.

mod backup;
mod batch;
pub(super) mod disk;
mod engine;
mod io_failure;
pub(super) mod openings;
mod power_loss;
mod publisher;
mod rest;
mod workload;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use self::disk::{Disk, Image};
use crate::contract::env::{Environment, ManualClock};
use crate::contract::error::OpenError;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::disk::location::create_in;
use crate::stores::embedded::disk::open::{OpenedStore, Setup};
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::log::segment::Sizes;
use crate::stores::embedded::runs::{Layout, RunLimits};

/// Returns options with log segments that are so small that the log often continues in the next one, and
/// with a cache that is so small that a checkpoint takes several transactions.
pub(super) fn setup() -> Setup {
    Setup {
        cache_bytes: 64 << 10,
        window_bytes: 64 << 10,
        limits: RunLimits::default(),
        layout: Layout {
            chunk_bytes: 16 << 10,
            table_bytes: 64 << 10,
        },
        log: Sizes {
            segment_bytes: 128 << 10,
            grow_bytes: 16 << 10,
        },
        is_log_direct: false,
        is_viewer: false,
        expected: None,
        env: Environment::system(),
    }
}

/// Opens the store on a disk.
fn open_on(disk: &Disk) -> Result<OpenedStore, OpenError> {
    OpenedStore::open(
        Arc::new(disk.clone()),
        Arc::new(disk.clone()),
        path(),
        &setup(),
    )
}

/// The path of the store under test, for errors.
fn path() -> &'static Path {
    Path::new("test.store")
}

/// Returns an environment whose time stands still until its clock is advanced.
fn still() -> (Environment, ManualClock) {
    let clock = ManualClock::new();
    (Environment::seeded(0, Arc::new(clock.clone())), clock)
}

/// Returns a transaction that has read at a version and sets keys to a value.
fn set(read_version: Option<i64>, keys: &[&'static str], value: &'static str) -> CommitRequest {
    let mut write_conflicts = RangeSet::default();
    for &key in keys {
        write_conflicts.insert(KeyRange::key(key.into()));
    }
    CommitRequest {
        read_version,
        read_conflicts: RangeSet::default(),
        write_conflicts,
        mutations: keys
            .iter()
            .map(|&key| Mutation::Set {
                key: key.into(),
                value: value.into(),
            })
            .collect(),
    }
}

/// Returns the disk content of a new store.
fn new_store() -> Image {
    static NEW_STORE: LazyLock<Image> = LazyLock::new(|| {
        let disk = Disk::new(Vec::new());
        let created = create_in(Arc::new(disk.clone()), path(), &setup());
        drop(created.expect("the disk is in order"));
        disk.image()
    });
    NEW_STORE.clone()
}

/// Returns the seeds to run: `count` of them, or the one in the environment variable `TEST_SEED`.
pub(super) fn seeds(count: usize) -> impl Iterator<Item = u64> {
    let one = std::env::var("TEST_SEED")
        .ok()
        .map(|seed| seed.parse().expect("TEST_SEED is a number"));
    let first = one.unwrap_or(0);
    (first..).take(if one.is_some() { 1 } else { count })
}

/// Calls `check` with every possible sequence of choices: `choose(n)` returns each number below `n`.
/// Returns the number of sequences.
pub(super) fn each_choice(mut check: impl FnMut(&mut dyn FnMut(usize) -> usize)) -> usize {
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for count in 1.. {
        let mut next = 0;
        check(&mut |choices| {
            if next == chosen.len() {
                chosen.push((0, choices));
            }
            next += 1;
            chosen[next - 1].0
        });
        while chosen.last().is_some_and(|&(choice, of)| choice + 1 == of) {
            chosen.pop();
        }
        match chosen.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => return count,
        }
    }
    unreachable!("counting does not end")
}
