//! Grants: the answers to requests.
//!
//! A grant contains its items, one in each row, until the session of the request collects them. A session that has read
//! the answer to its request has therefore read its items.

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{ConflictKind, Isolation, RangeQuery, Transaction, read_all};
use microqueue::{Item, ItemId, Listed};

use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::record::{GrantPart, ListedGrantPart, Record, SIGNAL, is_signal};
use crate::session::SessionId;

/// Stages the answer to a request.
///
/// # Conflicts
/// Writes the grant. The caller must have read the state of the request's session.
pub(crate) fn answer(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
    items: Vec<Item<Record>>,
) -> Result<()> {
    let parts = items.len() as u32;
    for (number, item) in (0..).zip(items) {
        let key = keys.part_of_grant(session, request, number);
        tr.set(&key, &GrantPart { parts, item }.encode()?);
    }
    Ok(())
}

/// Stages the signal to a request that it is the first, unless the signal already exists. Returns whether it was
/// staged.
///
/// # Conflicts
/// Reads the request: if it is withdrawn at the same time, this transaction fails. The session that withdraws it then
/// leads.
pub(super) async fn notify_first(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
) -> Result<bool> {
    let key = keys.grant(session, request);
    if tr.get(&key, Isolation::Snapshot).await?.is_some() {
        return Ok(false);
    }
    tr.add_conflict_key(ConflictKind::Read, &keys.request(request))?;
    tr.set(&key, &SIGNAL);
    Ok(true)
}

/// Reads whether a request was answered.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn is_answered(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
) -> Result<bool> {
    let first = tr.get(&keys.grant(session, request), Isolation::Snapshot);
    Ok(first.await?.is_some_and(|first| !is_signal(&first)))
}

/// Takes the items out of a grant. Returns `None` if the request was not answered. Rows that do not say which items
/// they contain stay.
///
/// # Conflicts
/// Reads and writes the grant.
pub(crate) async fn empty(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
    request: &ItemId,
) -> Result<Option<Vec<Listed<Record>>>> {
    let first_key = keys.grant(session, request);
    let first = tr.get(&first_key, Isolation::Serializable).await?;
    let Some(first) = first.filter(|first| !is_signal(first)) else {
        return Ok(None);
    };
    let mut items = Vec::new();
    if let Ok(first) = ListedGrantPart::decode(&first_key, first) {
        tr.clear(&first_key);
        items.push(first.item);
        if first.parts == 1 {
            return Ok(Some(items));
        }
    }
    let (_, end) = keys.parts_of_grant(session, request);
    let rest = RangeQuery::keys(key_after(&first_key), end);
    for row in read_all(tr, rest, Isolation::Serializable).await? {
        if let Ok(part) = ListedGrantPart::decode(row.key(), row.to_value()) {
            tr.clear(row.key());
            items.push(part.item);
        }
    }
    Ok(Some(items))
}
