//! Checks delayed items, and queued items of other priorities than 0, against the pointers by which references find
//! them.

use microqueue::ItemId;
use microqueue::keyspace::parts::Part as _;
use microqueue::keyspace::{self, Bytes, Isolation, KeyValue, Transaction};

use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::finding::Finding;
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::pointer::Pointer;
use crate::items::spot::Spot;

/// Checks that an item has its pointer, if it needs one.
pub(super) async fn check_item(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let Some((id, expected)) = parse(keys, part, row)? else {
        return Ok(None);
    };
    let item = keys.item_ref(id);
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

/// Checks that a pointer leads to an item, which is not queued with priority 0 as well.
pub(super) async fn check_pointer(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let id = ItemId::of_commit(&keys.pointers(), row.key())
        .ok_or_else(|| keyspace::Error::corrupt(row.key(), "expected a pointer"))?;
    let item = keys.item_ref(id);
    let leads = match Pointer::parse(row.key(), row.value()) {
        Ok(pointer) => leads_to_item(tr, keys, pointer, &id).await?,
        Err(_) => false,
    };
    if !leads {
        return Ok(Some(Finding::StrayPointer { item }));
    }
    let default = Pointer::Queued(Spot::DEFAULT);
    if leads_to_item(tr, keys, default, &id).await? {
        return Ok(Some(Finding::Twice { item }));
    }
    Ok(None)
}

/// Returns the part of the item in the row of a key, among those whose items need pointers.
pub(super) fn part_of(keys: &Keys, key: &[u8]) -> Option<Part> {
    let part = Part::of(&keys.queue, key)?;
    Part::with_pointers().find(|known| *known == part)
}

/// Stages the missing pointer of the item in the row of a key.
pub(super) async fn set_pointer(tr: &impl Transaction, keys: &Keys, key: &[u8]) -> Result<()> {
    let Some(part) = part_of(keys, key) else {
        return Ok(());
    };
    let value = tr.get(key, Isolation::Serializable).await?;
    let row = KeyValue::new(key, &value.unwrap_or_default());
    if let Some((id, pointer)) = parse(keys, part, &row)? {
        pointer.set(tr, keys, &id);
    }
    Ok(())
}

/// Returns the item of a row and the pointer that it needs, or `None` if it needs none.
fn parse(keys: &Keys, part: Part, row: &KeyValue) -> Result<Option<(ItemId, Pointer)>> {
    let Some((location, item)) = decode_item(keys, part, row)? else {
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
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
) -> Result<Option<Pointer>> {
    let key = id.key_in(&keys.pointers());
    let stored = tr.get(&key, Isolation::Serializable).await?;
    Ok(stored.and_then(|value| Pointer::parse(&key, &value).ok()))
}

async fn leads_to_item(
    tr: &impl Transaction,
    keys: &Keys,
    pointer: Pointer,
    id: &ItemId,
) -> Result<bool> {
    let row = pointer.row(keys, id);
    Ok(tr.get(&row, Isolation::Serializable).await?.is_some())
}
