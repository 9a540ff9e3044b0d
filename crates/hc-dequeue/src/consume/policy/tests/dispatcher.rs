//! The dispatcher of a session: performs the steps of the [policy](crate::consume::policy), one after another.

use super::database::{ABSENT, Database, ITEMS, Key, SESSIONS, Staged};
use super::protocol::{Action, ActionOutcome, OwnDemand};
use super::state::{ModelState, Process};
use super::steps::{ModelStep, Protocol};
use crate::consume::policy::{
    Event, Facts, Lead, Pace, Policy, ReserveFill, Returns, Timer, Wants,
};

/// The step that the policy returns.
type DueStep = crate::consume::policy::Step<()>;

/// A step of a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// The next step of the policy.
    Act(Measured),
    /// A timer runs out while there is nothing to do.
    Elapse(Timer),
    /// The consumer gives up, and the policy withdraws the request.
    Withdraw,
    /// The time of the consumer is over.
    Hurry,
    /// `give_back`, at a heartbeat, of an item that `reclaim::held_after` finds and for which the process has no
    /// delivery.
    GiveBack(usize),
    /// An item has been in the reserve for too long.
    Overdue,
    /// The commit in flight succeeds, and the dispatcher learns it.
    Commit,
    /// The dispatcher gives up waiting for the outcome of its transaction, and continues. If no transaction is in
    /// flight, it begins one, which may also take an item for the reserve.
    Doubt { is_low: bool },
}

/// The measurements of a driver. In the model, they may have any value at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// Whether other sessions were met recently.
    is_contended: bool,
    /// Whether a request is registered together with the answer to the previous one.
    asks: bool,
    /// Whether the reserve is low, so that the transaction takes an item for it.
    is_low: bool,
}

impl Measured {
    fn contended(is_contended: bool) -> Self {
        Self {
            is_contended,
            ..Self::default()
        }
    }

    fn low(is_low: bool) -> Self {
        Self {
            is_low,
            ..Self::default()
        }
    }
}

/// Returns the pace of a queue that is contended, or not.
pub(super) fn pace(is_contended: bool) -> Pace {
    Pace {
        is_contended,
        asks_again: false,
    }
}

impl Protocol {
    /// Adds the steps that a dispatcher can take.
    pub(super) fn steps_of_dispatcher(
        &self,
        state: &ModelState,
        me: usize,
        steps: &mut Vec<ModelStep>,
    ) {
        let mut add = |step| steps.push(ModelStep::Dispatch(me, step));
        let memory = &state.sessions[me];
        let in_flight = memory.in_flight.is_some();
        if state.budget.doubts > 0 {
            for is_low in [false, true] {
                let may_begin = !in_flight && self.begins(state, me, is_low).is_some();
                if may_begin || in_flight && !is_low {
                    add(Dispatch::Doubt { is_low });
                }
            }
        }
        if in_flight {
            add(Dispatch::Commit);
            return;
        }
        for is_contended in [false, true] {
            let measured = Measured::contended(is_contended);
            let due = self.due(state, me, measured);
            // In other cases it makes no difference.
            let matters = due != self.due(state, me, Measured::contended(!is_contended))
                || matches!(due, DueStep::Register | DueStep::Collect(()));
            if due != DueStep::Rest && (matters || !is_contended) {
                add(Dispatch::Act(measured));
            }
            let may_ask = is_contended && state.budget.asks > 0 && !self.is_over(state);
            if may_ask && collects(due) && state.is_answered(me) {
                let asks = true;
                add(Dispatch::Act(Measured { asks, ..measured }));
            }
        }
        let low = Measured::low(true);
        let refills = || self.due(state, me, low) != self.due(state, me, Measured::default());
        if state.budget.ahead > 0 && (self.may_take_ahead(state, me) || refills()) {
            add(Dispatch::Act(low));
        }
        if memory.reserve != [ABSENT; ITEMS] && !memory.policy.keeps_reserve(true) {
            add(Dispatch::Overdue);
        }
        if self.due(state, me, Measured::default()) == DueStep::Rest {
            for timer in [Timer::Answer, Timer::Grace, Timer::Patience, Timer::Poll] {
                if self.may_elapse(state, me, timer) {
                    add(Dispatch::Elapse(timer));
                }
            }
        }
        let wants_nothing = Facts {
            wants: Wants::Nothing,
            ..self.facts(state, me, Measured::default())
        };
        let withdraws = matches!(
            memory.policy.clone().next(wants_nothing),
            DueStep::Withdraw(())
        );
        if withdraws && state.budget.withdrawals > 0 {
            add(Dispatch::Withdraw);
        }
        let may_hurry = state.budget.hurries > 0 && !self.is_over(state);
        if may_hurry && self.facts(state, me, Measured::default()).wants == Wants::Items {
            add(Dispatch::Hurry);
        }
        let returns = Facts {
            returns: Returns::ToFront,
            ..self.facts(state, me, Measured::default())
        };
        if memory.policy.clone().next(returns) == DueStep::GiveBack {
            (0..ITEMS)
                .filter(|item| state.is_stray(me, *item))
                .for_each(|item| add(Dispatch::GiveBack(item)));
        }
    }

