//! What a session's dispatcher does: one step after the other, around its one request.

use crate::database::{ABSENT, Database, ITEMS, Key, Staged};
use crate::model::{Protocol, Step};
use crate::protocol::{self, Mistake};
use crate::state::State;

/// A step of a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// `registry::take`.
    Take,
    /// `registry::register`.
    Register,
    /// `registry::fulfill`, by the owner of the first request, by one that owes a look, or by one
    /// that has lost patience.
    Fulfill,
    /// `registry::look`, or a `registry::fulfill` that finds no pair: nothing to do for now.
    Look,
    /// `registry::collect`.
    Collect,
    /// `registry::withdraw`.
    Withdraw,
    /// `delivery::give_back`, of what `reclaim::unknown` finds and the process does not count as its
    /// own.
    GiveBack(usize),
    /// What is in flight commits, and the dispatcher learns it.
    Commit,
    /// The dispatcher gives up to learn what becomes of its commit, and goes on.
    Doubt,
}

impl Protocol {
    /// Adds the steps that a dispatcher can take.
    pub(crate) fn steps_of_dispatcher(&self, state: &State, me: usize, steps: &mut Vec<Step>) {
        let mut add = |step| steps.push(Step::Dispatch(me, step));
        let memory = &state.sessions[me];
        if memory.in_flight.is_some() {
            add(Dispatch::Commit);
            if state.budget.doubts > 0 {
                add(Dispatch::Doubt);
            }
            return;
        }
        let is_answered = state.db.has(Key::Grant(me));
        if is_answered {
            add(Dispatch::Collect);
        }
        let is_registered = state.db.has(Key::Request(me));
        let is_up = is_registered && !memory.sleeps;
        let leads = is_up && state.is_first(me) || self.loses_patience(state, me);
        let finds_pair = || protocol::fulfill(&state.db, self.rules, me).is_some();
        if (memory.owes_look || leads) && finds_pair() {
            add(Dispatch::Fulfill);
        } else if memory.owes_look || is_up {
            add(Dispatch::Look);
        }
        if is_registered && state.budget.withdrawals > 0 {
            add(Dispatch::Withdraw);
        }
        // A session has one consumer, which takes up the next items when it is done with the last.
        // A request for which there will be no item changes nothing for anybody.
        let is_busy = memory.owes_look || memory.deliveries != [ABSENT; ITEMS];
        let is_over = (0..self.budget.arrivals).all(|item| state.db.has(Key::Effect(item)));
        if !is_registered && !is_answered && !is_busy && !is_over {
            add(Dispatch::Take);
            add(Dispatch::Register);
        }
        let keeps_strays = is_registered && self.rules.breaks(Mistake::StraysKept);
        (0..ITEMS)
            .filter(|item| state.is_stray(me, *item) && !keeps_strays)
            .for_each(|item| add(Dispatch::GiveBack(item)));
    }

    /// Returns whether a session may act though it is not the first. Somebody has to fall silent
    /// before that: the model has no other timer.
    fn loses_patience(&self, state: &State, me: usize) -> bool {
        let somebody_died = state.budget.deaths < self.budget.deaths;
        let has_items = (0..ITEMS).any(|item| state.db.has(Key::Item(item)));
        state.sessions[me].sleeps && somebody_died && has_items
    }

    /// Takes a step of a dispatcher. `None`: it finds nothing to do.
    pub(crate) fn dispatch(
        &self,
        db: &Database,
        next: &mut State,
        me: usize,
        step: Dispatch,
    ) -> Option<()> {
        let rules = self.rules;
        let memory = &mut next.sessions[me];
        match step {
            Dispatch::Take => self.run(next, me, protocol::take(db, rules, me)?),
            Dispatch::Register => self.run(next, me, protocol::register(db, me)?),
            Dispatch::Fulfill => {
                memory.owes_look = true;
                memory.sleeps = false;
                self.run(next, me, protocol::fulfill(db, rules, me)?);
            }
            Dispatch::Look => {
                memory.owes_look = false;
                memory.sleeps = db.has(Key::Request(me));
            }
            Dispatch::Collect => {
                let grant = db.get(Key::Grant(me));
                for item in (0..ITEMS).filter(|item| grant & (1 << item) != 0) {
                    memory.deliveries[item] = db.get(Key::Held(me, item));
                }
                next.commit(&protocol::collect(db, me)?);
            }
            Dispatch::Withdraw => {
                memory.owes_look = !rules.breaks(Mistake::NoLookAfterWithdrawal);
                next.budget.withdrawals -= 1;
                next.commit(&protocol::withdraw(db, me)?);
            }
            Dispatch::GiveBack(item) => next.commit(&protocol::give_back(db, me, item)?),
            Dispatch::Commit => {
                let staged = memory.in_flight.take()?;
                self.commit(next, me, &staged);
            }
            Dispatch::Doubt => {
                memory.owes_look &= !rules.breaks(Mistake::NoLookInDoubt);
                next.budget.doubts -= 1;
                next.set_adrift(me);
            }
        }
        Some(())
    }

    /// Runs a transaction: at once if it is serializable.
    fn run(&self, next: &mut State, me: usize, staged: Staged) {
        next.granted_out_of_order |= skips_an_item(&next.db, &staged);
        if staged.is_serializable() {
            self.commit(next, me, &staged);
        } else {
            next.sessions[me].in_flight = Some(staged);
        }
    }

    /// Commits a transaction whose outcome the dispatcher learns.
    fn commit(&self, next: &mut State, me: usize, staged: &Staged) {
        next.commit(staged);
        let memory = &mut next.sessions[me];
        memory.owes_look &= !self.rules.breaks(Mistake::NoSecondLook);
        for item in 0..ITEMS {
            if let Some(number) = staged.written(Key::Held(me, item)) {
                memory.deliveries[item] = number;
            }
        }
    }
}

/// Returns whether a transaction that reads this state grants an item and leaves one before it.
fn skips_an_item(db: &Database, staged: &Staged) -> bool {
    let queued = (0..ITEMS).map(Key::Item).filter(|key| db.has(*key));
    !queued.is_sorted_by_key(|key| staged.written(key).is_none())
}
