//! Requests: made, looked after, answered or withdrawn.

use std::future::Future;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{self, Isolation, RangeQuery, Transaction};
use microqueue::{ItemId, StagedId};

use super::fulfill::complete;
use super::{Granted, Own, REQUESTS_PER_FULFILMENT, places};
use crate::enqueue::wall_millis;
use crate::error::{Error, Result};
use crate::keys::{Counter, Keys, SessionId};
use crate::record::{Life, Request, decode_grant};
use crate::session::life;

/// Stages a request at the end of the registry. `None`: the session is dead.
///
/// # Conflicts
/// Reads the session's state.
pub(crate) async fn register(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    wanted: u32,
) -> Result<Option<StagedId>> {
    if life(tr, keys, session).await? != Some(Life::Alive) {
        return Ok(None);
    }
    let request = Request { session, wanted };
    Ok(Some(keys.requests.enqueue(tr, &request).await?))
}

/// How things stand for a request.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Whether the request was answered.
    pub(crate) is_granted: bool,
    /// Whether it waits. If it was not answered either, somebody has removed it.
    pub(crate) is_registered: bool,
    /// How many requests come before it, as far as they were counted.
    pub(crate) rank: usize,
    /// The first request.
    pub(crate) first: Option<ItemId>,
    /// Whether an item is ready, and may be granted.
    pub(crate) has_items: bool,
}

/// Reads how things stand for a request.
pub(crate) async fn look(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
) -> Result<Standing> {
    let grant = tr.get(&keys.grant(session, request), Isolation::Snapshot);
    let requests = keys
        .requests
        .snapshot(tr, REQUESTS_PER_FULFILMENT, usize::MAX);
    let own = keys.requests.get(tr, request);
    let (grant, own, requests, has_items) = try_join!(
        grant.map_err(Error::from),
        own.map_err(Error::from),
        requests.map_err(Error::from),
        has_items(tr, keys)
    )?;
    let place = requests.iter().position(|item| item.id == *request);
    Ok(Standing {
        is_granted: grant.is_some(),
        is_registered: own.is_some(),
        rank: place.unwrap_or(requests.len()),
        first: requests.first().map(|item| item.id),
        has_items,
    })
}

/// Returns whether an item is ready and may be granted.
async fn has_items(tr: &impl Transaction, keys: &Keys) -> Result<bool> {
    let (begin, end) = keys.due(wall_millis(keys));
    let due = RangeQuery::keys(begin, end).limit(1);
    let (begin, end) = keys.items.subspace().range();
    let queued = RangeQuery::keys(begin, end).limit(1);
    let (due, queued, pause) = try_join!(
        tr.get_range(&due, Isolation::Snapshot),
        tr.get_range(&queued, Isolation::Snapshot),
        tr.get(&keys.pause(), Isolation::Snapshot)
    )?;
    Ok(pause.is_none() && !(due.rows.is_empty() && queued.rows.is_empty()))
}

/// Returns when the first delayed item is due, by the wall clock.
pub(crate) async fn next_due(tr: &impl Transaction, keys: &Keys) -> Result<Option<u64>> {
    let (begin, end) = keys.due(u64::MAX);
    let first = RangeQuery::keys(begin, end).limit(1);
    let first = tr.get_range(&first, Isolation::Snapshot).await?;
    first.rows.first().map(|row| keys.ready_of(row)).transpose()
}

/// Watches what may answer a request or make an item ready.
pub(crate) fn watch<Tr: Transaction>(
    tr: &Tr,
    keys: &Keys,
    session: SessionId,
    request: Option<&ItemId>,
) -> impl Future<Output = keyspace::Result<()>> + Send + use<Tr> {
    let wake = tr.watch(&keys.wake());
    let grant = request.map(|request| tr.watch(&keys.grant(session, request)));
    async move {
        match grant {
            None => wake.await,
            Some(grant) => {
                tokio::select! {
                    woken = wake => woken,
                    granted = grant => granted,
                }
            }
        }
    }
}

/// Takes over what was granted to a request: clears the grant, and completes what is popped. `None`:
/// nothing was.
///
/// # Conflicts
/// Reads the grant, and each item that it names.
pub(crate) async fn collect<T>(
    tr: &impl Transaction,
    own: Own<'_, T>,
    request: &ItemId,
) -> Result<Option<Vec<Granted<T>>>> {
    let key = own.keys.grant(own.session, request);
    let Some(grant) = tr.get(&key, Isolation::Serializable).await? else {
        return Ok(None);
    };
    let ids = decode_grant(&key, &grant)?;
    let held = &own.keys.held(own.session);
    let records = ids.iter().map(|id| held.get(tr, id));
    let records = try_join_all(records).await?;
    tr.clear(&key);
    // More than is wanted by now is held, for somebody who comes later.
    let places = places(own.demand).chain(std::iter::repeat(false));
    let mut granted = Vec::new();
    for ((id, record), pop) in ids.into_iter().zip(records).zip(places) {
        // Missing: the session is dead, and the item was returned.
        let Some(record) = record else { continue };
        let item = Granted::new(own, id, record, pop);
        if item.is_popped {
            held.take(tr, &id)?;
            own.keys.count(tr, Counter::Held, -1);
            complete(tr, own.keys, own.settings, &item.record);
        }
        granted.push(item);
    }
    Ok(Some(granted))
}

/// Removes a request. False: it was answered before.
///
/// The next request becomes the first, and its owner may have gone to sleep behind this one: it is
/// woken.
///
/// # Conflicts
/// Reads the request.
pub(crate) async fn withdraw(tr: &impl Transaction, keys: &Keys, request: &ItemId) -> Result<bool> {
    let first = keys.requests.snapshot(tr, 2, usize::MAX);
    let (own, first) = try_join!(keys.requests.get(tr, request), first)?;
    if own.is_none() {
        return Ok(false);
    }
    keys.requests.take(tr, request)?;
    if first.len() > 1 && first[0].id == *request {
        keys.wake_all(tr);
    }
    Ok(true)
}
