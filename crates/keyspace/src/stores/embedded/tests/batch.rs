//! Tests of the resolver and the publisher on one batch, step by step.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;

use super::super::{Durability, Options};
use super::disk::Disk;
use super::{new_store, open_on, set, setup, still};
use crate::contract::error::{Code, Result};
use crate::contract::mutation::MutationOp;
use crate::contract::transaction::Commit;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::disk::location::memory;
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::engine::{CommitRequest, Committer, Ending, Engine};

fn prepare() -> (Engine, Committer) {
    let (environment, _) = still();
    let store = memory(&setup()).unwrap();
    Engine::prepare(store, &Options::new().with_environment(environment))
}

/// Commits requests as one batch.
fn commit_together<const N: usize>(
    (engine, committer): &mut (Engine, Committer),
    requests: [CommitRequest; N],
) -> [Result<Commit>; N] {
    let sent = requests.map(|request| engine.commit(request));
    committer.step().ok();
    sent.map(|commit| commit.now_or_never().expect("the batch was judged"))
}

fn reading(mut request: CommitRequest, key: &'static str) -> CommitRequest {
    request.read_conflicts.insert(KeyRange::key(key.into()));
    request
}

#[test]
fn a_read_of_what_an_earlier_transaction_of_the_batch_writes_conflicts() {
    let mut store = prepare();
    let [first, second, third] = commit_together(
        &mut store,
        [
            set(None, &["a"], "1"),
            reading(set(None, &["b"], "2"), "a"),
            // A transaction that was rejected would have written what it reads.
            reading(set(None, &["c"], "3"), "b"),
        ],
    );
    assert!(first.is_ok());
    assert_eq!(second.unwrap_err().code(), Some(Code::NOT_COMMITTED));
    assert!(third.is_ok());
    let (_, snapshot) = store.0.read_version().unwrap();
    assert_eq!(snapshot.get(b"b").unwrap(), None);
    assert_eq!(snapshot.get(b"c").unwrap(), Some("3".into()));
}

#[test]
fn a_batch_has_one_version_and_its_index_counts_rejected_transactions_too() {
    let mut store = prepare();
    let [first, rejected, third] = commit_together(
        &mut store,
        [
            set(None, &["a"], "1"),
            reading(set(None, &["b"], "2"), "a"),
            set(None, &["c"], "3"),
        ],
    );
    assert!(rejected.is_err());
    let first = first.unwrap();
    let third = third.unwrap();
    assert_eq!(first.version, third.version);
    let index = |commit: Commit| commit.versionstamp.unwrap().batch_index();
    assert_eq!((index(first), index(third)), (0, 2));
}

#[test]
fn atomic_operations_meet_what_earlier_transactions_of_the_batch_left() {
    let append = |param: &'static str| CommitRequest {
        mutations: vec![Mutation::Atomic {
            op: MutationOp::AppendIfFits,
            key: "a".into(),
            param: param.into(),
        }],
        ..CommitRequest::default()
    };
    let mut store = prepare();
    let [old] = commit_together(&mut store, [set(None, &["a"], "0")]);
    let (version, _) = store.0.read_version().unwrap();
    let batch = [
        append("1"),
        reading(set(Some(version - 1), &["a"], "rejected"), "a"),
        append("2"),
    ];
    let [first, rejected, last] = commit_together(&mut store, batch);
    assert!(old.is_ok() && first.is_ok() && rejected.is_err() && last.is_ok());
    let (_, snapshot) = store.0.read_version().unwrap();
    assert_eq!(snapshot.get(b"a").unwrap(), Some("012".into()));
}

#[test]
fn a_write_conflict_range_alone_is_a_commit_that_others_conflict_with() {
    let mut store = prepare();
    let (version, _) = store.0.read_version().unwrap();
    let mut write_conflicts = RangeSet::default();
    write_conflicts.insert(KeyRange::new("a".into(), "c".into()));
    let range = CommitRequest {
        write_conflicts,
        ..CommitRequest::default()
    };
    let [range] = commit_together(&mut store, [range]);
    assert!(range.unwrap().version > version);
    let [reader] = commit_together(&mut store, [reading(set(Some(version), &["x"], ""), "b")]);
    assert_eq!(reader.unwrap_err().code(), Some(Code::NOT_COMMITTED));
}

