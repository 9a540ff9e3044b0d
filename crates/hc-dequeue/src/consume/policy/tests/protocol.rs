//! The transactions of the protocol: the crate's own functions, on [rows](super::rows) for which the database of the
//! model stands.
//!
//! A function does the same whenever it finds the same database. So it runs once for each database on which the model
//! needs it, and the model remembers what it has staged and what its caller has learned. States are far more than
//! databases, since a state also has the memory of processes and the transactions in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::checker_store::{CheckerTransaction, RecordedAccess, finish};
use microqueue::ItemId;
use microqueue::keyspace::{Bytes, Isolation, MessagePack, Transaction};
use parking_lot::Mutex;

use super::bug::{Bug, PlantedBug};
use super::database::{ABSENT, Database, ITEMS, Key, STRANGER, Staged};
use super::policy_bug::NOTHING_CHANGED;
use super::rows::{
    HEARTBEAT, LEASE, Layout, NOTICED, Stored, item_id, request_id, session_id, strange,
};
use super::state::{Budget, ModelWatch};
use crate::consume::dispatcher::check::{Check, Checked, Collected, check, collect_and_register};
use crate::consume::policy::{Event, Scope};
use crate::items::MAX_STEP_ITEMS;
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::kind::Kinds;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::settings::{KnownSettings, Settings};
use crate::items::value::{Decode, Value};
use crate::lanes::LaneMemory;
use crate::lanes::ring::Ring;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::{GiveBack, GivenBack, Return, When, give_back};
use crate::protocol::reclaim::{reclaim_items, remove_requests, remove_session};
use crate::protocol::request::{Precedence, Wanted, register, watch_pause, withdraw};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Purpose, SessionContext, count_wanted};
use crate::queue::handle::Queue;

/// The most databases that are remembered. Each takes about 8 kB, so that all take at most 512 MiB.
const MAX_REMEMBERED: usize = 1 << 16;

/// For whom a session takes items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OwnDemand {
    /// For its consumer.
    pub(super) consumer: bool,
    /// One item for its reserve.
    pub(super) reserve: bool,
}

impl OwnDemand {
    /// Returns the demand of an action, which is that of its consumer unless it says otherwise.
    fn of(action: Action) -> Self {
        match action {
            Action::Take(demand) | Action::Fulfill { demand, .. } => demand,
            _ => Self {
                consumer: true,
                reserve: false,
            },
        }
    }
}

/// A transaction, named after the function of the crate that stages it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `Queue::enqueue`, of the next item.
    Enqueue,
    /// `Queue::pause`.
    Pause,
    /// `Queue::resume`.
    Resume,
    /// `Changes::add_notice`, as by a transaction that changes the limits of a group without items.
    Notice,
    /// `Sessions::open`.
    Open,
    /// `Sessions::beat`.
    Beat,
    /// `take::view_queue` and `take::take`.
    Take(OwnDemand),
    /// `request::register`.
    Register {
        /// Whether the request is also for an item for the reserve.
        reserve: bool,
    },
    /// `fulfill::fulfill`.
    Fulfill {
        /// Whether the session knows of a request of its own.
        has_request: bool,
        demand: OwnDemand,
        /// Whether it grants nothing.
        hands_over: bool,
    },
    /// `check::check`.
    Check {
        scope: Scope,
        /// Whether it registers a request if there is an answer.
        asks: bool,
    },
    /// `check::collect_and_register`.
    Collect {
        /// Whether it registers a request with the answer.
        asks: bool,
    },
    /// `request::watch_pause`.
    WatchPause,
    /// `request::withdraw`.
    Withdraw,
    /// `give_back::give_back`, of a completed item by the number of its grant, in the transaction that gives the item
    /// its effect.
    Acknowledge { item: usize, number: u8 },
    /// `give_back::give_back`, of an item that `reclaim::held_after` has found.
    GiveBack(usize),
    /// `give_back::give_back`, of items that were not handed out, by the numbers of their grants.
    GiveBackUnused([u8; ITEMS]),
    /// `Sessions::declare_dead`, of a session whose last heartbeat is old.
    DeclareDead,
    /// `reclaim::reclaim_items`.
    ReturnItems,
    /// `Sessions::end`.
    End,
    /// `reclaim::remove_requests` and `reclaim::remove_session`, in one transaction.
    Remove {
        /// Whether the session that removes them has another registry.
        from_afar: bool,
    },
}

