//! The transactions of the protocol: the crate's own functions, on [rows](super::rows) for which the database of the
//! model stands.
//!
//! A function does the same whenever it finds the same database. So it runs once for each database on which the model
//! needs it, and the model remembers what it has staged and what its caller has learned. States are far more than
//! databases, since a state also has the memory of processes and the transactions in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::checker_store::{CheckerTransaction, Recorded, finish};
use microqueue::ItemId;
use microqueue::keyspace::{Bytes, Isolation, MessagePack, Transaction};
use parking_lot::Mutex;

use super::database::{ABSENT, Database, Key, Staged};
use super::fault::NOTHING_CHANGED;
use super::mistake::{Mistake, Planted};
use super::rows::{HEARTBEAT, LEASE, Layout, Stored, item_id, request_id, session_id};
use super::state::ModelWatch;
use crate::consume::policy::{Event, Scope};
use crate::items::error::Result;
use crate::items::settings::{KnownSettings, Settings};
use crate::items::value::{Decode, Value};
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::{TakeMode, Taken, fulfill, take, view_queue};
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When, give_back};
use crate::protocol::grant::is_answered;
use crate::protocol::reclaim::{reclaim_items, remove_requests, remove_session};
use crate::protocol::request::{
    Precedence, append, collect, is_first, precedence, register, supply, watch_pause,
    watch_request, withdraw,
};
use crate::protocol::{Demand, MAX_FULFILLMENT_ITEMS, SessionContext};
use crate::queue::handle::Queue;

/// The most databases that are remembered.
const MAX_REMEMBERED: usize = 1 << 20;

/// A transaction, named after the function of the crate that stages it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `Queue::enqueue`, of the next item.
    Enqueue,
    /// `Queue::pause`.
    Pause,
    /// `Queue::resume`.
    Resume,
    /// `Sessions::open`.
    Open,
    /// `Sessions::beat`.
    Beat,
    /// `fulfill::view_queue` and `fulfill::take`.
    Take,
    /// `request::register`.
    Register,
    /// `fulfill::fulfill`.
    Fulfill {
        /// Whether the session knows of a request of its own.
        has_request: bool,
        /// Whether its consumer wants items.
        wants: bool,
        /// Whether it grants nothing.
        hands_over: bool,
    },
    /// What a dispatcher checks: `grant::is_answered`, and then `request::is_first`, `supply` and `precedence`.
    Check {
        scope: Scope,
        /// Whether it registers a request if there is an answer.
        asks: bool,
    },
    /// `request::collect`, and `request::append` if the session asks again.
    Collect { asks: bool },
    /// `request::watch_pause`.
    WatchPause,
    /// `request::withdraw`.
    Withdraw,
    /// `give_back::give_back`, of a completed item by the number of its grant, in the transaction that gives the item
    /// its effect.
    Acknowledge { item: usize, number: u8 },
    /// `give_back::give_back`, of an item that `reclaim::held_after` has found.
    GiveBack(usize),
    /// `Sessions::declare_dead`, of a session whose last heartbeat is old.
    DeclareDead,
    /// `reclaim::reclaim_items`.
    ReturnItems,
    /// `Sessions::end`.
    End,
    /// `reclaim::remove_requests` and `reclaim::remove_session`, in one transaction.
    Remove,
}

/// What an action has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ActionOutcome {
    /// The staged writes, or `None` if there are none.
    pub(super) staged: Option<Staged>,
    /// What a dispatcher reports to its policy.
    pub(super) event: Option<Event<()>>,
    /// The watch that it has set.
    pub(super) watches: Option<ModelWatch>,
}

/// The rows of a database, and the outcomes of functions on them, by session and action.
#[derive(Debug)]
struct Known {
    stored: Stored,
    outcomes: Vec<(usize, Action, ActionOutcome)>,
}

