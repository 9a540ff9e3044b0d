//! The rows of the model, and its steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use conformance::checker_store::{CheckerTransaction, RecordedAccess, Rows, Span, finish, rows_of};
use microqueue::keyspace::codec::{self, Codec, MessagePack};
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::recipe::StoredSettings;
use microqueue::keyspace::{Bytes, Environment, Subspace, Versionstamp};
use microqueue::{ItemId, StagedId};
use stateright::{Model, Property};

use super::bug::{Bug, PlantedBug};
use super::promises::{self, CLOSED, COUNTED, EARLY, ONCE};
use crate::batches::end::finish_batches;
use crate::items::batch::{BatchId, BatchMember, BatchRef, Joining, Tally};
use crate::items::batch_row::{BatchRow, Callback, join};
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::find::Location;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::members::add_member;
use crate::items::part::Part;
use crate::items::places::{Destination, put_queued, relocate};
use crate::items::record::{Record, RecordCodec};
use crate::items::settings::{KnownSettings, Settings, SettingsRecord};
use crate::items::spot::Spot;
use crate::queue::handle::Queue;
use crate::tests::flights::{Flight, is_serializable, number_stamps};

/// The largest number of batches.
pub(super) const BATCHES: usize = 4;

/// Two sessions that look at batches.
const SESSIONS: usize = 2;

/// From this version on, the ids of items have the numbers of the items.
const ITEM: i64 = 100;

/// From this number on, items are the callbacks of the batches.
const CALLBACK: usize = 10;

/// From this number on, members are batches.
pub(super) const BATCH: usize = 100;

/// A batch, which is open at the beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchSpec {
    pub(super) parent: Option<usize>,
    pub(super) has_callback: bool,
    pub(super) dead_letters_stay: bool,
}

