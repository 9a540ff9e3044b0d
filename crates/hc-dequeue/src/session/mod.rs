//! Sessions: who may hold something, and how others know that it lives.
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
//! A session is alive from its opening until it ends, or another session declares it dead. It promises a
//! sign of life within its *lease*, by which the others judge it: sessions may have different leases, and one
//! that changes its lease says so in the transaction of a heartbeat.
//!
//! A transaction that grants it something reads that state serializably; the heartbeat lies under another
//! key, so that it makes no grant fail. Wall time does not decide which sessions live: a heartbeat is judged by a
//! [`VersionClock`](microqueue::keyspace::VersionClock), so that no session is lost because the store was
//! away or slow. The wall time in a heartbeat is what others compare their own clocks with.
//!
//! [`Sessions`] has the steps, each in the caller's transaction, and a [`Member`] takes them in time.
//! What a session holds is for the layer above: it returns what the dead held, and
//! [removes](Sessions::remove) them afterwards.

mod alarms;
mod clocks;
mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use futures::try_join;
use microqueue::keyspace::record::{self, Fields, millis, push_millis};
use microqueue::keyspace::{
    self, ConflictKind, Isolation, KeyValue, MutationOp, RangeQuery, Result, StreamingMode,
    Subspace, Transaction, Versionstamp, read_all,
};

pub use self::alarms::{Alarm, Alarms};
pub use self::clocks::MAX_CLOCK_ERROR;
pub use self::member::{Member, Tick};
use crate::wall::unix_millis;

/// The format of a session's state.
const FORMAT: u8 = 1;

/// How many sessions a census reads at most.
const SESSIONS_PER_CENSUS: usize = 10_000;

/// From how many sessions on a range read tells who lives.
const SESSIONS_OF_A_RANGE: usize = 4;

/// The name of a session, from its opening to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Whether something may be granted to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It may.
    Alive,
    /// Never again, since it showed no sign of life: what it held is being returned.
    Dead,
    /// Never again, since its process has ended it: what it held is being returned.
    Ended,
}

/// What is stored of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// Whether it lives.
    pub life: Life,
    /// Within which time it promises a sign of life.
    pub lease: Duration,
}

impl State {
    pub(crate) fn encode(self) -> Vec<u8> {
        let life = match self.life {
            Life::Dead => 0,
            Life::Alive => 1,
            Life::Ended => 2,
        };
        let mut value = vec![FORMAT, life];
        push_millis(&mut value, self.lease);
        value
    }

    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        record::decode(key, value, FORMAT, |fields| {
            let life = match fields.array()? {
                [0] => Life::Dead,
                [1] => Life::Alive,
                [2] => Life::Ended,
                [other] => return Err(format!("session state {other} is unknown")),
            };
            let lease = fields.millis()?;
            fields.end()?;
            Ok(Self { life, lease })
        })
    }
}

/// The last sign of life of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The session.
    pub session: SessionId,
    /// The version of the commit that wrote it.
    pub version: i64,
    /// What the wall clock of the session's process showed then, in milliseconds since the Unix epoch.
    pub wall_millis: u64,
}

/// What a session has seen of the others.
#[derive(Debug)]
#[non_exhaustive]
pub struct Census {
    /// The other sessions that are dead or seem to be.
    pub suspects: Vec<SessionId>,
    /// How many sessions live; zero as long as that is not [known](Self::is_known).
    pub living: usize,
    /// Whether each session was judged.
    pub is_known: bool,
    /// The leases that the sessions have.
    pub leases: BTreeSet<Duration>,
    /// The last heartbeats of the other sessions that are not suspects.
    pub heartbeats: Vec<Heartbeat>,
    /// The version at which all of that was read.
    pub read_version: i64,
}

/// The sessions in a subspace, which they share with the recipe that they work for.
#[derive(Debug, Clone)]
pub struct Sessions {
    subspace: Subspace,
}

