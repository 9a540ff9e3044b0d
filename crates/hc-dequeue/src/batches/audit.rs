//! Checks batches: the numbers of pending members against the items and batches that are members, and that complete
//! batches have notices.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Isolation, KeyValue, RangeQuery, Runner, Store, Transaction, Tx, read_all, visit_rows,
};

use crate::batches::ended::EndedBatch;
use crate::batches::stored::parse_batch;
use crate::items::batch::{BatchId, Tally};
use crate::items::changes::Changes;
use crate::items::counters::{in_time, is_off};
use crate::items::error::{Error, Result};
use crate::items::finding::{Finding, Unchecked};
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Part;

/// The largest number of batches that one transaction checks.
const MAX_CHECKED_BATCHES: usize = 100;

/// Returns whether there are batches that have not ended.
pub(crate) async fn has_batches(runner: &Runner<Store>, keys: &Keys) -> Result<bool> {
    let (begin, end) = keys.part(Part::Batches);
    let first = &RangeQuery::keys(begin, end).limit(1);
    let read = async |tr: Tx<_>| Ok::<_, Error>(tr.get_range(first, Isolation::Snapshot).await?);
    Ok(!runner.run(read).await?.rows.is_empty())
}

/// Checks all batches.
pub(crate) async fn check_batches(
    runner: &Runner<Store>,
    keys: &Keys,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut begin = Some(keys.part(Part::Batches).0);
    let mut has_batches = false;
    while let Some(first) = begin {
        let first = &first;
        let check = |tr| async move { check_some(&tr, keys, first).await };
        let (found, next) = runner.run(check).await?;
        has_batches |= next.is_some() || !found.is_empty();
        findings.extend(found);
        begin = next;
    }
    if has_batches {
        findings.extend(check_pending(runner, keys, unchecked).await?);
    }
    Ok(findings)
}

/// Checks some batches. Returns also where the next ones begin, or `None` if there were none.
async fn check_some(
    tr: &impl Transaction,
    keys: &Keys,
    begin: &[u8],
) -> Result<(Vec<Finding>, Option<Vec<u8>>)> {
    let (_, end) = keys.part(Part::Batches);
    let mut findings = Vec::new();
    let mut begin = begin.to_vec();
    for number in 0..MAX_CHECKED_BATCHES {
        let query = RangeQuery::keys(begin.clone(), end.clone()).limit(1);
        let found = tr.get_range(&query, Isolation::Snapshot).await?;
        let Some(row) = found.rows.first() else {
            let is_over = number == 0 || begin >= end;
            return Ok((findings, if is_over { None } else { Some(begin) }));
        };
        let Ok(id) = keys.parse_batch(row.key()) else {
            let key = row.to_key();
            begin = key_after(&key);
            findings.push(Finding::Undecodable { key });
            continue;
        };
        let rows = keys.batch(id);
        begin = rows.1.clone();
        findings.extend(finding_of(tr, keys, id, rows).await?);
    }
    Ok((findings, Some(begin)))
}

async fn finding_of(
    tr: &impl Transaction,
    keys: &Keys,
    id: BatchId,
    (begin, end): (Vec<u8>, Vec<u8>),
) -> Result<Option<Finding>> {
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    let batch = keys.batch_ref(id);
    Ok(match parse_batch(keys, id, &rows) {
        Ok(None) => Some(Finding::StrayBatch { batch }),
        Ok(Some(stored)) if stored.is_complete() => {
            let notice = tr.get(&keys.batch_notice(id), Isolation::Snapshot).await?;
            if notice.is_some() {
                return Ok(None);
            }
            Some(Finding::NoBatchNotice { batch })
        }
        Ok(Some(_)) => None,
        Err(error) => match error.corrupt_key() {
            Some(key) => Some(Finding::Undecodable { key: key.clone() }),
            None => return Err(error),
        },
    })
}

/// Checks that a batch that has ended decodes.
pub(crate) fn check_ended_batch(keys: &Keys, row: &KeyValue) -> Result<Option<Finding>> {
    keys.parse_ended_batch(row.key())?;
    EndedBatch::parse(row.key(), row.value())?;
    Ok(None)
}

