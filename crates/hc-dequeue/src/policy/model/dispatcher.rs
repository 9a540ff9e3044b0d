//! What a session's dispatcher does: the steps of the [policy](crate::policy), one after the other.

use super::database::{ALIVE, Database, ITEMS, Key, SESSIONS, Staged};
use super::protocol::{self, Taking};
use super::state::{State, Watch};
use super::steps::{Protocol, Step};
use crate::policy::{Event, Facts, Lead, Pace, Returns, Scope, Timer, Wants};
use crate::registry::request::Precedence;

/// What the policy is told to do.
type Due = crate::policy::Step<()>;

/// A step of a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dispatch {
    /// What the policy says is next.
    Act(Measured),
    /// A timer runs out while there is nothing to do.
    Elapse(Timer),
    /// The consumer goes, and the policy withdraws the request.
    Withdraw,
    /// `give_back`, of what `reclaim::held_after` finds and the process does not count as its own, at a
    /// heartbeat.
    GiveBack(usize),
    /// What is in flight commits, and the dispatcher learns it.
    Commit,
    /// The dispatcher gives up to learn what becomes of its commit, and goes on.
    Doubt,
}

/// What a driver measures. The model takes any of it at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measured {
    /// Whether other sessions were met of late.
    is_contended: bool,
    /// Whether a request is registered with the answer to the one before.
    asks: bool,
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
    pub(super) fn steps_of_dispatcher(&self, state: &State, me: usize, steps: &mut Vec<Step>) {
        let mut add = |step| steps.push(Step::Dispatch(me, step));
        let memory = &state.sessions[me];
        if memory.in_flight.is_some() {
            add(Dispatch::Commit);
            if state.budget.doubts > 0 {
                add(Dispatch::Doubt);
            }
            return;
        }
        for is_contended in [false, true] {
            let due = self.due(state, me, is_contended);
            let asks = false;
            // Elsewhere it makes no difference.
            let matters = due != self.due(state, me, !is_contended)
                || matches!(due, Due::Register | Due::Collect(()));
            if due != Due::Rest && (matters || !is_contended) {
                add(Dispatch::Act(Measured { is_contended, asks }));
            }
            let may_ask = is_contended && state.budget.asks > 0 && !self.is_over(state);
            if may_ask && collects(due) && state.is_answered(me) {
                let asks = true;
                add(Dispatch::Act(Measured { is_contended, asks }));
            }
        }
        if self.due(state, me, false) == Due::Rest {
            for timer in [Timer::Answer, Timer::Grace, Timer::Patience, Timer::Poll] {
                if self.may_elapse(state, me, timer) {
                    add(Dispatch::Elapse(timer));
                }
            }
        }
        let withdraws = Facts {
            wants: Wants::Nothing,
            ..self.facts(state, me, false)
        };
        let withdraws = matches!(memory.policy.clone().next(withdraws), Due::Withdraw(()));
        if withdraws && state.budget.withdrawals > 0 {
            add(Dispatch::Withdraw);
        }
        let returns = Facts {
            returns: Returns::ToQueue,
            ..self.facts(state, me, false)
        };
        if memory.policy.clone().next(returns) == Due::GiveBack {
            (0..ITEMS)
                .filter(|item| state.is_stray(me, *item))
                .for_each(|item| add(Dispatch::GiveBack(item)));
        }
    }

    /// Returns what the policy says is next.
    fn due(&self, state: &State, me: usize, is_contended: bool) -> Due {
        let facts = self.facts(state, me, is_contended);
        state.sessions[me].policy.clone().next(facts)
    }

    fn facts(&self, state: &State, me: usize, is_contended: bool) -> Facts {
        let memory = &state.sessions[me];
        let is_free = state.is_idle(me) && !memory.has_left && !self.is_over(state);
        let wants_items = is_free || memory.policy.request().is_some();
        Facts {
            wants: match wants_items {
                true => Wants::Items,
                false => Wants::Nothing,
            },
            returns: Returns::Nothing,
            buries: false,
            pace: pace(is_contended),
        }
    }

    /// Of a request for which there will be no item no consumer has anything.
    fn is_over(&self, state: &State) -> bool {
        (0..self.budget.arrivals).all(|item| state.db.has(Key::Effect(item)))
    }

    /// Returns whether a timer may run out. Those of failures do only where they change anything, after a
    /// process has fallen silent, or after a commit in doubt: without that, a session that sleeps sleeps
    /// until it is woken.
    fn may_elapse(&self, state: &State, me: usize, timer: Timer) -> bool {
        let policy = &state.sessions[me].policy;
        let mut after = *policy;
        after.on(Event::Elapsed(timer), pace(false));
        if after == *policy || policy.request().is_none() {
            return false;
        }
        match timer {
            Timer::Answer | Timer::Grace => true,
            Timer::Patience => self.loses_patience(state, me),
            Timer::Poll if policy.has_better_timer() => false,
            Timer::Poll => self.loses_patience(state, me) || self.polls_in_vain(state, me),
        }
    }

    /// Returns whether a session that sleeps is to give up on the first request.
    pub(super) fn loses_patience(&self, state: &State, me: usize) -> bool {
        let has_died = state.budget.deaths < self.budget.deaths;
        let has_items = (0..ITEMS).any(|item| state.db.has(Key::Item(item)));
        let has_supply = has_items && !state.db.has(Key::Pause);
        has_died && has_supply && self.changes(state, me, Taking::ForOthers)
    }

    /// Returns whether a session that sleeps is to find that its request is gone: its own commit, of which
    /// it gave up to learn the outcome, may have answered it.
    pub(super) fn polls_in_vain(&self, state: &State, me: usize) -> bool {
        let has_doubted = state.budget.doubts < self.budget.doubts;
        has_doubted && !state.db.has(Key::Request(me)) && !state.is_answered(me)
    }

    /// Returns whether a fulfillment would change anything.
    pub(super) fn changes(&self, state: &State, me: usize, taking: Taking) -> bool {
        protocol::fulfill(&state.db, self.rules, me, taking).is_some()
    }

    /// Takes a step of a dispatcher. `None`: it finds nothing to do.
    pub(super) fn dispatch(
        &self,
        db: &Database,
        next: &mut State,
        me: usize,
        step: Dispatch,
    ) -> Option<()> {
        match step {
            Dispatch::Act(measured) => self.act(db, next, me, measured)?,
            Dispatch::Elapse(timer) => next.report(me, Event::Elapsed(timer), false),
            Dispatch::Withdraw => {
                next.budget.withdrawals -= 1;
                next.sessions[me].has_left = true;
                let event = match protocol::withdraw(db, me) {
                    Some(staged) => {
                        next.commit(&staged);
                        Event::Withdrawn
                    }
                    None => Event::NotWithdrawn,
                };
                next.report(me, event, false);
            }
            Dispatch::GiveBack(item) => next.commit(&protocol::give_back(db, me, item)?),
            Dispatch::Commit => {
                let staged = next.sessions[me].in_flight.take()?;
                let event = self.commit(next, me, &staged);
                next.report(me, event, false);
            }
            Dispatch::Doubt => {
                let policy = &next.sessions[me].policy;
                let step = match policy.leads() {
                    true => Due::Fulfill {
                        lead: Lead::Everybody,
                        request: None,
                    },
                    false => Due::Take,
                };
                next.budget.doubts -= 1;
                next.report(me, Event::Failed(step), false);
                next.set_adrift(me);
            }
        }
        Some(())
    }

    /// Performs the step that is due. `None`: there is none.
    fn act(&self, db: &Database, next: &mut State, me: usize, measured: Measured) -> Option<()> {
        let facts = self.facts(next, me, measured.is_contended);
        let due = next.sessions[me].policy.next(facts);
        let event = match due {
            Due::Take => self.take(db, next, me),
            Due::Register => Some(register(db, next, me)),
            Due::Fulfill { lead, .. } => self.fulfill(db, next, me, lead),
            Due::Look { scope, .. } => Some(look(db, next, me, scope, measured.asks)),
            Due::Collect(()) => Some(collect(db, next, me, measured.asks)),
            Due::WatchPause => Some(watch_pause(db, next, me)),
            Due::Rest | Due::OpenSession | Due::GiveBack | Due::Bury | Due::Withdraw(()) => {
                return None;
            }
        };
        match event {
            // What it opens anew is another session. In this one it will do nothing any more.
            Some(Event::SessionLost) => next.end(me),
            Some(event) => next.report(me, event, measured.is_contended),
            // The transaction is in flight.
            None => {}
        }
        Some(())
    }

    /// `registry::take`.
    fn take(&self, db: &Database, next: &mut State, me: usize) -> Option<Event<()>> {
        let has_requests = (0..SESSIONS).any(|session| db.has(Key::Request(session)));
        Some(if db.get(Key::Session(me)) != ALIVE {
            Event::SessionLost
        } else if db.has(Key::Pause) {
            Event::IsPaused
        } else if has_requests {
            Event::MetOthers
        } else {
            match protocol::take(db, self.rules, me) {
                Some(staged) => return self.run(next, me, staged),
                None => Event::NoItem,
            }
        })
    }

    /// `registry::fulfill`.
    fn fulfill(&self, db: &Database, next: &mut State, me: usize, lead: Lead) -> Option<Event<()>> {
        match protocol::fulfill(db, self.rules, me, self.taking(next, me, lead)) {
            Some(staged) => self.run(next, me, staged),
            None => Some(Event::Fulfilled {
                has_changed: false,
                own: false,
            }),
        }
    }

    /// Returns what a session's next fulfillment takes.
    pub(super) fn taking(&self, state: &State, me: usize, lead: Lead) -> Taking {
        match lead {
            Lead::HandOver => Taking::Nothing,
            Lead::Everybody if state.is_idle(me) && !state.sessions[me].has_left => Taking::Last,
            Lead::Everybody => Taking::ForOthers,
        }
    }

    /// Runs a transaction: at once if it is serializable.
    fn run(&self, next: &mut State, me: usize, staged: Staged) -> Option<Event<()>> {
        next.granted_out_of_order |= skips_an_item(&next.db, &staged);
        if staged.is_serializable() {
            return Some(self.commit(next, me, &staged));
        }
        next.sessions[me].in_flight = Some(staged);
        None
    }

    /// Commits a take or a fulfillment whose outcome the dispatcher learns.
    fn commit(&self, next: &mut State, me: usize, staged: &Staged) -> Event<()> {
        next.commit(staged);
        let memory = &mut next.sessions[me];
        let mut has_items = false;
        for item in 0..ITEMS {
            if let Some(number) = staged.written(Key::Held(me, item)) {
                memory.deliveries[item] = number;
                has_items = true;
            }
        }
        let own = has_items && staged.written(Key::Request(me)).is_some();
        match memory.policy.leads() {
            true => Event::Fulfilled {
                has_changed: true,
                own,
            },
            false => Event::Taken,
        }
    }
}