/// The functions of the protocol, on the databases of a model.
pub(super) struct Functions {
    pub(super) wanted: usize,
    /// The rule that is broken.
    mistake: Option<Mistake>,
    layout: Layout,
    queue: Queue<u8>,
    settings: Settings,
    fronts: Fronts,
    decode: Box<Decode>,
    known: Mutex<BTreeMap<Database, Known>>,
}

impl Functions {
    pub(super) fn new(wanted: usize, mistake: Option<Mistake>) -> Self {
        let layout = Layout::new(wanted);
        // The number of a grant is all that a database knows of the history of an item.
        let settings = Settings::new()
            .with_lease(LEASE)
            .with_max_deaths(u32::MAX)
            .with_max_deliveries(u32::MAX);
        let queue = Queue {
            keys: layout.keys.clone(),
            settings: KnownSettings::new(settings.clone()),
            codec: MessagePack,
            value: std::marker::PhantomData,
        };
        Self {
            wanted,
            mistake,
            layout,
            queue,
            settings,
            fronts: Fronts::new(Duration::ZERO),
            decode: Box::new(|_| Ok(Value::new(0_u8))),
            known: Mutex::default(),
        }
    }

    /// Returns how many databases are remembered, and how many runs of functions on them.
    pub(super) fn counts(&self) -> (usize, usize) {
        let known = self.known.lock();
        let runs = known.values().map(|known| known.outcomes.len());
        (known.len(), runs.sum())
    }

    /// Runs an action of a session or, if it reclaims one, on a session. Other actions ignore `session`.
    pub(super) fn run(&self, db: &Database, session: usize, action: Action) -> ActionOutcome {
        let stored = {
            let known = self.known.lock();
            let known = known.get(db);
            let outcomes = known.iter().flat_map(|known| &known.outcomes);
            for (by, known, outcome) in outcomes {
                if *by == session && *known == action {
                    return *outcome;
                }
            }
            known.map(|known| known.stored.clone())
        };
        let stored = stored.unwrap_or_else(|| self.layout.store(db));
        let outcome = self.run_on(db, &stored, session, action);
        let mut known = self.known.lock();
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        let known = known.entry(*db).or_insert_with(|| Known {
            stored,
            outcomes: Vec::new(),
        });
        known.outcomes.push((session, action, outcome));
        outcome
    }

    /// Returns what an action stages.
    pub(super) fn stage(&self, db: &Database, session: usize, action: Action) -> Option<Staged> {
        self.run(db, session, action).staged
    }

    fn run_on(
        &self,
        db: &Database,
        stored: &Stored,
        session: usize,
        action: Action,
    ) -> ActionOutcome {
        let planted = Planted {
            mistake: self.mistake,
            keys: self.layout.keys.clone(),
            session,
            action,
        };
        let tr = CheckerTransaction::begin(&stored.rows, HEARTBEAT, planted.clone());
        let performed = finish(self.perform(&tr, db, session, action));
        let (event, is_staged) = match performed.expect("the rows of the model decode") {
            Performed::Reports(event) => (Some(event), true),
            Performed::Silently => (None, true),
            Performed::Nothing => (None, false),
        };
        let mut recorded = tr.into_recorded();
        planted.change(db, &mut recorded);
        if matches!(action, Action::ReturnItems | Action::Remove) {
            // The search for items and requests reads by snapshot. In the model it is in conflict, which saves a step.
            recorded.conflicts.extend_from_slice(&recorded.reads);
        }
        let staged = self.layout.staged(db, stored, &recorded);
        // Others commit in the step in which they begin.
        let may_wait = matches!(action, Action::Take | Action::Fulfill { .. });
        let is_serializable = staged.is_none_or(|staged| staged.is_serializable());
        assert!(
            may_wait || is_serializable || self.mistake.is_some(),
            "{action:?} reads by snapshot: {recorded:?}"
        );
        ActionOutcome {
            staged: staged.filter(|_| is_staged),
            event,
            watches: self.watches(&recorded),
        }
    }

