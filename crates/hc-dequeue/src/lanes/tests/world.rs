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
use microqueue::{Item, ItemId, StagedId};
use stateright::{Model, Property};

use super::bug::{Bug, PlantedBug};
use super::promises::{self, Where};
use super::rows::{Memo, REQUEST};
use super::spec::{How, Op, SESSIONS, UNIT, World};
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::places::put_queued;
use crate::items::priority::Priority;
use crate::items::record::Record;
use crate::items::settings::{KnownSettings, Settings, SettingsRecord};
use crate::items::value::{Decode, decoder};
use crate::lanes::Gone;
use crate::lanes::LaneMemory;
use crate::lanes::ring::Ring;
use crate::lanes::sweep::sweep_step;
use crate::protocol::front::Fronts;
use crate::protocol::fulfill::fulfill;
use crate::protocol::give_back::{GiveBack, Return, When, give_back};
use crate::protocol::reclaim::reclaim_items;
use crate::protocol::request::{Wanted, collect, register};
use crate::protocol::take::{TakeMode, Taken, take, view_queue};
use crate::protocol::{Demand, Purpose, SessionContext};
use crate::queue::handle::Queue;
use crate::session::{Life, SessionId};
use crate::tests::flights::{Flight, is_serializable};

const LEASE: Duration = Duration::from_secs(10);

/// From this version on, the ids of items have the numbers of the items.
const ITEM: i64 = 100;

/// The process that reads ahead.
const AHEAD: usize = 4;

/// The number of transactions whose session has gone on without their outcome.
const ADRIFT: usize = 6;

/// The largest wall time that a session reads.
const MAX_WALL: u8 = 20;

/// A transaction of this model that has read and may commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LaneFlight {
    pub(super) flight: Flight,
    /// Whether the take during which it has read has not committed.
    pub(super) waits: bool,
    /// The time of its read version.
    pub(super) read_at: u8,
    /// Whether it completes the item that it takes.
    pub(super) pops: bool,
    /// The item that it gives back.
    pub(super) returned: Option<(usize, How)>,
    /// Whether it returns what a dead session was granted.
    pub(super) reclaims: bool,
}

/// What an operation sees besides the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment<'a> {
    pub(super) now: u8,
    /// The time of its read version.
    pub(super) read_at: u8,
    /// What the take of the first session that is under way has taken.
    pub(super) gone: &'a Gone,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LaneState {
    pub(super) rows: Rows,
    pub(super) flights: Vec<LaneFlight>,
    born: u8,
    changes: u8,
    doubts: u8,
    pub(super) now: u8,
    /// When the newest commit was.
    pub(super) last: u8,
    /// The times of the read versions at which items with a group were started, if it has a rate.
    pub(super) starts: Vec<u8>,
    /// The promise that the last step has broken.
    pub(super) broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneStep {
    /// An operation begins whose read version lags behind by this time.
    Begin(Op, u8),
    Commit(usize),
    /// A session goes on without the outcome of its take.
    Doubt(usize),
}

/// The model.
pub(super) struct LaneModel {
    pub(super) world: World,
    bug: Option<Bug>,
    pub(super) keys: Arc<Keys>,
    /// The same keys at each wall time.
    at: Vec<Arc<Keys>>,
    queue: Queue<u8>,
    settings: Settings,
    decode: Arc<Decode>,
    /// The item in each row, and where it is.
    pub(super) placed: Memo<Option<(Where, Item<Record>)>>,
    /// The [normal](Self::normalize) value of each row.
    pub(super) normal: Memo<Bytes>,
}

pub(super) fn item_id(item: usize) -> ItemId {
    StagedId::of_call(0).at(Versionstamp::new(ITEM + item as i64, 0))
}

fn session_id(session: usize) -> SessionId {
    SessionId([session as u8 + 1; 16])
}

