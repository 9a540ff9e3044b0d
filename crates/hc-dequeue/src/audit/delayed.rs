//! Checks delayed items against the pointers by which references find them.

use async_trait::async_trait;
use microqueue::ItemId;
use microqueue::keyspace::{self, Isolation, KeyValue, Transaction};

use super::Finding;
use super::rows::{AuditTransaction, RowCheck, is_still};
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;

/// Checks that each delayed item has a pointer.
pub(super) struct DelayedItems;

#[async_trait]
impl RowCheck for DelayedItems {
    fn part(&self) -> &'static str {
        "t"
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let ready_millis = keys.parse_ready(row)?;
        let id = keys.delayed(ready_millis).decode(row)?.id;
        let item = ItemRef::new(keys, id);
        let key = id.key_in(&keys.pointers());
        let pointer = tr.get(&key, Isolation::Serializable).await?;
        Ok(match pointer.and_then(|pointer| parse_pointer(&pointer)) {
            Some(pointer) if pointer == ready_millis => None,
            Some(other) if is_delayed(tr, keys, other, &id).await? => Some(Finding::Twice { item }),
            _ => Some(Finding::NoPointer { item, ready_millis }),
        })
    }
}

/// Checks that each pointer belongs to a delayed item.
pub(super) struct Pointers;

#[async_trait]
impl RowCheck for Pointers {
    fn part(&self) -> &'static str {
        "o"
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let id = ItemId::of_commit(&keys.pointers(), row.key())
            .ok_or_else(|| keyspace::Error::corrupt(row.key(), "expected a pointer"))?;
        let leads_to_it = match parse_pointer(row.value()) {
            Some(ready_millis) => is_delayed(tr, keys, ready_millis, &id).await?,
            None => false,
        };
        let item = ItemRef::new(keys, id);
        Ok((!leads_to_it).then_some(Finding::StrayPointer { item }))
    }
}

/// Stages the missing pointer of a delayed item.
pub(super) async fn set_pointer(
    tr: &AuditTransaction,
    keys: &Keys,
    finding: &Finding,
    id: &ItemId,
    ready_millis: u64,
) -> Result<()> {
    let item = id.key_in(keys.delayed(ready_millis).subspace());
    if is_still(tr, keys, &DelayedItems, &item, finding).await? {
        tr.set(&id.key_in(&keys.pointers()), &ready_millis.to_be_bytes());
    }
    Ok(())
}

fn parse_pointer(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

async fn is_delayed(
    tr: &AuditTransaction,
    keys: &Keys,
    ready_millis: u64,
    id: &ItemId,
) -> Result<bool> {
    let item = id.key_in(keys.delayed(ready_millis).subspace());
    Ok(tr.get(&item, Isolation::Serializable).await?.is_some())
}
