//! The rows of the model, and its steps.

use std::sync::Arc;
use std::time::Duration;

use conformance::checker_store::{
    CheckerTransaction, NoBugs, RecordedAccess, Rows, Span, Write, finish, rows_of,
};
use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{Bytes, Environment, Subspace, Versionstamp};
use microqueue::{ItemId, StagedId};
use stateright::{Model, Property};

use super::bug::{Bug, PlantedBug};
use super::promises;
use super::rows::{ATOMICS, REQUEST};
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::key_limits::KeyLimits;
use crate::items::keys::Keys;
use crate::items::places::put_queued;
use crate::items::priority::Priority;
use crate::items::record::Record;
use crate::items::settings::{KnownSettings, Settings, SettingsRecord};
use crate::items::value::{Decode, decoder};
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::{GiveBack, Return, When, give_back};
use crate::protocol::lanes::LaneMemory;
use crate::protocol::lanes::ring::Ring;
use crate::protocol::lanes::sweep::sweep_step;
use crate::protocol::reclaim::reclaim_items;
use crate::protocol::request::{collect, register};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Gone, Purpose, SessionContext};
use crate::queue::handle::Queue;
use crate::session::{Life, SessionId};

/// Two sessions that take items.
pub(super) const SESSIONS: usize = 2;

const LEASE: Duration = Duration::from_secs(10);

/// From this version on, the ids of items have the numbers of the items.
const ITEM: i64 = 100;

/// The process that reads ahead.
const AHEAD: usize = 4;

/// What an item has from its enqueue on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemSpec {
    /// Empty for an item without a key.
    pub(super) key: &'static [u8],
    pub(super) priority: i8,
}

/// What may happen.
#[derive(Debug, Clone)]
pub(super) struct World {
    /// Each of these is enqueued once, at any time.
    pub(super) items: Vec<ItemSpec>,
    /// The limits at the beginning.
    pub(super) limits: Vec<(&'static [u8], KeyLimits)>,
    /// What each session does with its items.
    pub(super) purposes: [Purpose; SESSIONS],
    /// How held items go back, in transactions of their own and in takes.
    pub(super) returns: Vec<How>,
    /// What else happens.
    pub(super) ops: Vec<Op>,
    /// How often limits change.
    pub(super) changes: u8,
}

/// How a held item goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum How {
    Complete,
    Release,
    /// It is due at once, and must be promoted.
    Delay,
    Discard,
}

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Enqueue(usize),
    /// A session takes an item and, before that, may give one back.
    Take(usize, Option<(usize, How)>),
    /// The first session takes an item with a view that it has read while its last take commits.
    TakeAhead,
    /// A session gives an item back.
    Return(usize, usize, How),
    Cancel(usize),
    Redrive(usize),
    Purge(usize),
    /// Limits of a key, or default limits, are set or removed.
    Configure(&'static [u8], Option<KeyLimits>),
    Sweep,
    /// The second session registers a request.
    Register,
    /// The first session answers it.
    Fulfill,
    /// The second session collects the answer.
    Collect,
    /// The second session is declared dead.
    Die,
    /// The first session returns its items.
    Reclaim,
}