/// What may happen.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) batches: Vec<BatchSpec>,
    /// The batch of each item. Each is enqueued once, at any time.
    pub(super) items: Vec<usize>,
    /// Whether members add others, also in the transactions that end them.
    pub(super) adds_by_members: bool,
    /// Whether items become dead letters, and are redriven and purged.
    pub(super) dies: bool,
    /// Whether batches are cancelled.
    pub(super) cancels: bool,
}

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// Something that is no member adds an item.
    Add(usize),
    /// A member adds an item, which is not necessarily there any more.
    AddByMember(usize),
    End(usize),
    EndAndAdd(usize, usize),
    Die(usize),
    Redrive(usize),
    Purge(usize),
    Close(usize),
    Cancel(usize),
    /// A session looks at batches.
    Look(usize),
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BatchState {
    pub(super) rows: Rows,
    flights: Vec<Flight>,
    born: u8,
    /// The items that no member has added.
    strangers: u8,
    /// How often the callback of each batch has come.
    pub(super) fired: [u8; BATCHES],
    /// How many members each batch ever had.
    joined: [u8; BATCHES],
    /// The promise that the last step has broken.
    pub(super) broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BatchStep {
    Begin(Op),
    Commit(usize),
}

/// The model.
pub(super) struct BatchModel {
    world: World,
    bug: Option<Bug>,
    pub(super) keys: Arc<Keys>,
    queue: Queue<u8>,
    settings: Settings,
}

pub(super) fn batch_id(batch: usize) -> BatchId {
    BatchId([batch as u8 + 1; 16])
}

fn item_id(item: usize) -> ItemId {
    StagedId::of_call(0).at(Versionstamp::new(ITEM + item as i64, 0))
}

impl BatchModel {
    pub(super) fn new(world: World, bug: Option<Bug>) -> Self {
        let env = Environment::seeded(0, Arc::new(ManualClock::new()));
        let keys = Arc::new(Keys::new(Subspace::from("Q"), env));
        let settings = Settings::new();
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
        }
    }

    fn batch_ref(&self, batch: usize) -> BatchRef {
        self.keys.batch_ref(batch_id(batch))
    }

    fn item_ref(&self, item: usize) -> ItemRef {
        self.keys.item_ref(item_id(item))
    }

    /// Runs an operation on rows. Returns what it has recorded, or `None` if it has nothing to do.
    fn run(&self, rows: &Arc<Rows>, op: Op) -> Option<RecordedAccess> {
        let planted = PlantedBug {
            bug: self.bug,
            op,
            keys: self.keys.clone(),
        };
        let tr = CheckerTransaction::begin(rows, 1, planted);
        match finish(Box::pin(self.perform(&tr, op))) {
            Ok(()) => {}
            Err(Error::BatchOver { .. } | Error::BatchClosed { .. }) => return None,
            Err(error) => panic!("{error:?}"),
        }
        let mut recorded = tr.into_recorded();
        if let Some(bug) = self.bug {
            bug.change(op, &self.keys, &mut recorded);
        }
        Some(recorded)
    }

    async fn perform(&self, tr: &CheckerTransaction<PlantedBug>, op: Op) -> Result<()> {
        let keys = &*self.keys;
        match op {
            Op::Add(item) => self.add(tr, item, false).await,
            Op::AddByMember(item) => self.add(tr, item, true).await,
            Op::End(item) => self.queue.cancel(tr, &self.item_ref(item)).await.map(drop),
            Op::EndAndAdd(item, new) => {
                let _ = self.queue.cancel(tr, &self.item_ref(item)).await?;
                self.add(tr, new, self.is_by_member(item, new)).await
            }
            Op::Die(item) => {
                let id = &item_id(item);
                let record = keys.items_at(&Spot::DEFAULT).get(tr, id).await?;
                let record = record.expect("it is queued");
                let queued = Location::Queued(Spot::DEFAULT);
                relocate(tr, keys, id, &queued, record, Destination::Dead)
            }
            Op::Redrive(item) => self.queue.redrive(tr, &self.item_ref(item)).await.map(drop),
            Op::Purge(item) => self.queue.purge(tr, &self.item_ref(item)).await.map(drop),
            Op::Close(batch) => self.queue.close_batch(tr, &self.batch_ref(batch)),
            Op::Cancel(batch) => {
                let batch = self.batch_ref(batch);
                self.queue.cancel_batch(tr, &batch).await.map(drop)
            }
            Op::Look(_) => {
                let settings = &self.settings;
                finish_batches(tr, keys, settings, None, true)
                    .await
                    .map(drop)
            }
        }
    }

    /// Returns whether an item that another one adds is a member of the same batch.
    fn is_by_member(&self, item: usize, new: usize) -> bool {
        let own = match item.checked_sub(CALLBACK) {
            Some(batch) => self.world.batches[batch].parent,
            None => Some(self.world.items[item]),
        };
        own == Some(self.world.items[new])
    }

    async fn add(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        item: usize,
        by_member: bool,
    ) -> Result<()> {
        let keys = &*self.keys;
        let batch = self.batch_ref(self.world.items[item]);
        let member = join(tr, keys, Joining { batch, by_member }).await?;
        let mut record = Record::new(0, Bytes::from(vec![item as u8]));
        record.member = Some(member);
        let mut changes = Changes::default();
        add_member(tr, keys, &item_id(item), record.member, &mut changes);
        put_queued(tr, keys, &item_id(item), &record, &mut changes)?;
        changes.stage(tr, keys);
        Ok(())
    }

    /// Returns the items that are in a part of the queue.
    fn items_in(&self, rows: &Rows, subspace: &Subspace) -> Vec<usize> {
        let is_there = |item: &usize| rows.contains_key(&*item_id(*item).key_in(subspace));
        (0..CALLBACK + BATCHES).filter(is_there).collect()
    }

    fn init_rows(&self) -> Rows {
        let keys = &*self.keys;
        let mut rows = Rows::new();
        let mut pending = [0_i64; BATCHES];
        for (batch, spec) in self.world.batches.iter().enumerate() {
            let parent = spec.parent.map(|parent| BatchMember {
                batch: batch_id(parent),
                dead_letters_stay: self.world.batches[parent].dead_letters_stay,
            });
            let callback = spec.has_callback.then(|| Callback {
                delay_millis: 0,
                due_millis: 0,
                record: Record::new(0, Bytes::from(vec![(CALLBACK + batch) as u8])),
            });
            let row = BatchRow {
                dead_letters_stay: spec.dead_letters_stay,
                is_cancelled: false,
                parent,
                opened_millis: 0,
                callback,
            };
            let id = batch_id(batch);
            rows.insert(keys.batch_row(id).into(), row.to_bytes().unwrap().into());
            rows.insert(keys.batch_open(id).into(), Bytes::new());
            if let Some(parent) = spec.parent {
                pending[parent] += 1;
            }
        }
        for (batch, pending) in pending.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            let tally = keys.tally(batch_id(batch), Tally::Pending);
            rows.insert(tally.into(), pending.to_le_bytes().to_vec().into());
        }
        let settings = SettingsRecord {
            settings: self.settings.clone(),
            codec: <MessagePack as Codec<u8>>::NAME.to_owned(),
        };
        rows.insert(keys.settings().into(), settings.encode().into());
        rows
    }
}

