//! Checks the rows of sessions, and the items that they hold, against the sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use microqueue::ItemId;
use microqueue::keyspace::{
    Database, Isolation, KeyValue, RangeQuery, Runner, Transaction, read_all,
};

use super::Finding;
use super::rows::RowCheck;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::reclaim::{Progress, put_back_grants, reclaim_some};
use crate::record::{Part, is_turn};
use crate::session::{Life, SessionId};
use crate::settings::Settings;

/// How many items are searched for in other places at the same time.
const LOOKS_AT_ONCE: usize = 100;

/// Checks all rows of sessions, in one transaction.
pub(super) async fn check_sessions<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
) -> Result<Vec<Finding>> {
    let look = |tr| async move { Sessions::read(&tr, keys).await };
    Ok(Box::pin(runner.run(look)).await?.findings())
}

/// All rows of sessions, at one version.
struct Sessions {
    states: BTreeMap<SessionId, Life>,
    heartbeats: BTreeSet<SessionId>,
    requests: Vec<(ItemId, SessionId)>,
    /// The sessions that hold items or grants.
    holders: BTreeSet<SessionId>,
    /// The sessions of grants without a first item.
    broken: BTreeSet<SessionId>,
    /// The held or granted items that are also in another place.
    twice: Vec<ItemId>,
}

impl Sessions {
    async fn read(tr: &impl Transaction, keys: &Keys) -> Result<Self> {
        let rows = |(begin, end)| {
            let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
            rows.map_err(Error::from)
        };
        let requests = keys.requests.snapshot(tr, usize::MAX, usize::MAX);
        let (states, heartbeats, requests, held, grants) = try_join!(
            keys.sessions.all(tr).map_err(Error::from),
            keys.sessions.heartbeats(tr).map_err(Error::from),
            requests.map_err(Error::from),
            rows(keys.part("h")),
            rows(keys.part("g")),
        )?;
        let mut found = Self {
            states: (states.into_iter())
                .map(|(session, state)| (session, state.life))
                .collect(),
            heartbeats: heartbeats
                .into_iter()
                .map(|heartbeat| heartbeat.session)
                .collect(),
            requests: requests
                .into_iter()
                .map(|item| (item.id, item.value.session))
                .collect(),
            holders: BTreeSet::new(),
            broken: BTreeSet::new(),
            twice: Vec::new(),
        };
        let mut items = Vec::new();
        for row in &held {
            let session = keys.parse_holder(row.key())?;
            found.holders.insert(session);
            items.push(keys.held(session).decode(row)?.id);
        }
        for row in &grants {
            let (session, _) = keys.parse_grant(row.key())?;
            if !is_turn(row.value()) {
                found.holders.insert(session);
                items.push(Part::decode(row.key(), row.to_value())?.item.id);
            }
        }
        for row in broken(keys, &grants)? {
            found.broken.insert(keys.parse_grant(row.key())?.0);
        }
        let mut ids = BTreeSet::new();
        for id in items {
            if !ids.insert(id) {
                found.twice.push(id);
            }
        }
        let ids: Vec<_> = ids.into_iter().collect();
        for ids in ids.chunks(LOOKS_AT_ONCE) {
            let elsewhere = ids.iter().map(|id| async move {
                let places = try_join!(keys.items.get(tr, id), keys.dead.get(tr, id))?;
                let is_elsewhere = places.0.is_some() || places.1.is_some();
                Ok::<_, Error>(is_elsewhere.then_some(*id))
            });
            found
                .twice
                .extend(try_join_all(elsewhere).await?.into_iter().flatten());
        }
        Ok(found)
    }

    /// Returns whether a session does not exist but holds something.
    fn is_missing(&self, session: &SessionId) -> bool {
        self.holders.contains(session) && !self.states.contains_key(session)
    }

    fn findings(&self) -> Vec<Finding> {
        let missing = (self.holders.iter())
            .filter(|session| self.is_missing(session))
            .map(|session| Finding::NoSession { session: session.0 });
        let is_known = |session: &SessionId| !self.is_missing(session);
        let silent = (self.states.iter())
            .filter(|(session, life)| **life == Life::Alive && !self.heartbeats.contains(session))
            .map(|(session, _)| Finding::NoHeartbeat { session: session.0 });
        // The other rows of missing sessions are removed together with them.
        let stray = (self.heartbeats.iter())
            .filter(|session| !self.states.contains_key(session) && is_known(session))
            .map(|session| Finding::StrayHeartbeat { session: session.0 });
        let requests = (self.requests.iter())
            .filter(|(_, session)| self.states.get(session) != Some(&Life::Alive))
            .filter(|(_, session)| is_known(session))
            .map(|(request, _)| Finding::StrayRequest { request: *request });
        // Grants of dead sessions are returned row by row, so that their first rows may be missing.
        let grants = (self.broken.iter())
            .filter(|session| self.states.get(session) == Some(&Life::Alive))
            .map(|session| Finding::BrokenGrant { session: session.0 });
        let twice = self.twice.iter().map(|id| Finding::Twice { id: *id });
        missing
            .chain(silent)
            .chain(stray)
            .chain(requests)
            .chain(grants)
            .chain(twice)
            .collect()
    }
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
pub(super) async fn put_back_broken(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    session: [u8; 16],
) -> Result<()> {
    let session = SessionId(session);
    let (begin, end) = keys.grants(session);
    let grants = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    let broken: Vec<_> = broken(keys, &grants)?.into_iter().cloned().collect();
    put_back_grants(tr, keys, settings, &broken)?;
    Ok(())
}

/// Removes a session that does not exist or has no heartbeat, and returns the items that it holds.
pub(super) async fn bury_lost<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
    settings: &Settings,
    session: [u8; 16],
) -> Result<()> {
    let session = SessionId(session);
    let declare = |tr| async move { declare_lost(&tr, keys, session).await };
    if runner.run(declare).await? {
        while reclaim_some(runner, keys, settings, session).await? != Progress::Buried {}
    }
    Ok(())
}

/// Stages the removal of a heartbeat without a session.
pub(super) async fn remove_heartbeat(
    tr: &impl Transaction,
    keys: &Keys,
    session: [u8; 16],
) -> Result<()> {
    keys.sessions
        .declare_dead(tr, SessionId(session), |_| None)
        .await?;
    Ok(())
}

/// Checks that each cancel stamp belongs to a session.
pub(super) struct CancelStamps;

impl RowCheck for CancelStamps {
    fn part(&self) -> &'static str {
        "a"
    }

    async fn check(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        row: &KeyValue,
    ) -> Result<Option<Finding>> {
        let session = keys.parse_cancels(row.key())?;
        let life = keys.sessions.life(tr, session).await?;
        let stray = Finding::StrayCancel { session: session.0 };
        Ok(life.is_none().then_some(stray))
    }
}
