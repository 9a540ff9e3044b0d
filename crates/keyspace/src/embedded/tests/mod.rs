//! Tests of the engine as a whole.

mod batch;
mod disk;
mod engine;
mod io_failure;
mod power_loss;
mod workload;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use self::disk::Disk;
use super::engine::CommitRequest;
use super::file::create_in;
use super::ranges::key_range;
use super::store::Mutation;
use crate::env::{Environment, ManualClock};

const CACHE_BYTES: usize = 1 << 20;

/// What errors call the store under test.
fn path() -> &'static Path {
    Path::new("test.redb")
}

/// Returns an environment whose time stands still until its clock is advanced.
fn still() -> (Environment, ManualClock) {
    let clock = ManualClock::new();
    (Environment::seeded(0, Arc::new(clock.clone())), clock)
}

/// A transaction that sets keys to a value, having read at a version.
fn set(read_version: Option<i64>, keys: &[&'static str], value: &'static str) -> CommitRequest {
    CommitRequest {
        read_version,
        read_conflicts: Vec::new(),
        write_conflicts: keys.iter().map(|key| key_range(key.as_bytes())).collect(),
        mutations: keys
            .iter()
            .map(|&key| Mutation::Set {
                key: key.into(),
                value: value.into(),
            })
            .collect(),
    }
}

/// Returns what the disk of a new store holds.
fn new_store() -> Vec<u8> {
    static NEW_STORE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let disk = Disk::new(Vec::new());
        let created = create_in(disk.clone(), path(), CACHE_BYTES, &Environment::system());
        drop(created.expect("the disk is in order"));
        disk.contents()
    });
    NEW_STORE.clone()
}

/// Returns the seeds to run: `count` of them, or the one in the environment variable `TEST_SEED`.
pub(super) fn seeds(count: usize) -> impl Iterator<Item = u64> {
    let one = std::env::var("TEST_SEED").ok();
    let one = one.map(|seed| seed.parse().expect("TEST_SEED is a number"));
    let first = one.unwrap_or(0);
    (first..).take(if one.is_some() { 1 } else { count })
}