impl LaneModel {
    pub(super) fn new(world: World, bug: Option<Bug>) -> Self {
        let at = (0..=MAX_WALL).map(|wall| {
            let clock = ManualClock::new();
            clock.advance(Duration::from_millis(wall.into()));
            let env = Environment::seeded(0, Arc::new(clock));
            Arc::new(Keys::new(Subspace::from("Q"), env))
        });
        let at: Vec<_> = at.collect();
        let keys = at[0].clone();
        let settings = Settings::new()
            .with_lease(LEASE)
            .with_max_attempts(u32::MAX)
            .with_max_deaths(if world.is_mortal { 1 } else { u32::MAX })
            .with_max_deliveries(u32::MAX)
            .with_deaths("D");
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
            at,
            settings,
            decode: decoder::<u8, _>(MessagePack),
            placed: Memo::default(),
            normal: Memo::default(),
        }
    }

    fn context<'a>(
        &'a self,
        session: usize,
        demand: &'a [Demand],
        (fronts, now): (&'a Fronts, u8),
    ) -> SessionContext<'a> {
        let ahead = self.world.time.ahead[session];
        SessionContext {
            keys: &self.at[usize::from(now + ahead.unwrap_or(0))],
            settings: &self.settings,
            session: session_id(session),
            promotes: ahead.is_some(),
            demand,
            decode: &*self.decode,
            fronts,
        }
    }

    /// Returns by how much the wall clock of the session of an operation is ahead.
    fn ahead(&self, op: Op) -> u8 {
        match op {
            Op::Take(session, _) => self.world.time.ahead[session].unwrap_or(0),
            _ => 0,
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
        moment: Moment<'_>,
        broken: &mut Option<&'static str>,
    ) -> Option<RecordedAccess> {
        let planted = PlantedBug {
            bug: self.bug,
            op,
            keys: self.keys.clone(),
        };
        let clock = match self.bug {
            Some(Bug::WallClock) => moment.now + self.ahead(op),
            _ => moment.read_at,
        };
        let tr = CheckerTransaction::begin(rows, UNIT * i64::from(clock), planted);
        let did = finish(Box::pin(self.perform(&tr, op, rows, moment, broken))).unwrap();
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
        moment: Moment<'_>,
        broken: &mut Option<&'static str>,
    ) -> Result<bool> {
        let keys = &*self.keys;
        let fronts = Fronts::new(Duration::ZERO, LaneMemory::new(Ring::beginning_at(0)));
        let fronts = (&fronts, moment.now);
        let of_session = |session: usize| Demand {
            wanted: 1,
            purpose: self.world.purposes[session],
        };
        Ok(match op {
            Op::Enqueue(item) => {
                self.enqueue(tr, item)?;
                true
            }
            Op::Take(session, returned) => {
                let one = &[of_session(session)];
                let context = self.context(session, one, fronts);
                let view = view_queue(tr, context, 1, TakeMode::Now).await?;
                let (_, changes) = give_back(tr, context, &self.returns(returned)).await?;
                let taken = take(tr, context, view, changes).await?;
                if let Some(Taken::Items(items)) = &taken
                    && items.is_empty()
                    && returned.is_none()
                    && promises::has_grantable(keys, rows, moment.read_at)
                {
                    *broken = Some(promises::NONE_HIDDEN);
                }
                true
            }
            Op::TakeAhead => {
                let one = &[of_session(0)];
                let mode = TakeMode::Ahead(moment.gone);
                let context = self.context(0, one, fronts);
                let view = view_queue(tr, context, 1, mode).await?;
                take(tr, context, view, Changes::default()).await?.is_some()
            }
            Op::Return(session, item, how) => {
                let context = self.context(session, &[], fronts);
                let (_, changes) = give_back(tr, context, &self.returns(Some((item, how)))).await?;
                changes.stage(tr, keys);
                true
            }
            Op::Cancel(_)
            | Op::Redrive(_)
            | Op::Purge(_)
            | Op::Configure(..)
            | Op::Pause(_)
            | Op::Resume(_) => self.change(tr, op).await?,
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
            Op::Reclaim => {
                let (count, _) = reclaim_items(tr, keys, &self.settings, session_id(1)).await?;
                count > 0
            }
            Op::Tick => unreachable!("it is no transaction"),
        })
    }

    fn enqueue(&self, tr: &CheckerTransaction<PlantedBug>, item: usize) -> Result<()> {
        let keys = &*self.keys;
        let spec = self.world.items[item];
        let mut record = Record::new(0, Bytes::from_static(&[0]));
        record.group = Bytes::from_static(spec.group);
        record.priority = Priority::new(spec.priority).unwrap();
        let mut changes = Changes::default();
        put_queued(tr, keys, &item_id(item), &record, &mut changes)?;
        changes.stage(tr, keys);
        Ok(())
    }

    /// Registers, answers or collects the request.
    async fn pair(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        op: Op,
        one: &[Demand],
        fronts: (&Fronts, u8),
    ) -> Result<bool> {
        let request = StagedId::of_call(0).at(Versionstamp::new(REQUEST, 0));
        let second = self.context(1, one, fronts);
        Ok(match op {
            Op::Register => register(tr, second, Wanted::of(one)).await?.is_some(),
            Op::Collect => collect(tr, second, &request).await?.is_some(),
            _ => {
                let first = self.context(0, &[], fronts);
                fulfill(tr, first, None, 2, &[]).await?;
                true
            }
        })
    }

    /// Changes an item or a group.
    async fn change(&self, tr: &CheckerTransaction<PlantedBug>, op: Op) -> Result<bool> {
        let item_ref = |item| self.keys.item_ref(item_id(item));
        Ok(match op {
            Op::Cancel(item) => {
                let _ = self.queue.cancel(tr, &item_ref(item)).await?;
                true
            }
            Op::Redrive(item) => self.queue.redrive(tr, &item_ref(item)).await?,
            Op::Purge(item) => self.queue.purge(tr, &item_ref(item)).await?,
            Op::Configure(b"", limits) => {
                let limits = limits.unwrap_or_default();
                self.queue.configure_groups(tr, &limits).await?;
                true
            }
            Op::Configure(group, limits) => {
                self.queue
                    .configure_group(tr, group, limits.as_ref())
                    .await?;
                true
            }
            Op::Pause(group) => {
                self.queue.pause_group(tr, group)?;
                true
            }
            Op::Resume(group) => {
                self.queue.resume_group(tr, group)?;
                true
            }
            other => unreachable!("{other:?}"),
        })
    }

    /// Returns what the take of the first session that is under way has taken.
    fn gone(&self, state: &LaneState) -> Gone {
        let mut gone = Gone::default();
        let mut flights = state.flights.iter();
        let Some(take) = flights.find(|flight| flight.flight.process == 0) else {
            return gone;
        };
        let queued = [self.keys.part(Part::Lanes), self.keys.outside_lanes()];
        for (item, spec) in self.world.items.iter().enumerate() {
            let suffix = item_id(item).key_in(&Subspace::from_bytes(vec![]));
            let mut rows = queued.iter().flat_map(|part| rows_of(&state.rows, part));
            let is_taken = |key: &[u8]| {
                let mut writes = take.flight.writes.iter();
                writes.any(|write| matches!(write, Write::Clear(span) if span.has(key)))
            };
            if rows.any(|(key, _)| key.ends_with(&suffix) && is_taken(key)) {
                gone.items.insert(item_id(item));
                gone.groups.insert(Bytes::from_static(spec.group));
            }
        }
        gone
    }

    fn returns(&self, returned: Option<(usize, How)>) -> Vec<Return> {
        let returned = returned.map(|(item, how)| Return {
            id: item_id(item),
            delivery: 1,
            how: match how {
                How::Complete => GiveBack::Completed(Bytes::new()),
                How::Release if self.bug == Some(Bug::TokenOfAStartBack) => GiveBack::Unused,
                How::Release => GiveBack::Returned(When::Now),
                How::Unused => GiveBack::Unused,
                How::Delay => GiveBack::Returned(When::At(0)),
                How::Discard => GiveBack::Discarded,
            },
            reason: None,
        });
        returned.into_iter().collect()
    }

    /// Returns the items that a session holds.
    fn held(&self, rows: &Rows, session: usize) -> Vec<usize> {
        let held = self.keys.held(session_id(session));
        let is_held = |item: &usize| rows.contains_key(&*item_id(*item).key_in(held.subspace()));
        (0..self.world.items.len()).filter(is_held).collect()
    }
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
        for (group, limits) in &self.world.limits {
            rows.insert(
                keys.group_limits(group).into(),
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
            doubts: self.world.doubts,
            now: 0,
            last: 0,
            starts: Vec::new(),
            broken: None,
        }]
    }

    fn actions(&self, state: &LaneState, actions: &mut Vec<LaneStep>) {
        let world = &self.world;
        let is_busy = |process| {
            let mut flights = state.flights.iter();
            flights.any(|flight| flight.flight.process == process)
        };
        let mut begin = |op| {
            if is_busy(Self::process(op)) {
                return;
            }
            let oldest = state.now - state.last;
            let lag = match op {
                Op::Take(..) => world.time.lag.min(oldest),
                _ => 0,
            };
            actions.extend((0..=lag).map(|lag| LaneStep::Begin(op, lag)));
        };
        if state.now < world.time.end {
            begin(Op::Tick);
        }
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
        let has_request = has_rows(Part::Requests) || has_rows(Part::Grants);
        for op in &world.ops {
            match op {
                Op::Configure(..) | Op::Pause(_) | Op::Resume(_) if state.changes == 0 => {}
                Op::TakeAhead if !is_busy(0) => {}
                // There is one request at a time.
                Op::Register if has_request => {}
                op => begin(*op),
            }
        }
        let may_commit = |flight: &usize| !state.flights[*flight].waits;
        for flight in (0..state.flights.len()).filter(may_commit) {
            actions.push(LaneStep::Commit(flight));
            if state.doubts > 0 && state.flights[flight].flight.process < SESSIONS {
                actions.push(LaneStep::Doubt(flight));
            }
        }
    }

    fn next_state(&self, last: &LaneState, step: LaneStep) -> Option<LaneState> {
        let mut state = last.clone();
        match step {
            LaneStep::Begin(Op::Tick, _) => state.now += 1,
            LaneStep::Begin(op, lag) => {
                match op {
                    Op::Enqueue(item) => state.born |= 1 << item,
                    Op::Configure(..) | Op::Pause(_) | Op::Resume(_) => state.changes -= 1,
                    _ => {}
                }
                let rows = Arc::new(state.rows.clone());
                if matches!(op, Op::Configure(..)) {
                    // The promise is about one rate.
                    state.starts.clear();
                }
                let moment = Moment {
                    now: state.now,
                    read_at: state.now - lag,
                    gone: &self.gone(last),
                };
                let recorded = self.run(&rows, op, moment, &mut state.broken)?;
                let settings = Span::key(&self.keys.settings());
                let is_serializable = is_serializable(&recorded, &[settings]);
                let taker = match op {
                    Op::Take(session, _) => Some(session),
                    Op::TakeAhead => Some(0),
                    _ => None,
                };
                let returned = match op {
                    Op::Take(_, returned) => returned,
                    Op::Return(_, item, how) => Some((item, how)),
                    _ => None,
                };
                let flight = LaneFlight {
                    returned,
                    reclaims: op == Op::Reclaim,
                    flight: Flight::new(Self::process(op), recorded),
                    waits: op == Op::TakeAhead,
                    read_at: moment.read_at,
                    pops: taker.is_some_and(|session| self.world.purposes[session] == Purpose::Pop),
                };
                if flight.flight.is_empty() && state.broken.is_none() {
                    return None;
                }
                if is_serializable {
                    self.commit(&mut state, &flight);
                } else {
                    state.flights.push(flight);
                }
            }
            LaneStep::Doubt(number) => {
                state.doubts -= 1;
                state.flights[number].flight.process = ADRIFT;
            }
            LaneStep::Commit(number) => {
                let flight = state.flights.remove(number);
                self.commit(&mut state, &flight);
                if flight.flight.process == 0 {
                    state
                        .flights
                        .iter_mut()
                        .for_each(|flight| flight.waits = false);
                }
            }
        }
        // The view is dropped if the take during which it was read fails.
        let takes = state
            .flights
            .iter()
            .any(|flight| flight.flight.process == 0);
        state.flights.retain(|flight| takes || !flight.waits);
        self.normalize(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties()
    }
}