#[test]
fn a_blind_commit_reads_at_the_version_of_its_call() {
    let mut store = prepare();
    let blind = store.0.commit(reading(set(None, &["b"], ""), "a"));
    let [other] = commit_together(&mut store, [set(None, &["a"], "1")]);
    assert!(other.is_ok());
    assert!(
        blind.now_or_never().unwrap().is_ok(),
        "it was called first, and is first in the batch"
    );

    let late = store.0.commit(set(None, &["a"], "2"));
    let early = store.0.commit(reading(set(None, &["b"], ""), "a"));
    store.1.step().unwrap();
    assert!(late.now_or_never().unwrap().is_ok());
    let code = early.now_or_never().unwrap().unwrap_err().code();
    assert_eq!(code, Some(Code::NOT_COMMITTED));
}

#[test]
fn a_dropped_commit_future_does_not_stop_the_commit() {
    let (engine, mut committer) = prepare();
    drop(engine.commit(set(None, &["a"], "1")));
    committer.step().unwrap();
    let (_, snapshot) = engine.read_version().unwrap();
    assert_eq!(snapshot.get(b"a").unwrap(), Some("1".into()));
}

#[test]
fn commits_join_the_open_batch_until_it_is_taken() {
    let (engine, mut committer) = prepare();
    let mut commits = Vec::new();
    for key in ["a", "b"] {
        commits.push(engine.commit(set(None, &[key], "1")));
        committer.resolve().unwrap();
    }
    committer.publish().unwrap();
    commits.push(engine.commit(set(None, &["c"], "1")));
    committer.step().unwrap();
    let stamps: Vec<_> = (commits.into_iter())
        .map(|commit| {
            commit
                .now_or_never()
                .unwrap()
                .unwrap()
                .versionstamp
                .unwrap()
        })
        .collect();
    assert_eq!(stamps[0].commit_version(), stamps[1].commit_version());
    assert_eq!((stamps[0].batch_index(), stamps[1].batch_index()), (0, 1));
    assert!(stamps[1] < stamps[2]);
}

#[test]
fn what_is_resolved_conflicts_and_is_neither_seen_nor_answered_before_it_is_published() {
    let (engine, mut committer) = prepare();
    let (version, _) = engine.read_version().unwrap();
    let mut first = Box::pin(engine.commit(set(None, &["a"], "1")));
    committer.resolve().unwrap();
    let late = reading(set(Some(version), &["b"], "2"), "a");
    let mut rejected = Box::pin(engine.commit(late));
    committer.resolve().unwrap();
    // A retry would get this version, and conflict again.
    assert_eq!(engine.read_version().unwrap().0, version);
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut rejected).now_or_never().is_none());
    committer.publish().unwrap();
    let first = first.now_or_never().unwrap().unwrap();
    let code = rejected.now_or_never().unwrap().unwrap_err().code();
    assert_eq!(code, Some(Code::NOT_COMMITTED));
    assert!(engine.read_version().unwrap().0 >= first.version);
}

#[test]
fn a_batch_of_rejected_commits_is_answered_and_leaves_nothing_in_flight() {
    let mut store = prepare();
    let (version, _) = store.0.read_version().unwrap();
    let [first] = commit_together(&mut store, [set(None, &["a"], "1")]);
    let late = reading(set(Some(version), &["b"], "2"), "a");
    let [rejected] = commit_together(&mut store, [late]);
    assert_eq!(rejected.unwrap_err().code(), Some(Code::NOT_COMMITTED));
    let [next] = commit_together(&mut store, [set(None, &["c"], "3")]);
    assert!(next.unwrap().version > first.unwrap().version);
}

#[test]
fn each_durability_flushes_as_often_as_it_says() {
    let interval = Duration::from_secs(10);
    // The log is flushed when its file grows and when it continues in another segment, and the store's file at the
    // next checkpoint.
    for (durability, expected) in [
        (Durability::Immediate, 64..96),
        (Durability::Relaxed { interval }, 0..32),
    ] {
        let (environment, _) = still();
        let disk = Disk::with(new_store());
        let store = open_on(&disk).unwrap();
        let options = Options::new()
            .with_durability(durability)
            .with_environment(environment);
        let (engine, mut committer) = Engine::prepare(store, &options);
        let before = disk.flushes();
        for _ in 0..64 {
            drop(engine.commit(set(None, &["a"], "1")));
            committer.step().unwrap();
        }
        let flushes = disk.flushes() - before;
        assert!(expected.contains(&flushes), "{durability:?}: {flushes}");
    }
}

