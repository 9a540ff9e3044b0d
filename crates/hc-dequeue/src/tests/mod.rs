//! Tests of several modules together.

mod batch_conflicts;
mod conflicts;
mod lane_conflicts;
mod life;

use microqueue::keyspace::{self, Code, OwnedTransaction, Store};

fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

/// Commits two transactions, one after the other, that have read the same state. Returns whether the second one failed
/// with a conflict.
async fn second_fails<Tr: OwnedTransaction>(mut first: Tr, mut second: Tr) -> bool {
    first.commit().await.unwrap();
    let Err(error) = second.commit().await else {
        return false;
    };
    assert_eq!(error.code(), Some(Code::NOT_COMMITTED));
    true
}