/// A transaction that has read and may commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Flight {
    /// The number of its process.
    process: usize,
    /// Whether the take during which it has read has not committed.
    pub(super) waits: bool,
    /// Whether it completes the item that it takes.
    pub(super) pops: bool,
    pub(super) conflicts: Vec<Span>,
    pub(super) writes: Vec<Write>,
    pub(super) atomics: Vec<(u8, Vec<u8>, Vec<u8>)>,
    pub(super) written: Vec<Span>,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LaneState {
    pub(super) rows: Rows,
    pub(super) flights: Vec<Flight>,
    born: u8,
    changes: u8,
    /// The promise that the last step has broken.
    pub(super) broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneStep {
    Begin(Op),
    Commit(usize),
}

/// The model.
pub(super) struct LaneModel {
    world: World,
    bug: Option<Bug>,
    pub(super) keys: Arc<Keys>,
    queue: Queue<u8>,
    settings: Settings,
    decode: Arc<Decode>,
}

pub(super) fn item_id(item: usize) -> ItemId {
    StagedId::of_call(0).at(Versionstamp::new(ITEM + item as i64, 0))
}

fn session_id(session: usize) -> SessionId {
    SessionId([session as u8 + 1; 16])
}

impl LaneModel {
    pub(super) fn new(world: World, bug: Option<Bug>) -> Self {
        let env = Environment::seeded(0, Arc::new(ManualClock::new()));
        let keys = Arc::new(Keys::new(Subspace::from("Q"), env));
        let settings = Settings::new()
            .with_lease(LEASE)
            .with_max_attempts(u32::MAX)
            .with_max_deliveries(u32::MAX);
        Self {
            world,
            bug,
            queue: Queue {
                keys: keys.clone(),
                settings: KnownSettings::new(settings.clone()),
                codec: MessagePack,
                value: std::marker::PhantomData,
            },
            keys,
            settings,
            decode: decoder::<u8, _>(MessagePack),
        }
    }

    fn context<'a>(
        &'a self,
        session: usize,
        demand: &'a [Demand],
        fronts: &'a Fronts,
    ) -> SessionContext<'a> {
        SessionContext {
            keys: &self.keys,
            settings: &self.settings,
            session: session_id(session),
            promotes: true,
            demand,
            decode: &*self.decode,
            fronts,
        }
    }

    /// Returns the process of an operation.
    fn process(op: Op) -> usize {
        match op {
            Op::Take(session, _) | Op::Return(session, ..) => session,
            Op::Fulfill => 0,
            Op::Register | Op::Collect => 1,
            Op::Sweep => 2,
            Op::Reclaim => 3,
            Op::TakeAhead => AHEAD,
            _ => 5,
        }
    }

    /// Runs an operation on rows. Returns what it has recorded, or `None` if it has nothing to do. Sets which promise
    /// it has broken.
    pub(super) fn run(
        &self,
        rows: &Arc<Rows>,
        op: Op,
        gone: &Gone,
        broken: &mut Option<&'static str>,
    ) -> Option<RecordedAccess> {
        let planted = PlantedBug {
            bug: self.bug,
            op,
            keys: self.keys.clone(),
        };
        let tr = CheckerTransaction::begin(rows, 1, planted);
        let did = finish(Box::pin(self.perform(&tr, op, rows, gone, broken))).unwrap();
        let mut recorded = tr.into_recorded();
        if let Some(bug) = self.bug {
            bug.change(op, &self.keys, &mut recorded);
        }
        did.then_some(recorded)
    }

    async fn perform(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        op: Op,
        rows: &Rows,
        gone: &Gone,
        broken: &mut Option<&'static str>,
    ) -> Result<bool> {
        let keys = &*self.keys;
        let fronts = &Fronts::new(Duration::ZERO, LaneMemory::new(Ring::beginning_at(0)));
        let of_session = |session: usize| Demand {
            wanted: 1,
            purpose: self.world.purposes[session],
        };
        Ok(match op {
            Op::Enqueue(item) => {
                let spec = self.world.items[item];
                let mut record = Record::new(0, Bytes::from_static(&[0]));
                record.key = Bytes::from_static(spec.key);
                record.priority = Priority::new(spec.priority)?;
                let mut changes = Changes::default();
                put_queued(tr, keys, &item_id(item), &record, &mut changes)?;
                changes.stage(tr, keys);
                true
            }
            Op::Take(session, returned) => {
                let one = &[of_session(session)];
                let context = self.context(session, one, fronts);
                let view = view_queue(tr, context, 1, TakeMode::Now).await?;
                let (_, changes) = give_back(tr, context, &returns(returned)).await?;
                let taken = take(tr, context, view, changes).await?;
                if let Some(Taken::Items(items)) = &taken
                    && items.is_empty()
                    && returned.is_none()
                    && promises::has_grantable(keys, rows)
                {
                    *broken = Some(promises::NONE_HIDDEN);
                }
                true
            }
            Op::TakeAhead => {
                let one = &[of_session(0)];
                let mode = TakeMode::Ahead(gone);
                let context = self.context(0, one, fronts);
                let view = view_queue(tr, context, 1, mode).await?;
                take(tr, context, view, Changes::default()).await?.is_some()
            }
            Op::Return(session, item, how) => {
                let context = self.context(session, &[], fronts);
                let (_, changes) = give_back(tr, context, &returns(Some((item, how)))).await?;
                changes.stage(tr, keys);
                true
            }
            Op::Cancel(_) | Op::Redrive(_) | Op::Purge(_) | Op::Configure(..) => {
                self.change(tr, op).await?
            }
            Op::Sweep => {
                sweep_step(tr, keys, None).await?;
                true
            }
            Op::Register | Op::Fulfill | Op::Collect => {
                let one = &[of_session(1)];
                self.pair(tr, op, one, fronts).await?
            }
            Op::Die => {
                keys.sessions
                    .set_state(tr, session_id(1), Life::Dead, LEASE);
                true
            }
            Op::Reclaim => reclaim_items(tr, keys, &self.settings, session_id(1)).await? > 0,
        })
    }

    /// Registers, answers or collects the request.
    async fn pair(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        op: Op,
        one: &[Demand],
        fronts: &Fronts,
    ) -> Result<bool> {
        let request = StagedId::of_call(0).at(Versionstamp::new(REQUEST, 0));
        let second = self.context(1, one, fronts);
        Ok(match op {
            Op::Register => register(tr, second, 1).await?.is_some(),
            Op::Collect => collect(tr, second, &request).await?.is_some(),
            _ => {
                let first = self.context(0, &[], fronts);
                fulfill(tr, first, None, 2, &[]).await?;
                true
            }
        })
    }

    /// Changes an item or limits.
    async fn change(&self, tr: &CheckerTransaction<PlantedBug>, op: Op) -> Result<bool> {
        let item_ref = |item| ItemRef::new(&self.keys, item_id(item));
        Ok(match op {
            Op::Cancel(item) => {
                let _ = self.queue.cancel(tr, &item_ref(item)).await?;
                true
            }
            Op::Redrive(item) => self.queue.redrive(tr, &item_ref(item)).await?,
            Op::Purge(item) => self.queue.purge(tr, &item_ref(item)).await?,
            Op::Configure(b"", limits) => {
                let limits = limits.unwrap_or_default();
                self.queue.configure_keys(tr, &limits).await?;
                true
            }
            Op::Configure(key, limits) => {
                self.queue.configure_key(tr, key, limits.as_ref()).await?;
                true
            }
            other => unreachable!("{other:?}"),
        })
    }

    /// Returns what the take of the first session that is under way has taken.
    fn gone(&self, state: &LaneState) -> Gone {
        let mut gone = Gone::default();
        let mut flights = state.flights.iter();
        let Some(take) = flights.find(|flight| flight.process == 0) else {
            return gone;
        };
        let queued = [self.keys.part("l"), self.keys.outside_lanes()];
        for (item, spec) in self.world.items.iter().enumerate() {
            let suffix = item_id(item).key_in(&Subspace::from_bytes(vec![]));
            let mut rows = queued.iter().flat_map(|part| rows_of(&state.rows, part));
            let is_taken = |key: &[u8]| {
                let mut writes = take.writes.iter();
                writes.any(|write| matches!(write, Write::Clear(span) if span.has(key)))
            };
            if rows.any(|(key, _)| key.ends_with(&suffix) && is_taken(key)) {
                gone.items.insert(item_id(item));
                gone.keys.insert(Bytes::from_static(spec.key));
            }
        }
        gone
    }

    /// Returns the items that a session holds.
    fn held(&self, rows: &Rows, session: usize) -> Vec<usize> {
        let held = self.keys.held(session_id(session));
        let is_held = |item: &usize| rows.contains_key(&*item_id(*item).key_in(held.subspace()));
        (0..self.world.items.len()).filter(is_held).collect()
    }
}

