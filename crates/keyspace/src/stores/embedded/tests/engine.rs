//! Tests of the engine with its threads, as transactions use it.

use std::future::Future;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::super::{EmbeddedTransaction, Options};
use super::{set, setup, still};
use crate::contract::env::ManualClock;
use crate::contract::error::Code;
use crate::contract::limits::{RECOVERY_VERSIONS, TRANSACTION_LIFE_VERSIONS};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::transaction::{Database, Isolation, Transaction};
use crate::stores::embedded::collections::ranges::KeyRange;
use crate::stores::embedded::disk::location;
use crate::stores::embedded::engine::queue::Mutation;
use crate::stores::embedded::engine::{CommitRequest, Ending, Engine};

fn engine() -> (Engine, ManualClock) {
    let (environment, clock) = still();
    (
        engine_with(&Options::new().with_environment(environment)),
        clock,
    )
}

fn advance(clock: &ManualClock, versions: i64) {
    clock.advance(Duration::from_micros(versions.unsigned_abs()));
}

fn engine_with(options: &Options) -> Engine {
    let store = location::memory(&setup()).unwrap();
    Engine::start(store, options).unwrap()
}

fn reading(mut request: CommitRequest, key: &'static str) -> CommitRequest {
    request.read_conflicts.insert(KeyRange::key(key.into()));
    request
}

