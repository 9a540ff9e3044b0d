//! Looking at the queues of a store.
//!
//! - `payload`: values by their codecs.
//! - `dequeue`: items, sessions, schedules and settings of queues with consumers; `item_keys`: keys of their items;
//!   `batches`: their batches; `audit` checks them.
//! - `combine`, `export`: combine queues and export queues.
//! - `keys`: keys of the store, by the schema.

mod audit;
mod batches;
mod combine;
mod dequeue;
mod export;
mod item_keys;
mod keys;
mod payload;

use export_queue::ExportQueue;
use export_queue::combine::CombineQueue;
use export_queue::hc_dequeue::Queue;
use export_queue::hc_dequeue::session::{Life, SessionId, Sessions, State};
use export_queue::keyspace::codec::Raw;
use export_queue::keyspace::error::corrupt_key;
use export_queue::keyspace::ids::{Ids, RegisteredRecipe};
use export_queue::keyspace::limits::time_between;
use export_queue::keyspace::names::{hex, parse_queue_name, queue_name};
use export_queue::keyspace::{self, Bytes, Database, Listed, Runner, Store, Transaction, embedded};
use export_queue::microqueue::MicroQueue;
use futures::stream::{self, StreamExt};

pub(crate) use self::batches::{BATCHES, missing_batch, parse_batch};
pub use self::combine::Combiner;
pub(crate) use self::combine::{Combine, parse_aside};
pub use self::dequeue::parse_place;
pub(crate) use self::dequeue::{count_of, missing_item, parse_item};
pub(crate) use self::export::{Export, parse_sequence};
pub(crate) use self::item_keys::{ITEM_KEYS, limits_of, read_default_limits};
pub(crate) use self::payload::decode;
use crate::error::{Error, Result};
use crate::report;

/// How many queues a page shows at most.
pub const MAX_QUEUES: usize = 1_000;

/// How many queues are read at the same time.
const STATES_AT_ONCE: usize = 16;

/// How many items of a microqueue are counted.
const MAX_COUNTED: usize = 10_000;

/// How many rows a page of a listing reads at most.
pub const MAX_ROWS: usize = 1_000;

/// How many records a page reads at most where a record can have 100 kB: dead letters of an export queue, what a
/// combine queue has set aside, and batches, which contain their callbacks. Also how many keys of items, of each of
/// which 200 kB are counted.
const MAX_RECORDS: usize = 100;

/// A store as operators see it. Every read is a transaction of its own, by snapshot, so that looking never makes
/// another transaction fail.
#[derive(Debug, Clone)]
pub struct Console {
    pub(crate) runner: Runner<Store>,
    /// The runner of what only reads, which does not enter itself in the ledger.
    pub(crate) reader: Runner<Store>,
    ids: Ids,
}

/// A queue that was found by its name.
pub(crate) enum Found {
    Microqueue(Microqueue),
    Dequeue(Dequeue),
    Combine(Combine),
    Export(Export),
}

impl Found {
    /// Returns the queue's recipe.
    fn recipe(&self) -> &'static str {
        match self {
            Self::Microqueue(_) => "microqueue",
            Self::Dequeue(_) => "hc-dequeue",
            Self::Combine(_) => "combine",
            Self::Export(_) => "export-queue",
        }
    }

    /// Returns the error that a queue of this recipe has nothing of what was asked for.
    pub(crate) fn has_no(&self, name: &str, what: &'static str) -> Error {
        Error::WrongRecipe {
            name: name.to_owned(),
            recipe: self.recipe().to_owned(),
            what,
        }
    }
}

/// A queue without consumers' sessions, in commit order.
pub(crate) struct Microqueue {
    queue: MicroQueue<Bytes, Raw>,
}

/// A queue with consumers, and the name of its codec.
pub(crate) struct Dequeue {
    pub(crate) name: String,
    pub(crate) queue: Queue<Bytes, Raw>,
    pub(crate) codec: String,
}

impl Console {
    /// Looks at the store of a runner, for queues in the [default registry](Ids::default).
    #[must_use]
    pub fn new<D: Database>(runner: &Runner<D>) -> Self {
        let runner = runner.on_store();
        let reader = runner.idempotent();
        let ids = Ids::default();
        Self {
            runner,
            reader,
            ids,
        }
    }

