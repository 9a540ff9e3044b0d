//! Checks dedupe ids against the items that have them.
//!
//! An item has a token exactly as long as the rows of its dedupe id belong to it: one row contains the token, the
//! other one names the item.

use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{self, Bytes, Isolation, KeyValue, Transaction};
use microqueue::{Item, ItemId};

use crate::items::dedupe::{Claim, parse_completed};
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::finding::Finding;
use crate::items::item_ref::{id_from_bytes, id_to_bytes};
use crate::items::item_row::parse_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::Record;

/// Checks that an item with a token has the rows of its dedupe id.
pub(super) async fn check_token(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let Some((_, listed)) = parse_item(keys, part, row)? else {
        return Ok(None);
    };
    let item = Item::try_from(listed).map_err(keyspace::Error::from)?;
    let Item { id, value: record } = item;
    let Some(token) = record.token else {
        return Ok(None);
    };
    let rows = Rows::read(tr, keys, &record.dedupe).await?;
    let claim = Claim::of(token, &id, record.group);
    if rows.are_of(&id, &claim) {
        return Ok(None);
    }
    let dedupe = record.dedupe;
    let item = keys.item_ref(id);
    Ok(Some(Finding::NoDedupe { item, dedupe }))
}

/// Checks that the rows of a dedupe id, found in one of the two parts, belong to an item.
pub(super) async fn check_dedupe_id(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let dedupe = parse_dedupe(keys, part, row)?;
    let rows = Rows::read(tr, keys, &dedupe).await?;
    if part == Part::DedupeItems && rows.token.is_some() {
        // The check of the row with the token reads both rows.
        return Ok(None);
    }
    stray(tr, keys, dedupe, &rows).await
}

/// Checks that a dedupe id that is retained has a time. It belongs to no other row.
pub(super) fn check_retained_id(keys: &Keys, row: &KeyValue) -> Result<Option<Finding>> {
    parse_dedupe(keys, Part::RetainedIds, row)?;
    parse_completed(row.key(), row.value())?;
    Ok(None)
}

/// Returns the dedupe id in the key of a row.
fn parse_dedupe(keys: &Keys, part: Part, row: &KeyValue) -> Result<Bytes> {
    let unpacked: Result<Vec<u8>, _> = keys.queue.subspace(&part).unpack(row.key());
    let expected = |_| keyspace::Error::corrupt(row.key(), "expected a dedupe id");
    Ok(unpacked.map_err(expected)?.into())
}

/// The rows of a dedupe id.
struct Rows {
    token: Option<Bytes>,
    named: Option<Bytes>,
}

impl Rows {
    async fn read(tr: &impl Transaction, keys: &Keys, dedupe: &Bytes) -> Result<Self> {
        let read = |key: Vec<u8>| async move {
            let row = tr.get(&key, Isolation::Serializable);
            row.map_err(Error::from).await
        };
        let (token, named) = try_join!(read(keys.dedupe(dedupe)), read(keys.dedupe_item(dedupe)))?;
        Ok(Self { token, named })
    }

    fn named(&self) -> Option<ItemId> {
        let named = self.named.as_deref()?.try_into().ok();
        named.map(id_from_bytes)
    }

    fn are_of(&self, id: &ItemId, claim: &Claim) -> bool {
        self.have(claim) && self.named.as_deref() == Some(&id_to_bytes(id))
    }

    /// Returns whether the row with the token is that of the item with this claim.
    fn have(&self, claim: &Claim) -> bool {
        self.token.as_deref() == Some(&claim.to_bytes())
    }
}

/// Returns the claim of an item that was found, if the item is not done and has the dedupe id.
fn claim_of(id: &ItemId, found: Option<(Location, Record)>, dedupe: &Bytes) -> Option<Claim> {
    let (location, record) = found?;
    if matches!(location, Location::Done) || record.dedupe != *dedupe {
        return None;
    }
    Some(Claim::of(record.token?, id, record.group))
}

/// Returns the finding that the rows of a dedupe id belong to no item.
async fn stray(
    tr: &impl Transaction,
    keys: &Keys,
    dedupe: Bytes,
    rows: &Rows,
) -> Result<Option<Finding>> {
    let named = rows.named();
    let found = match &named {
        Some(id) => find(tr, keys, id).await?,
        None => None,
    };
    let claim = named.and_then(|id| claim_of(&id, found, &dedupe));
    if claim.is_some_and(|claim| rows.have(&claim)) {
        return Ok(None);
    }
    let named = named.map(|id| keys.item_ref(id));
    Ok(Some(Finding::StrayDedupe { dedupe, named }))
}

/// Stages the rows of an item's dedupe id, unless another item has them.
pub(super) async fn set_rows(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    dedupe: &Bytes,
) -> Result<()> {
    let Some(claim) = claim_of(id, find(tr, keys, id).await?, dedupe) else {
        return Ok(());
    };
    let rows = Rows::read(tr, keys, dedupe).await?;
    if stray(tr, keys, dedupe.clone(), &rows).await?.is_some() {
        tr.set(&keys.dedupe(dedupe), &claim.to_bytes());
        tr.set(&keys.dedupe_item(dedupe), &id_to_bytes(id));
    }
    Ok(())
}

/// Stages the removal of the rows of a dedupe id that belong to no item.
pub(super) async fn remove_rows(
    tr: &impl Transaction,
    keys: &Keys,
    finding: &Finding,
    dedupe: &Bytes,
) -> Result<()> {
    let rows = Rows::read(tr, keys, dedupe).await?;
    if stray(tr, keys, dedupe.clone(), &rows).await?.as_ref() == Some(finding) {
        tr.clear(&keys.dedupe(dedupe));
        tr.clear(&keys.dedupe_item(dedupe));
    }
    Ok(())
}
