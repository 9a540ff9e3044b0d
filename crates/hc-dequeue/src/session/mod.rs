//! Sessions: who may hold something, and how others know that it lives.
//!
//! ```text
//! (sessions, "s", session) = format 01, then 00 dead, 01 alive or 02 ended
//! (sessions, "b", session) = heartbeat: versionstamp
//!
//! session   tuple byte string: 16 random bytes
//! ```
//!
//! A session is alive from its opening until it ends, or another session declares it dead.
//! A transaction that grants it something reads that state serializably; the heartbeat lies under another
//! key, so that it makes no grant fail. Nothing reads wall time: a heartbeat is judged by a
//! [`VersionClock`](microqueue::keyspace::VersionClock), so that no session is lost because the store was
//! away or slow.
//!
//! [`Sessions`] has the steps, each in the caller's transaction, and a [`Member`] takes them in time.
//! What a session holds is for the layer above: it returns what the dead held, and
//! [removes](Sessions::remove) them afterwards.

mod alarms;
mod member;

use std::collections::BTreeSet;
use std::fmt;

use futures::future::try_join_all;
use futures::try_join;
use microqueue::keyspace::{
    self, ConflictKind, Isolation, KeyValue, RangeQuery, Result, StreamingMode, Subspace,
    Transaction, Versionstamp, read_all,
};

pub use self::alarms::{Alarm, Alarms};
pub use self::member::{Member, Tick};

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

impl Life {
    pub(crate) fn encode(self) -> [u8; 2] {
        let state = match self {
            Self::Dead => 0,
            Self::Alive => 1,
            Self::Ended => 2,
        };
        [FORMAT, state]
    }

    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        match value {
            [FORMAT, 1] => Ok(Self::Alive),
            [FORMAT, 0] => Ok(Self::Dead),
            [FORMAT, 2] => Ok(Self::Ended),
            _ => Err(keyspace::Error::corrupt(key, "expected a session's state")),
        }
    }
}

/// What a session has seen of the others.
#[derive(Debug)]
#[non_exhaustive]
pub struct Census {
    /// The other sessions that are dead or seem to be.
    pub suspects: Vec<SessionId>,
    /// How many sessions live, as far as that is known by now.
    pub living: usize,
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

