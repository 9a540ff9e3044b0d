//! A part of a store that acts as a whole store, so that tests that need a whole store can share one.

use std::future::Future;

use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{
    Bytes, ConflictKind, Database, DatabaseOption, Isolation, KeySelector, KeyValue, MutationOp,
    OwnedTransaction, RangeBatch, RangeQuery, Result, Transaction,
};

/// The keys of a store that begin with a prefix, without that prefix.
///
/// A key selector that leaves the part ends at its edge, as it would end at the edge of a store. Its
/// conflict range extends beyond the part. The ends of a range read must be inside the part. The limits on
/// keys and transactions are smaller than those of a whole store by the length of the prefix.
#[derive(Debug, Clone)]
pub struct Part<D> {
    db: D,
    prefix: Bytes,
}

impl<D: Database> Part<D> {
    /// Returns a store of the keys of `db` that begin with `prefix`.
    pub fn new(db: D, prefix: impl Into<Bytes>) -> Self {
        let prefix = prefix.into();
        Self { db, prefix }
    }
}

impl<D: Database> Database for Part<D> {
    type Transaction = PartTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(PartTransaction {
            tr: self.db.begin()?,
            prefix: self.prefix.clone(),
        })
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

/// A transaction of a [`Part`].
#[derive(Debug)]
pub struct PartTransaction<T> {
    tr: T,
    prefix: Bytes,
}

impl<T> PartTransaction<T> {
    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    fn selector(&self, selector: &KeySelector) -> KeySelector {
        KeySelector {
            key: self.key(&selector.key).into(),
            ..selector.clone()
        }
    }
}

/// Returns the key of the underlying store, or the edge if `key` is outside of the part.
fn inside(prefix: &Bytes, key: &Bytes) -> Bytes {
    match key.strip_prefix(&prefix[..]) {
        Some(rest) => key.slice_ref(rest),
        None if key < prefix => Bytes::new(),
        None => Bytes::from_static(END_OF_KEYSPACE),
    }
}

impl<T: Transaction> Transaction for PartTransaction<T> {
    keyspace::forward_transaction!([T] self => self.tr;
        read_version, set_read_version, set_option, versionstamp, approximate_size);

    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        self.tr.get(&self.key(key), isolation)
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        let found = self.tr.get_key(&self.selector(selector), isolation);
        let prefix = self.prefix.clone();
        async move { Ok(inside(&prefix, &found.await?)) }
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        let query = RangeQuery {
            begin: self.selector(&query.begin),
            end: self.selector(&query.end),
            ..query.clone()
        };
        let read = self.tr.get_range(&query, isolation);
        let prefix = self.prefix.clone();
        async move {
            let batch = read.await?;
            let row = |row: KeyValue| KeyValue::new(&inside(&prefix, &row.to_key()), row.value());
            Ok(RangeBatch {
                rows: batch.rows.into_iter().map(row).collect(),
                more: batch.more,
            })
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.tr.set(&self.key(key), value);
    }

    fn clear(&self, key: &[u8]) {
        self.tr.clear(&self.key(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.tr.clear_range(&self.key(begin), &self.key(end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        let mut key = self.key(key);
        // The last four bytes are the offset of the stamp.
        if op == MutationOp::SetVersionstampedKey
            && let Some(place) = key.last_chunk_mut()
        {
            let moved = u32::from_le_bytes(*place).wrapping_add(self.prefix.len() as u32);
            *place = moved.to_le_bytes();
        }
        self.tr.atomic(op, &key, param);
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let begin = self.key(begin);
        let end = self.key(end);
        self.tr.add_conflict_range(kind, &begin, &end)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        self.tr.watch(&self.key(key))
    }
}

impl<T: OwnedTransaction> OwnedTransaction for PartTransaction<T> {
    keyspace::forward_transaction!([T] self => self.tr;
        commit, on_error, reset, cancel);
}

#[cfg(test)]
mod tests {
    use keyspace::Versionstamp;

    use super::*;
    use crate::stores::TestStore;

    crate::on_every_store!(a_part_has_its_own_keys_and_edges);

    async fn a_part_has_its_own_keys_and_edges(store: TestStore) {
        let parts = [1, 2, 3].map(|_| store.fresh().part());
        for part in &parts {
            let mut tr = part.begin().unwrap();
            tr.set(b"a", b"value");
            let mut key = b"b".to_vec();
            key.extend_from_slice(Versionstamp::INCOMPLETE.as_bytes());
            key.extend_from_slice(&1_u32.to_le_bytes());
            tr.atomic(MutationOp::SetVersionstampedKey, &key, b"stamped");
            let stamp = tr.commit().await.unwrap().versionstamp.unwrap();
            let stamped = [b"b", &stamp.as_bytes()[..]].concat();

            let tr = part.begin().unwrap();
            let all = RangeQuery::keys(&b""[..], END_OF_KEYSPACE);
            let rows = tr.get_range(&all, Isolation::Snapshot).await.unwrap().rows;
            let keys: Vec<_> = rows.iter().map(|row| row.key()).collect();
            assert_eq!(keys, [b"a", &stamped[..]]);
            let before = KeySelector::last_less_than(&b"a"[..]);
            assert_eq!(tr.get_key(&before, Isolation::Snapshot).await.unwrap(), "");
            let after = KeySelector::first_greater_than(stamped);
            let found = tr.get_key(&after, Isolation::Snapshot).await.unwrap();
            assert_eq!(found, END_OF_KEYSPACE);
        }
    }
}
