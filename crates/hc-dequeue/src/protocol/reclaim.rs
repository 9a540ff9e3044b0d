//! Returns what dead sessions hold, step by step. Any session may do so.
//!
//! 1. [`declare_dead`] reads the heartbeat serializably and writes the session's state. If the session writes a
//!    heartbeat at the same time, `declare_dead` fails. After it, transactions that grant items to the session fail.
//! 2. [`reclaim_items`] returns the items that the session held or was granted to the queue, under their ids. Each
//!    transaction returns some of them.
//! 3. [`remove_requests`] removes the session's requests, and the signals to them.
//! 4. [`remove_session`] removes the session, in a transaction whose serializable reads have found nothing else of it.
//!
//! Any session may continue at any step, and several may do so at the same time.
//!
//! [`declare_dead`]: crate::session::Sessions::declare_dead

use microqueue::Item;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    ConflictKind, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode, Transaction,
    read_all,
};

use crate::items::changes::Changes;
use crate::items::death::DeadLetter;
use crate::items::end::Rules;
use crate::items::error::Result;
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::places::put_unread;
use crate::items::record::{ListedGrantPart, Record, is_signal};
use crate::items::scan::{ReadLimit, first_items};
use crate::items::settings::Settings;
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::protocol::fulfill::first_requests;
use crate::protocol::give_back::{Back, GiveBack, When};
use crate::protocol::grant::notify_first;
use crate::session::{Life, SessionId};

/// The largest number of held items that one search for lost ones reads. It reads no more than one batch.
const MAX_SEARCHED_ITEMS: usize = 1_000;

/// The largest number of the first requests that are searched for those of a dead session. Later ones are removed when
/// a fulfillment reads them.
const MAX_SEARCHED_REQUESTS: usize = 1_000;

/// Returns items of a dead session to their places, and returns their number and those that became dead letters. There
/// may be more items even if the number is smaller than [`MAX_STEP_ITEMS`]. Held items that do not decode stay: a death
/// cannot be counted in them.
///
/// # Conflicts
/// Reads the session's state and the items that it returns.
pub(crate) async fn reclaim_items(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    session: SessionId,
) -> Result<(usize, Vec<DeadLetter>)> {
    let how = match keys.sessions.life(tr, session).await? {
        Some(Life::Dead) => GiveBack::Died,
        // The session's own process ended it, so that no item has failed.
        Some(Life::Ended) => GiveBack::Returned(When::Now),
        Some(Life::Alive) | None => return Ok((0, Vec::new())),
    };
    let held = keys.held(session);
    let max = ReadLimit {
        items: MAX_STEP_ITEMS,
        row_bytes: MAX_STEP_BYTES,
    };
    let decode = |row: &KeyValue| held.decode(row).ok();
    let items = first_items(tr, held.subspace().range(), max, decode).await?;
    if items.is_empty() {
        let rows = some_rows(tr, keys, session).await?;
        let count = return_grants(tr, keys, settings, &rows).await?;
        return Ok((count, Vec::new()));
    }
    let count = items.len();
    let mut dead = Vec::new();
    let mut changes = Changes::default();
    let records = items.iter().map(|item| &item.value);
    let limits = &KnownLimits::of_slots(tr, keys, records).await?;
    let rules = Rules { settings, limits };
    for Item { id, value } in items {
        held.remove(tr, &id)?;
        changes.add(Counter::Held, -1);
        let back = Back {
            id: &id,
            how: &how,
            reason: None,
        };
        dead.extend(back.put(tr, keys, rules, value, &mut changes).await?);
    }
    // Also if all of them were cancelled: the session may have held them for others.
    changes.wake();
    changes.stage(tr, keys);
    Ok((count, dead))
}

/// Reads some rows of a session's grants: one batch.
///
/// # Conflicts
/// Reads by snapshot: [`return_grants`] adds the conflict ranges.
async fn some_rows(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
) -> Result<Vec<KeyValue>> {
    let (begin, end) = keys.grants(session);
    let query = RangeQuery::keys(begin, end)
        .limit(MAX_STEP_ITEMS)
        .mode(StreamingMode::WantAll);
    Ok(tr.get_range(&query, Isolation::Snapshot).await?.rows)
}

/// Stages the return of the items in these rows of grants to their places in the queue. The rows were read by
/// snapshot. Returns the number of items.
///
/// # Conflicts
/// Reads and writes each row that contains an item and, of those that have slots, reads the limits.
pub(crate) async fn return_grants(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    rows: &[KeyValue],
) -> Result<usize> {
    let parts = rows.iter().filter(|row| !is_signal(row.value()));
    let parts: Vec<_> = parts
        .filter_map(|row| {
            // Other rows do not say which item they contain.
            let part = ListedGrantPart::decode(row.key(), row.to_value()).ok()?;
            Some((row, part.item))
        })
        .collect();
    let records = parts
        .iter()
        .filter_map(|(_, item)| item.value.as_ref().ok());
    let limits = &KnownLimits::of_slots(tr, keys, records).await?;
    let rules = Rules { settings, limits };
    let mut changes = Changes::default();
    let count = parts.len();
    for (row, item) in parts {
        // The conflict key must be added before the clear: keys that the transaction has written are left out of read
        // conflict ranges.
        tr.add_conflict_key(ConflictKind::Read, row.key())?;
        tr.clear(row.key());
        let id = &item.id;
        let back = Back {
            id,
            how: &GiveBack::Unused,
            reason: None,
        };
        match item.value {
            Ok(record) => {
                // An item that was not handed out counts nothing, so it does not die.
                back.put(tr, keys, rules, record, &mut changes).await?;
            }
            Err(undecodable) => put_unread(tr, keys, id, &undecodable.bytes, &mut changes)?,
        }
        changes.add(Counter::Held, -1);
    }
    if count > 0 {
        changes.wake();
    }
    changes.stage(tr, keys);
    Ok(count)
}

