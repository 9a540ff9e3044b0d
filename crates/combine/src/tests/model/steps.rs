//! The steps: in which states they can happen, and their effects.

use stateright::{Model, Property};

use crate::queue::aside::AsideId;
use crate::tests::model::promises;
use crate::tests::model::protocol::{
    Action, EVENTFUL_KEYS, Extent, OBSERVERS_KEY, Protocol, Update,
};
use crate::tests::model::state::{Budget, Effect, Flight, State, aside, log};

/// The model: the blocks that are added, and the budget of other events.
#[derive(Clone)]
pub(crate) struct PassModel {
    pub(crate) protocol: Protocol,
    pub(crate) blocks: &'static [&'static [Update]],
    pub(crate) budget: Budget,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Adds a block, by number.
    Add(usize),
    /// Adds a block with a versionstamp that sorts before the block at an index of the log.
    AddBefore(usize, usize),
    /// Begins a transaction.
    Begin(Action),
    /// Commits a transaction in flight, by its index.
    Land(usize),
}

impl Model for PassModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.blocks.len(), self.budget)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for block in &state.to_add {
            steps.push(Step::Add(*block));
            if state.budget.restored > 0 {
                let places = 0..log(&self.protocol, &state.rows).len();
                steps.extend(places.map(|place| Step::AddBefore(*block, place)));
            }
        }
        steps.extend((0..state.flights.len()).map(Step::Land));
        let mut actions = Vec::new();
        if state.flights.len() < state.budget.flights {
            let extents = [
                Extent::All,
                Extent::OneChange,
                Extent::OneKey,
                Extent::Least,
            ];
            actions.extend(extents.map(|extent| Action::Pass(extent, false)));
            if state.budget.withholdings > 0 {
                let withheld = (0..EVENTFUL_KEYS).map(Extent::Withholding);
                actions.extend(withheld.map(|extent| Action::Pass(extent, false)));
            }
            if state.budget.additions > 0 {
                actions.push(Action::Pass(Extent::All, true));
                actions.push(Action::Pass(Extent::OneChange, true));
            }
            if state.budget.loads > 0 {
                actions.extend((0..EVENTFUL_KEYS).map(Action::Initialize));
            }
            if state.budget.redrives > 0 {
                let aside = aside(&self.protocol, &state.rows);
                actions.extend(aside.into_iter().map(Action::Redrive));
            }
        }
        steps.extend(actions.into_iter().map(Step::Begin));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Add(block) => {
                let flight = self.add(&mut next, block)?;
                next.commit(&self.protocol, flight);
            }
            Step::AddBefore(block, place) => {
                let flight = self.add(&mut next, block)?;
                let stamp = last.version_before(&self.protocol, place);
                next.budget.restored -= 1;
                next.commit_at(&self.protocol, stamp, flight);
            }
            Step::Begin(action) => self.begin(&mut next, &action)?,
            Step::Land(place) => {
                let flight = next.flights.remove(place);
                next.commit(&self.protocol, flight);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl PassModel {
    /// Returns the transaction that adds a block.
    fn add(&self, next: &mut State, block: usize) -> Option<Flight> {
        next.to_add.retain(|other| *other != block);
        let updates = self.blocks[block];
        let action = Action::Add(updates.to_vec());
        let (staged, _) = self.protocol.stage(&next.rows, next.version, &action)?;
        Some(Flight {
            staged,
            effect: Effect::of(updates),
            sums: next.sums,
        })
    }

    /// Begins a transaction, and also commits it if it is serializable. Returns `None` if there is
    /// nothing to do.
    fn begin(&self, next: &mut State, action: &Action) -> Option<()> {
        let (staged, reports) = self.protocol.stage(&next.rows, next.version, action)?;
        let budget = &mut next.budget;
        let mut effect = Effect::default();
        match action {
            Action::Add(_) => unreachable!("a step of its own"),
            Action::Pass(extent, adds) => {
                if *adds {
                    if reports.is_empty() {
                        return None;
                    }
                    budget.additions -= 1;
                    effect.added[OBSERVERS_KEY] = 1;
                }
                if matches!(extent, Extent::Withholding(_)) {
                    budget.withholdings -= 1;
                }
                effect.reports = Some(reports);
            }
            Action::Initialize(key) => {
                budget.loads -= 1;
                effect.loaded = Some(*key);
            }
            Action::Redrive(AsideId::Key(_) | AsideId::Update { .. }) => budget.redrives -= 1,
        }
        let flight = Flight {
            sums: next.sums,
            staged,
            effect,
        };
        if flight.staged.is_serializable() {
            next.commit(&self.protocol, flight);
        } else {
            next.flights.push(flight);
            next.flights.sort_unstable();
        }
        Some(())
    }
}
