//! Inspection of any queue by tools: a handle that needs no types, and the sessions with the items that they hold.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use futures::try_join;
use microqueue::keyspace::codec::{Codec, Raw};
use microqueue::keyspace::{
    Bytes, Database, Isolation, RangeQuery, Runner, StreamingMode, Subspace, Transaction, limits,
};

use crate::configure::find_settings;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::queue::HighContentionQueue;
use crate::record::{Part, is_turn};
use crate::session::{Life, SessionId, Sessions, State};
use crate::settings::{KnownSettings, SettingsRecord};
use crate::wall::unix_time;

/// How many items of a session are read.
const ITEMS_PER_SESSION: usize = 1_000;

/// How many requests are counted.
const MAX_REQUESTS: usize = 10_000;

/// A session of a queue, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionState {
    /// The session.
    pub session: SessionId,
    /// Whether it is alive.
    pub life: Life,
    /// Its lease: how long it may be silent before other sessions declare it dead.
    pub lease: Duration,
    /// How long it has been silent, by the store's versions. `None` if it has no heartbeat.
    pub silent: Option<Duration>,
    /// The wall clock of its process at its last heartbeat.
    pub wall: Option<SystemTime>,
    /// How many items it holds, including those that it has not collected yet. Counts up to a thousand of each kind.
    pub held: usize,
    /// Whether it holds more items than were counted.
    pub holds_more: bool,
    /// When the oldest of the counted items was granted, by the wall clock of the granting process.
    pub oldest_grant: Option<SystemTime>,
    /// How many items it has requested and is waiting for.
    pub wanted: u64,
}

impl HighContentionQueue<Bytes, Raw> {
    /// Opens an existing queue of any codec, for tools that do not know the queue's types. Payloads are the stored
    /// bytes.
    ///
    /// Returns the handle with the queue's settings and the name of its codec, or `None` if `subspace` contains no
    /// queue. Creates and registers nothing. Values that such a handle enqueues must be encoded by the queue's codec.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Bytes, Runner, Subspace, codec::Raw};
    /// use hc_dequeue::{HighContentionQueue, PlaceKind, Settings};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = Subspace::from("jobs");
    /// let queue = HighContentionQueue::<u64>::open(&runner, jobs.clone(), Settings::default()).await?;
    /// runner.run(|tr| { let queue = queue.clone(); async move { queue.enqueue(&tr, &7).await } }).await?;
    ///
    /// let found = HighContentionQueue::<Bytes, Raw>::inspect(&runner, jobs).await?;
    /// let (queue, stored) = &found.expect("the queue was created");
    /// assert_eq!(stored.codec, "MessagePack");
    /// let list = |tr| async move { queue.list(&tr, PlaceKind::Queued, None, 10).await };
    /// let page = runner.run(list).await?;
    /// let status = page.items[0].status.as_ref().unwrap();
    /// assert_eq!(status.value.as_ref().unwrap(), &Bytes::from_static(&[7]));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the settings do not decode, and those of [`Runner::run`].
    pub async fn inspect<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
    ) -> Result<Option<(Self, SettingsRecord)>> {
        let keys = &Keys::new(subspace, runner.environment().clone());
        let find = |tr| async move { find_settings(&tr, keys, Isolation::Snapshot).await };
        let stored: Option<SettingsRecord> = runner.run(find).await?;
        Ok(stored.map(|stored| {
            let queue = Self {
                settings: KnownSettings::new(stored.settings.clone()),
                keys: Arc::new(keys.clone()),
                codec: Raw,
                value: PhantomData,
            };
            (queue, stored)
        }))
    }
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Returns the queue's sessions. They can be listed without reading the items that they hold.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.keys.sessions
    }

    /// Returns the sessions of the queue, with the items that each of them holds and requests.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a row of a session or a request does not decode.
    pub async fn session_states(&self, tr: &impl Transaction) -> Result<Vec<SessionState>> {
        let keys = &self.keys;
        let requests = async {
            let requests = keys.requests.snapshot(tr, MAX_REQUESTS, usize::MAX).await;
            Ok::<_, Error>(requests?)
        };
        let read = async {
            let (sessions, now) = try_join!(keys.sessions.all(tr), tr.read_version())?;
            let heartbeats = keys.sessions.heartbeats(tr).await?;
            Ok::<_, Error>((sessions, heartbeats, now))
        };
        let ((sessions, heartbeats, now), requests) = try_join!(read, requests)?;
        let held = sessions
            .iter()
            .map(|(session, _)| self.held_by(tr, *session));
        let held = try_join_all(held).await?;
        let state = |((session, state), held): ((SessionId, State), HeldItems)| {
            let heartbeat = heartbeats.iter().find(|beat| beat.session == session);
            let requests = requests.iter().map(|request| &request.value);
            let own = requests.filter(|request| request.session == session);
            SessionState {
                session,
                life: state.life,
                lease: state.lease,
                silent: heartbeat.map(|beat| time_between(beat.version, now)),
                wall: heartbeat.map(|beat| unix_time(beat.wall_millis)),
                held: held.count,
                holds_more: held.has_more,
                oldest_grant: held.oldest_grant.map(unix_time),
                wanted: own.map(|request| u64::from(request.wanted)).sum(),
            }
        };
        Ok(sessions.into_iter().zip(held).map(state).collect())
    }

    async fn held_by(&self, tr: &impl Transaction, session: SessionId) -> Result<HeldItems> {
        let part = self.keys.held(session);
        let ranges = [part.subspace().range(), self.keys.grants(session)];
        let [held, granted] = ranges.map(|(begin, end)| {
            let query = RangeQuery::keys(begin, end).limit(ITEMS_PER_SESSION);
            let query = query.mode(StreamingMode::WantAll);
            tr.get_range(&query, Isolation::Snapshot)
        });
        let (held, granted) = try_join!(held, granted)?;
        // An item that does not decode is held, too.
        let mut grants = Vec::new();
        for row in &held.rows {
            let record = part.parse_listed(row)?.value;
            grants.push(record.map_or(0, |record| record.granted_millis));
        }
        for row in granted.rows.iter().filter(|row| !is_turn(row.value())) {
            let part = Part::decode(row.key(), row.to_value());
            grants.push(part.map_or(0, |part| part.item.value.granted_millis));
        }
        Ok(HeldItems {
            count: grants.len(),
            has_more: held.more || granted.more,
            oldest_grant: grants.into_iter().filter(|millis| *millis != 0).min(),
        })
    }
}

/// The items that a session holds.
struct HeldItems {
    count: usize,
    has_more: bool,
    oldest_grant: Option<u64>,
}

/// Returns the time between two versions. A recovery of the store makes it appear longer.
fn time_between(earlier: i64, later: i64) -> Duration {
    let versions = later.saturating_sub(earlier).max(0);
    Duration::from_secs_f64(versions as f64 / limits::VERSIONS_PER_SECOND as f64)
}
