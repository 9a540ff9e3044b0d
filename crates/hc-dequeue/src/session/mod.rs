//! Sessions: which consumers may hold items, and how the others know that they are alive.
//!
//! ```text
//! (sessions, "s", session) = format 01, then 00 dead, 01 alive or 02 ended, then the session's lease in
//!                            milliseconds, 8 bytes, big-endian
//! (sessions, "b", session) = heartbeat: versionstamp, then the wall time of the session's process in
//!                            milliseconds since the Unix epoch, 8 bytes, big-endian
//!
//! session   tuple byte string: 16 random bytes
//! ```
//!
//! A session is alive from its opening until it ends or another session declares it dead. It promises to write a
//! heartbeat within its *lease*, and the others judge it by that lease. Sessions may have different leases. A session
//! that changes its lease writes the new one in the transaction of a heartbeat.
//!
//! A transaction that grants items to a session reads the session's state serializably. The heartbeat has a key of
//! its own, so that it makes no grant fail. Wall time does not decide which sessions are alive: heartbeats are judged
//! by a [`VersionClock`](microqueue::keyspace::VersionClock), so that no session is declared dead because the store
//! was unavailable or slow. Sessions use the wall time in heartbeats only to check their own wall clocks.
//!
//! [`Sessions`] has the steps of the protocol, each in the caller's transaction. A [`Member`] performs them in time
//! for one session. The recipe decides what a session holds: it returns the items of a dead session to the queue, and
//! [removes](Sessions::remove) the session afterwards.

mod alarms;
mod clocks;
mod member;
mod state;
pub(crate) mod wall;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use futures::try_join;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{
    self, ConflictKind, Isolation, KeyValue, MutationOp, RangeQuery, Result, StreamingMode,
    Subspace, Transaction, Versionstamp, read_all,
};

pub use self::alarms::{Alarm, Alarms};
pub use self::clocks::MAX_CLOCK_ERROR;
pub use self::member::{Member, Tick};
use self::state::parse_heartbeat;
pub use self::state::{Heartbeat, Life, State};
use crate::session::wall::unix_millis;

/// The name of the part with the states.
pub(crate) const STATES: &str = "s";

/// The name of the part with the heartbeats.
pub(crate) const HEARTBEATS: &str = "b";

/// The largest number of sessions that a census reads.
const MAX_CENSUS_SESSIONS: usize = 10_000;

/// The number of sessions from which on one range read replaces a read for each.
const MIN_RANGE_SESSIONS: usize = 4;

/// The name of a session, which it keeps until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A session's view of the other sessions.
#[derive(Debug)]
#[non_exhaustive]
pub struct Census {
    /// Other sessions that are dead, have ended or have been silent for their lease.
    pub suspects: Vec<SessionId>,
    /// How many sessions are alive; zero unless [known](Self::is_known).
    pub living: usize,
    /// Whether every session could be judged.
    pub is_known: bool,
    /// The leases of the sessions.
    pub leases: BTreeSet<Duration>,
    /// The last heartbeats of the other sessions, except suspects.
    pub heartbeats: Vec<Heartbeat>,
    /// The version at which the census was read.
    pub read_version: i64,
}

/// Which of some sessions are alive.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    alive: BTreeSet<SessionId>,
    /// Sessions whose states do not decode: a newer version may know them.
    unreadable: BTreeSet<SessionId>,
}

impl Lives {
    pub(crate) fn is_alive(&self, session: &SessionId) -> bool {
        self.alive.contains(session)
    }

    pub(crate) fn is_unreadable(&self, session: &SessionId) -> bool {
        self.unreadable.contains(session)
    }
}

/// The sessions in a subspace, which belongs to the recipe that uses them.
///
/// # Cancel safety
/// If the future of an operation is dropped before it is ready, the operation has staged nothing but conflict ranges.
#[derive(Debug, Clone)]
pub struct Sessions {
    subspace: Subspace,
}

impl Sessions {
    /// Returns the sessions in a subspace. They use only keys that begin with `"s"` and `"b"`.
    #[must_use]
    pub fn new(subspace: Subspace) -> Self {
        Self { subspace }
    }