    /// Looks for queues in another registry.
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// Returns a page of the queues, and how they stand: up to `limit` after the one of this name.
    ///
    /// # Errors
    /// [`Error::NoQueue`] for a name that no queue can have, and those of the store.
    pub async fn queues(&self, after: Option<&str>, limit: usize) -> Result<report::Queues> {
        let after = after.map(parse_name).transpose()?;
        let ids = &self.ids;
        let after = after.as_ref();
        let limit = limit.clamp(1, MAX_QUEUES);
        let read = |tr| async move { ids.recipes(&tr, after, limit + 1).await };
        let mut recipes: Vec<Listed<_, _>> = self.reader.run(read).await?;
        let next = next_page(&mut recipes, limit).map(|last| queue_name(&last.id));
        let states = recipes.into_iter().map(|recipe| self.row_of(recipe));
        let queues = stream::iter(states).buffered(STATES_AT_ONCE).collect();
        Ok(report::Queues {
            queues: queues.await,
            next,
        })
    }

    /// Returns how a queue stands.
    ///
    /// # Errors
    /// [`Error::NoQueue`], and those of the store.
    pub async fn queue(&self, name: &str) -> Result<report::Queue> {
        let recipe = self.registered(name).await?;
        let state = self.state_of(&recipe).await?;
        Ok(queue_of(recipe, state))
    }

    /// Returns how a queue stands, or why that is not known: a queue that cannot be read must not hide the others.
    async fn row_of(&self, listed: Listed<keyspace::Subspace, RegisteredRecipe>) -> report::Queue {
        let recipe = match listed.value {
            Ok(recipe) => recipe,
            Err(error) => {
                return report::Queue {
                    name: queue_name(&listed.id),
                    prefix: hex(listed.id.bytes()),
                    codecs: Vec::new(),
                    state: report::QueueState::Unreadable {
                        registered: "unknown".to_owned(),
                        problem: error.to_string(),
                    },
                };
            }
        };
        let state = self.state_of(&recipe).await;
        let unknown =
            |error: Error| unreadable_state(&recipe, keyspace::error::chain(&error).to_string());
        let state = state.unwrap_or_else(unknown);
        queue_of(recipe, state)
    }

    async fn state_of(&self, recipe: &RegisteredRecipe) -> Result<report::QueueState> {
        let state = match self.open(recipe.clone()).await {
            Ok(Found::Microqueue(found)) => self.microqueue_state(&found).await,
            Ok(Found::Dequeue(found)) => self.dequeue_state(&found).await,
            Ok(Found::Combine(found)) => self.combine_state(&found).await,
            Ok(Found::Export(found)) => self.export_state(&found).await,
            Err(error) => Err(error),
        };
        match state.map_err(|error| unreadable(&queue_name(&recipe.subspace), error)) {
            Err(Error::Unreadable { problem, .. }) => Ok(unreadable_state(recipe, problem)),
            state => state,
        }
    }

    /// Returns what is registered under a name.
    async fn registered(&self, name: &str) -> Result<RegisteredRecipe> {
        let ids = &self.ids;
        let subspace = &parse_name(name)?;
        let read = |tr| async move { ids.recipe(&tr, subspace).await };
        let recipe: Option<RegisteredRecipe> = self.reader.run(read).await?;
        let name = name.to_owned();
        recipe.ok_or(Error::NoQueue { name })
    }

    /// Opens a queue by what is registered of it.
    async fn open(&self, recipe: RegisteredRecipe) -> Result<Found> {
        let runner = &self.reader;
        let subspace = recipe.subspace;
        let name = queue_name(&subspace);
        match &*recipe.name {
            "microqueue" => Ok(Found::Microqueue(Microqueue {
                queue: MicroQueue::new(subspace),
            })),
            "hc-dequeue" => {
                let found = Queue::inspect(runner, subspace).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codec = stored.codec;
                Ok(Found::Dequeue(Dequeue { name, queue, codec }))
            }
            "combine" => {
                let found = CombineQueue::inspect(runner, subspace, combine::keep).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codecs = stored.codecs;
                Ok(Found::Combine(Combine { queue, codecs }))
            }
            "export-queue" => {
                let found = ExportQueue::inspect(runner, subspace).await;
                let (queue, stored) = settings_of(&name, found)?;
                let codecs = stored.codecs;
                Ok(Found::Export(Export { queue, codecs }))
            }
            other => Err(Error::Unreadable {
                name,
                problem: format!("this version does not know the recipe {other}: upgrade it"),
            }),
        }
    }

    /// Finds a queue of any recipe.
    pub(crate) async fn find(&self, name: &str) -> Result<Found> {
        self.open(self.registered(name).await?).await
    }

    /// Finds a queue with consumers.
    pub(crate) async fn find_dequeue(&self, name: &str, what: &'static str) -> Result<Dequeue> {
        match self.find(name).await? {
            Found::Dequeue(found) => Ok(found),
            other => Err(other.has_no(name, what)),
        }
    }

