//! What a recorder keeps, and what its check says.

use futures::FutureExt;

use super::*;
use crate::chaos::{Chaos, CommitFault, Fate, Faults};
use crate::error::Code;
use crate::transaction::{OwnedTransaction, Transaction};
use crate::{Embedded, Environment};

async fn recorded() -> (Embedded, Recorded<Embedded>) {
    let db = crate::open("memory:").unwrap();
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
    // Polled once, the commit is on its way.
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
async fn a_read_of_what_no_transaction_wrote_is_told() {
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
    let row = crate::KeyValue {
        key: Bytes::from_static(b"a\0"),
        value: Bytes::from_static(b"1"),
    };
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
