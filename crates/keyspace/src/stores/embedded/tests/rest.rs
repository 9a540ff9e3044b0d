//! The file of a store at rest gets short, although the store stays open.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;

use super::super::Options;
use super::disk::Disk;
use super::{new_store, open_on, still};
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::engine::{CommitRequest, Engine};

const ROWS: u32 = 1_000;
const ROW_BYTES: usize = 1_000;

fn set(number: u32) -> CommitRequest {
    CommitRequest {
        mutations: vec![Mutation::Set {
            key: Bytes::copy_from_slice(&number.to_be_bytes()),
            value: vec![7; ROW_BYTES].into(),
        }],
        ..CommitRequest::default()
    }
}

/// Writes all rows, and most of them again; then the store is at rest for some time. Returns the length of its file
/// before and after that.
fn lengths(lets_window_go: bool) -> (usize, usize) {
    let disk = Disk::with(new_store());
    let (environment, clock) = still();
    let options = Options::new().with_environment(environment);
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options);
    for number in (0..ROWS).chain((0..ROWS).filter(|number| number % 4 > 0)) {
        clock.advance(Duration::from_millis(1));
        let commit = engine.commit(set(number));
        committer.step().unwrap();
        commit
            .now_or_never()
            .expect("the batch was judged")
            .unwrap();
    }
    let before = disk.image().main.len();
    for _ in 0..4 {
        clock.advance(Duration::from_secs(10));
        committer.rest(lets_window_go).unwrap();
    }
    (before, disk.image().main.len())
}

#[test]
fn a_store_at_rest_frees_the_room_of_runs_that_were_merged() {
    let most = ROWS as usize * ROW_BYTES * 5 / 4 + (256 << 10);
    let (before, after) = lengths(true);
    assert!(after <= most && after < before, "{before} {after}");
    // The window of the resolver still reads the runs of the last batch.
    let (_, held) = lengths(false);
    assert!(held > after, "{held}");
}
