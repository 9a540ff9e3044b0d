//! Checking a queue against itself.
//!
//! Every number and every key of a queue is written in the transaction that changes what it stands
//! for, so that nothing here should ever find anything: it is for the day on which somebody has
//! written into the queue's subspace by hand, restored half of it, or found a bug.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{
    Code, Database, Isolation, KeyValue, RangeQuery, Runner, Transaction, Tx, read_all, visit_rows,
};

use crate::counters::stored_count;
use crate::error::{Error, Result};
use crate::keys::{Counter, Keys};
use crate::queue::HighContentionQueue;
use crate::reclaim::{Progress, put_back_grants, reclaim_some};
use crate::record::{Part, is_turn};
use crate::session::{Life, SessionId};
use crate::settings::Settings;

/// How many items are looked for elsewhere at the same time.
const LOOKS_AT_ONCE: usize = 100;

/// How often a count that does not come to its end in time is begun.
const COUNTS: u32 = 3;

/// Something in a queue that contradicts something else in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A counter is not the number of items that it counts. Repaired by adding the difference, which
    /// is the same at every version.
    CounterOff {
        /// The counter: `queued`, `delayed`, `held` or `dead`.
        counter: &'static str,
        /// What it says.
        stored: i64,
        /// What it should say.
        counted: i64,
    },

    /// A part of the queue has more items than one transaction has time to count.
    Uncounted {
        /// The counter that was not checked.
        counter: &'static str,
    },

    /// Items are held, or granted, by a session that does not exist. Repaired by returning them to
    /// the queue.
    NoSession {
        /// The session.
        session: [u8; 16],
    },

    /// A session has no heartbeat, so that nobody would ever find it dead. Repaired by declaring it
    /// dead and returning its items: if it lives after all, it opens a new session.
    NoHeartbeat {
        /// The session.
        session: [u8; 16],
    },

    /// A heartbeat belongs to no session. Repaired by removing it.
    StrayHeartbeat {
        /// The session that is not there.
        session: [u8; 16],
    },

    /// A request belongs to a session that does not live. Repaired by removing it.
    StrayRequest {
        /// The request.
        request: ItemId,
    },

    /// A grant lacks its first item, so that its session takes it for no answer. Repaired by returning
    /// the others to the queue.
    BrokenGrant {
        /// The session.
        session: [u8; 16],
    },

    /// An item is in two places at once, and would be delivered from each. Not repaired: which of
    /// the two is right is not to be seen.
    Twice {
        /// The item.
        id: ItemId,
    },
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
#[non_exhaustive]
pub struct Audit {
    /// What contradicts something else.
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Whether everything was checked and nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Checks counters, held items, requests, grants and sessions against each other, and changes
    /// nothing.
    ///
    /// Each check is one transaction: what belongs to sessions in one, and each counter with the
    /// items that it counts in one. They may run while the queue is in use.
    ///
    /// # Conflicts
    /// None: nothing is written.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) for a key or a record that no version of
    /// this library has written, and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn audit<D: Database>(&self, runner: &Runner<D>) -> Result<Audit> {
        let keys = &*self.keys;
        let look = |tr| async move { Sessions::read(&tr, keys).await };
        let mut findings = Box::pin(runner.run(look)).await?.findings();
        for (counter, parts) in Counter::OF_ITEMS {
            findings.extend(Box::pin(check_counter(runner, keys, counter, parts)).await?);
        }
        Ok(Audit { findings })
    }

    /// Does an [`audit`](Self::audit), and repairs what can be repaired. Returns what it found. Repairs
    /// one at a time: two that find the same counter off would both set it right.
    ///
    /// Who waits behind a request that is removed notices that at its next poll.
    ///
    /// # Conflicts
    /// Reads by snapshot; each repair reads again, serializably, what it changes.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the repairs that are done.
    pub async fn repair<D: Database>(&self, runner: &Runner<D>) -> Result<Audit> {
        let audit = self.audit(runner).await?;
        let keys = &*self.keys;
        let settings = |tr| async move { self.settings(&tr).await };
        let settings = &runner.run(settings).await?;
        for finding in &audit.findings {
            tracing::warn!(queue = %keys.queue, ?finding, "repairing");
            repair(runner, keys, settings, finding).await?;
        }
        Ok(audit)
    }
}

/// What there is of sessions, at one version.
struct Sessions {
    states: BTreeMap<SessionId, Life>,
    heartbeats: BTreeSet<SessionId>,
    requests: Vec<(ItemId, SessionId)>,
    /// The sessions that hold items or were granted some.
    holders: BTreeSet<SessionId>,
    /// The sessions of grants without a first item.
    broken: BTreeSet<SessionId>,
    /// Which of the items that are held or granted are also somewhere else.
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

