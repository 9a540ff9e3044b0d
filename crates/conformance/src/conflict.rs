//! Which of two transactions makes the other one fail.

use std::fmt;

use keyspace::{Code, OwnedTransaction};

/// Commits two transactions, one after the other, that have read the same state. Returns whether the second one failed
/// with a conflict.
///
/// # Panics
/// If the first one fails, or the second one with another error. The message names the pair.
pub async fn second_fails<Tr: OwnedTransaction>(
    pair: impl fmt::Debug,
    mut first: Tr,
    mut second: Tr,
) -> bool {
    let committed = first.commit().await;
    assert!(committed.is_ok(), "{pair:?}: first {committed:?}");
    let Err(error) = second.commit().await else {
        return false;
    };
    assert_eq!(
        error.code(),
        Some(Code::NOT_COMMITTED),
        "{pair:?}: second {error}"
    );
    true
}
