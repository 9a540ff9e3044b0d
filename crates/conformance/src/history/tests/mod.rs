//! Tests of the recorder and its check.

use crate::chaos::{Chaos, CommitFault, Fate, Faults};
use futures::FutureExt;
use keyspace::error::Code;
use keyspace::transaction::{OwnedTransaction, Transaction};
use keyspace::{Environment, Store};

use super::*;

async fn recorded() -> (Store, Recorded<Store>) {
    let db = keyspace::open("memory:").unwrap();
    let recorded = Recorded::new(db.clone()).await.unwrap();
    (db, recorded)
}

async fn set(db: &impl Database, key: &[u8]) {
    let mut tr = db.begin().unwrap();
    tr.set(key, b"value");
    tr.commit().await.unwrap();
}

#[tokio::test]
async fn own_writes_are_replayed_before_the_reads_that_follow_them() {
    let (_, db) = recorded().await;
    let mut tr = db.begin().unwrap();
    let before = tr.get(b"key", Isolation::Serializable);
    tr.set(b"key", b"1");
    tr.atomic(MutationOp::Add, b"key", b"\x01");
    let after = tr.get(b"key", Isolation::Serializable);
    assert_eq!(after.await.unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(before.await.unwrap(), None);
    tr.commit().await.unwrap();
    let checked = db.check().await.unwrap();
    let expected = Checked {
        commits: 1,
        read_only: 0,
        reads: 2,
    };
    assert_eq!(checked, expected);
}

#[tokio::test]
async fn a_replay_begins_with_what_the_store_held() {
    let (store, _) = recorded().await;
    set(&store, b"before").await;
    let db = Recorded::new(store).await.unwrap();
    let mut tr = db.begin().unwrap();
    let value = tr.get(b"before", Isolation::Serializable).await.unwrap();
    assert!(value.is_some());
    tr.commit().await.unwrap();
    assert_eq!(db.check().await.unwrap().read_only, 1);
}

#[tokio::test]
async fn a_commit_whose_future_was_dropped_is_replayed_too() {
    let (_, db) = recorded().await;
    let mut tr = db.begin().unwrap();
    tr.set(b"key", b"value");
    // A single poll sends the commit.
    let _ = tr.commit().now_or_never();
    assert_eq!(db.check().await.unwrap().commits, 1);
    tr.reset();
    let value = tr.get(b"key", Isolation::Serializable).await.unwrap();
    assert!(value.is_some());
}

#[tokio::test]
async fn a_row_that_no_transaction_wrote_is_told() {
    let (store, db) = recorded().await;
    set(&store, b"smuggled").await;
    let error = db.check().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "smuggled is `value` in the end, expected nothing"
    );
}

#[tokio::test]
async fn a_read_of_a_value_that_no_transaction_wrote_is_reported() {
    let (store, db) = recorded().await;
    set(&store, b"smuggled").await;
    let mut tr = db.begin().unwrap();
    tr.get(b"smuggled", Isolation::Snapshot).await.unwrap();
    let version = tr.read_version().await.unwrap();
    tr.commit().await.unwrap();
    let error = db.check().await.unwrap_err();
    let text = format!(
        "transaction 0 read smuggled = `value`, and at version {version} it is smuggled = nothing"
    );
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_commit_of_which_the_store_itself_knows_nothing_is_undecided() {
    let (store, _) = recorded().await;
    let chaos = Chaos::new(store, Environment::system(), Faults::default());
    let db = Recorded::new(chaos.clone()).await.unwrap();
    chaos.script([CommitFault::Unknown(Fate::Applied)]);
    let mut tr = db.begin().unwrap();
    tr.set(b"key", b"value");
    let error = tr.commit().await.unwrap_err();
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT));
    let error = db.check().await.unwrap_err();
    assert!(matches!(error, HistoryError::Undecided { transaction: 0 }));
}

#[test]
fn reads_are_shown_with_their_selectors_and_rows() {
    let query = RangeQuery::keys(&b"a"[..], &b"b"[..]).limit(3).reversed();
    let row = keyspace::KeyValue::new(b"a\0", b"1");
    let batch = RangeBatch {
        rows: vec![row],
        more: true,
    };
    assert_eq!(
        Read::GetRange { query, batch }.to_string(),
        r"(< a)+1..(< b)+1 limit 3 reversed = { a\x00: 1 ..}"
    );
    let read = Read::GetKey {
        selector: KeySelector::last_less_or_equal(&b"k"[..]),
        key: Bytes::from_static(b"j"),
    };
    assert_eq!(read.to_string(), "(<= k)+0 = j");
}

/// Returns a blind commit between two events.
fn blind(number: u64, versionstamp: Versionstamp, asked: Event, acknowledged: Event) -> Record {
    Record {
        number,
        steps: Vec::new(),
        read_version: None,
        versionstamp: Some(versionstamp),
        version_asked: None,
        commit_asked: asked,
        acknowledged,
    }
}

fn judge(records: &[Record]) -> Result<Checked, HistoryError> {
    replay::check(&ReplayedRows::new(), records, &ReplayedRows::new())
}

#[test]
fn a_commit_after_an_acknowledgement_has_a_larger_versionstamp() {
    let small = Versionstamp::new(7, 1);
    let large = Versionstamp::new(7, 2);
    judge(&[blind(0, small, 0, 1), blind(1, large, 2, 3)]).unwrap();
    // The two overlap, so either order is right.
    judge(&[blind(0, large, 0, 2), blind(1, small, 1, 3)]).unwrap();
    let error = judge(&[blind(0, large, 0, 1), blind(1, small, 2, 3)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "transaction 1 is at commit 00000000000000070001, and not after 00000000000000070002 \
         of transaction 0, which was acknowledged before"
    );
}

#[test]
fn two_commits_do_not_share_a_versionstamp() {
    let stamp = Versionstamp::new(7, 1);
    let error = judge(&[blind(0, stamp, 0, 2), blind(1, stamp, 1, 3)]).unwrap_err();
    let shared = HistoryError::SharedVersionstamp {
        first: 0,
        second: 1,
        versionstamp: stamp,
    };
    assert_eq!(error.to_string(), shared.to_string());
}