    /// Returns what a transaction watches.
    fn watches(&self, recorded: &Recorded) -> Option<ModelWatch> {
        let keys = &self.layout.keys;
        let has = |key: Vec<u8>| recorded.watches.contains(&key);
        if recorded.watches.is_empty() {
            None
        } else if has(keys.pause()) {
            Some(ModelWatch::Resumed)
        } else if has(keys.wake()) {
            Some(ModelWatch::GrantOrWake)
        } else {
            Some(ModelWatch::Grant)
        }
    }

    async fn perform(
        &self,
        tr: &CheckerTransaction<Planted>,
        db: &Database,
        session: usize,
        action: Action,
    ) -> Result<Performed> {
        let keys = &*self.layout.keys;
        let sessions = &keys.sessions;
        let name = session_id(session);
        let wall = keys.env.wall();
        let context = self.context(session, &[]);
        match action {
            Action::Enqueue => drop(self.queue.enqueue(tr, &0).await?),
            Action::Pause => self.queue.pause(tr),
            Action::Resume => self.queue.resume(tr),
            Action::Open => sessions.open(tr, name, LEASE, wall),
            Action::Beat => drop(sessions.beat(tr, name, LEASE, wall).await?),
            Action::End => sessions.end(tr, name).await?,
            Action::DeclareDead => {
                let is_old = |_| Some(HEARTBEAT);
                sessions.declare_dead(tr, name, is_old).await?;
            }
            Action::ReturnItems => {
                reclaim_items(tr, keys, &self.settings, name).await?;
            }
            Action::Remove => {
                remove_requests(tr, keys, name).await?;
                if !remove_session(tr, keys, name).await? {
                    // `reclaim::reclaim_step` comes here only after everything that decodes was returned.
                    return Ok(Performed::Nothing);
                }
            }
            Action::Acknowledge { item, number } => {
                return self.acknowledge(tr, db, session, item, number).await;
            }
            Action::GiveBack(item) => {
                let held = db.get(Key::Held(session, item));
                let how = GiveBack::Returned(When::Now);
                give_back(tr, context, &[of(item, held, how)]).await?;
            }
            _ => {
                let event = self.dispatch(tr, db, session, action).await?;
                return Ok(Performed::Reports(event));
            }
        }
        Ok(Performed::Silently)
    }

    /// Performs an action of a dispatcher, and returns the event for its policy.
    async fn dispatch(
        &self,
        tr: &CheckerTransaction<Planted>,
        db: &Database,
        session: usize,
        action: Action,
    ) -> Result<Event<()>> {
        let keys = &*self.layout.keys;
        let demand = [Demand {
            wanted: self.wanted,
            pop: false,
        }];
        let name = session_id(session);
        let context = self.context(session, &demand);
        let id = request_id(db, session);
        Ok(match action {
            Action::Take => {
                let view = view_queue(tr, context, self.wanted, TakeMode::Now).await?;
                match take(tr, context, view, &Default::default())? {
                    Some(Taken::Items(items)) if items.is_empty() => Event::NoItem,
                    None | Some(Taken::Items(_)) => Event::Taken,
                    Some(Taken::HasRequests) => Event::Contended,
                    Some(Taken::Paused) => Event::IsPaused,
                    Some(Taken::SessionLost) => Event::SessionLost,
                }
            }
            Action::Register => match register(tr, context, self.wanted as u32).await? {
                Some(_) => Event::Registered(()),
                None => Event::SessionLost,
            },
            Action::Fulfill {
                has_request,
                wants,
                hands_over,
            } => {
                if self.mistake == Some(Mistake::NoNoticeInPause) && db.has(Key::Pause) {
                    return Ok(NOTHING_CHANGED);
                }
                let context = self.context(session, if wants { &demand } else { &[] });
                let max_items = if hands_over { 0 } else { MAX_FULFILLMENT_ITEMS };
                let fulfilled = fulfill(tr, context, has_request.then_some(id), max_items).await?;
                Event::Fulfilled {
                    has_changed: fulfilled.has_changed(),
                    own: fulfilled.own.is_some(),
                }
            }
            Action::Check { scope, asks } => self.check(tr, context, &id, scope, asks).await?,
            Action::Collect { asks } => self.collect(tr, context, &id, asks).await?,
            Action::WatchPause => match watch_pause(tr, keys).await? {
                Some(_) => Event::PauseWatched,
                None => Event::Resumed,
            },
            Action::Withdraw => {
                if withdraw(tr, keys, name, &id).await? {
                    Event::Withdrawn
                } else {
                    Event::NotWithdrawn
                }
            }
            _ => unreachable!("no action of a dispatcher"),
        })
    }