impl Action {
    /// Returns for whom it takes items, if it may.
    pub(super) fn demand(self) -> Option<OwnDemand> {
        match self {
            Self::Take(demand) | Self::Fulfill { demand, .. } => Some(demand),
            _ => None,
        }
    }

    /// Returns whether it takes or requests an item for the reserve.
    pub(super) fn takes_ahead(self) -> bool {
        match self {
            Self::Register { reserve } => reserve,
            _ => self.demand().is_some_and(|demand| demand.reserve),
        }
    }
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

impl Known {
    /// Returns the outcome of an action of a session, if it was run before.
    fn outcome(&self, session: usize, action: Action) -> Option<ActionOutcome> {
        let mut outcomes = self.outcomes.iter();
        let found = outcomes.find(|(by, done, _)| *by == session && *done == action)?;
        Some(found.2)
    }
}

/// The functions of the protocol, on the databases of a model.
pub(super) struct Functions {
    pub(super) wanted: usize,
    /// The rule that is broken.
    bug: Option<Bug>,
    layout: Layout,
    queue: Queue<u8>,
    settings: Settings,
    fronts: Fronts,
    /// Those of the [`STRANGER`].
    strange_fronts: Fronts,
    decode: Box<Decode>,
    known: Mutex<BTreeMap<Database, Known>>,
}

impl Functions {
    pub(super) fn new(wanted: usize, bug: Option<Bug>, budget: &Budget) -> Self {
        let layout = Layout::new(wanted, budget);
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
            bug,
            layout,
            queue,
            settings,
            fronts: fronts_of(Kinds::unnamed()),
            strange_fronts: fronts_of(strange()),
            decode: Box::new(|_, _| Ok(Value::new(0_u8))),
            known: Mutex::default(),
        }
    }

    /// Returns how many databases are remembered, and how many runs of functions on them.
    pub(super) fn counts(&self) -> (usize, usize) {
        let databases = self.known.lock();
        let runs = databases.values().map(|known| known.outcomes.len());
        (databases.len(), runs.sum())
    }

