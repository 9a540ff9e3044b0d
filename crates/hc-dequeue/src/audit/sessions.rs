//! Checks the rows of sessions, and the items that they hold, against the sessions.
//!
//! Only the existence of a session's state is compared, where that is enough: a state that does not decode is one
//! finding, and not one for each row that belongs to the session.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::try_join;
use microqueue::ItemId;
use microqueue::keyspace::{
    self, Isolation, KeyValue, RangeQuery, Runner, Store, Transaction, read_all,
};
use parking_lot::Mutex;

use super::pointers::stored_pointer;
use super::rows::{RowCheck, check_rows};
use crate::items::error::Result;
use crate::items::finding::{Finding, Unchecked};
use crate::items::keys::Keys;
use crate::items::kind::parse_kinds;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::pointer::Pointer;
use crate::items::record::{ListedGrantPart, is_signal};
use crate::items::settings::Settings;
use crate::items::spot::Spot;
use crate::protocol::reclaim::{Reclaimed, reclaim_step, return_grants};
use crate::session::{Life, SessionId};

/// How many items that sessions hold are compared with each other.
const MAX_COMPARED: usize = 100_000;

/// Checks all rows of sessions. Findings that cause others come first.
pub(super) async fn check_sessions(
    runner: &Runner<Store>,
    keys: &Keys,
    unchecked: &mut Vec<Unchecked>,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for part in Part::counted_by(Counter::Held) {
        findings.extend(check_rows(runner, keys, RowCheck::Holders(part)).await?);
    }
    for check in [
        RowCheck::Sessions,
        RowCheck::Heartbeats,
        RowCheck::Requests(Part::Requests),
        RowCheck::Requests(Part::KindRequests),
        RowCheck::Grants,
    ] {
        findings.extend(check_rows(runner, keys, check).await?);
    }
    let seen = Mutex::default();
    for part in Part::counted_by(Counter::Held) {
        let check = RowCheck::Places(part, &seen);
        findings.extend(check_rows(runner, keys, check).await?);
    }
    if seen.lock().is_full {
        unchecked.push(Unchecked::HeldItems);
    }
    for check in [RowCheck::CancelStamps, RowCheck::SessionKinds] {
        findings.extend(check_rows(runner, keys, check).await?);
    }
    Ok(findings)
}

/// Checks that the session of a held item, or of a grant, exists.
pub(super) async fn check_holder(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (session, _) = parse_held(keys, part, row)?;
    let is_signal = part == Part::Grants && is_signal(row.value());
    if is_signal || exists(tr, keys, session).await? {
        return Ok(None);
    }
    Ok(Some(Finding::NoSession { session }))
}

/// Checks that a living session has a heartbeat.
pub(super) async fn check_session(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (session, state) = keys.sessions.parse_state_row(row)?;
    let key = keys.sessions.heartbeat(session);
    let heartbeat = tr.get(&key, Isolation::Serializable).await?;
    if state.life == Life::Alive && heartbeat.is_none() {
        return Ok(Some(Finding::NoHeartbeat { session }));
    }
    Ok(None)
}

/// Checks that a heartbeat belongs to a session.
pub(super) async fn check_heartbeat(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let session = keys.sessions.parse_heartbeat_row(row)?.session;
    // The heartbeat of a missing session that holds something is removed together with the session.
    if exists(tr, keys, session).await? || holds(tr, keys, session).await? {
        return Ok(None);
    }
    Ok(Some(Finding::StrayHeartbeat { session }))
}

/// Checks that a request belongs to a session. Those of a session that is dead or has ended are removed together with
/// the session.
pub(super) async fn check_request(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let registry = keys.parse_registry(row.key());
    let request = keys.registry(registry).decode(row)?;
    let session = request.value.session;
    // The requests of a missing session that holds something are removed together with the session.
    if exists(tr, keys, session).await? || holds(tr, keys, session).await? {
        return Ok(None);
    }
    let request = request.id;
    Ok(Some(Finding::StrayRequest { request, registry }))
}

