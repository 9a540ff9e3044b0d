//! Inspection of any queue by tools: a handle that needs no types, and the sessions with the items that they hold.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryFutureExt, TryStreamExt, stream, try_join};
use microqueue::keyspace::codec::{Codec, Raw};
use microqueue::keyspace::limits::time_between;
use microqueue::keyspace::{
    self, Bytes, Database, Isolation, KeyValue, Listed, RangeQuery, Runner, StreamingMode,
    Subspace, Transaction, key_after, visit_rows,
};

use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::record::{ListedGrantPart, Record, Reserve, is_signal};
use crate::items::settings::{KnownSettings, SettingsRecord};
use crate::items::settings_row::find_settings;
use crate::queue::handle::Queue;
use crate::queue::list::undecodable;
use crate::session::wall::unix_time;
use crate::session::{Heartbeat, Life, STATES, SessionId, Sessions, State};

/// The largest number of sessions on a page.
const MAX_PAGE_SESSIONS: usize = 1_000;

/// How many rows are searched for the sessions of a page. There are more rows than sessions only if another program
/// has written into the queue's subspace.
const MAX_PAGE_ROWS: usize = 2 * MAX_PAGE_SESSIONS;

/// How many sessions are read at the same time.
const MAX_CONCURRENT_SESSIONS: usize = 64;

/// How many items of a session are counted in each of the two parts where they may be.
const MAX_COUNTED_ITEMS: usize = 1_000;

/// How many bytes of keys and values are read to count these items.
const MAX_COUNTED_BYTES: usize = 1_000_000;

/// How many requests are counted.
const MAX_REQUESTS: usize = 10_000;

/// A page of the sessions of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionPage {
    /// The sessions, in the order of their names. One whose state or heartbeat does not decode is listed with the
    /// reason.
    pub sessions: Vec<Listed<SessionId, SessionState>>,
    /// The session after which the next page begins. `None` if this is the last page.
    pub next: Option<SessionId>,
}

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
    /// How many items it holds, including those that it has not collected yet. Counts up to a thousand items or a
    /// million bytes of each kind.
    pub held: usize,
    /// How many of them its worker has taken ahead of its handlers. An item that was handed out since counts until its
    /// handler has run for about eight seconds with the default lease: five seconds, and until the next heartbeat.
    pub in_reserve: usize,
    /// Whether it holds more items than were counted.
    pub holds_more: bool,
    /// When the oldest of the counted items was granted, by the wall clock of the granting process.
    pub oldest_grant: Option<SystemTime>,
    /// How many items it has requested and is waiting for, in the first 10,000 requests of the queue.
    pub wanted: u64,
}

