//! Requests: registers, checks, collects and withdraws them.

use std::future::Future;

use futures::try_join;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{self, Isolation, RangeQuery, Transaction};
use microqueue::{ItemId, Listed, StagedId};

use super::fulfill::first_requests;
use super::ready::{delayed, queued};
use super::{Demand, Granted, Purpose, SessionContext, count_wanted, grant, purposes};
use crate::batches::end::may_finish;
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::places::put_unread;
use crate::items::record::Request;
use crate::items::scan::ReadLimit;
use crate::items::settings_row::is_paused;
use crate::session::wall::wall_millis;
use crate::session::{Life, SessionId};

/// The largest number of requests before a request that are counted.
const MAX_RANK: usize = 16;

/// The size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    items: u32,
    for_reserve: u32,
}

impl Wanted {
    pub(crate) fn of(demand: &[Demand]) -> Self {
        let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
        let of_reserve = demand
            .iter()
            .filter(|demand| demand.purpose == Purpose::Reserve);
        Self {
            items: count(count_wanted(demand)),
            for_reserve: count(of_reserve.map(|demand| demand.wanted).sum()),
        }
    }
}

/// Stages a request at the end of the registry. Returns `None` if the session is dead.
///
/// # Conflicts
/// Reads the session's state.
pub(crate) async fn register(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    wanted: Wanted,
) -> Result<Option<StagedId>> {
    match context.keys.sessions.life(tr, context.session).await? {
        Some(Life::Alive) => append(tr, context, wanted).await.map(Some),
        _ => Ok(None),
    }
}

/// Stages a request at the end of the registry for a session that may be dead.
pub(crate) async fn append(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    wanted: Wanted,
) -> Result<StagedId> {
    let request = Request {
        session: context.session,
        wanted: wanted.items,
        for_reserve: wanted.for_reserve,
    };
    Ok(context.keys.requests.enqueue(tr, &request).await?)
}

/// Returns whether a request that was not answered is the first. Returns `None` if another session has removed it.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn is_first(
    tr: &impl Transaction,
    keys: &Keys,
    request: &ItemId,
) -> Result<Option<bool>> {
    let (begin, _) = keys.requests.subspace().range();
    let key = keys.request(request);
    let up_to_it = RangeQuery::keys(begin, key_after(&key));
    let last_two = tr
        .get_range(&up_to_it.limit(2).reversed(), Isolation::Snapshot)
        .await?;
    Ok(match &last_two.rows[..] {
        [own] if own.key() == key => Some(true),
        // Requests that do not decode do not come before others.
        [own, before] if own.key() == key => Some(
            keys.requests.decode(before).is_err() && precedence(tr, keys, request).await?.rank == 0,
        ),
        _ => None,
    })
}

/// The place of a request in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Precedence<R = ItemId> {
    /// The first request.
    pub(crate) first: R,
    /// How many requests come before this one, as far as they are counted.
    pub(crate) rank: u32,
}

/// Reads the place of a waiting request.
pub(crate) async fn precedence(
    tr: &impl Transaction,
    keys: &Keys,
    request: &ItemId,
) -> Result<Precedence> {
    let requests = first_requests(tr, keys, MAX_RANK).await?;
    let before = requests.iter().take_while(|item| item.id < *request);
    Ok(Precedence {
        rank: u32::try_from(before.count()).unwrap_or(u32::MAX),
        first: requests.first().map_or(*request, |first| first.id),
    })
}

/// The items that could be granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supply {
    /// Whether an item is ready and may be granted.
    pub(crate) has_items: bool,
    /// When the first delayed item, if the session promotes, the first parked lane, or a search of rows that were
    /// skipped is due, by the wall clock.
    pub(crate) due: Option<u64>,
    /// Whether a batch may be complete.
    pub(crate) has_batches: bool,
}

/// Reads whether items could be granted.
pub(crate) async fn supply(tr: &impl Transaction, context: SessionContext<'_>) -> Result<Supply> {
    let keys = context.keys;
    let one = ReadLimit {
        items: 1,
        row_bytes: usize::MAX,
    };
    let (queued, delayed, is_paused, has_batches) = try_join!(
        queued(tr, context, one.items, 0),
        delayed(tr, context, keys.part(Part::Delayed), one),
        is_paused(tr, keys, Isolation::Snapshot),
        may_finish(tr, keys)
    )?;
    let due = delayed.items.first().map(|item| item.ready_millis);
    let now = context.wall_millis();
    let is_due = due.zip(now).is_some_and(|(due, now)| due <= now);
    let of_delayed = if now.is_some() && !is_due { due } else { None };
    let owed = context.fronts.owed_in(keys.env.now());
    // One more, so that it is due then.
    let waits = queued
        .next_parked
        .into_iter()
        .chain(owed)
        .map(|wait| millis(wait).saturating_add(1));
    let of_others = waits.map(|wait| wall_millis(&keys.env).saturating_add(wait));
    // If only rows that do not decode were read, the next fulfillment reads on.
    let is_complete = queued.is_complete && delayed.is_complete;
    Ok(Supply {
        has_items: !is_paused && (is_due || !queued.is_empty() || !is_complete),
        due: of_delayed.into_iter().chain(of_others).min(),
        has_batches,
    })
}

