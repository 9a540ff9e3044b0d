//! Items that are done and kept against the index of the times until which they are.
//!
//! The record of such an item does not say until when it is kept: that was decided by the settings of its
//! end, and they may have changed. Where it is not indexed under the time that follows from the settings of
//! today, the check looks for it in the whole index. An item that is done never comes back, and its record and
//! its entry are removed together. So if the record is there before the index is read and afterwards, in as
//! many transactions as that takes, the entry must have been there all the time.

use std::collections::BTreeSet;

use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{self, Database, Isolation, KeyValue, Runner, Transaction};

use super::Finding;
use super::rows::{FINDINGS_PER_CHECK, RowCheck, at_most, is_still, next_page, read_page};
use crate::error::Result;
use crate::keys::Keys;
use crate::record::Record;
use crate::settings::Settings;

/// How many items are looked for in the whole index at the same time.
const LOOKED_FOR_AT_ONCE: usize = 10_000;

/// Each item that is done is in the index, if it is kept for as long as the settings say.
struct DoneItems<'a>(&'a Settings);

impl RowCheck for DoneItems<'_> {
    fn part(&self) -> &'static str {
        "x"
    }

    async fn check(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let item = keys.done.decode(row)?;
        let until_millis = until(self.0, row.key(), &item.value)?;
        let entry = item.id.key_in(&keys.kept_until(until_millis));
        let entry = tr.get(&entry, Isolation::Serializable).await?;
        Ok(entry
            .is_none()
            .then_some(Finding::NoKeepTime { id: item.id }))
    }
}

/// Each entry of the index is that of an item that is done.
pub(super) struct KeepTimes;

impl RowCheck for KeepTimes {
    fn part(&self) -> &'static str {
        "z"
    }

    async fn check(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let (until_millis, id) = keys.parse_kept(row.key())?;
        let item = id.key_in(keys.done.subspace());
        let item = tr.get(&item, Isolation::Serializable).await?;
        let stray = Finding::StrayKeepTime { id, until_millis };
        Ok(item.is_none().then_some(stray))
    }
}

/// Checks that each item that is done is in the index, under whatever time.
pub(super) async fn check_done<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
    settings: &Settings,
) -> Result<Vec<Finding>> {
    let check = DoneItems(settings);
    let (mut findings, mut after) = (Vec::new(), None);
    let mut unindexed = BTreeSet::new();
    loop {
        let page = next_page(runner, keys, &check, after.as_deref()).await?;
        for finding in page.findings {
            match finding {
                Finding::NoKeepTime { id } => drop(unindexed.insert(id)),
                other => findings.push(other),
            }
        }
        let is_last = page.last.is_none();
        if unindexed.len() >= LOOKED_FOR_AT_ONCE || is_last {
            retain_unindexed(runner, keys, &mut unindexed).await?;
            let missing = std::mem::take(&mut unindexed).into_iter();
            findings.extend(missing.map(|id| Finding::NoKeepTime { id }));
        }
        if is_last || findings.len() >= FINDINGS_PER_CHECK {
            return Ok(at_most(findings, &check));
        }
        after = page.last;
    }
}

/// Keeps those of some items that were done that are in the index under no time, and are still there.
async fn retain_unindexed<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
    items: &mut BTreeSet<ItemId>,
) -> Result<()> {
    let mut after: Option<Vec<u8>> = None;
    while !items.is_empty() {
        let after_last = after.as_deref();
        let page = |tr| async move { read_page(&tr, keys, "z", after_last).await };
        let (rows, last) = runner.run(page).await?;
        for row in &rows {
            // One that does not decode is found by its own check.
            if let Ok((_, id)) = keys.parse_kept(row.key()) {
                items.remove(&id);
            }
        }
        if last.is_none() {
            break;
        }
        after = last;
    }
    for id in items.clone() {
        let get = |tr| async move { is_kept(&tr, keys, &id).await };
        if !runner.run(get).await? {
            items.remove(&id);
        }
    }
    Ok(())
}

async fn is_kept(tr: &impl Transaction, keys: &Keys, id: &ItemId) -> Result<bool> {
    let item = id.key_in(keys.done.subspace());
    Ok(tr.get(&item, Isolation::Serializable).await?.is_some())
}

/// Stages the entry of an item that is done and has none.
pub(super) async fn set_keep_time(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    id: &ItemId,
) -> Result<()> {
    // An entry comes with its item, or from here.
    if let Some(record) = keys.done.get(tr, id).await? {
        let key = id.key_in(keys.done.subspace());
        let until_millis = until(settings, &key, &record)?;
        tr.set(&id.key_in(&keys.kept_until(until_millis)), b"");
    }
    Ok(())
}

/// Stages that an entry of no item is removed.
pub(super) async fn remove_keep_time(
    tr: &impl Transaction,
    keys: &Keys,
    finding: &Finding,
    id: &ItemId,
    until_millis: u64,
) -> Result<()> {
    let entry = id.key_in(&keys.kept_until(until_millis));
    if is_still(tr, keys, &KeepTimes, &entry, finding).await? {
        tr.clear(&entry);
    }
    Ok(())
}

/// Returns until when an item that is done is kept by the settings.
fn until(settings: &Settings, key: &[u8], record: &Record) -> Result<u64> {
    let expected = || keyspace::Error::corrupt(key, "expected an end");
    let end = record.end.as_ref().ok_or_else(expected)?;
    Ok(end.millis.saturating_add(millis(settings.keep_done)))
}