#[test]
fn a_commit_that_was_resolved_before_a_clock_frame_is_replayed_after_a_checkpoint() {
    let (environment, clock) = still();
    let disk = Disk::with(new_store());
    let options = Options::new().with_environment(environment);
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options);
    let large = vec![Mutation::Set {
        key: "large".into(),
        value: vec![7; 40_000].into(),
    }];
    drop(engine.commit(CommitRequest {
        mutations: large,
        ..CommitRequest::default()
    }));
    committer.step().unwrap();
    // Its batch ends the part that contains the first one.
    let commit = engine.commit(set(None, &["a"], "1"));
    committer.resolve().unwrap();
    clock.advance(Duration::from_secs(30));
    committer.write_clock().unwrap();
    committer.step().unwrap();
    assert!(commit.now_or_never().unwrap().is_ok());
    let store = open_on(&Disk::with(disk.image())).unwrap();
    assert!(store.window.get(b"a").unwrap().is_some());
}

#[test]
fn a_long_log_of_few_rows_is_freed() {
    let (environment, _) = still();
    let disk = Disk::with(new_store());
    let store = open_on(&disk).unwrap();
    let options = Options::new().with_environment(environment);
    let (engine, mut committer) = Engine::prepare(store, &options);
    for round in 0..200 {
        // A clear of nothing leaves nothing in the window.
        let mutations = vec![Mutation::Clear { key: "a".into() }];
        drop(engine.commit(CommitRequest {
            mutations,
            ..CommitRequest::default()
        }));
        committer.step().unwrap();
        assert!(disk.image().slots.len() <= 3, "after {round} commits");
    }
}

#[test]
fn a_relaxed_commit_is_flushed_when_its_interval_is_over() {
    let interval = Duration::from_secs(10);
    let (environment, clock) = still();
    let disk = Disk::with(new_store());
    let store = open_on(&disk).unwrap();
    let options = Options::new().with_durability(Durability::Relaxed { interval });
    let (engine, mut committer) = Engine::prepare(store, &options.with_environment(environment));
    let survives = |disk: &Disk| {
        let store = open_on(&Disk::with(disk.flushed())).unwrap();
        store.window.get(b"a").unwrap().is_some()
    };
    drop(engine.commit(set(None, &["a"], "1")));
    committer.step().unwrap();
    assert!(!survives(&disk));
    clock.advance(interval);
    committer.step().unwrap();
    assert!(survives(&disk));
}

#[test]
fn a_panic_of_the_resolver_ends_the_store() {
    let (environment, _) = still();
    let store = memory(&setup()).unwrap();
    let engine = Engine::start(store, &Options::new().with_environment(environment)).unwrap();
    // No transaction sends a template without an offset, because it is checked when it is staged.
    let bad = Mutation::Atomic {
        op: MutationOp::SetVersionstampedKey,
        key: Bytes::new(),
        param: Bytes::new(),
    };
    let commit = engine.commit(CommitRequest {
        mutations: vec![bad],
        ..CommitRequest::default()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let code = runtime.block_on(commit).unwrap_err().code();
    assert_eq!(code, Some(Code::COMMIT_UNKNOWN_RESULT));
    let ended = engine.shut_down(Ending::Close).unwrap_err();
    assert_eq!(ended.code(), Some(Code::IO_ERROR));
    assert!(engine.read_version().is_err());
}

#[test]
fn commits_wait_for_their_turns_while_too_many_parts_wait_for_a_checkpoint() {
    const WINDOW_BYTES: usize = 64 << 10;
    let (environment, clock) = still();
    let options = Options::new()
        .with_environment(environment)
        .with_window_bytes(WINDOW_BYTES);
    let disk = Disk::with(new_store());
    let (engine, mut committer) = Engine::prepare(open_on(&disk).unwrap(), &options);
    let value: &'static str = "x".repeat(1000).leak();
    let request = || set(None, &["a"], value);
    let fill = |committer: &mut Committer, bytes: usize| {
        for _ in 0..bytes / value.len() {
            let commit = engine.commit(request());
            committer.resolve().unwrap();
            committer.publish().unwrap();
            commit.now_or_never().unwrap().unwrap();
        }
    };
    let waits = || !engine.wait_for_turn(value.len()).is_zero();

    fill(&mut committer, WINDOW_BYTES);
    assert!(!waits());
    disk.during_flush({
        let clock = clock.clone();
        move || clock.advance(Duration::from_secs(1))
    });
    committer.step().unwrap();
    disk.during_flush(|| ());
    assert!(!waits());
    fill(&mut committer, WINDOW_BYTES / 2);
    assert!(!waits() && !waits());
    fill(&mut committer, WINDOW_BYTES);
    // The first turn is now, and the second one later.
    assert!(!waits() && waits());
    clock.advance(Duration::from_secs(1));
    assert!(!waits() && waits());
    committer.step().unwrap();
    assert!(!waits());
}
