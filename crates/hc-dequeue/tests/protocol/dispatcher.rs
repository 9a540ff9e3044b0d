//! What a session's dispatcher does: one step after the other, around its one request.

use crate::database::{ABSENT, Database, FIRST, ITEMS, Key, Staged};
use crate::model::{Protocol, Step};
use crate::protocol::{self, Mistake, Taking};
use crate::state::{Lead, State, Watch};

/// A step of a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// `registry::take`.
    Take,
    /// `registry::register`.
    Register,
    /// `registry::fulfill`, by the owner of the first request, by one that leads already, or by one
    /// that has lost patience.
    Fulfill,
    /// `registry::fulfill` that finds nothing to change.
    Leave,
    /// `registry::check_request`: nothing to do for now, or no request any more.
    Look,
    /// `registry::collect`.
    Collect,
    /// `registry::collect`, and `registry::append` in the same transaction.
    CollectAndAsk,
    /// `registry::withdraw`.
    Withdraw,
    /// `delivery::give_back`, of what `reclaim::held_after` finds and the process does not count as its
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
        let is_registered = state.db.has(Key::Request(me));
        let taking = taking(state, me);
        let changes = || protocol::fulfill(&state.db, self.rules, me, taking).is_some();
        // Of a request for which there will be no item nobody has anything.
        let is_over = (0..self.budget.arrivals).all(|item| state.db.has(Key::Effect(item)));
        if let Some(lead) = memory.leads {
            let is_hasty =
                self.rules.breaks(Mistake::NoLookAfterConflict) && lead == Lead::HandOver;
            add(if changes() && !is_hasty {
                Dispatch::Fulfill
            } else {
                Dispatch::Leave
            });
        } else if memory.watches.is_some() {
            if self.loses_patience(state) && changes() {
                add(Dispatch::Fulfill);
            }
            if self.polls(state) && !is_registered && !state.is_answered(me) {
                add(Dispatch::Look);
            }
        } else if state.is_answered(me) {
            add(Dispatch::Collect);
            if state.budget.asks > 0 && !is_over {
                add(Dispatch::CollectAndAsk);
            }
        } else if is_registered {
            let fulfills = state.is_first(me) && changes();
            add(if fulfills {
                Dispatch::Fulfill
            } else {
                Dispatch::Look
            });
        } else if state.is_idle(me) && !is_over {
            add(Dispatch::Take);
            add(Dispatch::Register);
        }
        if is_registered && state.budget.withdrawals > 0 {
            add(Dispatch::Withdraw);
        }
        let keeps_strays = is_registered && self.rules.breaks(Mistake::StraysKept);
        (0..ITEMS)
            .filter(|item| state.is_stray(me, *item) && !keeps_strays)
            .for_each(|item| add(Dispatch::GiveBack(item)));
    }

    /// Returns whether a session that sleeps may act though it was not woken. Somebody has to fall silent
    /// before that: the model has no other timer.
    fn loses_patience(&self, state: &State) -> bool {
        let somebody_died = state.budget.deaths < self.budget.deaths;
        let has_items = (0..ITEMS).any(|item| state.db.has(Key::Item(item)));
        somebody_died && has_items && !state.db.has(Key::Pause)
    }

    /// Returns whether a session that sleeps looks after its poll interval: its own commit, of which it
    /// gave up to learn the outcome, may have answered its request.
    fn polls(&self, state: &State) -> bool {
        state.budget.doubts < self.budget.doubts
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
                let taking = taking(next, me);
                let memory = &mut next.sessions[me];
                if taking != Taking::Nothing {
                    memory.leads = Some(Lead::Everybody);
                }
                memory.watches = None;
                self.run(next, me, protocol::fulfill(db, rules, me, taking)?);
            }
            Dispatch::Leave => memory.leads = None,
            Dispatch::Look => {
                memory.watches = match db.get(Key::Request(me)) {
                    FIRST => Some(Watch::GrantOrWake),
                    ABSENT => None,
                    _ => Some(Watch::Grant),
                };
            }
            Dispatch::Collect | Dispatch::CollectAndAsk => {
                let grant = db.get(Key::Grant(me));
                for item in (0..ITEMS).filter(|item| grant & (1 << item) != 0) {
                    memory.deliveries[item] = db.get(Key::Held(me, item));
                }
                let asks = step == Dispatch::CollectAndAsk;
                next.budget.asks -= usize::from(asks);
                next.commit(&protocol::collect(db, me, asks)?);
            }
            Dispatch::Withdraw => {
                memory.watches = None;
                if !rules.breaks(Mistake::NoLookAfterWithdrawal) {
                    memory.leads = Some(Lead::OthersOnly);
                }
                next.budget.withdrawals -= 1;
                next.commit(&protocol::withdraw(db, me)?);
            }
            Dispatch::GiveBack(item) => next.commit(&protocol::give_back(db, me, item)?),
            Dispatch::Commit => {
                let staged = memory.in_flight.take()?;
                self.commit(next, me, &staged);
            }
            Dispatch::Doubt => {
                if rules.breaks(Mistake::NoLookInDoubt) {
                    memory.leads = None;
                }
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
        if self.rules.breaks(Mistake::NoSecondLook) {
            memory.leads = None;
        }
        for item in 0..ITEMS {
            if let Some(number) = staged.written(Key::Held(me, item)) {
                memory.deliveries[item] = number;
            }
        }
    }
}

/// Returns what a session's next fulfilment takes.
fn taking(state: &State, me: usize) -> Taking {
    match state.sessions[me].leads {
        Some(Lead::HandOver) => Taking::Nothing,
        Some(Lead::Everybody) if state.is_idle(me) => Taking::Last,
        _ => Taking::ForOthers,
    }
}

/// Returns whether a transaction that reads this state grants an item and leaves one before it.
fn skips_an_item(db: &Database, staged: &Staged) -> bool {
    let queued = (0..ITEMS).map(Key::Item).filter(|key| db.has(*key));
    !queued.is_sorted_by_key(|key| staged.written(key).is_none())
}