impl Model for BatchModel {
    type State = BatchState;
    type Action = BatchStep;

    fn init_states(&self) -> Vec<BatchState> {
        let mut joined = [0; BATCHES];
        for parent in self.world.batches.iter().filter_map(|spec| spec.parent) {
            joined[parent] += 1;
        }
        vec![BatchState {
            rows: self.init_rows(),
            flights: Vec::new(),
            born: 0,
            strangers: 0,
            fired: [0; BATCHES],
            joined,
            broken: None,
        }]
    }

    fn actions(&self, state: &BatchState, actions: &mut Vec<BatchStep>) {
        let keys = &*self.keys;
        let world = &self.world;
        let is_busy = |process| state.flights.iter().any(|flight| flight.process == process);
        let mut begin = |op| {
            if !is_busy(process(op)) {
                actions.push(BatchStep::Begin(op));
            }
        };
        let unborn = (0..world.items.len()).filter(|item| state.born & 1 << item == 0);
        let unborn: Vec<_> = unborn.collect();
        for item in &unborn {
            begin(Op::Add(*item));
            if world.adds_by_members {
                begin(Op::AddByMember(*item));
            }
        }
        for item in self.items_in(&state.rows, keys.items_at(&Spot::DEFAULT).subspace()) {
            begin(Op::End(item));
            if world.dies {
                begin(Op::Die(item));
            }
            if world.adds_by_members {
                for new in &unborn {
                    begin(Op::EndAndAdd(item, *new));
                }
            }
        }
        for item in self.items_in(&state.rows, keys.dead.subspace()) {
            begin(Op::Redrive(item));
            begin(Op::Purge(item));
        }
        for batch in 0..world.batches.len() {
            let Some(stored) = promises::stored_batch(keys, &state.rows, batch) else {
                continue;
            };
            if stored.is_open {
                begin(Op::Close(batch));
            }
            if world.cancels && !stored.row.is_cancelled {
                begin(Op::Cancel(batch));
            }
        }
        if rows_of(&state.rows, &keys.part(Part::BatchNotices))
            .next()
            .is_some()
        {
            (0..SESSIONS).for_each(|session| begin(Op::Look(session)));
        }
        actions.extend((0..state.flights.len()).map(BatchStep::Commit));
    }

    fn next_state(&self, last: &BatchState, step: BatchStep) -> Option<BatchState> {
        let mut state = last.clone();
        match step {
            BatchStep::Begin(op) => {
                if let Op::Add(item) | Op::AddByMember(item) | Op::EndAndAdd(_, item) = op {
                    state.born |= 1 << item;
                }
                match op {
                    Op::Add(item) => state.strangers |= 1 << item,
                    Op::EndAndAdd(item, new) if !self.is_by_member(item, new) => {
                        state.strangers |= 1 << new;
                    }
                    _ => {}
                }
                let rows = Arc::new(state.rows.clone());
                let recorded = self.run(&rows, op)?;
                let is_serializable = is_serializable(&recorded, &self.constants());
                let flight = Flight::new(process(op), recorded);
                if is_serializable {
                    self.commit(&mut state, &flight);
                } else {
                    state.flights.push(flight);
                }
            }
            BatchStep::Commit(number) => {
                let flight = state.flights.remove(number);
                self.commit(&mut state, &flight);
            }
        }
        self.normalize(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties()
    }
}

/// Returns the process of an operation.
fn process(op: Op) -> usize {
    match op {
        Op::Look(session) => session,
        Op::Add(_) => SESSIONS + 1,
        _ => SESSIONS,
    }
}

impl BatchModel {
    /// Returns what never changes here.
    fn constants(&self) -> [Span; 2] {
        let (begin, end) = self.keys.part(Part::Grants);
        [Span { begin, end }, Span::key(&self.keys.settings())]
    }

