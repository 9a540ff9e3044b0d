//! Checks the lanes of groups: the numbers of slots in use against the items that have slots, and that lanes with
//! something to grant have notices.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use futures::future::try_join_all;
use microqueue::keyspace::{
    self, Bytes, Isolation, KeyValue, RangeQuery, Runner, Store, Transaction, Tx, visit_rows,
};

use crate::items::changes::Changes;
use crate::items::counters::{in_time, is_off, parse_count};
use crate::items::error::{Error, Result};
use crate::items::finding::{Finding, Unchecked};
use crate::items::group_limits::GroupLimits;
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::priority::RANK_OF_SLOT;
use crate::lanes::look::first_startable;
use crate::lanes::rows::{parse_level, parse_parked_until};

/// The largest number of lanes that one transaction checks, which finds one after the other: also on a store that takes
/// a tenth of a second for each read, it is not too old at its end.
const MAX_CHECKED_LANES: usize = 30;

/// Checks the lanes of all groups.
pub(crate) async fn check_lanes(
    runner: &Runner<Store>,
    keys: &Keys,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Vec<Finding>> {
    let mut findings = check_slots(runner, keys, unchecked).await?;
    let mut after = Some(None);
    while let Some(last) = after {
        let last: Option<&Bytes> = last.as_ref();
        let check = |tr| async move { check_some(&tr, keys, last).await };
        let (found, next) = runner.run(check).await?;
        findings.extend(found);
        after = next.map(Some);
    }
    Ok(findings)
}

/// Compares the numbers of slots in use with the items that have slots.
async fn check_slots(
    runner: &Runner<Store>,
    keys: &Keys,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Vec<Finding>> {
    let count = |tr: Tx<_>| async move { in_time(&tr, count_slots(&tr, keys)).await };
    let Some((slots, has_unreadable)) = runner.run(count).await? else {
        unchecked.push(Unchecked::Counter { counter: "slots" });
        return Ok(Vec::new());
    };
    let mut findings = Vec::new();
    for (group, SlotsOfGroup { stored, counted }) in slots {
        let Some(stored) = stored else {
            let key = keys.slots(&group).into();
            findings.push(Finding::Undecodable { key });
            continue;
        };
        if is_off(stored, counted, has_unreadable) {
            findings.push(Finding::SlotsOff {
                group,
                stored,
                counted,
            });
        }
    }
    Ok(findings)
}

/// The slots of a group.
struct SlotsOfGroup {
    /// `None` if the row does not decode.
    stored: Option<i64>,
    counted: i64,
}

/// Returns the slots of all groups, as stored and as counted, and whether there are items that do not decode.
async fn count_slots(
    tr: &impl Transaction,
    keys: &Keys,
) -> Result<(BTreeMap<Bytes, SlotsOfGroup>, bool)> {
    let mut slots: BTreeMap<Bytes, SlotsOfGroup> = BTreeMap::new();
    let mut has_unreadable = false;
    let none = || SlotsOfGroup {
        stored: Some(0),
        counted: 0,
    };
    for part in Part::with_slots() {
        let (begin, end) = keys.part(part);
        let query = RangeQuery::keys(begin, end);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            if let Ok(lane) = keys.parse_lane(row.key())
                && row.key() == keys.slots(&lane.group)
            {
                let stored = parse_count(row.key(), row.value()).ok();
                slots.entry(lane.group).or_insert_with(none).stored = stored;
                return Ok(ControlFlow::Continue(()));
            }
            match decode_item(keys, part, &row) {
                Ok(Some((_, item))) if item.value.has_slot => {
                    slots.entry(item.value.group).or_insert_with(none).counted += 1;
                }
                Ok(_) => {}
                Err(_) => has_unreadable = true,
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
    }
    Ok((slots, has_unreadable))
}

/// Checks some lanes after another one. Returns also the last of them, or `None` at the end.
async fn check_some(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&Bytes>,
) -> Result<(Vec<Finding>, Option<Bytes>)> {
    let mut lanes = keys.lanes_after(tr, after, MAX_CHECKED_LANES).await?;
    let findings = try_join_all(lanes.iter().map(|group| check_lane(tr, keys, group))).await?;
    let may_be_more = lanes.len() == MAX_CHECKED_LANES;
    let last = if may_be_more { lanes.pop() } else { None };
    Ok((findings.concat(), last))
}

/// Checks the limits and the notices of a lane.
async fn check_lane(tr: &impl Transaction, keys: &Keys, group: &Bytes) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let limits = keys.group_limits(group);
    let row = tr.get(&limits, Isolation::Snapshot).await?;
    if row.is_some_and(|row| GroupLimits::parse(&limits, &row).is_err()) {
        findings.push(Finding::Undecodable { key: limits.into() });
    }
    let level = keys.level(group);
    let row = tr.get(&level, Isolation::Snapshot).await?;
    if row.is_some_and(|row| parse_level(&KeyValue::new(&level, &row)).is_err()) {
        findings.push(Finding::Undecodable { key: level.into() });
    }
    findings.extend(check_parked(tr, keys, group).await?);
    if lacks_notice(tr, keys, group).await? {
        findings.push(Finding::NoNotice {
            group: group.clone(),
        });
    }
    Ok(findings)
}

/// Checks that a lane whose state says that it is parked is among the parked lanes.
async fn check_parked(
    tr: &impl Transaction,
    keys: &Keys,
    group: &Bytes,
) -> Result<Option<Finding>> {
    let row = keys.parked_until(group);
    Ok(match parked_until(tr, keys, group).await {
        Ok(Some(until)) => {
            let parked = keys.parked(until, group);
            if tr.get(&parked, Isolation::Serializable).await?.is_some() {
                return Ok(None);
            }
            let group = group.clone();
            Some(Finding::NotParked { group, until })
        }
        Ok(None) => None,
        Err(error) if error.corrupt_key().is_some() => {
            Some(Finding::Undecodable { key: row.into() })
        }
        Err(error) => return Err(error),
    })
}

/// Reads until when a lane is parked.
async fn parked_until(tr: &impl Transaction, keys: &Keys, group: &[u8]) -> Result<Option<i64>> {
    let row = keys.parked_until(group);
    let value = tr.get(&row, Isolation::Serializable).await?;
    let until = value.map(|value| parse_parked_until(&KeyValue::new(&row, &value)));
    Ok(until.transpose()?)
}

/// Checks that a parked group waits for its rate until that version.
pub(crate) async fn check_parked_row(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let Some((until, group)) = keys.parse_parked(row.key()) else {
        let reason = "expected the key of a parked lane";
        return Err(keyspace::Error::corrupt(row.key(), reason).into());
    };
    let is_parked = parked_until(tr, keys, &group).await? == Some(until);
    if is_parked {
        return Ok(None);
    }
    Ok(Some(Finding::StrayParked { group, until }))
}

/// Returns whether a lane has something to grant, now or when its rate lets it, and nothing that says so: no notice, no
/// mark of a change of the default limits, and no row that says until when it is parked, except one for longer than the
/// rate needs.
async fn lacks_notice(tr: &impl Transaction, keys: &Keys, group: &Bytes) -> Result<bool> {
    let Some(first) = first_startable(tr, keys, group).await? else {
        return Ok(false);
    };
    let row = keys.parked_until(group);
    if first.has_rate
        && let Some(value) = tr.get(&row, Isolation::Snapshot).await?
    {
        // Other checks find out whether it decodes and is among the parked lanes.
        let until = parse_parked_until(&KeyValue::new(&row, &value)).unwrap_or(i64::MIN);
        if first.waits_for_rate || until <= tr.read_version().await? {
            return Ok(false);
        }
    }
    let own_limits = tr
        .get(&keys.group_limits(group), Isolation::Snapshot)
        .await?;
    if own_limits.is_none() && tr.get(&keys.mark(), Isolation::Snapshot).await?.is_some() {
        return Ok(false);
    }
    for rank in RANK_OF_SLOT..=first.notice {
        let notice = keys.notice(rank, group);
        if tr.get(&notice, Isolation::Snapshot).await?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Stages the repair of a finding about lanes.
pub(crate) async fn repair(tr: &impl Transaction, keys: &Keys, finding: &Finding) -> Result<()> {
    match finding {
        Finding::SlotsOff {
            group,
            stored,
            counted,
        } => {
            // The difference is the same at every version.
            let mut changes = Changes::default();
            changes.correct_slots(group, counted - stored);
            stage_with_notice(tr, keys, group, changes);
        }
        Finding::NoNotice { group } => stage_with_notice(tr, keys, group, Changes::default()),
        Finding::NotParked { group, until }
            if check_parked(tr, keys, group).await?.as_ref() == Some(finding) =>
        {
            tr.set(&keys.parked(*until, group), b"");
            keys.wake_all(tr);
        }
        _ => {}
    }
    Ok(())
}

/// Stages changes of a lane and a notice, and wakes sessions.
fn stage_with_notice(tr: &impl Transaction, keys: &Keys, group: &Bytes, mut changes: Changes) {
    changes.add_notice(group, RANK_OF_SLOT);
    changes.wake();
    changes.stage(tr, keys);
}
