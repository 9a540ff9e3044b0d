//! Checks dedupe ids against the items that have them.
//!
//! An item has a token exactly as long as the rows of its dedupe id belong to it: one row contains the token, the
//! other one names the item.

use async_trait::async_trait;
use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{self, Bytes, Isolation, KeyValue, Transaction};
use microqueue::{Item, ItemId};

use super::Finding;
use super::rows::{AuditTransaction, RowCheck};
use crate::items::dedupe::{Claim, parse_completed};
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::item_ref::{ItemRef, id_from_bytes, id_to_bytes};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::Record;

/// Checks that each item with a token, in a part of the queue, has the rows of its dedupe id.
pub(super) struct ItemsOf(pub(super) Part);

#[async_trait]
impl RowCheck for ItemsOf {
    fn part(&self) -> Part {
        self.0
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let Some((_, listed)) = self.0.parse_item(keys, row)? else {
            return Ok(None);
        };
        let item = Item::try_from(listed).map_err(keyspace::Error::from)?;
        let Item { id, value: record } = item;
        let Some(token) = record.token else {
            return Ok(None);
        };
        let rows = Rows::read(tr, keys, &record.dedupe).await?;
        let claim = Claim::of(token, &id, record.key);
        let is_missing = !rows.are_of(&id, &claim);
        let dedupe = record.dedupe;
        let item = ItemRef::new(keys, id);
        Ok(is_missing.then_some(Finding::NoDedupe { item, dedupe }))
    }
}

/// Checks that the rows of each dedupe id, found in one of the two parts, belong to an item.
pub(super) struct DedupeIds(pub(super) Part);

#[async_trait]
impl RowCheck for DedupeIds {
    fn part(&self) -> Part {
        self.0
    }

    async fn check(
        &self,
        tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let dedupe = parse_dedupe(keys, self.0, row)?;
        let rows = Rows::read(tr, keys, &dedupe).await?;
        if self.0 == Part::DedupeItems && rows.token.is_some() {
            // The check of the row with the token reads both rows.
            return Ok(None);
        }
        stray(tr, keys, dedupe, &rows).await
    }
}

/// Checks that each dedupe id that is retained has a time. It belongs to no other row.
pub(super) struct RetainedIds;

#[async_trait]
impl RowCheck for RetainedIds {
    fn part(&self) -> Part {
        Part::RetainedIds
    }

    async fn check(
        &self,
        _tr: &AuditTransaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        parse_dedupe(keys, self.part(), row)?;
        parse_completed(row.key(), row.value())?;
        Ok(None)
    }
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
    async fn read(tr: &AuditTransaction, keys: &Keys, dedupe: &Bytes) -> Result<Self> {
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
    Some(Claim::of(record.token?, id, record.key))
}

/// Returns the finding that the rows of a dedupe id belong to no item.
async fn stray(
    tr: &AuditTransaction,
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
    let is_of_item = claim.is_some_and(|claim| rows.have(&claim));
    let named = named.map(|id| ItemRef::new(keys, id));
    Ok((!is_of_item).then_some(Finding::StrayDedupe { dedupe, named }))
}

/// Stages the rows of an item's dedupe id, unless another item has them.
pub(super) async fn set_rows(
    tr: &AuditTransaction,
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
    tr: &AuditTransaction,
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