/// Removes the requests of a dead session, and the signals to them. Afterwards, the caller must call
/// [`fulfill`](crate::protocol::fulfill::fulfill) until it changes nothing, since the session of the next request may
/// be asleep after a removed one. In another registry than that of the caller, that session is notified that its
/// request is the first.
///
/// # Conflicts
/// Reads the session's state, its kinds, its grants, the requests that it removes, and in another registry the one that
/// it notifies, or the whole registry if none is left there.
pub(crate) async fn remove_requests(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
) -> Result<()> {
    if let Some(Life::Alive) | None = keys.sessions.life(tr, session).await? {
        return Ok(());
    }
    let (begin, end) = keys.grants(session);
    let grants = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    for signal in grants.iter().filter(|row| is_signal(row.value())) {
        tr.clear(signal.key());
    }
    let kinds = tr
        .get(&keys.session_kinds(session), Isolation::Serializable)
        .await?;
    let of_session = &keys.of_kinds(kinds.as_deref());
    let requests = first_requests(tr, of_session, MAX_SEARCHED_REQUESTS).await?;
    let (removed, left): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .partition(|request| request.value.session == session);
    // In its own registry, the caller fulfills requests.
    let is_afar = of_session.requests.subspace() != keys.requests.subspace();
    if is_afar && left.is_empty() && !removed.is_empty() {
        // A request that is registered meanwhile would sleep behind one that is removed. The range must be added before
        // the removal: keys that the transaction has written are left out of read conflict ranges.
        let (begin, end) = of_session.requests.subspace().range();
        tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
    }
    for request in &removed {
        of_session.requests.remove(tr, &request.id)?;
    }
    if let Some(first) = left.first().filter(|_| is_afar) {
        notify_first(tr, of_session, first.value.session, &first.id).await?;
    }
    Ok(())
}

/// Removes a dead session that holds nothing. Returns `false` if it still holds something.
///
/// # Conflicts
/// Reads the session's state, its held items and its grants.
pub(crate) async fn remove_session(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
) -> Result<bool> {
    if keys.sessions.life(tr, session).await? == Some(Life::Alive) {
        return Ok(false);
    }
    for (begin, end) in [keys.held(session).subspace().range(), keys.grants(session)] {
        let first = RangeQuery::keys(begin, end).limit(1);
        let batch = tr.get_range(&first, Isolation::Serializable).await?;
        if !batch.rows.is_empty() {
            return Ok(false);
        }
    }
    keys.sessions.remove(tr, session);
    tr.clear(&keys.cancels(session));
    tr.clear(&keys.session_kinds(session));
    Ok(true)
}

/// The result of one step for a dead session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaimed {
    /// This many items went back to their places. There may be more.
    Returned(usize),
    /// Its requests were removed, but it still holds items that do not decode.
    Undecodable,
    /// It was removed.
    Removed,
}

/// Returns items of a dead session or, if there are none, removes its other rows.
pub(crate) async fn reclaim_step(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
    session: SessionId,
) -> Result<Reclaimed> {
    let some = |tr| async move { reclaim_items(&tr, keys, settings, session).await };
    let (returned, dead) = runner.run(some).await?;
    for letter in dead {
        letter.report(keys);
    }
    if returned > 0 {
        tracing::info!(queue = %keys.name, %session, returned, "returned items of the dead");
        return Ok(Reclaimed::Returned(returned));
    }
    let rest = |tr| async move {
        remove_requests(&tr, keys, session).await?;
        remove_session(&tr, keys, session).await
    };
    Ok(if runner.run(rest).await? {
        Reclaimed::Removed
    } else {
        Reclaimed::Undecodable
    })
}

/// Returns some items that a session holds, from the key `after` on. The caller compares them with its deliveries to
/// find lost ones. Also returns the last key, or `None` at the end. Granted items that the session has not collected
/// and items that do not decode are not included.
///
/// # Conflicts
/// Reads by snapshot: the transaction that gives an item back reads it again.
pub(crate) async fn held_after(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    after: Option<&[u8]>,
) -> Result<(Vec<Item<Record>>, Option<Vec<u8>>)> {
    let items = keys.held(session);
    let (begin, end) = items.subspace().range();
    let query = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(MAX_SEARCHED_ITEMS)
        .mode(StreamingMode::WantAll);
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let held = page.rows.iter().filter_map(|row| items.decode(row).ok());
    Ok((held.collect(), page.next_after().map(<[u8]>::to_vec)))
}