/// Checks that a grant of a living session has its first item.
pub(super) async fn check_grant(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (session, first) = keys.parse_grant(row.key())?;
    if row.key() == first || tr.get(&first, Isolation::Serializable).await?.is_some() {
        return Ok(None);
    }
    // Grants of dead sessions are returned row by row, so that their first rows may be missing.
    if keys.sessions.life(tr, session).await? == Some(Life::Alive) {
        return Ok(Some(Finding::BrokenGrant { session }));
    }
    Ok(None)
}

/// Checks that a held item, or one in a grant, is in no other place. `seen` are the items that were seen, in both
/// parts.
pub(super) async fn check_places(
    tr: &impl Transaction,
    keys: &Keys,
    part: Part,
    seen: &Mutex<Seen>,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let (_, Some(id)) = parse_held(keys, part, row)? else {
        return Ok(None);
    };
    let queued = Pointer::Queued(Spot::DEFAULT).row(keys, &id);
    let mut others = vec![queued, id.key_in(keys.dead.subspace())];
    others.extend(
        stored_pointer(tr, keys, &id)
            .await?
            .map(|pointer| pointer.row(keys, &id)),
    );
    others.extend(seen.lock().note(id, row.key(), MAX_COMPARED));
    // The item may have moved since it was seen elsewhere. Only this transaction says where it is now.
    for other in others {
        if tr.get(&other, Isolation::Serializable).await?.is_some() {
            let item = keys.item_ref(id);
            return Ok(Some(Finding::Twice { item }));
        }
    }
    Ok(None)
}

/// The keys under which held items were seen.
#[derive(Default)]
pub(super) struct Seen {
    keys: BTreeMap<ItemId, Vec<u8>>,
    /// Whether some were left out.
    is_full: bool,
}

impl Seen {
    /// Notes the key of an item, and returns another key under which the item was seen before. Notes up to `limit`
    /// items.
    fn note(&mut self, id: ItemId, key: &[u8], limit: usize) -> Option<Vec<u8>> {
        if self.keys.len() >= limit && !self.keys.contains_key(&id) {
            self.is_full = true;
            return None;
        }
        let before = self.keys.insert(id, key.to_vec());
        before.filter(|before| before != key)
    }
}

/// Returns the session of a row in one of the two parts, and the item in it. The signal in place of a grant contains
/// no item.
fn parse_held(keys: &Keys, part: Part, row: &KeyValue) -> Result<(SessionId, Option<ItemId>)> {
    if part == Part::Held {
        let session = keys.parse_holder(row.key())?;
        let item = keys.held(session).parse_listed(row)?;
        return Ok((session, Some(item.id)));
    }
    let (session, _) = keys.parse_grant(row.key())?;
    if is_signal(row.value()) {
        return Ok((session, None));
    }
    let part = ListedGrantPart::decode(row.key(), row.to_value())?;
    Ok((session, Some(part.item.id)))
}

/// Returns whether a session has a state, whether or not it decodes.
async fn exists(tr: &impl Transaction, keys: &Keys, session: SessionId) -> Result<bool> {
    let state = keys.sessions.state(session);
    Ok(tr.get(&state, Isolation::Serializable).await?.is_some())
}

/// Returns whether a session holds items or has grants.
async fn holds(tr: &impl Transaction, keys: &Keys, session: SessionId) -> Result<bool> {
    let first = |(begin, end)| RangeQuery::keys(begin, end).limit(1);
    let held = first(keys.held(session).subspace().range());
    let granted = first(keys.grants(session));
    // Safe as snapshot reads: a repair reads the rows that it changes again.
    let (held, granted) = try_join!(
        tr.get_range(&held, Isolation::Snapshot),
        tr.get_range(&granted, Isolation::Snapshot)
    )?;
    Ok(!held.rows.is_empty() || granted.rows.iter().any(|row| !is_signal(row.value())))
}