fn get(engine: &Engine, key: &str) -> Option<Bytes> {
    let (_, snapshot) = engine.read_version().unwrap();
    snapshot.get(key.as_bytes()).unwrap()
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn a_commit_is_visible_to_read_versions_given_after_its_acknowledgment() {
    let (engine, _) = engine();
    let (before, old) = engine.read_version().unwrap();
    let commit = engine.commit(set(None, &["a", "b"], "1")).await.unwrap();
    assert!(commit.version > before);
    let (after, new) = engine.read_version().unwrap();
    assert!(after >= commit.version);
    assert_eq!(old.get(b"a").unwrap(), None);
    assert_eq!(new.get(b"a").unwrap(), Some("1".into()));
    assert_eq!(new.get(b"b").unwrap(), Some("1".into()));
}

#[tokio::test]
async fn a_read_of_a_key_written_since_conflicts_and_a_write_of_it_does_not() {
    let (engine, _) = engine();
    let (version, _) = engine.read_version().unwrap();
    engine.commit(set(None, &["a"], "1")).await.unwrap();
    let write = engine.commit(set(Some(version), &["a"], "2")).await;
    assert!(write.is_ok());
    let read = engine
        .commit(reading(set(Some(version), &["b"], "2"), "a"))
        .await;
    assert_eq!(read.unwrap_err().code(), Some(Code::NOT_COMMITTED));
    assert_eq!(get(&engine, "b"), None);
}

#[tokio::test]
async fn versionstamps_fill_keys_and_values_and_grow_with_the_commits() {
    let (engine, _) = engine();
    let template = |text: &str, offset: u32| -> Bytes {
        [text.as_bytes(), &offset.to_le_bytes()].concat().into()
    };
    let mut stamps: Vec<Versionstamp> = Vec::new();
    for _ in 0..3 {
        let request = CommitRequest {
            mutations: vec![
                Mutation::Atomic {
                    op: MutationOp::SetVersionstampedKey,
                    key: template("k/..........!", 2),
                    param: "v".into(),
                },
                Mutation::Atomic {
                    op: MutationOp::SetVersionstampedValue,
                    key: "last".into(),
                    param: template("..........", 0),
                },
            ],
            ..CommitRequest::default()
        };
        stamps.extend(engine.commit(request).await.unwrap().versionstamp);
    }
    assert!(stamps.is_sorted_by(|a, b| a < b));
    let (_, snapshot) = engine.read_version().unwrap();
    let keys: Vec<_> = snapshot
        .scan(b"k/", b"k0", false, 10)
        .unwrap()
        .into_iter()
        .map(|row| row.to_key())
        .collect();
    let expected: Vec<_> = stamps
        .iter()
        .map(|stamp| Bytes::from([b"k/", &stamp.as_bytes()[..], b"!"].concat()))
        .collect();
    assert_eq!(keys, expected);
    assert_eq!(get(&engine, "last").unwrap(), &stamps[2].as_bytes()[..]);
}

#[tokio::test]
async fn a_versionstamped_key_conflicts_with_a_read_of_the_range_it_lands_in() {
    let (engine, _) = engine();
    let (version, _) = engine.read_version().unwrap();
    let request = CommitRequest {
        mutations: vec![Mutation::Atomic {
            op: MutationOp::SetVersionstampedKey,
            key: Bytes::from_static(b"k..........\x01\0\0\0"),
            param: Bytes::new(),
        }],
        ..CommitRequest::default()
    };
    engine.commit(request).await.unwrap();
    let mut reader = set(Some(version), &["x"], "");
    reader
        .read_conflicts
        .insert(KeyRange::new("k".into(), "l".into()));
    let verdict = engine.commit(reader).await;
    assert_eq!(verdict.unwrap_err().code(), Some(Code::NOT_COMMITTED));
}

#[tokio::test]
async fn five_seconds_after_its_read_version_a_transaction_is_too_old() {
    let (engine, clock) = engine();
    let (version, snapshot) = engine.read_version().unwrap();
    advance(&clock, TRANSACTION_LIFE_VERSIONS);
    assert!(snapshot.get(b"a").is_ok());
    advance(&clock, 1);
    let too_old = Some(Code::TRANSACTION_TOO_OLD);
    assert_eq!(snapshot.get(b"a").unwrap_err().code(), too_old);
    assert_eq!(engine.snapshot_at(version).err().unwrap().code(), too_old);
    let blind = engine.commit(set(Some(version), &["a"], "1")).await;
    assert_eq!(blind.unwrap_err().code(), too_old);
}

#[tokio::test]
async fn an_explicit_read_version_reads_what_was_visible_then() {
    let (engine, clock) = engine();
    let mut versions = Vec::new();
    for value in ["1", "2", "3"] {
        engine.commit(set(None, &["a"], value)).await.unwrap();
        advance(&clock, 10);
        versions.push((engine.read_version().unwrap().0, value));
    }
    for (version, value) in versions {
        let snapshot = engine.snapshot_at(version).unwrap();
        assert_eq!(snapshot.get(b"a").unwrap(), Some(value.into()));
    }
    let newest = engine.read_version().unwrap().0;
    let future = engine.snapshot_at(newest + 1).err().unwrap();
    assert_eq!(future.code(), Some(Code::FUTURE_VERSION));
    let before_the_store = engine.snapshot_at(RECOVERY_VERSIONS - 1).err().unwrap();
    assert_eq!(before_the_store.code(), Some(Code::TRANSACTION_TOO_OLD));
}

#[tokio::test]
async fn a_scan_reads_both_ways_up_to_its_limit() {
    let (engine, _) = engine();
    engine
        .commit(set(None, &["a", "b", "c", "d"], ""))
        .await
        .unwrap();
    let (_, snapshot) = engine.read_version().unwrap();
    let keys = |begin: &str, end: &str, reverse, rows| -> Vec<u8> {
        let rows = snapshot.scan(begin.as_bytes(), end.as_bytes(), reverse, rows);
        rows.unwrap().iter().map(|row| row.key()[0]).collect()
    };
    assert_eq!(keys("a", "d", false, 9), b"abc");
    assert_eq!(keys("a", "d", true, 2), b"cb");
    assert_eq!(keys("b", "b", false, 9), b"");
    assert_eq!(keys("c", "a", false, 9), b"");
}

#[tokio::test]
async fn mutations_apply_in_order_to_the_latest_value() {
    let (engine, _) = engine();
    engine
        .commit(set(None, &["a", "b", "c"], "\x01"))
        .await
        .unwrap();
    let request = CommitRequest {
        mutations: vec![
            Mutation::Atomic {
                op: MutationOp::Add,
                key: "a".into(),
                param: "\x02".into(),
            },
            Mutation::ClearRange {
                begin: "b".into(),
                end: "d".into(),
            },
            Mutation::Set {
                key: "c".into(),
                value: "new".into(),
            },
            Mutation::Atomic {
                op: MutationOp::CompareAndClear,
                key: "a".into(),
                param: "\x03".into(),
            },
        ],
        ..CommitRequest::default()
    };
    engine.commit(request).await.unwrap();
    assert_eq!(get(&engine, "a"), None);
    assert_eq!(get(&engine, "b"), None);
    assert_eq!(get(&engine, "c"), Some("new".into()));
}

#[tokio::test]
async fn a_watch_fires_when_the_value_differs_from_its_baseline_and_not_before() {
    let (engine, _) = engine();
    let (setter, mut watch) = engine.watches().create(1).unwrap();
    engine.watches().arm("a".into(), None, setter);
    engine.commit(set(None, &["b"], "1")).await.unwrap();
    assert!(poll(&mut watch).is_pending());
    engine.commit(set(None, &["a"], "1")).await.unwrap();
    assert!(matches!(poll(&mut watch), Poll::Ready(Ok(()))));

    let (setter, mut same) = engine.watches().create(1).unwrap();
    engine.watches().arm("a".into(), Some("1".into()), setter);
    engine.commit(set(None, &["a"], "1")).await.unwrap();
    assert!(poll(&mut same).is_pending());
    let clear = CommitRequest {
        mutations: vec![Mutation::ClearRange {
            begin: "a".into(),
            end: "b".into(),
        }],
        ..CommitRequest::default()
    };
    engine.commit(clear).await.unwrap();
    assert!(matches!(poll(&mut same), Poll::Ready(Ok(()))));

    let (setter, mut late) = engine.watches().create(1).unwrap();
    engine.watches().arm("a".into(), Some("1".into()), setter);
    assert!(matches!(poll(&mut late), Poll::Ready(Ok(()))));
}

#[tokio::test]
async fn a_closed_store_commits_what_was_sent_and_answers_cancelled_later() {
    let (engine, _) = engine();
    let (_, snapshot) = engine.read_version().unwrap();
    let (setter, watch) = engine.watches().create(1).unwrap();
    engine.watches().arm("w".into(), None, setter);
    let sent: Vec<_> = (0..10)
        .map(|_| engine.commit(set(None, &["a"], "1")))
        .collect();
    engine.shut_down(Ending::Close).unwrap();
    for commit in sent {
        commit.await.unwrap();
    }
    let cancelled = Some(Code::TRANSACTION_CANCELLED);
    assert_eq!(watch.await.unwrap_err().code(), cancelled);
    assert_eq!(snapshot.get(b"a").unwrap_err().code(), cancelled);
    assert_eq!(engine.read_version().err().unwrap().code(), cancelled);
    let commit = engine.commit(set(None, &["a"], "2")).await;
    assert_eq!(commit.unwrap_err().code(), cancelled);
}

#[test]
fn no_change_falls_between_arming_a_watch_and_a_commit() {
    let (environment, _) = still();
    let store = location::memory(&setup()).unwrap();
    let (engine, mut committer) =
        Engine::prepare(store, &Options::new().with_environment(environment));
    let start = Barrier::new(2);
    for round in 0..1000_u32 {
        let baseline = get(&engine, "a");
        let (setter, mut watch) = engine.watches().create(9).unwrap();
        drop(engine.commit(CommitRequest {
            mutations: vec![Mutation::Set {
                key: "a".into(),
                value: round.to_be_bytes().to_vec().into(),
            }],
            ..CommitRequest::default()
        }));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                // The failure meets the commit at a different step in every round.
                (0..round % 400 * 20).for_each(|_| std::hint::spin_loop());
                engine.watches().arm("a".into(), baseline, setter);
            });
            start.wait();
            committer.step().unwrap();
        });
        assert!(poll(&mut watch).is_ready(), "round {round}");
    }
}