/// Compares the numbers of pending members with the items and batches that are members.
async fn check_pending(
    runner: &Runner<Store>,
    keys: &Keys,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Vec<Finding>> {
    let count = |tr: Tx<_>| async move { in_time(&tr, count_pending(&tr, keys)).await };
    let Some((pending, has_unreadable)) = runner.run(count).await? else {
        unchecked.push(Unchecked::Counter { counter: "batches" });
        return Ok(Vec::new());
    };
    let mut findings = Vec::new();
    for (id, Pending { stored, counted }) in pending {
        if let Some(stored) = stored
            && is_off(stored, counted, has_unreadable)
        {
            findings.push(Finding::BatchOff {
                batch: keys.batch_ref(id),
                stored,
                counted,
            });
        }
    }
    Ok(findings)
}

/// The pending members of a batch.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// `None` if the batch does not exist or does not decode.
    stored: Option<i64>,
    counted: i64,
}

/// Returns the pending members of all batches, as stored and as counted, and whether there are batches or items that do
/// not decode.
async fn count_pending(
    tr: &impl Transaction,
    keys: &Keys,
) -> Result<(BTreeMap<BatchId, Pending>, bool)> {
    let mut pending: BTreeMap<BatchId, Pending> = BTreeMap::new();
    let mut has_unreadable = false;
    let mut rows_of: BTreeMap<BatchId, Vec<_>> = BTreeMap::new();
    let (begin, end) = keys.part(Part::Batches);
    for row in read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await? {
        if let Ok(id) = keys.parse_batch(row.key()) {
            rows_of.entry(id).or_default().push(row);
        }
    }
    for (id, rows) in &rows_of {
        match parse_batch(keys, *id, rows) {
            Ok(Some(stored)) => {
                pending.entry(*id).or_default().stored = Some(stored.tally(Tally::Pending));
                if let Some(parent) = stored.row.parent {
                    pending.entry(parent.batch).or_default().counted += 1;
                }
            }
            Ok(None) => {}
            Err(_) => has_unreadable = true,
        }
    }
    for part in Part::with_items() {
        let (begin, end) = keys.part(part);
        let query = RangeQuery::keys(begin, end);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            match decode_item(keys, part, &row) {
                Ok(item) => {
                    if let Some(member) = item.and_then(|(_, item)| item.value.member) {
                        pending.entry(member.batch).or_default().counted += 1;
                    }
                }
                Err(_) => has_unreadable = true,
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
    }
    Ok((pending, has_unreadable))
}

/// Stages the repair of a finding about a batch.
///
/// # Conflicts
/// Reads the row of a batch that it changes, and the rows that it removes.
pub(crate) async fn repair(tr: &impl Transaction, keys: &Keys, finding: &Finding) -> Result<()> {
    match finding {
        Finding::BatchOff {
            batch,
            stored,
            counted,
        } => {
            let id = batch.id_in(keys)?;
            let row = tr.get(&keys.batch_row(id), Isolation::Serializable).await?;
            // It may have ended meanwhile.
            if row.is_some() {
                let mut changes = Changes::default();
                changes.tally(id, Tally::Pending, counted - stored);
                changes.stage(tr, keys);
                set_notice(tr, keys, id);
            }
        }
        Finding::NoBatchNotice { batch } => set_notice(tr, keys, batch.id_in(keys)?),
        Finding::StrayBatch { batch } => {
            let id = batch.id_in(keys)?;
            let (begin, end) = keys.batch(id);
            let query = RangeQuery::keys(begin.clone(), end.clone());
            let rows = read_all(tr, query, Isolation::Serializable).await?;
            if rows
                .first()
                .is_some_and(|row| row.key() != keys.batch_row(id))
            {
                tr.clear_range(&begin, &end);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Stages a notice of a batch, and wakes sessions.
fn set_notice(tr: &impl Transaction, keys: &Keys, batch: BatchId) {
    tr.set_to_versionstamp(&keys.batch_notice(batch));
    keys.wake_all(tr);
}