    /// Returns the next step of the policy.
    fn due(&self, state: &ModelState, me: usize, measured: Measured) -> DueStep {
        let facts = self.facts(state, me, measured);
        state.sessions[me].policy.clone().next(facts)
    }

    /// Returns the facts for the next decision of the policy.
    pub(super) fn facts(&self, state: &ModelState, me: usize, measured: Measured) -> Facts {
        let memory = &state.sessions[me];
        let may_want = !memory.has_left && !memory.policy.is_draining;
        let is_free = state.is_idle(me) && may_want && !self.is_over(state);
        let wants_items = is_free || memory.policy.request().is_some();
        Facts {
            wants: if !wants_items {
                Wants::Nothing
            } else if memory.is_hasty {
                Wants::ItemsNow
            } else {
                Wants::Items
            },
            reserve: if measured.is_low {
                ReserveFill::Low
            } else {
                ReserveFill::Full
            },
            returns: if memory.unused == [ABSENT; ITEMS] {
                Returns::Nothing
            } else {
                Returns::ToFront
            },
            reclaims: false,
            pace: pace(measured.is_contended),
        }
    }

    /// Returns whether sessions have reserves.
    pub(super) fn has_reserve(&self) -> bool {
        self.budget.ahead > 0
    }

    /// Returns whether no item will come any more, so that no request is needed.
    fn is_over(&self, state: &ModelState) -> bool {
        (0..self.budget.arrivals).all(|item| state.db.has(Key::Effect(item)))
    }

    /// Returns whether a timer may run out. Timers for failures do so only where this matters: while a process that has
    /// fallen silent leads or is not removed, or after a commit in doubt. Otherwise, a session that sleeps stays asleep
    /// until it is woken.
    fn may_elapse(&self, state: &ModelState, me: usize, timer: Timer) -> bool {
        let policy = &state.sessions[me].policy;
        let mut after = *policy;
        after.on(Event::Elapsed(timer), pace(false));
        if after == *policy || policy.request().is_none() {
            return false;
        }
        match timer {
            Timer::Answer | Timer::Grace => true,
            Timer::Poll if has_better_timer(policy) => false,
            Timer::Patience | Timer::Poll => {
                self.loses_patience(state, me) || self.polls_in_vain(state, me)
            }
        }
    }

    /// Returns whether a session that sleeps should lose patience with the first request.
    pub(super) fn loses_patience(&self, state: &ModelState, me: usize) -> bool {
        let is_left = |session: usize| {
            let is_silent = state.sessions[session].process == Process::Late;
            let leads = state.sessions[session].policy.leads();
            is_silent && (leads || state.db.has(Key::Session(session)))
        };
        let has_failed = match self.budget.doubts {
            0 => (0..SESSIONS).any(is_left),
            _ => state.budget.deaths < self.budget.deaths,
        };
        let has_items =
            !state.is_stranger(me) && (0..ITEMS).any(|item| state.db.has(Key::Item(item)));
        let has_supply = has_items && !state.db.has(Key::Pause);
        let fulfill = Action::Fulfill {
            has_request: state.sessions[me].policy.request().is_some(),
            demand: OwnDemand {
                consumer: true,
                reserve: false,
            },
            hands_over: false,
        };
        has_failed && has_supply && self.changes(state, me, fulfill)
    }

    /// Returns whether a session that sleeps should find that its request is gone: its own commit, whose outcome it
    /// did not wait for, may have answered it.
    pub(super) fn polls_in_vain(&self, state: &ModelState, me: usize) -> bool {
        let has_doubted = state.budget.doubts < self.budget.doubts;
        has_doubted && !state.db.has(Key::Request(me)) && !state.is_answered(me)
    }