    /// Applies a commit, and dooms the transactions that fail with it.
    fn commit(&self, state: &mut BatchState, flight: &Flight) {
        let keys = &*self.keys;
        let members = |rows: &Rows| -> Vec<BTreeSet<u8>> {
            let of = |batch| promises::members(keys, rows, batch).into_iter().collect();
            (0..BATCHES).map(of).collect()
        };
        let before = (state.rows.clone(), members(&state.rows));
        let mut callbacks = Vec::new();
        let of = |part, key: &[u8]| {
            let (begin, end) = keys.part(part);
            *begin <= *key && *key < *end
        };
        // Counters and the wake stamp are not in the model.
        let in_model = |key: &[u8]| of(Part::Batches, key) || of(Part::BatchNotices, key);
        flight.apply(&mut state.rows, in_model, |prefix, value| {
            if of(Part::Members, prefix) {
                // The row of the callback that was appended just before.
                let (item, _) = callbacks.last().expect("it is a member of a parent");
                let (_, index) = prefix.split_last().expect("the type of a versionstamp");
                let index = Subspace::from_bytes(index.to_vec());
                return Some(item_id(CALLBACK + item).key_in(&index));
            }
            // After microqueue's format.
            let record = codec::decode(&RecordCodec, value[1..].to_vec().into()).unwrap();
            let item = usize::from(record.payload[0]);
            let queued = keys.items_at(&Spot::DEFAULT);
            assert!(prefix.starts_with(queued.subspace().bytes()));
            callbacks.push((item - CALLBACK, record));
            Some(item_id(item).key_in(queued.subspace()))
        });
        state.flights.retain(|other| !flight.dooms(other));
        let after = members(&state.rows);
        // A batch that had no members counts as none.
        let joined_before = state.joined;
        let is_empty = |member: &&u8| {
            let child = usize::from(**member).checked_sub(BATCH);
            child.is_some_and(|child| {
                let stored = promises::stored_batch(keys, &before.0, child);
                let is_cancelled = stored.is_some_and(|stored| stored.row.is_cancelled);
                let is_silent = !self.world.batches[child].has_callback;
                is_silent && !is_cancelled && joined_before[child] == 0
            })
        };
        for (batch, (members, new)) in before.1.iter().zip(&after).enumerate() {
            let is_open = before.0.contains_key(&*keys.batch_open(batch_id(batch)));
            let is_stranger =
                |item: &u8| *item < CALLBACK as u8 && state.strangers & 1 << item != 0;
            if !is_open && new.difference(members).any(is_stranger) {
                state.broken = Some(CLOSED);
            }
        }
        for ((joined, before), after) in state.joined.iter_mut().zip(&before.1).zip(&after) {
            let new = after.difference(before).count();
            // The callback of a batch takes its place.
            let is_replaced = |member: &&u8| {
                let callback = member.checked_sub((BATCH - CALLBACK) as u8);
                usize::from(**member) >= BATCH && callback.is_some_and(|item| after.contains(&item))
            };
            let replaced = before.difference(after).filter(is_replaced).count();
            let empty = before.difference(after).filter(is_empty).count();
            *joined = *joined + new as u8 - replaced as u8 - empty as u8;
        }
        for (batch, record) in callbacks {
            self.judge(state, &before.0, batch, &record);
        }
    }

    /// Finds out what the callback of a batch breaks that has just come.
    fn judge(&self, state: &mut BatchState, before: &Rows, batch: usize, record: &Record) {
        let keys = &*self.keys;
        state.fired[batch] += 1;
        let items = promises::items(keys, &state.rows);
        let callbacks = items.iter().map(|item| usize::from(item.value.payload[0]));
        let is_of_child = |item: usize| {
            let spec = item.checked_sub(CALLBACK).map(|of| self.world.batches[of]);
            spec.is_some_and(|spec| spec.parent == Some(batch))
        };
        let is_early = !promises::members(keys, &state.rows, batch).is_empty()
            || before.contains_key(&*keys.batch_open(batch_id(batch)))
            || callbacks.into_iter().any(is_of_child);
        let counts = record.callback_of.map(|of| of.counts).unwrap_or_default();
        let counted = counts.completed + counts.dead + counts.cancelled;
        state.broken = if state.fired[batch] > 1 {
            Some(ONCE)
        } else if is_early {
            Some(EARLY)
        } else if counted != u64::from(state.joined[batch]) {
            Some(COUNTED)
        } else {
            state.broken
        };
    }

    /// Gives the values of notices small numbers.
    fn normalize(&self, state: &mut BatchState) {
        let notices = self.keys.part(Part::BatchNotices);
        let is_notice = |key: &[u8]| *notices.0 <= *key && *key < *notices.1;
        number_stamps(&mut state.rows, state.flights.iter_mut(), is_notice);
        state.flights.sort();
    }
}