/// Returns the rows of grants whose first part is missing.
fn broken<'a>(keys: &Keys, grants: &'a [KeyValue]) -> Result<Vec<&'a KeyValue>> {
    let there: BTreeSet<_> = grants.iter().map(KeyValue::key).collect();
    let mut broken = Vec::new();
    for row in grants {
        let (_, first) = keys.parse_grant(row.key())?;
        if !there.contains(&*first) {
            broken.push(row);
        }
    }
    Ok(broken)
}

/// Stages that a session is dead if it does not exist or has no heartbeat. Returns `false` if it exists and has one.
async fn declare_lost(tr: &impl Transaction, keys: &Keys, session: SessionId) -> Result<bool> {
    if keys.sessions.life(tr, session).await?.is_none() {
        keys.sessions
            .set_state(tr, session, Life::Dead, Duration::ZERO);
        return Ok(true);
    }
    Ok(keys.sessions.declare_dead(tr, session, |_| None).await?)
}

/// Stages the removal of a request whose session is not alive.
pub(super) async fn remove_request(tr: &impl Transaction, keys: &Keys, id: &ItemId) -> Result<()> {
    let Some(request) = keys.requests.get(tr, id).await? else {
        return Ok(());
    };
    if keys.sessions.life(tr, request.session).await? != Some(Life::Alive) {
        keys.requests.remove(tr, id)?;
    }
    Ok(())
}

/// Stages the return of the remaining items of a session's broken grants.
pub(super) async fn return_broken_grants(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    session: SessionId,
) -> Result<()> {
    let (begin, end) = keys.grants(session);
    let grants = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    let broken: Vec<_> = broken(keys, &grants)?.into_iter().cloned().collect();
    return_grants(tr, keys, settings, &broken).await?;
    Ok(())
}

/// Removes a session that does not exist or has no heartbeat, and returns the items that it holds. It stays, as a dead
/// one, if it holds items that do not decode.
pub(super) async fn reclaim_lost(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
    session: SessionId,
) -> Result<()> {
    let declare = |tr| async move { declare_lost(&tr, keys, session).await };
    if runner.run(declare).await? {
        while let Reclaimed::Returned(_) = reclaim_step(runner, keys, settings, session).await? {}
    }
    Ok(())
}

/// Stages the removal of a heartbeat without a session.
pub(super) async fn remove_heartbeat(
    tr: &impl Transaction,
    keys: &Keys,
    session: SessionId,
) -> Result<()> {
    keys.sessions.declare_dead(tr, session, |_| None).await?;
    Ok(())
}

/// Checks that a cancel stamp belongs to a session.
pub(super) async fn check_cancel_stamp(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let session = keys.parse_cancels(row.key())?;
    if keys.sessions.life(tr, session).await?.is_some() {
        return Ok(None);
    }
    Ok(Some(Finding::StrayCancel { session }))
}

/// Checks that stored kinds belong to a session.
pub(super) async fn check_session_kinds(
    tr: &impl Transaction,
    keys: &Keys,
    row: &KeyValue,
) -> Result<Option<Finding>> {
    let session = keys.parse_session_kinds(row.key())?;
    parse_kinds(row.value()).map_err(|reason| keyspace::Error::corrupt(row.key(), reason))?;
    if keys.sessions.life(tr, session).await?.is_some() {
        return Ok(None);
    }
    Ok(Some(Finding::StrayKinds { session }))
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::Versionstamp;

    use super::*;

    #[test]
    fn an_item_is_compared_with_its_last_key_until_too_many_items_were_seen() {
        let id = |call| ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([1; 10]),
            call,
        };
        let mut seen = Seen::default();
        for (call, key, before) in [
            (1, b"a", None),
            (1, b"a", None),
            (1, b"b", Some(b"a".to_vec())),
            (2, b"c", None),
        ] {
            assert_eq!(seen.note(id(call), key, 2), before);
            assert!(!seen.is_full);
        }
        assert_eq!(seen.note(id(3), b"d", 2), None);
        assert!(seen.is_full);
        assert_eq!(seen.note(id(2), b"e", 2), Some(b"c".to_vec()));
    }
}
