//! Tests of the engine as a whole.

mod disk;
mod engine;
mod io_failure;
mod power_loss;
mod workload;

use std::path::Path;
use std::sync::LazyLock;

use self::disk::Disk;
use super::file::create_in;
use crate::env::Environment;

const CACHE_BYTES: usize = 1 << 20;

/// What errors call the store under test.
fn path() -> &'static Path {
    Path::new("test.redb")
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
fn seeds(count: usize) -> impl Iterator<Item = u64> {
    let one = std::env::var("TEST_SEED").ok();
    let one = one.map(|seed| seed.parse().expect("TEST_SEED is a number"));
    let first = one.unwrap_or(0);
    (first..).take(if one.is_some() { 1 } else { count })
}