    async fn microqueue_state(&self, found: &Microqueue) -> Result<report::QueueState> {
        let queue = &found.queue;
        let count = |tr| async move { queue.count_up_to(&tr, MAX_COUNTED).await };
        let counted = self.reader.run(count).await?;
        Ok(report::QueueState::Microqueue(report::MicroqueueState {
            items: counted.count,
            has_more: counted.has_more,
        }))
    }

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
        let of = |(place, process): (usize, embedded::Process)| report::Process {
            role: if place == 0 { "owner" } else { "client" }.to_owned(),
            program: process.program,
            pid: process.pid,
        };
        let is_shared = processes.len() > 1;
        let shown = is_shared.then(|| processes.into_iter().enumerate().map(of));
        Ok(shown.into_iter().flatten().collect())
    }

    /// Returns sessions with their signs of life, without what they hold.
    async fn session_lives(&self, sessions: &Sessions) -> Result<Vec<report::Session>> {
        let read = |tr| async move { session_lives(&tr, sessions).await };
        self.reader.run(read).await
    }

    /// Counts the sessions that live.
    pub(crate) async fn living(&self, sessions: &Sessions) -> Result<usize> {
        let sessions = self.session_lives(sessions).await?;
        let living = sessions.iter().filter(|session| session.life == "alive");
        Ok(living.count())
    }
}

fn queue_of(recipe: RegisteredRecipe, state: report::QueueState) -> report::Queue {
    report::Queue {
        name: queue_name(&recipe.subspace),
        prefix: hex(recipe.subspace.bytes()),
        codecs: recipe.codecs,
        state,
    }
}

fn unreadable_state(recipe: &RegisteredRecipe, problem: String) -> report::QueueState {
    report::QueueState::Unreadable {
        registered: recipe.name.clone(),
        problem,
    }
}

/// Cuts a page for which one row more than its `limit` was asked, and returns its last row if something follows.
fn next_page<T>(rows: &mut Vec<T>, limit: usize) -> Option<&T> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| has_more)
}

/// Returns the subspace that has a name.
fn parse_name(name: &str) -> Result<keyspace::Subspace> {
    parse_queue_name(name).ok_or_else(|| Error::NoQueue {
        name: name.to_owned(),
    })
}

/// Returns what was found of a queue, or why it cannot be read.
fn settings_of<T, E>(name: &str, found: Result<Option<T>, E>) -> Result<T>
where
    E: std::error::Error + Into<Error>,
{
    let found = found.map_err(|error| unreadable(name, error.into()))?;
    found.ok_or_else(|| Error::Unreadable {
        name: name.to_owned(),
        problem: "it is registered and has no settings: it was cleared".to_owned(),
    })
}

/// Returns that a queue cannot be read, if the error is that something in it does not decode.
fn unreadable(name: &str, error: Error) -> Error {
    if corrupt_key(&error).is_some() {
        Error::Unreadable {
            name: name.to_owned(),
            problem: format!(
                "{}: upgrade if a newer version has written it, or else look for damage with `audit`",
                keyspace::error::chain(&error)
            ),
        }
    } else {
        error
    }
}

/// Returns the sessions with their signs of life, without what they hold.
pub(crate) async fn session_lives(
    tr: &impl Transaction,
    sessions: &Sessions,
) -> Result<Vec<report::Session>> {
    let (states, heartbeats, now) =
        futures::try_join!(sessions.all(tr), sessions.heartbeats(tr), tr.read_version())?;
    let session = |(session, state): (SessionId, keyspace::Result<State>)| {
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                return report::Session {
                    session: session.to_string(),
                    life: "unreadable".to_owned(),
                    problem: Some(keyspace::error::chain(&error).to_string()),
                    ..report::Session::default()
                };
            }
        };
        let heartbeat = heartbeats.iter().find(|beat| beat.session == session);
        let silent = heartbeat.map(|beat| time_between(beat.version, now).as_secs_f64());
        report::Session {
            session: session.to_string(),
            subscription: None,
            life: life_text(state.life, state.lease.as_secs_f64(), silent).to_owned(),
            lease_seconds: state.lease.as_secs_f64(),
            silent_seconds: silent,
            wall: heartbeat.map(|beat| report::Time::from_millis(beat.wall_millis)),
            held: None,
            in_reserve: None,
            has_more: false,
            oldest_grant: None,
            wanted: None,
            problem: None,
        }
    };
    Ok(states.into_iter().map(session).collect())
}

/// Returns the text of a session's life.
fn life_text(life: Life, lease_seconds: f64, silent_seconds: Option<f64>) -> &'static str {
    match life {
        Life::Alive if silent_seconds.is_none_or(|silent| silent > lease_seconds) => "silent",
        Life::Alive => "alive",
        Life::Dead => "dead",
        Life::Ended => "ended",
    }
}