fn returns(returned: Option<(usize, How)>) -> Vec<Return> {
    let returned = returned.map(|(item, how)| Return {
        id: item_id(item),
        delivery: 1,
        how: match how {
            How::Complete => GiveBack::Completed(Bytes::new()),
            How::Release => GiveBack::Returned(When::Now),
            How::Delay => GiveBack::Returned(When::At(0)),
            How::Discard => GiveBack::Discarded,
        },
        reason: None,
    });
    returned.into_iter().collect()
}

impl Model for LaneModel {
    type State = LaneState;
    type Action = LaneStep;

    fn init_states(&self) -> Vec<LaneState> {
        let keys = &*self.keys;
        let tr = CheckerTransaction::begin(&Arc::default(), 0, NoBugs);
        for session in 0..SESSIONS {
            keys.sessions
                .set_state(&tr, session_id(session), Life::Alive, LEASE);
        }
        let mut rows = match tr.staged() {
            Some(staged) => staged.applied(&Rows::new(), 0),
            None => Rows::new(),
        };
        for (key, limits) in &self.world.limits {
            rows.insert(
                keys.key_limits(key).into(),
                limits.to_bytes().to_vec().into(),
            );
        }
        let settings = SettingsRecord {
            settings: self.settings.clone(),
            codec: <MessagePack as Codec<u8>>::NAME.to_owned(),
        };
        rows.insert(keys.settings().into(), settings.encode().into());
        vec![LaneState {
            rows,
            flights: Vec::new(),
            born: 0,
            changes: self.world.changes,
            broken: None,
        }]
    }