impl Queue<Bytes, Raw> {
    /// Opens an existing queue of any codec, for tools that do not know the queue's types. Payloads are the stored
    /// bytes.
    ///
    /// Returns the handle with the queue's settings and the name of its codec, or `None` if `subspace` contains no
    /// queue. Creates and registers nothing. Values that such a handle enqueues must be encoded by the queue's codec.
    ///
    /// ```
    /// use hc_dequeue::keyspace::codec::Raw;
    /// use hc_dequeue::keyspace::{self, Bytes, Runner};
    /// use hc_dequeue::{PlaceKind, Queue};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let queue = Queue::<u64>::open(&runner, "jobs").await?;
    /// runner.run(|tr| { let queue = queue.clone(); async move { queue.enqueue(&tr, &7).await } }).await?;
    ///
    /// let found = Queue::<Bytes, Raw>::inspect(&runner, "jobs").await?;
    /// let (queue, stored) = &found.expect("the queue was created");
    /// assert_eq!(stored.codec, "MessagePack");
    /// let list = async |tr| queue.list(&tr, PlaceKind::Queued, None, 10).await;
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
        subspace: impl Into<Subspace>,
    ) -> Result<Option<(Self, SettingsRecord)>> {
        let keys = &Keys::new(subspace.into(), runner.environment().clone());
        // Safe as a snapshot read: nothing is written, and sessions read the settings again at each heartbeat.
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

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the queue's sessions. They can be listed without reading the items that they hold.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.keys.sessions
    }

    /// Returns a page of the sessions of the queue, with the items that each of them holds and requests: up to `limit`
    /// sessions, at most 1,000, after the session `after`, or the first ones. Keys that name no session are left out.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the reads.
    pub async fn session_states(
        &self,
        tr: &impl Transaction,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage> {
        let limit = limit.min(MAX_PAGE_SESSIONS);
        if limit == 0 {
            let sessions = Vec::new();
            return Ok(SessionPage {
                sessions,
                next: after,
            });
        }
        let (rows, wanted, now) = try_join!(
            self.session_rows(tr, after, limit),
            self.wanted(tr),
            tr.read_version().map_err(Error::from),
        )?;
        let (rows, has_more) = rows;
        let next = match rows.last() {
            Some((session, _)) if has_more => Some(*session),
            _ => None,
        };
        let states = rows.into_iter().map(|(session, row)| {
            let wanted = wanted.get(&session).copied().unwrap_or(0);
            async move { self.session_state(tr, session, &row, now, wanted).await }
        });
        let sessions = stream::iter(states).buffered(MAX_CONCURRENT_SESSIONS);
        Ok(SessionPage {
            sessions: sessions.try_collect().await?,
            next,
        })
    }

    /// Reads the rows of the sessions on a page. Returns also whether there are more.
    async fn session_rows(
        &self,
        tr: &impl Transaction,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<(SessionId, KeyValue)>, bool)> {
        let (begin, end) = self.keys.part(Part::Sessions);
        let begin = after.map_or(begin, |after| key_after(&self.keys.sessions.state(after)));
        let query = RangeQuery::keys(begin, end).limit(MAX_PAGE_ROWS);
        let mut sessions = Vec::new();
        let mut has_more = false;
        // Safe as a snapshot read: the page shows the sessions at the read version, and nothing is written.
        let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
            if let Ok(session) = self.keys.sessions.parse_session(STATES, row.key()) {
                has_more = sessions.len() == limit;
                if has_more {
                    return Ok(ControlFlow::Break(()));
                }
                sessions.push((session, row));
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        });
        visited.await?;
        Ok((sessions, has_more))
    }

    /// Returns how many items each session has requested. Leaves out requests that do not decode.
    async fn wanted(&self, tr: &impl Transaction) -> Result<BTreeMap<SessionId, u64>> {
        let mut wanted = BTreeMap::new();
        for part in [Part::Requests, Part::KindRequests] {
            let (begin, end) = self.keys.part(part);
            let query = RangeQuery::keys(begin, end).limit(MAX_REQUESTS);
            // Safe as a snapshot read, as in `session_rows`.
            let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
                let registry = self.keys.parse_registry(row.key());
                if let Ok(request) = self.keys.registry(registry).decode(&row) {
                    let of_session: &mut u64 = wanted.entry(request.value.session).or_default();
                    *of_session += u64::from(request.value.wanted);
                }
                Ok::<_, Error>(ControlFlow::Continue(()))
            });
            visited.await?;
        }
        Ok(wanted)
    }

    /// Returns the state of a session at the version `now`, or why it does not decode.
    async fn session_state(
        &self,
        tr: &impl Transaction,
        session: SessionId,
        row: &KeyValue,
        now: i64,
        wanted: u64,
    ) -> Result<Listed<SessionId, SessionState>> {
        let key = self.keys.sessions.heartbeat(session);
        // Safe as snapshot reads, as in `session_rows`.
        let (heartbeat, held) = try_join!(
            tr.get(&key, Isolation::Snapshot).map_err(Error::from),
            self.held_by(tr, session)
        )?;
        let heartbeat = heartbeat.map(|value| KeyValue::new(&key, &value));
        let sessions = &self.keys.sessions;
        let State { life, lease } = match sessions.parse_state_row(row) {
            Ok((_, state)) => state,
            Err(error) => return undecodable_session(session, error, row),
        };
        let heartbeat: Option<Heartbeat> = match &heartbeat {
            Some(row) => match sessions.parse_heartbeat_row(row) {
                Ok(heartbeat) => Some(heartbeat),
                Err(error) => return undecodable_session(session, error, row),
            },
            None => None,
        };
        let state = SessionState {
            session,
            life,
            lease,
            silent: heartbeat.map(|beat| time_between(beat.version, now)),
            wall: heartbeat.map(|beat| unix_time(beat.wall_millis)),
            held: held.count,
            in_reserve: held.in_reserve,
            holds_more: held.has_more,
            oldest_grant: held.oldest_grant.map(unix_time),
            wanted,
        };
        Ok(Listed {
            id: session,
            value: Ok(state),
        })
    }

    async fn held_by(&self, tr: &impl Transaction, session: SessionId) -> Result<HeldItems> {
        let part = self.keys.held(session);
        let held = count_items(tr, part.subspace().range(), |row| {
            part.parse_listed(row).ok()?.value.ok()
        });
        let granted = count_items(tr, self.keys.grants(session), |row| {
            let part = ListedGrantPart::decode(row.key(), row.to_value()).ok()?;
            part.item.value.ok()
        });
        let (held, granted) = try_join!(held, granted)?;
        let oldest = [held.oldest_grant, granted.oldest_grant];
        Ok(HeldItems {
            count: held.count + granted.count,
            in_reserve: held.in_reserve,
            has_more: held.has_more || granted.has_more,
            oldest_grant: oldest.into_iter().flatten().min(),
        })
    }
}

/// Lists a session of which a row does not decode, if that is the error.
fn undecodable_session(
    session: SessionId,
    error: keyspace::Error,
    row: &KeyValue,
) -> Result<Listed<SessionId, SessionState>> {
    let why = undecodable(error.into(), row, "a session")?;
    Ok(Listed {
        id: session,
        value: Err(why),
    })
}

/// Counts the items in a range of held or granted items, including those of which `decode` returns no record.
async fn count_items(
    tr: &impl Transaction,
    (begin, end): (Vec<u8>, Vec<u8>),
    decode: impl Fn(&KeyValue) -> Option<Record>,
) -> Result<HeldItems> {
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    let mut found = HeldItems::default();
    let mut row_bytes = 0;
    // Safe as a snapshot read: the count is that of the read version, and nothing is written.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
        if is_signal(row.value()) {
            return Ok(ControlFlow::Continue(()));
        }
        if found.count == MAX_COUNTED_ITEMS || row_bytes >= MAX_COUNTED_BYTES {
            found.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        found.count += 1;
        row_bytes += row.key().len() + row.value().len();
        if let Some(record) = decode(&row) {
            found.in_reserve += usize::from(record.reserve != Reserve::Out);
            let granted = Some(record.granted_millis).filter(|millis| *millis != 0);
            found.oldest_grant = found.oldest_grant.into_iter().chain(granted).min();
        }
        Ok::<_, Error>(ControlFlow::Continue(()))
    });
    visited.await?;
    Ok(found)
}

/// The items that a session holds.
#[derive(Default)]
struct HeldItems {
    count: usize,
    /// How many of them were granted into a reserve.
    in_reserve: usize,
    has_more: bool,
    oldest_grant: Option<u64>,
}
