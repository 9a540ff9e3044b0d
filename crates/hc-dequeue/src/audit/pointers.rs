//! Checks delayed items, and queued items of other priorities than 0, against the pointers by which references find
//! them.

use async_trait::async_trait;
use microqueue::ItemId;
use microqueue::keyspace::{self, Bytes, Isolation, KeyValue, Transaction};

use super::Finding;
use super::rows::{AuditTransaction, RowCheck, is_still};
use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::pointer::Pointer;
use crate::items::spot::Spot;

/// Checks that each item of a part has its pointer, if it needs one.
pub(super) struct Pointed(pub(super) Part);

#[async_trait]
impl RowCheck for Pointed {
    fn part(&self) -> Part {
        self.0
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let Some((id, expected)) = parse(keys, self.0, row)? else {
            return Ok(None);
        };
        let item = ItemRef::new(keys, id);
        let pointer = match stored_pointer(tr, keys, &id).await? {
            Some(pointer) if pointer == expected => return Ok(None),
            other => other,
        };
        let leads_elsewhere = match pointer {
            Some(pointer) => leads_to_item(tr, keys, pointer, &id).await?,
            None => false,
        };
        let key = Bytes::copy_from_slice(row.key());
        Ok(Some(if leads_elsewhere {
            Finding::Twice { item }
        } else {
            Finding::NoPointer { item, key }
        }))
    }
}

/// Checks that each pointer leads to an item, which is not queued with priority 0 as well.
pub(super) struct Pointers;

#[async_trait]
impl RowCheck for Pointers {
    fn part(&self) -> Part {
        Part::Pointers
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let id = ItemId::of_commit(&keys.pointers(), row.key())
            .ok_or_else(|| keyspace::Error::corrupt(row.key(), "expected a pointer"))?;
        let item = ItemRef::new(keys, id);
        let leads = match Pointer::parse(row.key(), row.value()) {
            Ok(pointer) => leads_to_item(tr, keys, pointer, &id).await?,
            Err(_) => false,
        };
        if !leads {
            return Ok(Some(Finding::StrayPointer { item }));
        }
        let default = Pointer::Queued(Spot::DEFAULT);
        let is_twice = leads_to_item(tr, keys, default, &id).await?;
        Ok(is_twice.then_some(Finding::Twice { item }))
    }
}

/// Stages the missing pointer of the item in the row of a key.
pub(super) async fn set_pointer(
    tr: &AuditTransaction,
    keys: &Keys,
    finding: &Finding,
    key: &[u8],
) -> Result<()> {
    for part in Part::with_pointers() {
        let (begin, end) = keys.part(part);
        if !(begin.as_slice()..end.as_slice()).contains(&key)
            || !is_still(tr, keys, &Pointed(part), key, finding).await?
        {
            continue;
        }
        let value = tr.get(key, Isolation::Serializable).await?;
        let row = KeyValue::new(key, &value.unwrap_or_default());
        if let Some((id, pointer)) = parse(keys, part, &row)? {
            pointer.set(tr, keys, &id);
        }
    }
    Ok(())
}

/// Returns the item of a row and the pointer that it needs, or `None` if it needs none.
fn parse(keys: &Keys, part: Part, row: &KeyValue) -> Result<Option<(ItemId, Pointer)>> {
    let Some((location, item)) = part.decode_item(keys, row)? else {
        return Ok(None);
    };
    let pointer = match location {
        Location::Delayed(ready_millis) => Some(Pointer::Delayed(ready_millis)),
        Location::Queued(spot) => Pointer::to_queued(&spot),
        _ => None,
    };
    Ok(pointer.map(|pointer| (item.id, pointer)))
}

/// Reads the pointer of an item, if it decodes.
pub(super) async fn stored_pointer(
    tr: &AuditTransaction,
    keys: &Keys,
    id: &ItemId,
) -> Result<Option<Pointer>> {
    let key = id.key_in(&keys.pointers());
    let stored = tr.get(&key, Isolation::Serializable).await?;
    Ok(stored.and_then(|value| Pointer::parse(&key, &value).ok()))
}

async fn leads_to_item(
    tr: &AuditTransaction,
    keys: &Keys,
    pointer: Pointer,
    id: &ItemId,
) -> Result<bool> {
    let row = pointer.row(keys, id);
    Ok(tr.get(&row, Isolation::Serializable).await?.is_some())
}