    /// What a dispatcher checks of a request: `check::check`, which is not among the functions of the protocol.
    async fn check(
        &self,
        tr: &CheckerTransaction<Planted>,
        context: SessionContext<'_>,
        request: &ItemId,
        scope: Scope,
        asks: bool,
    ) -> Result<Event<()>> {
        let keys = context.keys;
        if is_answered(tr, keys, context.session, request).await? {
            return self.collect(tr, context, request, asks).await;
        }
        let mut first = false;
        if scope != Scope::Answer {
            match is_first(tr, keys, request).await? {
                Some(is_first) => first = is_first,
                None => return Ok(Event::Gone),
            }
        }
        drop(watch_request(tr, keys, context.session, request, first));
        let sees_others = !first && scope == Scope::Precedence;
        let mut has_items = None;
        if first || sees_others {
            has_items = Some(supply(tr, context).await?.has_items);
        }
        let mut place = None;
        if sees_others {
            let Precedence { rank, .. } = precedence(tr, keys, request).await?;
            place = Some(Precedence { first: (), rank });
        }
        Ok(Event::Waits {
            is_first: first,
            has_items,
            precedence: place,
        })
    }

    /// Takes over an answer: `check::collect_and_register`, as above.
    async fn collect(
        &self,
        tr: &CheckerTransaction<Planted>,
        context: SessionContext<'_>,
        request: &ItemId,
        asks: bool,
    ) -> Result<Event<()>> {
        if collect(tr, context, request).await?.is_none() {
            return Ok(Event::NotAnswered);
        }
        if asks {
            append(tr, context, self.wanted as u32).await?;
        }
        Ok(Event::Answered {
            next: asks.then_some(()),
        })
    }

    async fn acknowledge(
        &self,
        tr: &CheckerTransaction<Planted>,
        db: &Database,
        session: usize,
        item: usize,
        number: u8,
    ) -> Result<Performed> {
        let number = match db.get(Key::Held(session, item)) {
            ABSENT => number,
            held if self.mistake == Some(Mistake::GrantNumberIgnored) => held,
            _ => number,
        };
        let completed = GiveBack::Completed(Bytes::new());
        let context = self.context(session, &[]);
        let given = give_back(tr, context, &[of(item, number, completed)]).await?;
        if given != [GivenBack::Accepted] {
            return Ok(Performed::Nothing);
        }
        let effect = Layout::effect(item);
        let count = tr.get(&effect, Isolation::Serializable).await?;
        let count = count.map_or(0, |count| count[0]);
        tr.set(&effect, &[count + 1]);
        Ok(Performed::Silently)
    }

    fn context<'a>(&'a self, session: usize, demand: &'a [Demand]) -> SessionContext<'a> {
        SessionContext {
            keys: &self.layout.keys,
            settings: &self.settings,
            session: session_id(session),
            promotes: true,
            demand,
            decode: &*self.decode,
            fronts: &self.fronts,
        }
    }
}

/// What the caller of an action has learned.
enum Performed {
    Reports(Event<()>),
    /// Nothing that its policy needs to know.
    Silently,
    /// That it must not commit.
    Nothing,
}

/// Returns the order to give an item back, by the number of its grant.
fn of(item: usize, number: u8, how: GiveBack) -> Return {
    Return {
        id: item_id(item),
        delivery: number.into(),
        how,
        reason: None,
    }
}