    /// Returns the subspace.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.subspace
    }

    pub(crate) fn state(&self, session: SessionId) -> Vec<u8> {
        self.subspace.pack(&(STATES, session.0.as_slice()))
    }

    pub(crate) fn heartbeat(&self, session: SessionId) -> Vec<u8> {
        self.subspace.pack(&(HEARTBEATS, session.0.as_slice()))
    }

    /// Stages that a session is alive, with its lease and the wall time of its process.
    ///
    /// # Conflicts
    /// Writes the session's state and its heartbeat.
    pub fn open(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        lease: Duration,
        wall: SystemTime,
    ) {
        self.set_state(tr, session, Life::Alive, lease);
        self.stage_heartbeat(tr, session, wall);
    }

    pub(crate) fn set_state(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        life: Life,
        lease: Duration,
    ) {
        tr.set(&self.state(session), &State { life, lease }.encode());
    }

    fn stage_heartbeat(&self, tr: &impl Transaction, session: SessionId, wall: SystemTime) {
        let mut value = Versionstamp::INCOMPLETE.as_bytes().to_vec();
        value.extend_from_slice(&unix_millis(wall).to_be_bytes());
        let place_of_stamp = 0_u32;
        value.extend_from_slice(&place_of_stamp.to_le_bytes());
        let op = MutationOp::SetVersionstampedValue;
        tr.atomic(op, &self.heartbeat(session), &value);
    }

    /// Reads whether a session is alive. Returns `None` if there is no such session.
    ///
    /// # Conflicts
    /// Reads the session's state: if another transaction declares the session dead, this one fails.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the state has no known format.
    pub async fn life(&self, tr: &impl Transaction, session: SessionId) -> Result<Option<Life>> {
        let state = self.read_state(tr, session).await?;
        Ok(state.map(|state| state.life))
    }

    /// Reads whether a session may be alive: its state says so, or a newer version has written it. Any other state
    /// that does not decode counts as that of a dead session.
    ///
    /// # Conflicts
    /// As [`life`](Self::life).
    ///
    /// # Errors
    /// Those of the read.
    pub async fn may_be_alive(&self, tr: &impl Transaction, session: SessionId) -> Result<bool> {
        let key = self.state(session);
        let state = tr.get(&key, Isolation::Serializable).await?;
        Ok(state.is_some_and(|state| State::says_alive(&key, &state)))
    }

    async fn read_state(&self, tr: &impl Transaction, session: SessionId) -> Result<Option<State>> {
        let key = self.state(session);
        let state = tr.get(&key, Isolation::Serializable).await?;
        state.map(|state| State::decode(&key, &state)).transpose()
    }

    /// Reads which of some sessions are alive. For many sessions, one range read replaces a read for each, which
    /// would cost more than the rest of a transaction.
    ///
    /// # Conflicts
    /// Reads the states of these sessions, as [`life`](Self::life) does.
    pub(crate) async fn lives(
        &self,
        tr: &impl Transaction,
        sessions: BTreeSet<SessionId>,
    ) -> Result<Lives> {
        let page = match sessions.first() {
            Some(first) if sessions.len() >= MIN_RANGE_SESSIONS => {
                let (_, end) = self.subspace.subspace(&STATES).range();
                let query = RangeQuery::keys(self.state(*first), end)
                    .limit(2 * sessions.len())
                    .mode(StreamingMode::WantAll);
                tr.get_range(&query, Isolation::Snapshot).await?.rows
            }
            _ => Vec::new(),
        };
        let read = sessions.into_iter().map(|session| {
            let page = &page;
            async move {
                let key = self.state(session);
                let is_read = page.last().is_some_and(|last| *key <= *last.key());
                let life = if is_read {
                    tr.add_conflict_key(ConflictKind::Read, &key)?;
                    let place = page.binary_search_by(|row| row.key().cmp(&key));
                    let row = place.ok().map(|place| &page[place]);
                    let state = row.map(|row| State::decode(&key, row.value()));
                    state.transpose().map(|state| state.map(|state| state.life))
                } else {
                    self.life(tr, session).await
                };
                match life {
                    Err(keyspace::Error::Corrupt { .. }) => Ok((session, None)),
                    Err(error) => Err(error),
                    Ok(life) => Ok((session, Some(life == Some(Life::Alive)))),
                }
            }
        });
        let mut lives = Lives::default();
        for (session, is_alive) in try_join_all(read).await? {
            match is_alive {
                Some(true) => lives.alive.insert(session),
                Some(false) => false,
                None => lives.unreadable.insert(session),
            };
        }
        Ok(lives)
    }

    /// Stages a heartbeat with the wall time of the session's process, and the lease within which the session
    /// promises the next one. Returns `false` if the session is dead.
    ///
    /// # Conflicts
    /// Reads the session's state. Reads and writes its heartbeat, and writes the state if the lease differs.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life).
    pub async fn beat(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        lease: Duration,
        wall: SystemTime,
    ) -> Result<bool> {
        let heartbeat = self.heartbeat(session);
        // Read serializably, so that a heartbeat that commits late cannot overwrite a newer one.
        let last = tr.get(&heartbeat, Isolation::Serializable);
        let state = self.read_state(tr, session).await?;
        let Some(state) = state.filter(|state| state.life == Life::Alive) else {
            return Ok(false);
        };
        last.await?;
        if millis(state.lease) != millis(lease) {
            self.set_state(tr, session, Life::Alive, lease);
        }
        self.stage_heartbeat(tr, session, wall);
        Ok(true)
    }

    /// Returns all sessions, in the order of their names. Each has its state, or the reason why its state does not
    /// decode. Keys that do not name a session are left out.
    ///
    /// # Conflicts
    /// Reads by snapshot: a transaction that acts on a session must read its [life](Self::life).
    ///
    /// # Errors
    /// Those of the reads.
    pub async fn all(&self, tr: &impl Transaction) -> Result<Vec<(SessionId, Result<State>)>> {
        let rows = self.page(tr, STATES).await?;
        let sessions = rows.iter().filter_map(|row| {
            let session = self.parse_session(STATES, row.key()).ok()?;
            Some((session, State::decode(row.key(), row.value())))
        });
        Ok(sessions.collect())
    }

    /// Returns the session of a row and its state.
    pub(crate) fn parse_state_row(&self, row: &KeyValue) -> Result<(SessionId, State)> {
        let session = self.parse_session(STATES, row.key())?;
        Ok((session, State::decode(row.key(), row.value())?))
    }

    /// Returns the heartbeat in a row.
    pub(crate) fn parse_heartbeat_row(&self, row: &KeyValue) -> Result<Heartbeat> {
        let session = self.parse_session(HEARTBEATS, row.key())?;
        parse_heartbeat(session, row.key(), row.value())
    }

    /// Returns the last heartbeat of each session that has one, in the order of their names. A heartbeat of a session
    /// that is not among [all](Self::all) is a remnant of a removed session. Heartbeats that do not decode are left
    /// out.
    ///
    /// # Conflicts
    /// Reads by snapshot: a transaction that acts on a session must read its [life](Self::life).
    ///
    /// # Errors
    /// Those of the reads.
    pub async fn heartbeats(&self, tr: &impl Transaction) -> Result<Vec<Heartbeat>> {
        let rows = self.page(tr, HEARTBEATS).await?;
        let heartbeats = rows.iter();
        Ok(heartbeats
            .filter_map(|row| self.parse_heartbeat_row(row).ok())
            .collect())
    }

    /// Finds the sessions, except `own`, that are dead, have ended or have been silent for their lease. A session whose
    /// state does not decode cannot be judged: a session of a newer version may do so.
    ///
    /// For each lease, `version_ago` returns the read version that was current that long ago, as far as the caller
    /// has observed it. Without such a version, only dead and ended sessions are found.
    ///
    /// # Conflicts
    /// Reads by snapshot: the transaction that acts on a session judges it again.
    ///
    /// # Errors
    /// Those of the reads.
    pub async fn census(
        &self,
        tr: &impl Transaction,
        own: SessionId,
        version_ago: impl Fn(Duration) -> Option<i64>,
    ) -> Result<Census> {
        let (all, mut heartbeats, read_version) =
            try_join!(self.all(tr), self.heartbeats(tr), tr.read_version())?;
        let mut sessions = Vec::with_capacity(all.len());
        let mut unreadable = BTreeSet::new();
        for (session, state) in all {
            match state {
                Ok(state) => sessions.push((session, state)),
                Err(_) => {
                    unreadable.insert(session);
                }
            }
        }
        let leases: BTreeMap<_, _> = (sessions.iter())
            .map(|(session, state)| (*session, state.lease))
            .collect();
        let mut ages = BTreeMap::new();
        for lease in leases.values() {
            ages.entry(*lease).or_insert_with(|| version_ago(*lease));
        }
        let is_silent = |heartbeat: &&Heartbeat| {
            // A heartbeat without a session is a remnant of a removed session.
            let age = match leases.get(&heartbeat.session) {
                Some(lease) => ages[lease],
                None if unreadable.contains(&heartbeat.session) => None,
                None => ages.values().flatten().copied().min(),
            };
            age.is_some_and(|ago| heartbeat.version <= ago)
        };
        let dead = sessions
            .iter()
            .filter(|(_, state)| state.life != Life::Alive);
        let silent = heartbeats.iter().filter(is_silent);
        let dead = dead.map(|(session, _)| *session);
        let silent = silent.map(|heartbeat| heartbeat.session);
        let mut suspects: Vec<_> = dead.chain(silent).collect();
        suspects.retain(|session| *session != own);
        suspects.sort_unstable();
        suspects.dedup();
        // The number is unknown unless every session can be judged.
        let is_known = ages.values().all(Option::is_some) && unreadable.is_empty();
        let living = if is_known {
            sessions.len().saturating_sub(suspects.len())
        } else {
            0
        };
        heartbeats.retain(|Heartbeat { session, .. }| {
            *session != own && suspects.binary_search(session).is_err()
        });
        Ok(Census {
            suspects,
            living,
            is_known,
            heartbeats,
            leases: ages.into_keys().collect(),
            read_version,
        })
    }

    /// Stages that a session is dead if it has been silent for its lease and has not ended. Returns `false` if it has
    /// written a heartbeat or no longer exists. `version_ago` is as in a [census](Self::census).
    ///
    /// # Conflicts
    /// Reads the session's heartbeat and its state. Writes the state.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`census`](Self::census).
    pub async fn declare_dead(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        version_ago: impl Fn(Duration) -> Option<i64>,
    ) -> Result<bool> {
        let key = self.heartbeat(session);
        let heartbeat = tr.get(&key, Isolation::Serializable);
        let Some(State { life, lease }) = self.read_state(tr, session).await? else {
            // A heartbeat without a session is a remnant of a removed session.
            heartbeat.await?;
            tr.clear(&key);
            return Ok(false);
        };
        if life != Life::Alive {
            return Ok(true);
        }
        if let Some(heartbeat) = heartbeat.await? {
            let heartbeat = parse_heartbeat(session, &key, &heartbeat)?;
            if version_ago(lease).is_none_or(|ago| heartbeat.version > ago) {
                return Ok(false);
            }
        }
        self.set_state(tr, session, Life::Dead, lease);
        Ok(true)
    }

    /// Stages the end of a session of the caller, unless it was declared dead.
    ///
    /// # Conflicts
    /// Reads and writes the session's state.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life).
    pub async fn end(&self, tr: &impl Transaction, session: SessionId) -> Result<()> {
        let state = self.read_state(tr, session).await?;
        if let Some(State { lease, .. }) = state.filter(|state| state.life == Life::Alive) {
            self.set_state(tr, session, Life::Ended, lease);
        }
        Ok(())
    }

    /// Stages the removal of a dead session. The caller must have made sure that the session holds nothing.
    ///
    /// # Conflicts
    /// Writes the session's state and its heartbeat.
    pub fn remove(&self, tr: &impl Transaction, session: SessionId) {
        tr.clear(&self.state(session));
        tr.clear(&self.heartbeat(session));
    }

    /// Reads the rows of a part, as many as a census reads.
    ///
    /// # Conflicts
    /// Reads by snapshot: a transaction that acts on a session reads its state again.
    pub(crate) async fn page(&self, tr: &impl Transaction, part: &str) -> Result<Vec<KeyValue>> {
        let (begin, end) = self.subspace.subspace(&part).range();
        let query = RangeQuery::keys(begin, end).limit(MAX_CENSUS_SESSIONS);
        read_all(tr, query, Isolation::Snapshot).await
    }

    /// Returns the session of a key in a part.
    pub(crate) fn parse_session(&self, part: &str, key: &[u8]) -> Result<SessionId> {
        let bytes: Option<Vec<u8>> = self.subspace.subspace(&part).unpack(key).ok();
        let session = bytes.and_then(|bytes| bytes.try_into().ok());
        session
            .map(SessionId)
            .ok_or_else(|| keyspace::Error::corrupt(key, "expected the key of a session"))
    }
}