    fn actions(&self, state: &LaneState, actions: &mut Vec<LaneStep>) {
        let world = &self.world;
        let is_busy = |process| state.flights.iter().any(|flight| flight.process == process);
        let mut begin = |op| {
            if !is_busy(Self::process(op)) {
                actions.push(LaneStep::Begin(op));
            }
        };
        for item in (0..world.items.len()).filter(|item| state.born & 1 << item == 0) {
            begin(Op::Enqueue(item));
        }
        for session in 0..SESSIONS {
            if session > 0 || !is_busy(AHEAD) {
                begin(Op::Take(session, None));
            }
            for item in self.held(&state.rows, session) {
                for how in &world.returns {
                    if session > 0 || !is_busy(AHEAD) {
                        begin(Op::Take(session, Some((item, *how))));
                    }
                    begin(Op::Return(session, item, *how));
                }
            }
        }
        let has_rows = |part| rows_of(&state.rows, &self.keys.part(part)).next().is_some();
        let has_request = has_rows("r") || has_rows("g");
        for op in &world.ops {
            match op {
                Op::Configure(..) if state.changes == 0 => {}
                Op::TakeAhead if !is_busy(0) => {}
                // There is one request at a time.
                Op::Register if has_request => {}
                op => begin(*op),
            }
        }
        let may_commit = |flight: &usize| !state.flights[*flight].waits;
        for flight in (0..state.flights.len()).filter(may_commit) {
            actions.push(LaneStep::Commit(flight));
        }
    }

    fn next_state(&self, last: &LaneState, step: LaneStep) -> Option<LaneState> {
        let mut state = last.clone();
        match step {
            LaneStep::Begin(op) => {
                match op {
                    Op::Enqueue(item) => state.born |= 1 << item,
                    Op::Configure(..) => state.changes -= 1,
                    _ => {}
                }
                let rows = Arc::new(state.rows.clone());
                let gone = self.gone(last);
                let recorded = self.run(&rows, op, &gone, &mut state.broken)?;
                let is_serializable = self.is_serializable(&recorded);
                let taker = match op {
                    Op::Take(session, _) => Some(session),
                    Op::TakeAhead => Some(0),
                    _ => None,
                };
                let flight = Flight {
                    waits: op == Op::TakeAhead,
                    pops: taker.is_some_and(|session| self.world.purposes[session] == Purpose::Pop),
                    ..flight(Self::process(op), recorded)
                };
                if flight.writes.is_empty() && flight.atomics.is_empty() && state.broken.is_none() {
                    return None;
                }
                if is_serializable {
                    self.commit(&mut state, &flight);
                } else {
                    state.flights.push(flight);
                }
            }
            LaneStep::Commit(number) => {
                let flight = state.flights.remove(number);
                self.commit(&mut state, &flight);
                if flight.process == 0 {
                    state
                        .flights
                        .iter_mut()
                        .for_each(|flight| flight.waits = false);
                }
            }
        }
        // The view is dropped if the take during which it was read fails.
        let takes = state.flights.iter().any(|flight| flight.process == 0);
        state.flights.retain(|flight| takes || !flight.waits);
        self.normalize(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties()
    }
}

impl LaneModel {
    /// Returns whether all reads of a transaction are in its conflict ranges, except of rows that never change here.
    fn is_serializable(&self, recorded: &RecordedAccess) -> bool {
        let settings = self.keys.settings();
        recorded.reads.iter().all(|read| {
            let is_constant = read.has(&settings) && read.end == Span::key(&settings).end;
            let is_covered =
                |conflict: &Span| conflict.begin <= read.begin && read.end <= conflict.end;
            is_constant || recorded.conflicts.iter().any(is_covered)
        })
    }
}

fn flight(process: usize, recorded: RecordedAccess) -> Flight {
    let number = |op| ATOMICS.iter().position(|known| *known == op).unwrap() as u8;
    let mut conflicts = recorded.conflicts;
    conflicts.sort();
    conflicts.dedup();
    let atomics = recorded.atomics.into_iter();
    let atomics = atomics.map(|(op, key, param)| (number(op), key, param));
    Flight {
        process,
        waits: false,
        pops: false,
        conflicts,
        writes: recorded.writes,
        atomics: atomics.collect(),
        written: recorded.written,
    }
}