    fn findings(&self) -> Vec<Finding> {
        let missing = (self.holders.iter())
            .filter(|session| !self.states.contains_key(session))
            .map(|session| Finding::NoSession { session: session.0 });
        let silent = (self.states.iter())
            .filter(|(session, life)| **life == Life::Alive && !self.heartbeats.contains(session))
            .map(|(session, _)| Finding::NoHeartbeat { session: session.0 });
        let stray = (self.heartbeats.iter())
            .filter(|session| !self.states.contains_key(session))
            .map(|session| Finding::StrayHeartbeat { session: session.0 });
        let requests = (self.requests.iter())
            .filter(|(_, session)| self.states.get(session) != Some(&Life::Alive))
            .map(|(request, _)| Finding::StrayRequest { request: *request });
        // The grants of the dead are returned row by row.
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

/// Returns those rows of grants whose first part is not there.
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

/// Compares a counter with what it counts.
async fn check_counter<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
    counter: Counter,
    parts: &[&str],
) -> Result<Option<Finding>> {
    let count = |tr: Tx<_>| async move {
        let attempt = tr.attempt();
        let had_no_time = attempt.after == Some(Code::TRANSACTION_TOO_OLD);
        if had_no_time && attempt.number >= COUNTS {
            return Ok(None);
        }
        count(&tr, keys, counter, parts).await.map(Some)
    };
    let name = counter.name();
    Ok(match runner.run(count).await? {
        None => Some(Finding::Uncounted { counter: name }),
        Some((stored, counted)) => (stored != counted).then_some(Finding::CounterOff {
            counter: name,
            stored,
            counted,
        }),
    })
}

/// Returns what a counter says, and how many items there are.
async fn count(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
    parts: &[&str],
) -> Result<(i64, i64)> {
    let stored = stored_count(tr, keys, counter).await?;
    let mut counted = 0;
    for part in parts {
        let (begin, end) = keys.part(part);
        let query = RangeQuery::keys(begin, end);
        visit_rows(tr, query, Isolation::Snapshot, |row| {
            counted += i64::from(!is_turn(row.value()));
            Ok::<_, Error>(ControlFlow::Continue(()))
        })
        .await?;
    }
    Ok((stored, counted))
}

async fn repair<D: Database>(
    runner: &Runner<D>,
    keys: &Keys,
    settings: &Settings,
    finding: &Finding,
) -> Result<()> {
    match finding {
        Finding::CounterOff {
            counter,
            stored,
            counted,
        } => {
            let counter = Counter::ALL
                .into_iter()
                .find(|known| known.name() == *counter)
                .expect("a finding names a counter");
            let add = |tr| async move {
                keys.count(&tr, counter, counted - stored);
                Ok(())
            };
            runner.run(add).await
        }
        Finding::NoSession { session } | Finding::NoHeartbeat { session } => {
            let session = SessionId(*session);
            let declare = |tr| async move { declare_lost(&tr, keys, session).await };
            if runner.run(declare).await? {
                while reclaim_some(runner, keys, settings, session).await? != Progress::Buried {}
            }
            Ok(())
        }
        Finding::StrayHeartbeat { session } => {
            let session = SessionId(*session);
            let remove = |tr| async move {
                keys.sessions.declare_dead(&tr, session, |_| None).await?;
                Ok(())
            };
            runner.run(remove).await
        }
        Finding::StrayRequest { request } => {
            let remove = |tr| async move { remove_request(&tr, keys, request).await };
            runner.run(remove).await
        }
        Finding::BrokenGrant { session } => {
            let session = SessionId(*session);
            let put_back = |tr| async move { put_back_broken(&tr, keys, settings, session).await };
            runner.run(put_back).await
        }
        Finding::Uncounted { .. } | Finding::Twice { .. } => Ok(()),
    }
}

/// Declares a session dead that is not there or has no heartbeat. False: it has.
async fn declare_lost(tr: &impl Transaction, keys: &Keys, session: SessionId) -> Result<bool> {
    if keys.sessions.life(tr, session).await?.is_none() {
        keys.sessions
            .set_state(tr, session, Life::Dead, Duration::ZERO);
        return Ok(true);
    }
    Ok(keys.sessions.declare_dead(tr, session, |_| None).await?)
}

async fn remove_request(tr: &impl Transaction, keys: &Keys, id: &ItemId) -> Result<()> {
    let Some(request) = keys.requests.get(tr, id).await? else {
        return Ok(());
    };
    if keys.sessions.life(tr, request.session).await? != Some(Life::Alive) {
        keys.requests.remove(tr, id)?;
    }
    Ok(())
}

async fn put_back_broken(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    session: SessionId,
) -> Result<()> {
    let (begin, end) = keys.grants(session);
    let grants = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    let broken: Vec<_> = broken(keys, &grants)?.into_iter().cloned().collect();
    put_back_grants(tr, keys, settings, &broken)?;
    Ok(())
}