#[cfg(test)]
mod tests {
    use conformance::stores::TestStore;
    use microqueue::keyspace::{Code, Database, OwnedTransaction};

    use super::*;

    const LEASE: Duration = Duration::from_millis(0x0304);

    conformance::on_every_store!(
        of_many_sessions_the_living_are_found_and_the_states_of_all_are_in_conflict,
        a_heartbeat_has_its_version_and_the_wall_time_of_its_session,
    );

    async fn a_heartbeat_has_its_version_and_the_wall_time_of_its_session(store: TestStore) {
        let sessions = Sessions::new(store.root.clone());
        let named = |name: u8| SessionId([name; 16]);
        let wall = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let mut versions = Vec::new();
        for step in 0..2 {
            let mut tr = store.db.begin().unwrap();
            match step {
                0 => sessions.open(&tr, named(1), LEASE, wall(7)),
                _ => assert!(
                    sessions
                        .beat(&tr, named(1), LEASE, wall(300))
                        .await
                        .unwrap()
                ),
            }
            let stamp = tr.versionstamp();
            tr.commit().await.unwrap();
            versions.push(stamp.await.unwrap().commit_version());
            let census = async |own| {
                let tr = store.db.begin().unwrap();
                sessions.census(&tr, own, |_| None).await.unwrap()
            };
            let heartbeat = Heartbeat {
                session: named(1),
                version: versions[step],
                wall_millis: [7, 300][step],
            };
            let seen = census(named(2)).await;
            assert_eq!(seen.heartbeats, [heartbeat]);
            assert!(seen.read_version >= versions[step]);
            assert_eq!(census(named(1)).await.heartbeats, []);
        }
    }