/// Returns whether a step takes over an answer that is there.
fn collects(due: Due) -> bool {
    matches!(due, Due::Look { .. } | Due::Collect(()))
}

/// `registry::register`.
fn register(db: &Database, next: &mut State, me: usize) -> Event<()> {
    match protocol::register(db, me) {
        Some(staged) => {
            next.commit(&staged);
            Event::Registered(())
        }
        None => Event::SessionLost,
    }
}

/// `inquiry::view_request`.
fn look(db: &Database, next: &mut State, me: usize, scope: Scope, asks: bool) -> Event<()> {
    if next.is_answered(me) {
        return collect(db, next, me, asks);
    }
    if scope == Scope::Answer {
        next.sessions[me].watches = Some(Watch::Grant);
        return Event::Waits {
            is_first: false,
            has_items: None,
            precedence: None,
        };
    }
    if !db.has(Key::Request(me)) {
        return Event::Gone;
    }
    let is_first = next.is_first(me);
    next.sessions[me].watches = Some(match is_first {
        true => Watch::GrantOrWake,
        false => Watch::Grant,
    });
    let has_items = (0..ITEMS).any(|item| db.has(Key::Item(item))) && !db.has(Key::Pause);
    let sees_others = !is_first && scope == Scope::Precedence;
    Event::Waits {
        is_first,
        has_items: (is_first || sees_others).then_some(has_items),
        precedence: sees_others.then_some(Precedence { first: (), rank: 1 }),
    }
}

/// `inquiry::collect_and_ask`.
fn collect(db: &Database, next: &mut State, me: usize, asks: bool) -> Event<()> {
    if !next.is_answered(me) {
        return Event::NotAnswered;
    }
    let grant = db.get(Key::Grant(me));
    for item in (0..ITEMS).filter(|item| grant & (1 << item) != 0) {
        next.sessions[me].deliveries[item] = db.get(Key::Held(me, item));
    }
    next.budget.asks -= usize::from(asks);
    let staged = protocol::collect(db, me, asks);
    next.commit(&staged.expect("a grant is cleared"));
    Event::Answered {
        next: asks.then_some(()),
    }
}

/// `request::watch_pause`.
fn watch_pause(db: &Database, next: &mut State, me: usize) -> Event<()> {
    if !db.has(Key::Pause) {
        return Event::Resumed;
    }
    next.sessions[me].watches = Some(Watch::Resumed);
    Event::PauseWatched
}

/// Returns whether a transaction that reads this state grants an item and leaves one before it.
fn skips_an_item(db: &Database, staged: &Staged) -> bool {
    let queued = (0..ITEMS).map(Key::Item).filter(|key| db.has(*key));
    !queued.is_sorted_by_key(|key| staged.written(key).is_none())
}