/// The meaning of a watch that fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The request was probably answered.
    Granted,
    /// The request may have become the first, or there may be an item.
    Changed,
}

/// Watches the key under which a waiting request gets its answer or the signal that it is the first. If it is the
/// first, also watches the wake stamp, so that an enqueue wakes one session, however many wait.
///
/// Watched keys are written and not only cleared: a storage server of FoundationDB 7.3 keeps a watch whose key was
/// cleared, and checks it at every clear of a range around it.
pub(crate) fn watch_request<Tr: Transaction>(
    tr: &Tr,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
    is_first: bool,
) -> impl Future<Output = keyspace::Result<Woken>> + Send + use<Tr> {
    let granted = tr.watch(&keys.grant(session, request));
    let woken = if is_first {
        Some(tr.watch(&keys.wake()))
    } else {
        None
    };
    async move {
        let Some(woken) = woken else {
            return granted.await.map(|()| Woken::Granted);
        };
        tokio::select! {
            granted = granted => granted.map(|()| Woken::Granted),
            woken = woken => woken.map(|()| Woken::Changed),
        }
    }
}

/// Watches for the end of a pause. Returns `None` if the queue is not paused. The clear that ends a pause leaves one
/// watch in a storage server, but not one for each pause, since the key is always the same.
pub(crate) async fn watch_pause<Tr: Transaction>(
    tr: &Tr,
    keys: &Keys,
) -> Result<Option<impl Future<Output = keyspace::Result<Woken>> + Send + use<Tr>>> {
    if !is_paused(tr, keys, Isolation::Snapshot).await? {
        return Ok(None);
    }
    let ended = tr.watch(&keys.pause());
    Ok(Some(async move { ended.await.map(|()| Woken::Changed) }))
}

/// Takes over the items that were granted to a request: empties the grant, and completes popped items. Items that do
/// not decode go back to their places. Returns `None` if nothing was granted.
///
/// This is safe even if the session is dead: the items have not been returned yet, and the session is not removed
/// before they are.
///
/// # Conflicts
/// Reads the grant and, of popped items that have slots, the limits.
pub(crate) async fn collect(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    request: &ItemId,
) -> Result<Option<Vec<Granted>>> {
    let Some(items) = grant::empty(tr, context.keys, context.session, request).await? else {
        return Ok(None);
    };
    let held = context.keys.held(context.session);
    // The demand may have become smaller since the request.
    let purposes = purposes(context.demand).chain(std::iter::repeat(Purpose::Reserve));
    let mut changes = Changes::default();
    let mut readable = Vec::with_capacity(items.len());
    for Listed { id, value } in items {
        match value {
            Ok(record) => readable.push((id, record)),
            Err(undecodable) => {
                changes.add(Counter::Held, -1);
                put_unread(tr, context.keys, &id, &undecodable.bytes, &mut changes)?;
            }
        }
    }
    let granted_items = readable.into_iter().zip(purposes);
    let granted: Vec<_> = granted_items
        .map(|((id, record), purpose)| Granted::new(context, id, record, purpose))
        .collect();
    let popped = granted.iter().filter(|item| item.is_popped);
    let popped = popped.map(|item| &item.record);
    let limits = KnownLimits::of_slots(tr, context.keys, popped).await?;
    for item in &granted {
        if item.is_popped {
            context.end_popped(tr, item, &limits, &mut changes)?;
            changes.add(Counter::Held, -1);
        } else {
            held.insert(tr, &item.id, &item.record)?;
        }
    }
    changes.stage(tr, context.keys);
    Ok(Some(granted))
}

/// Removes a request. Returns `false` if it was answered before.
///
/// The request may have been the first, and the session of the next request may be asleep after it. After a withdrawal,
/// a session must therefore call [`fulfill`](super::fulfill::fulfill) until it changes nothing, as a leading session
/// does.
///
/// # Conflicts
/// Reads the request.
pub(crate) async fn withdraw(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
) -> Result<bool> {
    if keys.requests.get(tr, request).await?.is_none() {
        return Ok(false);
    }
    keys.requests.remove(tr, request)?;
    // The grant may contain the signal that the request is the first.
    tr.clear(&keys.grant(session, request));
    Ok(true)
}