    async fn of_many_sessions_the_living_are_found_and_the_states_of_all_are_in_conflict(
        store: TestStore,
    ) {
        let sessions = Sessions::new(store.root.clone());
        let named = |name: u8| SessionId([name; 16]);
        let mut lives = BTreeMap::new();
        for asked in [&[3, 4, 9][..], &[3, 4, 6, 9, 12, 59], &[200, 201, 202, 203]] {
            // The table includes sessions that are not asked for, and sessions that do not exist.
            for name in (0..60).step_by(3) {
                let life = match name % 4 {
                    0 | 2 => Life::Alive,
                    1 => Life::Dead,
                    _ => Life::Ended,
                };
                lives.insert(name, life);
                set_life(&store, &sessions, named(name), life).await;
            }
            for name in asked {
                let living = asked
                    .iter()
                    .filter(|name| lives.get(*name) == Some(&Life::Alive))
                    .map(|name| named(*name))
                    .collect();
                let all = asked.iter().map(|name| named(*name)).collect();
                let mut tr = store.db.begin().unwrap();
                assert_eq!(sessions.lives(&tr, all).await.unwrap().alive, living);
                tr.set(&store.root.pack(&"work"), b"");
                let life = match lives.get(name) {
                    Some(Life::Alive) => Life::Dead,
                    _ => Life::Alive,
                };
                lives.insert(*name, life);
                set_life(&store, &sessions, named(*name), life).await;
                let refused = tr.commit().await.unwrap_err();
                assert_eq!(refused.code(), Some(Code::NOT_COMMITTED));
            }
        }
    }

    async fn set_life(store: &TestStore, sessions: &Sessions, session: SessionId, life: Life) {
        let mut tr = store.db.begin().unwrap();
        sessions.set_state(&tr, session, life, LEASE);
        tr.commit().await.unwrap();
    }

    #[test]
    fn keys_have_the_bytes_of_the_schema() {
        let sessions = Sessions::new(Subspace::from_bytes(b"Q"));
        let session = SessionId([7; 16]);
        let key = |part: &[u8]| [b"Q\x02", part, b"\0\x01", &[7; 16], b"\0"].concat();
        assert_eq!(sessions.state(session), key(b"s"));
        assert_eq!(sessions.heartbeat(session), key(b"b"));
        assert_eq!(sessions.parse_session(STATES, &key(b"s")).unwrap(), session);
        assert!(sessions.parse_session(STATES, b"Q").is_err());
        assert!(
            sessions
                .parse_session(HEARTBEATS, b"Q\x02b\0\x01\x07\0")
                .is_err()
        );
    }
}