impl Sessions {
    /// Returns the sessions in a subspace. Only keys that begin with `"s"` and `"b"` are theirs.
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
        self.subspace.pack(&("s", session.0.as_slice()))
    }

    pub(crate) fn heartbeat(&self, session: SessionId) -> Vec<u8> {
        self.subspace.pack(&("b", session.0.as_slice()))
    }

    /// Stages that a session lives which has this lease, and whose wall clock shows `wall`.
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

    /// Reads whether a session is alive. `None`: there is no such session, any more or yet.
    ///
    /// # Conflicts
    /// Reads the session's state: whoever declares it dead makes this transaction fail.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), if the state is of no known format.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn life(&self, tr: &impl Transaction, session: SessionId) -> Result<Option<Life>> {
        let state = self.read_state(tr, session).await?;
        Ok(state.map(|state| state.life))
    }

    async fn read_state(&self, tr: &impl Transaction, session: SessionId) -> Result<Option<State>> {
        let key = self.state(session);
        let state = tr.get(&key, Isolation::Serializable).await?;
        state.map(|state| State::decode(&key, &state)).transpose()
    }

    /// Reads which of some sessions are alive. Where there are many, one range read tells: a read for
    /// each would cost more than the rest of a transaction.
    ///
    /// # Conflicts
    /// Reads the states of these sessions, as [`life`](Self::life) does.
    pub(crate) async fn living(
        &self,
        tr: &impl Transaction,
        sessions: BTreeSet<SessionId>,
    ) -> Result<BTreeSet<SessionId>> {
        let page = match sessions.first() {
            Some(first) if sessions.len() >= SESSIONS_OF_A_RANGE => {
                let (_, end) = self.subspace.subspace(&"s").range();
                let query = RangeQuery::keys(self.state(*first), end);
                let query = query.limit(2 * sessions.len()).mode(StreamingMode::WantAll);
                tr.get_range(&query, Isolation::Snapshot).await?.rows
            }
            _ => Vec::new(),
        };
        let lives = sessions.into_iter().map(|session| {
            let page = &page;
            async move {
                let key = self.state(session);
                let is_read = page.last().is_some_and(|last| *key <= *last.key());
                let life = if is_read {
                    tr.add_conflict_key(ConflictKind::Read, &key)?;
                    let place = page.binary_search_by(|row| row.key().cmp(&key));
                    let row = place.ok().map(|place| &page[place]);
                    let state = row.map(|row| State::decode(&key, row.value()));
                    state.transpose()?.map(|state| state.life)
                } else {
                    self.life(tr, session).await?
                };
                Ok::<_, keyspace::Error>((life == Some(Life::Alive)).then_some(session))
            }
        });
        Ok(try_join_all(lives).await?.into_iter().flatten().collect())
    }

    /// Stages a sign of life, when the session's wall clock shows `wall`, and that the session promises the
    /// next ones within this lease. False: the session is dead.
    ///
    /// # Conflicts
    /// Reads the session's state and its heartbeat. Writes the state if the lease is another one.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life).
    ///
    /// # Cancel safety
    /// The sign is staged last: dropping the future before it is done stages nothing.
    pub async fn beat(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        lease: Duration,
        wall: SystemTime,
    ) -> Result<bool> {
        let heartbeat = self.heartbeat(session);
        // Read, so that a heartbeat that lands late does not come after a newer one.
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

    /// Returns all sessions with their states, in the order of their names.
    ///
    /// # Conflicts
    /// Reads by snapshot: who acts on one of them reads its [life](Self::life).
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life), and if a key names no session.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn all(&self, tr: &impl Transaction) -> Result<Vec<(SessionId, State)>> {
        let rows = self.page(tr, "s").await?;
        let session = |row: &KeyValue| {
            let state = State::decode(row.key(), row.value())?;
            Ok((self.parse_session("s", row.key())?, state))
        };
        rows.iter().map(session).collect()
    }

    /// Returns the last heartbeat of each session that has one.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) async fn heartbeats(&self, tr: &impl Transaction) -> Result<Vec<Heartbeat>> {
        let rows = self.page(tr, "b").await?;
        let heartbeat = |row: &KeyValue| {
            let session = self.parse_session("b", row.key())?;
            parse_heartbeat(session, row.key(), row.value())
        };
        rows.iter().map(heartbeat).collect()
    }

    /// Finds the sessions, except the caller's own, that are dead or ended, or have shown no sign of life for
    /// their lease. `version_ago` says of a lease what the read version was that long ago, as far as the
    /// caller has observed it: without a version, those are found that are dead or ended.
    ///
    /// # Conflicts
    /// Reads by snapshot: what it finds is judged again in the step that acts on it.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`all`](Self::all), and if a heartbeat does not decode.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn census(
        &self,
        tr: &impl Transaction,
        own: SessionId,
        version_ago: impl Fn(Duration) -> Option<i64>,
    ) -> Result<Census> {
        let (sessions, mut heartbeats, read_version) =
            try_join!(self.all(tr), self.heartbeats(tr), tr.read_version())?;
        let leases: BTreeMap<_, _> = (sessions.iter())
            .map(|(session, state)| (*session, state.lease))
            .collect();
        let mut ages = BTreeMap::new();
        for lease in leases.values() {
            ages.entry(*lease).or_insert_with(|| version_ago(*lease));
        }
        let is_silent = |heartbeat: &&Heartbeat| {
            // One without a session is what is left of a session that was removed.
            let age = match leases.get(&heartbeat.session) {
                Some(lease) => ages[lease],
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
        // As long as some cannot be judged, it is not known.
        let is_known = ages.values().all(Option::is_some);
        let living = match is_known {
            true => sessions.len().saturating_sub(suspects.len()),
            false => 0,
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

    /// Declares a session dead that has shown no sign of life for its lease, unless it has ended. False: it has
    /// shown one, or it is gone. `version_ago` is as in a [census](Self::census).
    ///
    /// # Conflicts
    /// Reads the session's heartbeat and its state.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`census`](Self::census).
    ///
    /// # Cancel safety
    /// What it stages comes last: dropping the future before it is done stages nothing.
    pub async fn declare_dead(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        version_ago: impl Fn(Duration) -> Option<i64>,
    ) -> Result<bool> {
        let key = self.heartbeat(session);
        let heartbeat = tr.get(&key, Isolation::Serializable);
        let Some(State { life, lease }) = self.read_state(tr, session).await? else {
            // A heartbeat without a session is what is left of a session that was removed.
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

    /// Ends one's own session, unless it was declared dead.
    ///
    /// # Conflicts
    /// Reads the session's state.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life).
    ///
    /// # Cancel safety
    /// The change is staged last: dropping the future before it is done stages nothing.
    pub async fn retire(&self, tr: &impl Transaction, session: SessionId) -> Result<()> {
        let state = self.read_state(tr, session).await?;
        if let Some(State { lease, .. }) = state.filter(|state| state.life == Life::Alive) {
            self.set_state(tr, session, Life::Ended, lease);
        }
        Ok(())
    }

    /// Removes a session that is dead and holds nothing any more, which the caller has made sure of.
    ///
    /// # Conflicts
    /// Writes the session's state and its heartbeat.
    pub fn remove(&self, tr: &impl Transaction, session: SessionId) {
        tr.clear(&self.state(session));
        tr.clear(&self.heartbeat(session));
    }

    async fn page(&self, tr: &impl Transaction, part: &str) -> Result<Vec<KeyValue>> {
        let (begin, end) = self.subspace.subspace(&part).range();
        let query = RangeQuery::keys(begin, end).limit(SESSIONS_PER_CENSUS);
        read_all(tr, query, Isolation::Snapshot).await
    }

    /// Returns the session of a key in a part.
    fn parse_session(&self, part: &str, key: &[u8]) -> Result<SessionId> {
        let session: Option<Vec<u8>> = self.subspace.subspace(&part).unpack(key).ok();
        let session = session.and_then(|bytes| bytes.try_into().ok());
        session
            .map(SessionId)
            .ok_or_else(|| keyspace::Error::corrupt(key, "expected the key of a session"))
    }
}

fn parse_heartbeat(session: SessionId, key: &[u8], value: &[u8]) -> Result<Heartbeat> {
    let mut fields = Fields::new(value);
    let heartbeat = (|| {
        let heartbeat = Heartbeat {
            session,
            version: Versionstamp::from_bytes(fields.array()?).commit_version(),
            wall_millis: fields.u64()?,
        };
        fields.end()?;
        Ok(heartbeat)
    })();
    heartbeat.map_err(|reason: String| keyspace::Error::corrupt(key, reason))
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
            // Some that nobody asks for, too, and some that do not exist.
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
                    .filter(|name| lives.get(*name) == Some(&Life::Alive));
                let living = living.map(|name| named(*name)).collect();
                let all = asked.iter().map(|name| named(*name)).collect();
                let mut tr = store.db.begin().unwrap();
                assert_eq!(sessions.living(&tr, all).await.unwrap(), living);
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
    fn keys_and_states_have_the_bytes_of_the_schema() {
        let sessions = Sessions::new(Subspace::from_bytes(b"Q"));
        let session = SessionId([7; 16]);
        let key = |part: &[u8]| [b"Q\x02", part, b"\0\x01", &[7; 16], b"\0"].concat();
        assert_eq!(sessions.state(session), key(b"s"));
        assert_eq!(sessions.heartbeat(session), key(b"b"));
        assert_eq!(sessions.parse_session("s", &key(b"s")).unwrap(), session);
        assert!(sessions.parse_session("s", b"Q").is_err());
        assert!(sessions.parse_session("b", b"Q\x02b\0\x01\x07\0").is_err());
        for (life, number) in [(Life::Dead, 0), (Life::Alive, 1), (Life::Ended, 2)] {
            let state = State { life, lease: LEASE };
            let bytes = [1, number, 0, 0, 0, 0, 0, 0, 3, 4];
            assert_eq!(state.encode(), bytes);
            assert_eq!(State::decode(b"key", &bytes).unwrap(), state);
        }
        let other = [1, 3, 0, 0, 0, 0, 0, 0, 3, 4];
        let newer = [2, 1, 0, 0, 0, 0, 0, 0, 3, 4];
        for state in [&b""[..], &[1], &[1, 1], &[1; 9], &[1; 11], &other, &newer] {
            assert!(State::decode(b"key", state).is_err());
        }
        let bytes = [
            &[0, 0, 0, 0, 0, 0, 0, 8, 0, 9][..],
            &[0, 0, 0, 0, 0, 0, 1, 2],
        ]
        .concat();
        let heartbeat = Heartbeat {
            session,
            version: 8,
            wall_millis: 0x0102,
        };
        let parsed = parse_heartbeat(session, b"key", &bytes);
        assert_eq!(parsed.unwrap(), heartbeat);
        for length in [0, 10, 17, 19] {
            assert!(parse_heartbeat(session, b"key", &vec![1; length]).is_err());
        }
    }
}
