//! Looking at the groups of items: how they stand, and why an item has not started.

use std::collections::BTreeSet;

use export_queue::hc_dequeue::{
    GroupLimits, GroupState, GroupStatus, ItemsOf, ListedItem, Listing, Place, PlaceKind, Rate,
    Status,
};
use export_queue::keyspace::error::corrupt_key;
use export_queue::keyspace::names::{bytes_text, parse_bytes};
use export_queue::keyspace::{Bytes, Transaction, Tx};

use super::console::{Console, MAX_RECORDS, next_page};
use super::dequeue::listed_item;
use super::found::Dequeue;
use crate::error::{Error, Result};
use crate::report;

/// What a queue of another recipe does not have.
pub(crate) const GROUPS: &str = "groups of items";

impl Console {
    /// Returns a page of the groups of a queue's items: up to `limit`, and at most 100, after a group, which is text,
    /// or `0x` and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], and those of the store.
    pub async fn groups(
        &self,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Groups> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let after = &after.map(parse_bytes);
        let limit = limit.clamp(1, MAX_RECORDS);
        let read = |tr: Tx<_>| async move {
            let default = read_default_limits(&tr, found).await?;
            let page = found.queue.groups(&tr, after.as_deref(), limit + 1).await?;
            Ok::<_, Error>((default, page.groups))
        };
        let (default, mut groups) = self.reader.run(read).await?;
        let next = next_page(&mut groups, limit).map(|last| bytes_text(&last.group));
        Ok(report::Groups {
            queue: found.name.clone(),
            default_limits: default.as_ref().map(limits_of),
            groups: groups.iter().map(group_of).collect(),
            next,
        })
    }

    /// Returns how a group stands, of which no item need exist, and the items that have its slots. It is text, or `0x`
    /// and hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], a group name of an invalid length, and those of the store.
    pub async fn group(&self, name: &str, group: &str) -> Result<report::Group> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let group = &parse_bytes(group);
        let read = |tr: Tx<_>| async move {
            let status = found.queue.group(&tr, group).await?;
            let holders = holders_of(&tr, found, group).await?;
            let first = first_queued(&tr, found, group).await?;
            let not_started = untaken(&tr, found, holders.iter().chain(&first)).await?;
            Ok::<_, Error>((status, holders, not_started))
        };
        let (status, holders, not_started) = self.reader.run(read).await?;
        let holders = holders.into_iter();
        Ok(report::Group {
            holders: holders
                .map(|item| listed_item(&found.codec, item))
                .collect(),
            not_started,
            ..group_of(&status)
        })
    }

    /// Returns the limits of groups that have none of their own.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], limits that do not decode, and those of the store.
    pub async fn default_limits(&self, name: &str) -> Result<report::Limits> {
        let found = &self.find_dequeue(name, GROUPS).await?;
        let read = |tr| async move { found.queue.default_group_limits(&tr).await };
        Ok(limits_of(&self.reader.run(read).await?))
    }
}

/// Reads the limits of groups that have none of their own. `None`: they do not decode.
pub(crate) async fn read_default_limits(
    tr: &impl Transaction,
    found: &Dequeue,
) -> Result<Option<GroupLimits>> {
    match found.queue.default_group_limits(tr).await {
        Err(error) if corrupt_key(&error).is_some() => Ok(None),
        limits => Ok(Some(limits?)),
    }
}

fn group_of(status: &GroupStatus) -> report::Group {
    let next_start = match status.state {
        GroupState::UntilRate(at) => Some(at.into()),
        _ => None,
    };
    let state = match status.state {
        GroupState::Idle => "idle",
        GroupState::Ready => "ready",
        GroupState::AtLimit => "at its limit",
        GroupState::UntilRate(_) => "waits for its rate",
        GroupState::Paused => "paused",
        _ => "unreadable",
    };
    let limits = match status.state {
        GroupState::Unreadable => None,
        _ => Some(limits_of(&status.limits)),
    };
    report::Group {
        group: bytes_text(&status.group),
        state: state.to_owned(),
        next_start,
        slots: status.slots,
        waiting: status.waiting,
        has_more: status.waits_more,
        limits,
        own_limits: status.has_own_limits,
        paused: status.is_paused,
        not_started: None,
        holders: Vec::new(),
    }
}

pub(crate) fn limits_of(limits: &GroupLimits) -> report::Limits {
    report::Limits {
        limit: limits.limit(),
        until_end: limits.is_until_end(),
        dead_letters_block: limits.dead_letters_block(),
        rate: limits.rate().as_ref().map(rate_of),
        weight: limits.weight(),
    }
}

fn rate_of(rate: &Rate) -> report::Rate {
    report::Rate {
        starts: rate.starts(),
        period_seconds: rate.period().as_secs_f64(),
        burst: rate.burst(),
    }
}