    /// Returns whether a fulfillment would change anything.
    pub(super) fn changes(&self, state: &ModelState, me: usize, fulfill: Action) -> bool {
        self.functions.stage(&state.db, me, fulfill).is_some()
    }

    /// Performs a step of a dispatcher. Returns `None` if it finds nothing to do.
    pub(super) fn dispatch(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        step: Dispatch,
    ) -> Option<()> {
        match step {
            Dispatch::Act(measured) => self.act(db, next, me, measured)?,
            Dispatch::Elapse(timer) => {
                next.report(me, Event::Elapsed(timer), false);
                if matches!(timer, Timer::Patience | Timer::Poll) {
                    // The check follows at once. If it came later, the timer might as well have run out later: other
                    // processes see no difference, and a watch that fires makes the session check as well.
                    self.act(db, next, me, Measured::default())?;
                }
            }
            Dispatch::Withdraw => {
                next.budget.withdrawals -= 1;
                self.withdraw(db, next, me);
            }
            Dispatch::Hurry => {
                next.budget.hurries -= 1;
                next.sessions[me].is_hasty = true;
            }
            Dispatch::GiveBack(item) => {
                next.commit(&self.functions.stage(db, me, Action::GiveBack(item))?);
            }
            Dispatch::Overdue => next.sessions[me].review_reserve(true),
            Dispatch::Commit => {
                let staged = next.sessions[me].in_flight.take()?;
                let event = self.commit(next, me, &staged);
                next.report(me, event, false);
            }
            Dispatch::Doubt { is_low } => {
                let policy = &next.sessions[me].policy;
                let step = if policy.leads() {
                    DueStep::Fulfill {
                        lead: Lead::Everybody,
                        request: None,
                    }
                } else {
                    DueStep::Take
                };
                next.budget.doubts -= 1;
                if next.sessions[me].in_flight.is_none() {
                    let (staged, demand) = self.begins(next, me, is_low)?;
                    next.begin(me, staged, demand);
                }
                next.report(me, Event::Failed(step), false);
                next.set_adrift(me);
            }
        }
        Some(())
    }

    /// Performs the step that is due. Returns `None` if there is none.
    fn act(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        measured: Measured,
    ) -> Option<()> {
        let facts = self.facts(next, me, measured);
        let due = next.sessions[me].policy.next(facts);
        if due == DueStep::GiveBack {
            let unused = std::mem::take(&mut next.sessions[me].unused);
            let staged = self.functions.stage(db, me, Action::GiveBackUnused(unused));
            staged.iter().for_each(|staged| next.commit(staged));
            return Some(());
        }
        let action = self.action(next, me, due, measured)?;
        // A transaction that has begun right before this one may have used the budget.
        if measured.is_low && next.budget.ahead == 0 {
            return None;
        }
        let event = self.run(db, next, me, action)?;
        next.report(me, event, measured.is_contended);
        if next.sessions[me].is_hasty && finds_none(event) {
            // The consumer leaves at once: one that leaves later is like one that gives up.
            next.sessions[me].is_hasty = false;
            if next.sessions[me].policy.request().is_some() {
                self.withdraw(db, next, me);
            }
        }
        Some(())
    }

    /// Returns what a take or a fulfillment of a session stages if it begins in this state, and its demand. Returns
    /// `None` if another step is due, if the transaction is serializable, or if `is_low` makes no difference to it.
    pub(super) fn stages(
        &self,
        state: &ModelState,
        me: usize,
        is_low: bool,
    ) -> Option<(Staged, OwnDemand)> {
        let measured = Measured::low(is_low);
        let due = self.due(state, me, measured);
        let action = self.action(state, me, due, measured)?;
        let demand = action.demand().filter(|demand| demand.reserve == is_low)?;
        let staged = self.functions.stage(&state.db, me, action);
        let staged = staged.filter(|staged| !staged.is_serializable())?;
        Some((staged, demand))
    }

    /// Returns the same for a transaction that may begin.
    pub(super) fn begins(
        &self,
        state: &ModelState,
        me: usize,
        is_low: bool,
    ) -> Option<(Staged, OwnDemand)> {
        let may_begin = !is_low || self.may_take_ahead(state, me);
        may_begin.then(|| self.stages(state, me, is_low))?
    }

    /// Returns whether the next transaction of a session may take an item for the reserve.
    fn may_take_ahead(&self, state: &ModelState, me: usize) -> bool {
        if state.budget.ahead == 0 {
            return false;
        }
        let measured = Measured::low(true);
        let due = self.due(state, me, measured);
        let action = self.action(state, me, due, measured);
        action.is_some_and(Action::takes_ahead)
    }

