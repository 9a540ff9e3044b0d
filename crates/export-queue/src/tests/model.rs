//! Positions inside blocks: two subscriptions export the entries of one log, and a trim clears the
//! entries that both have exported, in every order of their steps.
//!
//! The entries are numbered in commit order, from 0. An export passes entries to the exporter before its
//! commit, which moves the position of its subscription to the last of these entries or, if that is the
//! last one of its block, to the whole block. [`BlockLogs::after`] determines where the read after a
//! position starts, and what a trim clears.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use combine::keyspace::{Environment, Isolation, Subspace, Transaction};
use combine::microqueue;
use combine::microqueue::blocks::{BlockLogs, EntryId, WHOLE_BLOCK};
use conformance::checker_store::{CheckerTransaction, NoBugs, Rows, Staged, finish, rows_of};
use conformance::scale;
use stateright::{Checker, HasDiscoveries, Model, Property};

/// The number of threads that check the model.
const THREADS: usize = 2;

/// The number of subscriptions.
const SUBSCRIPTIONS: usize = 2;

/// The number of exports and trims that are between their read version and their commit.
const FLIGHTS: usize = 2;

const ALL_IN_ORDER: &str = "a subscription sees the entries in order, and skips none";
const KEPT: &str = "what is cleared was seen by each subscription";
const FINISHES: &str = "when nothing more happens, everything is exported and cleared";

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A trim clears the block of the slowest position, whatever its index is.
    PartCleared,
    /// The read after a position inside a block starts after the block.
    PartSkipped,
    /// The read after a position inside a block starts with the first entry of the block.
    IndexIgnored,
}

/// The model, with the sizes of the blocks that are added, in this order.
#[derive(Clone)]
struct ExportModel {
    logs: BlockLogs,
    blocks: &'static [u8],
    bug: Option<Bug>,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    rows: Arc<Rows>,
    version: i64,
    flights: Vec<Staged>,
    /// The number of blocks that have been added.
    blocks: usize,
    /// The number of entries in them.
    entries: u8,
    /// The number of entries that each subscription has seen.
    seen: [u8; SUBSCRIPTIONS],
    /// Whether a subscription has skipped an entry, or has seen an entry twice in one export or again
    /// after a commit.
    has_skipped: bool,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Add,
    /// A subscription exports a batch of up to this number of entries.
    Export(usize, usize),
    Trim,
    /// A transaction in flight commits.
    Land(usize),
}

impl Model for ExportModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: Arc::default(),
            version: 1,
            flights: Vec::new(),
            blocks: 0,
            entries: 0,
            seen: [0; SUBSCRIPTIONS],
            has_skipped: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.blocks < self.blocks.len() {
            steps.push(Step::Add);
        }
        steps.extend((0..state.flights.len()).map(Step::Land));
        if state.flights.len() < FLIGHTS {
            for subscription in 0..SUBSCRIPTIONS {
                let limits = [1, usize::MAX];
                steps.extend(limits.map(|limit| Step::Export(subscription, limit)));
            }
            steps.push(Step::Trim);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Add => {
                let staged = self.add(&mut next)?;
                next.commit(&staged);
            }
            Step::Land(place) => {
                let staged = next.flights.remove(place);
                next.commit(&staged);
            }
            _ => {
                let staged = self.stage(&mut next, step)?;
                next.flights.push(staged);
                next.flights.sort_unstable();
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALL_IN_ORDER, |_, state: &State| !state.has_skipped),
            Property::always(KEPT, |model: &Self, state: &State| {
                let kept = model.numbers(state);
                let all_seen = state.seen.iter().min().expect("there are subscriptions");
                (*all_seen..state.entries).all(|number| kept.contains(&number))
            }),
            Property::always(FINISHES, |model: &Self, state: &State| {
                !state.flights.is_empty() || model.finishes(state)
            }),
        ]
    }
}

impl State {
    fn commit(&mut self, staged: &Staged) {
        self.version += i64::from(staged.appends());
        let version = self.version;
        self.rows = Arc::new(staged.applied(&self.rows, version));
        self.flights.retain(|other| !staged.dooms(version, other));
    }

    /// Records entries that are passed to a subscription. The first one is the next one after its
    /// position.
    fn see(&mut self, subscription: usize, numbers: &[u8]) {
        let seen = &mut self.seen[subscription];
        self.has_skipped |= !numbers.is_sorted_by(|a, b| a + 1 == *b);
        self.has_skipped |= numbers.first().is_some_and(|first| first > seen);
        *seen = numbers.iter().map(|number| number + 1).fold(*seen, u8::max);
    }
}

impl ExportModel {
    fn new(blocks: &'static [u8], bug: Option<Bug>) -> Self {
        let logs = BlockLogs::new(Subspace::from("E"), 1, Environment::system());
        Self { logs, blocks, bug }
    }

    fn begin(&self, state: &State) -> CheckerTransaction<NoBugs> {
        CheckerTransaction::begin(&state.rows, state.version, NoBugs)
    }

