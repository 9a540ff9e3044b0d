//! Checks done items against the index by expiry time.

use async_trait::async_trait;
use microqueue::ItemId;
use microqueue::keyspace::{self, Isolation, KeyValue, Transaction};

use super::Finding;
use super::rows::{AuditTransaction, RowCheck, is_still};
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::part::Part;

/// Checks that each done item is in the index.
pub(super) struct DoneItems;

#[async_trait]
impl RowCheck for DoneItems {
    fn part(&self) -> Part {
        Part::Done
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let item = keys.done.decode(row)?;
        let expected = || keyspace::Error::corrupt(row.key(), "expected an end");
        let id = item.id;
        let end = item.value.end.ok_or_else(expected)?;
        let until_millis = end.until_millis;
        let key = id.key_in(&keys.kept_until(until_millis));
        let entry = tr.get(&key, Isolation::Serializable).await?;
        let item = ItemRef::new(keys, id);
        let missing = Finding::NoKeepTime { item, until_millis };
        Ok(entry.is_none().then_some(missing))
    }
}

/// Checks that each entry of the index belongs to a done item.
pub(super) struct KeepTimes;

#[async_trait]
impl RowCheck for KeepTimes {
    fn part(&self) -> Part {
        Part::KeepTimes
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let (until_millis, id) = keys.parse_kept(row.key())?;
        let item = keys.done.get(tr, &id).await?;
        let until = item
            .and_then(|record| record.end)
            .map(|end| end.until_millis);
        let item = ItemRef::new(keys, id);
        let stray = Finding::StrayKeepTime { item, until_millis };
        Ok((until != Some(until_millis)).then_some(stray))
    }
}

/// Stages the missing entry of a done item.
pub(super) async fn set_keep_time(
    tr: &AuditTransaction,
    keys: &Keys,
    finding: &Finding,
    id: &ItemId,
    until_millis: u64,
) -> Result<()> {
    let item = id.key_in(keys.done.subspace());
    if is_still(tr, keys, &DoneItems, &item, finding).await? {
        tr.set(&id.key_in(&keys.kept_until(until_millis)), b"");
    }
    Ok(())
}
