//! Which of two transactions makes the other one fail.

use keyspace::{Code, OwnedTransaction};

/// Commits two transactions, one after the other, that have read the same state. Returns whether the second one failed
/// with a conflict.
///
/// # Panics
/// If the first one fails, or the second one with another error.
pub async fn second_fails<Tr: OwnedTransaction>(mut first: Tr, mut second: Tr) -> bool {
    first.commit().await.expect("nothing conflicts with it");
    let Err(error) = second.commit().await else {
        return false;
    };
    assert_eq!(error.code(), Some(Code::NOT_COMMITTED));
    true
}