    fn add(&self, next: &mut State) -> Option<Staged> {
        let count = self.blocks[next.blocks];
        let tr = self.begin(next);
        let mut batch = self.logs.batch();
        for number in next.entries..next.entries + count {
            batch.push(0, b"key", &[number]).unwrap();
        }
        batch.stage(&tr).unwrap();
        next.blocks += 1;
        next.entries += count;
        tr.staged()
    }

    /// Begins an export, which passes on its entries, or a trim. Returns `None` if there is nothing to
    /// do.
    fn stage(&self, next: &mut State, step: Step) -> Option<Staged> {
        let tr = self.begin(next);
        match step {
            Step::Export(subscription, limit) => {
                let row = position_row(subscription);
                let position = finish(tr.get(&row, Isolation::Serializable))
                    .unwrap()
                    .map(|bytes| EntryId::try_from(&bytes[..]).unwrap());
                let (last, numbers) = self.read(&tr, position, limit);
                next.see(subscription, &numbers);
                let is_new = |last: &EntryId| position.is_none_or(|position| *last > position);
                next.has_skipped |= !last.as_ref().is_none_or(is_new);
                tr.set(&row, &last?.to_bytes());
            }
            _ => {
                // By snapshot, since positions only grow, and with an older one a trim clears less.
                let position = |subscription| {
                    let row = position_row(subscription);
                    let position = finish(tr.get(&row, Isolation::Snapshot)).unwrap()?;
                    Some(EntryId::try_from(&position[..]).unwrap())
                };
                let positions: Option<Vec<_>> = (0..SUBSCRIPTIONS).map(position).collect();
                let mut slowest = positions?.into_iter().min()?;
                if self.bug == Some(Bug::PartCleared) {
                    slowest = whole(slowest);
                }
                let (begin, _) = self.logs.after(0, None);
                let (end, _) = self.logs.after(0, Some(slowest));
                rows_of(&next.rows, &(begin.clone(), end.clone())).next()?;
                tr.clear_range(&begin, &end);
            }
        }
        tr.staged()
    }

    /// Reads up to `limit` entries after a position. Returns the position after them, and their numbers.
    fn read(
        &self,
        tr: &CheckerTransaction<NoBugs>,
        position: Option<EntryId>,
        limit: usize,
    ) -> (Option<EntryId>, Vec<u8>) {
        let mut numbers = Vec::new();
        let mut last = None;
        let from = match self.bug {
            Some(Bug::PartSkipped) => position.map(whole),
            _ => position,
        };
        let visited = self.logs.visit(tr, 0, from, |block| {
            let entries = block.entries().expect("the model adds whole blocks");
            let count = entries.len();
            for (index, entry) in (0..).zip(entries) {
                let is_last = usize::from(index) + 1 == count;
                let id = EntryId { index, ..block.id };
                let is_seen = position.is_some_and(|position| id <= position);
                if is_seen && self.bug != Some(Bug::IndexIgnored) {
                    continue;
                }
                if numbers.len() == limit {
                    return Ok(ControlFlow::Break(()));
                }
                numbers.push(entry.value[0]);
                last = Some(if is_last { whole(id) } else { id });
            }
            Ok::<_, microqueue::Error>(ControlFlow::Continue(()))
        });
        finish(visited).unwrap();
        (last, numbers)
    }

    /// Returns the numbers of the entries in the log.
    fn numbers(&self, state: &State) -> Vec<u8> {
        self.read(&self.begin(state), None, usize::MAX).1
    }

    /// Returns whether exports of one entry each, and a trim, end with everything exported and cleared.
    fn finishes(&self, state: &State) -> bool {
        let mut state = state.clone();
        for subscription in 0..SUBSCRIPTIONS {
            for _ in 0..state.entries {
                if let Some(staged) = self.stage(&mut state, Step::Export(subscription, 1)) {
                    state.commit(&staged);
                }
            }
        }
        if let Some(staged) = self.stage(&mut state, Step::Trim) {
            state.commit(&staged);
        }
        state.seen == [state.entries; SUBSCRIPTIONS] && self.numbers(&state).is_empty()
    }
}

fn whole(id: EntryId) -> EntryId {
    let index = WHOLE_BLOCK;
    EntryId { index, ..id }
}

/// The row of a subscription's position.
fn position_row(subscription: usize) -> Vec<u8> {
    Subspace::from("P").pack(&subscription)
}

fn catch(bug: Bug, property: &'static str) {
    let model = ExportModel::new(&[2, 1], Some(bug));
    let expected = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(expected).spawn_bfs().join();
    println!("{bug:?}: {} states", checker.unique_state_count());
    checker.assert_any_discovery(property);
}

#[test]
fn positions_inside_blocks_keep_their_promises() {
    let blocks: &[u8] = &[2, 1, 3, 2];
    let model = ExportModel::new(&blocks[..scale(3, blocks.len())], None);
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "exports: {} steps between {} states, {} in a row at most",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

#[test]
fn catches_a_trim_that_clears_a_block_exported_in_part() {
    catch(Bug::PartCleared, KEPT);
}

#[test]
fn catches_a_position_inside_a_block_that_begins_after_it() {
    catch(Bug::PartSkipped, ALL_IN_ORDER);
}

#[test]
fn catches_a_position_inside_a_block_that_begins_with_it() {
    catch(Bug::IndexIgnored, FINISHES);
}
