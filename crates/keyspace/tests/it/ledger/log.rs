//! A log to which operations append, and which tests check item by item.

use keyspace::{Database, Isolation, MutationOp, RangeQuery, Transaction, Versionstamp, read_all};

const PREFIX: &[u8] = b"log/";
const AFTER: &[u8] = b"log0";

/// One item: the operation that appended it, in which attempt, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) operation: u64,
    pub(crate) attempt: u32,
    pub(crate) versionstamp: Versionstamp,
}

/// Appends an item, blindly.
pub(crate) fn append(tr: &impl Transaction, operation: u64, attempt: u32) {
    let mut key = PREFIX.to_vec();
    key.extend_from_slice(Versionstamp::INCOMPLETE.as_bytes());
    key.extend_from_slice(&(PREFIX.len() as u32).to_le_bytes());
    let mut value = operation.to_be_bytes().to_vec();
    value.extend_from_slice(&attempt.to_be_bytes());
    tr.atomic(MutationOp::SetVersionstampedKey, &key, &value);
}

/// Reads the log as a transaction sees it.
pub(crate) async fn items(tr: &impl Transaction) -> keyspace::Result<Vec<Item>> {
    let rows = read_all(tr, RangeQuery::keys(PREFIX, AFTER), Isolation::Serializable).await?;
    Ok(rows
        .iter()
        .map(|row| Item {
            operation: u64::from_be_bytes(row.value()[..8].try_into().unwrap()),
            attempt: u32::from_be_bytes(row.value()[8..].try_into().unwrap()),
            versionstamp: Versionstamp::from_bytes(row.key()[PREFIX.len()..].try_into().unwrap()),
        })
        .collect())
}

/// Reads the log as the store holds it.
pub(crate) async fn stored_items(db: &impl Database) -> Vec<Item> {
    items(&db.begin().unwrap()).await.unwrap()
}