    /// Stages that a session lives.
    ///
    /// # Conflicts
    /// Writes the session's state and its heartbeat.
    pub fn open(&self, tr: &impl Transaction, session: SessionId) {
        tr.set(&self.state(session), &Life::Alive.encode());
        tr.set_to_versionstamp(&self.heartbeat(session));
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
        let key = self.state(session);
        let state = tr.get(&key, Isolation::Serializable).await?;
        state.map(|state| Life::decode(&key, &state)).transpose()
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
                    row.map(|row| Life::decode(&key, row.value())).transpose()?
                } else {
                    self.life(tr, session).await?
                };
                Ok::<_, keyspace::Error>((life == Some(Life::Alive)).then_some(session))
            }
        });
        Ok(try_join_all(lives).await?.into_iter().flatten().collect())
    }

    /// Stages a sign of life. False: the session is dead.
    ///
    /// # Conflicts
    /// Reads the session's state and its heartbeat.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life).
    ///
    /// # Cancel safety
    /// The sign is staged last: dropping the future before it is done stages nothing.
    pub async fn beat(&self, tr: &impl Transaction, session: SessionId) -> Result<bool> {
        let heartbeat = self.heartbeat(session);
        // Read, so that a heartbeat that lands late does not come after a newer one.
        let last = tr.get(&heartbeat, Isolation::Serializable);
        if self.life(tr, session).await? != Some(Life::Alive) {
            return Ok(false);
        }
        last.await?;
        tr.set_to_versionstamp(&heartbeat);
        Ok(true)
    }

    /// Returns all sessions and whether they are alive, in the order of their names.
    ///
    /// # Conflicts
    /// Reads by snapshot: who acts on one of them reads its [life](Self::life).
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`life`](Self::life), and if a key names no session.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn all(&self, tr: &impl Transaction) -> Result<Vec<(SessionId, Life)>> {
        let rows = self.page(tr, "s").await?;
        let session = |row: &KeyValue| {
            let life = Life::decode(row.key(), row.value())?;
            Ok((self.parse_session("s", row.key())?, life))
        };
        rows.iter().map(session).collect()
    }

    /// Returns the sessions that have a heartbeat, and the version of each.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    pub(crate) async fn heartbeats(&self, tr: &impl Transaction) -> Result<Vec<(SessionId, i64)>> {
        let rows = self.page(tr, "b").await?;
        let heartbeat = |row: &KeyValue| {
            let version = parse_stamp(row.key(), row.value())?.commit_version();
            Ok((self.parse_session("b", row.key())?, version))
        };
        rows.iter().map(heartbeat).collect()
    }

    /// Finds the sessions, except the caller's own, that are dead or ended, or have shown no sign of life
    /// after `version_ago`; without a version, those that are dead or ended.
    ///
    /// # Conflicts
    /// Reads by snapshot: what it finds is judged again in the step that acts on it.
    ///
    /// # Errors
    /// Those of the reads; [`Corrupt`](microqueue::keyspace::Error::Corrupt), as [`all`](Self::all), and if a heartbeat is no versionstamp.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn census(
        &self,
        tr: &impl Transaction,
        own: SessionId,
        version_ago: Option<i64>,
    ) -> Result<Census> {
        let (sessions, heartbeats) = try_join!(self.all(tr), self.heartbeats(tr))?;
        let dead = sessions.iter().filter(|(_, life)| *life != Life::Alive);
        let silent = (heartbeats.iter())
            .filter(|(_, version)| version_ago.is_some_and(|ago| *version <= ago));
        let dead = dead.map(|(session, _)| *session);
        let mut suspects: Vec<_> = dead.chain(silent.map(|(session, _)| *session)).collect();
        suspects.retain(|session| *session != own);
        suspects.sort_unstable();
        suspects.dedup();
        let living = match version_ago {
            Some(_) => sessions.len().saturating_sub(suspects.len()),
            None => 0,
        };
        Ok(Census { suspects, living })
    }

    /// Declares a session dead that has shown no sign of life after `version_ago`, unless it has ended. False:
    /// it has shown one, or it is gone.
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
        version_ago: Option<i64>,
    ) -> Result<bool> {
        let key = self.heartbeat(session);
        let heartbeat = tr.get(&key, Isolation::Serializable);
        match self.life(tr, session).await? {
            Some(Life::Dead | Life::Ended) => return Ok(true),
            None => {
                // A heartbeat without a session is what is left of a session that was removed.
                heartbeat.await?;
                tr.clear(&key);
                return Ok(false);
            }
            Some(Life::Alive) => {}
        }
        if let Some(heartbeat) = heartbeat.await? {
            let version = parse_stamp(&key, &heartbeat)?.commit_version();
            if version_ago.is_none_or(|ago| version > ago) {
                return Ok(false);
            }
        }
        tr.set(&self.state(session), &Life::Dead.encode());
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
        if self.life(tr, session).await? == Some(Life::Alive) {
            tr.set(&self.state(session), &Life::Ended.encode());
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

/// Returns the versionstamp of a heartbeat.
fn parse_stamp(key: &[u8], value: &[u8]) -> Result<Versionstamp> {
    Versionstamp::try_from(value)
        .map_err(|_| keyspace::Error::corrupt(key, "expected the ten bytes of a versionstamp"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use conformance::stores::TestStore;
    use microqueue::keyspace::{Code, Database, OwnedTransaction};

    use super::*;

    conformance::on_every_store!(
        of_many_sessions_the_living_are_found_and_the_states_of_all_are_in_conflict
    );

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
        tr.set(&sessions.state(session), &life.encode());
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
        for (life, state) in [(Life::Dead, 0), (Life::Alive, 1), (Life::Ended, 2)] {
            let bytes = [1, state];
            assert_eq!(life.encode(), bytes);
            assert_eq!(Life::decode(b"key", &bytes).unwrap(), life);
        }
        for state in [&b""[..], &[1], &[1, 3], &[2, 1], &[1, 1, 1]] {
            assert!(Life::decode(b"key", state).is_err());
        }
    }
}