/// Returns why an item has not started: if it is queued and has a group, or waits and no session takes its kind.
pub(super) async fn why_not_started(
    tr: &impl Transaction,
    found: &Dequeue,
    item: &Status<Bytes>,
) -> Result<Option<String>> {
    if waits(item)
        && let Some(kind) = &item.kind
        && !taken_kinds(tr, found).await?.contains(kind)
    {
        return Ok(Some(format!("no session takes its kind `{kind}`")));
    }
    if item.place != Place::Queued || item.group.is_empty() {
        return Ok(None);
    }
    if found.queue.is_paused(tr).await? {
        return Ok(Some("the queue is paused".to_owned()));
    }
    let group = found.queue.group(tr, &item.group).await?;
    let reason = match group.limits.limit() {
        _ if group.state == GroupState::Unreadable => {
            "the limits or the number of slots of its group do not decode".to_owned()
        }
        // An item that already has a slot does not start either.
        _ if group.is_paused => "its group is paused".to_owned(),
        Some(0) => "the limit of its group is zero".to_owned(),
        Some(limit) if group.slots >= u64::from(limit) && !item.has_slot => {
            let holders = holders_of(tr, found, &item.group).await?;
            let is_dead = |holder: &ListedItem<Bytes>| {
                let status = holder.status.as_ref();
                status.is_ok_and(|status| status.place == Place::Dead)
            };
            match holders.iter().find(|holder| is_dead(holder)) {
                Some(ListedItem { item: letter, .. }) => {
                    format!("a dead letter of its group keeps a slot: redrive or purge {letter}")
                }
                None => {
                    let at_limit =
                        format!("its group is at its limit ({} of {limit})", group.slots);
                    with_cause(at_limit, untaken(tr, found, &holders).await?)
                }
            }
        }
        _ => match group.state {
            GroupState::UntilRate(at) => {
                let at = report::Time::from(at).moment();
                format!("its group waits for its rate, and starts the next item at about {at}")
            }
            _ => {
                let mut before = Vec::new();
                if is_ordered(&group.limits) {
                    before = first_queued(tr, found, &item.group).await?;
                }
                let turn = "it waits for its turn".to_owned();
                with_cause(turn, untaken(tr, found, &before).await?)
            }
        },
    };
    Ok(Some(reason))
}

fn with_cause(reason: String, cause: Option<String>) -> String {
    match cause {
        Some(cause) => format!("{reason}: {cause}"),
        None => reason,
    }
}

/// Returns whether each item of a group waits for the one before it, of whatever kind that is.
fn is_ordered(limits: &GroupLimits) -> bool {
    limits.limit() == Some(1) && limits.is_until_end()
}

fn waits(item: &Status<Bytes>) -> bool {
    matches!(item.place, Place::Queued | Place::Delayed { .. })
}

/// Says which of some items is the first that waits for a session which takes its kind, if one does.
async fn untaken(
    tr: &impl Transaction,
    found: &Dequeue,
    items: impl IntoIterator<Item = &ListedItem<Bytes>>,
) -> Result<Option<String>> {
    let mut of_kinds = Vec::new();
    for listed in items {
        if let Ok(status) = &listed.status
            && waits(status)
            && let Some(kind) = &status.kind
        {
            of_kinds.push((listed.item, kind));
        }
    }
    if of_kinds.is_empty() {
        return Ok(None);
    }
    let taken = taken_kinds(tr, found).await?;
    let mut of_kinds = of_kinds.into_iter();
    let untaken = of_kinds.find(|(_, kind)| !taken.contains(*kind));
    Ok(untaken.map(|(item, kind)| format!("no session takes the kind `{kind}` of {item}")))
}

/// Returns the kinds that sessions take.
async fn taken_kinds(tr: &impl Transaction, found: &Dequeue) -> Result<BTreeSet<String>> {
    let mut kinds = found.queue.kinds(tr).await?;
    kinds.retain(|state| state.sessions > 0);
    Ok(kinds.into_iter().map(|state| state.kind).collect())
}

/// Returns the first queued item of a group, if it has one.
async fn first_queued(
    tr: &impl Transaction,
    found: &Dequeue,
    group: &[u8],
) -> Result<Vec<ListedItem<Bytes>>> {
    let queued = Listing::new(PlaceKind::Queued).with_items_of(ItemsOf::group(group));
    Ok(found.queue.list(tr, queued, None, 1).await?.items)
}

/// Returns the items that have the slots of a group. `None` were found if the number of slots does not decode.
async fn holders_of(
    tr: &impl Transaction,
    found: &Dequeue,
    group: &[u8],
) -> Result<Vec<ListedItem<Bytes>>> {
    match found.queue.slot_holders(tr, group).await {
        Err(error) if corrupt_key(&error).is_some() => Ok(Vec::new()),
        holders => Ok(holders?.items),
    }
}
