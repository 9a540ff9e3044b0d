//! Looking at the sessions of queues, and at the processes that share a store.

use export_queue::hc_dequeue::SessionState;
use export_queue::hc_dequeue::session::{Life, SessionId, Sessions, State};
use export_queue::keyspace::limits::time_between;
use export_queue::keyspace::{self, Listed, Store, Transaction, embedded};

use super::console::{Console, MAX_ROWS};
use super::found::{Dequeue, Export, Found};
use crate::error::{Error, Result};
use crate::report::{self, Time};

impl Console {
    /// Returns the sessions of a queue. Of a queue with consumers, it returns a page of up to `limit` sessions after a
    /// session, with what each of them holds. Of other queues, it returns all sessions.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a session that is none, and those of the
    /// store.
    pub async fn sessions(
        &self,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Sessions> {
        let sessions = match self.find(name).await? {
            Found::Dequeue(found) => return self.dequeue_sessions(&found, after, limit).await,
            Found::Combine(found) => self.session_lives(&found.queue.sessions()).await?,
            Found::Export(found) => self.export_sessions(&found).await?,
            other @ Found::Microqueue(_) => return Err(other.has_no(name, "sessions")),
        };
        Ok(report::Sessions {
            queue: name.to_owned(),
            sessions,
            next: None,
            processes: self.processes().await?,
        })
    }

    /// Returns the processes that share the store, unless it is only this one.
    async fn processes(&self) -> Result<Vec<report::Process>> {
        let Store::Embedded(store) = self.reader.database() else {
            return Ok(Vec::new());
        };
        let processes = store.processes().await.map_err(Error::from)?;
        if processes.len() <= 1 {
            return Ok(Vec::new());
        }
        let of = |(place, process): (usize, embedded::Process)| report::Process {
            role: if place == 0 { "owner" } else { "client" }.to_owned(),
            program: process.program,
            pid: process.pid,
        };
        Ok(processes.into_iter().enumerate().map(of).collect())
    }

    /// Returns sessions with their signs of life, without what they hold.
    async fn session_lives(&self, sessions: &Sessions) -> Result<Vec<report::Session>> {
        let read = |tr| async move { session_lives(&tr, sessions).await };
        self.reader.run(read).await
    }

    /// Counts the sessions that live.
    pub(super) async fn living(&self, sessions: &Sessions) -> Result<usize> {
        let sessions = self.session_lives(sessions).await?;
        let living = sessions
            .iter()
            .filter(|session| session.life == report::Life::Alive);
        Ok(living.count())
    }

    async fn dequeue_sessions(
        &self,
        found: &Dequeue,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Sessions> {
        let after = after.map(parse_session).transpose()?;
        let limit = limit.clamp(1, MAX_ROWS);
        let read = |tr| async move { found.queue.session_states(&tr, after, limit).await };
        let page = self.reader.run(read).await?;
        Ok(report::Sessions {
            queue: found.name.clone(),
            sessions: page.sessions.into_iter().map(session_of).collect(),
            next: page.next.map(|session| session.to_string()),
            processes: self.processes().await?,
        })
    }

    async fn export_sessions(&self, found: &Export) -> Result<Vec<report::Session>> {
        let queue = &found.queue;
        let names = |tr| async move { queue.subscriptions(&tr).await };
        let mut all = Vec::new();
        for name in self.reader.run(names).await? {
            let subscription = self.subscription(found, &name).await?;
            for mut session in self.session_lives(&subscription.sessions()).await? {
                session.subscription = Some(name.clone());
                all.push(session);
            }
        }
        Ok(all)
    }
}

/// Returns the sessions with their signs of life, without what they hold.
async fn session_lives(tr: &impl Transaction, sessions: &Sessions) -> Result<Vec<report::Session>> {
    let (states, heartbeats, now) =
        futures::try_join!(sessions.all(tr), sessions.heartbeats(tr), tr.read_version())?;
    let session = |(session, state): (SessionId, keyspace::Result<State>)| {
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                return report::Session {
                    session: session.to_string(),
                    problem: Some(keyspace::error::chain(&error).to_string()),
                    ..report::Session::default()
                };
            }
        };
        let heartbeat = heartbeats.iter().find(|beat| beat.session == session);
        let silent = heartbeat.map(|beat| time_between(beat.version, now).as_secs_f64());
        report::Session {
            session: session.to_string(),
            life: life_of(state.life, state.lease.as_secs_f64(), silent),
            lease_seconds: state.lease.as_secs_f64(),
            silent_seconds: silent,
            wall: heartbeat.map(|beat| Time::from_millis(beat.wall_millis)),
            ..report::Session::default()
        }
    };
    Ok(states.into_iter().map(session).collect())
}

/// Returns whether a session lives, by its state and by how long ago it has shown a sign of life.
fn life_of(stored: Life, lease_seconds: f64, silent_seconds: Option<f64>) -> report::Life {
    match stored {
        Life::Alive if silent_seconds.is_none_or(|silent| silent > lease_seconds) => {
            report::Life::Silent
        }
        Life::Alive => report::Life::Alive,
        Life::Dead => report::Life::Dead,
        Life::Ended => report::Life::Ended,
    }
}

/// Returns the session that a page has given.
fn parse_session(text: &str) -> Result<SessionId> {
    match u128::from_str_radix(text, 16) {
        Ok(id) if text.len() == 32 => Ok(SessionId(id.to_be_bytes())),
        _ => Err(Error::Malformed {
            what: "session",
            given: text.to_owned(),
            reason: "expected 32 hexadecimal digits".to_owned(),
        }),
    }
}

fn session_of(listed: Listed<SessionId, SessionState>) -> report::Session {
    let state = match listed.value {
        Ok(state) => state,
        Err(error) => {
            return report::Session {
                session: listed.id.to_string(),
                problem: Some(error.to_string()),
                ..report::Session::default()
            };
        }
    };
    let lease = state.lease.as_secs_f64();
    let silent = state.silent.map(|silent| silent.as_secs_f64());
    report::Session {
        session: state.session.to_string(),
        subscription: None,
        life: life_of(state.life, lease, silent),
        lease_seconds: lease,
        silent_seconds: silent,
        wall: state.wall.map(Time::from),
        held: Some(state.held),
        in_reserve: Some(state.in_reserve),
        has_more: state.holds_more,
        oldest_grant: state.oldest_grant.map(Time::from),
        wanted: Some(state.wanted),
        problem: None,
    }
}