    /// Returns the action that performs a step, if there is one.
    fn action(
        &self,
        state: &ModelState,
        me: usize,
        due: DueStep,
        measured: Measured,
    ) -> Option<Action> {
        let Measured { asks, is_low, .. } = measured;
        let takes_ahead = is_low && state.sessions[me].policy.keeps_reserve(false);
        Some(match due {
            DueStep::Take => Action::Take(OwnDemand {
                consumer: !is_low || self.facts(state, me, measured).wants != Wants::Nothing,
                reserve: takes_ahead,
            }),
            DueStep::Register => Action::Register {
                reserve: takes_ahead && self.facts(state, me, measured).wants != Wants::Nothing,
            },
            DueStep::Fulfill { lead, request } => {
                self.fulfillment(state, me, lead, request.is_some(), is_low)
            }
            DueStep::Check { scope, .. } => Action::Check { scope, asks },
            DueStep::Collect(()) => Action::Collect { asks },
            DueStep::WatchPause => Action::WatchPause,
            DueStep::Rest
            | DueStep::OpenSession
            | DueStep::GiveBack
            | DueStep::Reclaim
            | DueStep::Withdraw(()) => {
                return None;
            }
        })
    }

    /// Returns a session's next fulfillment. A session with a request takes what the request wants.
    pub(super) fn fulfillment(
        &self,
        state: &ModelState,
        me: usize,
        lead: Lead,
        has_request: bool,
        is_low: bool,
    ) -> Action {
        let memory = &state.sessions[me];
        let is_free = has_request || state.is_idle(me);
        let takes_ahead = is_low && !has_request && lead == Lead::Everybody;
        Action::Fulfill {
            has_request,
            demand: OwnDemand {
                consumer: is_free && !memory.has_left && !memory.policy.is_draining,
                reserve: takes_ahead && memory.policy.keeps_reserve(false),
            },
            hands_over: lead == Lead::HandOver,
        }
    }

    /// Runs an action that begins and commits in one step, and returns the event for the policy.
    fn run(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        action: Action,
    ) -> Option<Event<()>> {
        let ActionOutcome {
            staged,
            event,
            watches,
        } = self.functions.run(db, me, action);
        if watches.is_some() {
            next.sessions[me].watches = watches;
        }
        if let Some(staged) = staged {
            if action.demand().is_some() {
                next.granted_out_of_order |= next.db.skips_an_item(&staged);
            }
            next.budget.ahead -= usize::from(action.takes_ahead());
            next.commit(&staged);
            next.deliver(me, &staged, self.has_reserve());
        }
        if let Some(Event::Answered { next: Some(()) }) = event {
            next.budget.asks -= 1;
        }
        event
    }

    /// `request::withdraw`, after the consumer has left.
    fn withdraw(&self, db: &Database, next: &mut ModelState, me: usize) {
        next.sessions[me].has_left = true;
        next.sessions[me].is_hasty = false;
        let event = self.run(db, next, me, Action::Withdraw);
        next.report(me, event.expect("a withdrawal reports"), false);
    }

    /// Commits a take or a fulfillment, and reports the outcome to the dispatcher.
    fn commit(&self, next: &mut ModelState, me: usize, staged: &Staged) -> Event<()> {
        let demand = next.sessions[me].demand;
        next.commit(staged);
        let count = next.deliver(me, staged, self.has_reserve());
        if next.sessions[me].policy.leads() {
            Event::Fulfilled {
                has_changed: true,
                own: count > 0,
            }
        } else {
            Event::Taken {
                is_short: count < self.functions.wanted(demand),
            }
        }
    }
}

/// Returns whether a timer runs that ends before the poll interval, or does more.
fn has_better_timer(policy: &Policy<()>) -> bool {
    let request = policy.request();
    request.is_some_and(|request| !request.may_lead || request.patience.is_some())
}

/// Returns whether a step collects an existing answer.
fn collects(due: DueStep) -> bool {
    matches!(due, DueStep::Check { .. } | DueStep::Collect(()))
}

/// Returns whether a step has found no item for the session's consumer.
fn finds_none(event: Event<()>) -> bool {
    let has_items = match event {
        Event::NoItem | Event::IsPaused => Some(false),
        Event::Waits { has_items, .. } => has_items,
        _ => None,
    };
    has_items == Some(false)
}