#[tokio::test]
async fn a_transaction_counts_44_bytes_for_an_operation_and_32_for_a_conflict_range() {
    let db = Options::new().memory().unwrap();
    let tr = db.begin().unwrap();
    let mut expected_bytes = 0;
    let mut check = async |tr: &EmbeddedTransaction, added_bytes: usize| {
        expected_bytes += added_bytes;
        assert_eq!(tr.approximate_size().await.unwrap(), expected_bytes);
    };
    check(&tr, 0).await;
    tr.set(b"k", b"v");
    check(&tr, (1 + 1 + 44) + (1 + 2 + 32)).await;
    tr.set(b"k", b"v");
    check(&tr, 0).await;
    // With the next key, the range has two keys: it ends one byte later.
    tr.set(b"k\0", b"");
    check(&tr, (2 + 44) + 1).await;
    tr.clear(b"a");
    check(&tr, (1 + 2 + 44) + (1 + 2 + 32)).await;
    tr.clear_range(b"b", b"bcd");
    check(&tr, (1 + 3 + 44) + (1 + 3 + 32)).await;
    tr.atomic(MutationOp::Add, b"n", b"12");
    tr.atomic(MutationOp::Add, b"n", b"12");
    check(&tr, (1 + 2 + 44) + (1 + 2 + 32)).await;
    tr.get(b"read", Isolation::Serializable).await.unwrap();
    check(&tr, 4 + 5 + 32).await;
    tr.get(b"read", Isolation::Snapshot).await.unwrap();
    check(&tr, 0).await;
    // Writes that were staged among the keys that it can become are sent first, and count as before.
    tr.atomic(
        MutationOp::SetVersionstampedKey,
        b"k..........\x01\0\0\0",
        b"",
    );
    check(&tr, 1 + 10 + 4 + 44).await;
}