    /// Runs an action of a session or, if it reclaims one, on a session. Other actions ignore `session`.
    pub(super) fn run(&self, db: &Database, session: usize, action: Action) -> ActionOutcome {
        let remembered = match self.known.lock().get(db) {
            None => None,
            Some(known) => match known.outcome(session, action) {
                Some(outcome) => return outcome,
                None => Some(known.stored.clone()),
            },
        };
        let stored = remembered.unwrap_or_else(|| self.layout.store(db));
        let outcome = self.run_on(db, &stored, session, action);
        let mut databases = self.known.lock();
        if databases.len() >= MAX_REMEMBERED {
            databases.clear();
        }
        let known = databases.entry(*db).or_insert_with(|| Known {
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
        let planted = PlantedBug {
            bug: self.bug,
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
        if matches!(
            action,
            Action::ReturnItems | Action::Remove { from_afar: false }
        ) {
            // The search for items and requests reads by snapshot. In the model it is in conflict, which saves a step.
            recorded.conflicts.extend_from_slice(&recorded.reads);
        }
        let staged = self.layout.staged(db, stored, &recorded);
        // Others commit in the step in which they begin.
        let may_wait = matches!(
            action,
            Action::Take(_) | Action::Fulfill { .. } | Action::Remove { from_afar: true }
        );
        let is_serializable = staged.is_none_or(|staged| staged.is_serializable());
        assert!(
            may_wait || is_serializable || self.bug.is_some(),
            "{action:?} reads by snapshot: {recorded:?}"
        );
        ActionOutcome {
            staged: if is_staged { staged } else { None },
            event,
            watches: self.watches(&recorded),
        }
    }

    /// Returns what a transaction watches.
    fn watches(&self, recorded: &RecordedAccess) -> Option<ModelWatch> {
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
        tr: &CheckerTransaction<PlantedBug>,
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
            Action::Notice => {
                let mut changes = Changes::default();
                changes.add_notice(&Bytes::from_static(NOTICED), RANK_OF_SLOT);
                changes.wake();
                changes.stage(tr, keys);
            }
            Action::Open => {
                sessions.open(tr, name, LEASE, wall);
                if let Some(kinds) = self.layout.kinds_of(session) {
                    tr.set(&keys.session_kinds(name), kinds);
                }
            }
            Action::Beat => drop(sessions.beat(tr, name, LEASE, wall).await?),
            Action::End => sessions.end(tr, name).await?,
            Action::DeclareDead => {
                let is_old = |_| Some(HEARTBEAT);
                sessions.declare_dead(tr, name, is_old).await?;
            }
            Action::ReturnItems => {
                reclaim_items(tr, keys, &self.settings, name).await?;
            }
            Action::Remove { from_afar } => {
                let of_remover = if !from_afar {
                    session
                } else if session == STRANGER {
                    STRANGER + 1
                } else {
                    STRANGER
                };
                remove_requests(tr, self.layout.keys_of(of_remover), name).await?;
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
                let (_, changes) = give_back(tr, context, &[of(item, held, how)]).await?;
                changes.stage(tr, &self.layout.keys);
            }
            Action::GiveBackUnused(numbers) => {
                let items = (0..ITEMS).filter(|item| numbers[*item] != ABSENT);
                let unused = items.map(|item| of(item, numbers[item], GiveBack::Unused));
                let unused: Vec<_> = unused.collect();
                let (_, changes) = give_back(tr, context, &unused).await?;
                changes.stage(tr, &self.layout.keys);
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
        tr: &CheckerTransaction<PlantedBug>,
        db: &Database,
        session: usize,
        action: Action,
    ) -> Result<Event<()>> {
        let keys = self.layout.keys_of(session);
        let demand = self.demand(OwnDemand::of(action));
        let wanted = count_wanted(&demand);
        let name = session_id(session);
        let context = self.context(session, &demand);
        let id = request_id(db, session);
        Ok(match action {
            Action::Take(_) => {
                let view = view_queue(tr, context, wanted, TakeMode::Now).await?;
                match take(tr, context, view, Changes::default()).await? {
                    Some(Taken::Items(items)) if items.is_empty() => Event::NoItem,
                    None => Event::Taken { is_short: false },
                    Some(Taken::Items(items)) => Event::Taken {
                        is_short: items.len() < wanted,
                    },
                    Some(Taken::HasRequests) => Event::Contended,
                    Some(Taken::Paused) => Event::IsPaused,
                    Some(Taken::SessionLost) => Event::SessionLost,
                }
            }
            Action::Register { reserve } => {
                match register(tr, context, self.request_for(reserve)).await? {
                    Some(_) => Event::Registered(()),
                    None => Event::SessionLost,
                }
            }
            Action::Fulfill {
                has_request,
                hands_over,
                ..
            } => {
                if self.bug == Some(Bug::NoSignalInPause) && db.has(Key::Pause) {
                    return Ok(NOTHING_CHANGED);
                }
                let max_items = if hands_over { 0 } else { MAX_STEP_ITEMS };
                let request = has_request.then_some(id);
                let (fulfilled, _) = fulfill(tr, context, request, max_items, &[]).await?;
                Event::Fulfilled {
                    has_changed: fulfilled.has_changed(),
                    own: fulfilled.own.is_some(),
                }
            }
            Action::Check { scope, asks } => {
                let details = self.details(id, scope, asks);
                self.check(tr, context, details).await?
            }
            Action::Collect { asks } => {
                let details = self.details(id, Scope::Answer, asks);
                collected_event(&collect_and_register(tr, context, details).await?)
            }
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

    /// Returns a session's own demand.
    fn demand(&self, own: OwnDemand) -> Vec<Demand> {
        let consumer = own.consumer.then_some(Demand {
            wanted: self.wanted,
            purpose: Purpose::Deliver,
        });
        let reserve = own.reserve.then_some(Demand {
            wanted: 1,
            purpose: Purpose::Reserve,
        });
        consumer.into_iter().chain(reserve).collect()
    }

    /// Returns the size of a request of a consumer.
    fn request_for(&self, reserve: bool) -> Wanted {
        Wanted::of(&self.demand(OwnDemand {
            consumer: true,
            reserve,
        }))
    }

    /// Returns how many items a demand is for.
    pub(super) fn wanted(&self, own: OwnDemand) -> usize {
        count_wanted(&self.demand(own))
    }

    /// Performs a dispatcher's check of a request.
    async fn check(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        context: SessionContext<'_>,
        details: Check<'_>,
    ) -> Result<Event<()>> {
        Ok(match check(tr, context, details).await? {
            Checked::Answered(collected) => collected_event(&collected),
            Checked::Gone => Event::Gone,
            Checked::Waits(waiting) => Event::Waits {
                is_first: waiting.is_first,
                has_items: waiting
                    .supply
                    .map(|supply| supply.has_items || self.bug == Some(Bug::UnknownKindGrantable)),
                precedence: waiting.precedence.map(|precedence| Precedence {
                    first: (),
                    rank: precedence.rank,
                }),
            },
        })
    }

    /// Returns what a dispatcher checks. If it `asks`, it registers the next request with the answer.
    fn details(&self, request: ItemId, scope: Scope, asks: bool) -> Check<'static> {
        Check {
            request,
            scope,
            returns: &[],
            next: asks.then(|| self.request_for(false)),
        }
    }

    async fn acknowledge(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        db: &Database,
        session: usize,
        item: usize,
        number: u8,
    ) -> Result<Performed> {
        let number = match db.get(Key::Held(session, item)) {
            ABSENT => number,
            held if self.bug == Some(Bug::GrantNumberIgnored) => held,
            _ => number,
        };
        let completed = GiveBack::Completed(Bytes::new());
        let context = self.context(session, &[]);
        let (given, changes) = give_back(tr, context, &[of(item, number, completed)]).await?;
        changes.stage(tr, &self.layout.keys);
        if given != [GivenBack::Accepted] {
            return Ok(Performed::Nothing);
        }
        let effect = Layout::effect(item);
        let stored = tr.get(&effect, Isolation::Serializable).await?;
        let count = stored.map_or(0, |count| count[0]);
        tr.set(&effect, &[count + 1]);
        Ok(Performed::Silently)
    }

    fn context<'a>(&'a self, session: usize, demand: &'a [Demand]) -> SessionContext<'a> {
        SessionContext {
            keys: self.layout.keys_of(session),
            settings: &self.settings,
            session: session_id(session),
            promotes: true,
            demand,
            decode: &*self.decode,
            fronts: match self.layout.kinds_of(session) {
                Some(_) => &self.strange_fronts,
                None => &self.fronts,
            },
        }
    }
}

fn fronts_of(kinds: Kinds) -> Fronts {
    let lanes = LaneMemory::taking(kinds, Ring::beginning_at(0));
    Fronts::new(Duration::ZERO, lanes)
}

/// What the caller of an action has learned.
enum Performed {
    Reports(Event<()>),
    /// Nothing that its policy needs to know.
    Silently,
    /// That it must not commit.
    Nothing,
}

/// Returns what a dispatcher reports to its policy after it has collected an answer, if there was one.
fn collected_event(collected: &Collected) -> Event<()> {
    if collected.items.is_none() {
        return Event::NotAnswered;
    }
    Event::Answered {
        next: collected.next.as_ref().map(|_| ()),
    }
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
