//! Checks done items against the index by expiry time.

use microqueue::keyspace::{self, Isolation, KeyValue, Transaction};

use crate::items::error::Result;
use crate::items::finding::Finding;
use crate::items::keys::Keys;

/// Checks that a done item is in the index.
pub(super) async fn check_done_item(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let item = keys.done.decode(row)?;
    let id = item.id;
    let Some(end) = item.value.end else {
        return Err(keyspace::Error::corrupt(row.key(), "expected an end").into());
    };
    let until_millis = end.until_millis;
    let entry = id.key_in(&keys.kept_until(until_millis));
    if tr.get(&entry, Isolation::Serializable).await?.is_some() {
        return Ok(None);
    }
    let item = keys.item_ref(id);
    Ok(Some(Finding::NoKeepTime { item, until_millis }))
}

/// Checks that an entry of the index belongs to a done item.
pub(super) async fn check_keep_time(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (until_millis, id) = keys.parse_kept(row.key())?;
    let item = keys.done.get(tr, &id).await?;
    let end = item.and_then(|record| record.end);
    if end.is_some_and(|end| end.until_millis == until_millis) {
        return Ok(None);
    }
    let item = keys.item_ref(id);
    Ok(Some(Finding::StrayKeepTime { item, until_millis }))
}
