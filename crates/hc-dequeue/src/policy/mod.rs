//! What a session does next, decided without a store, a clock or a task.
//!
//! A [`Policy`] is a state machine. [`Policy::next`] returns the one [`Step`] to perform: a transaction, or
//! rest. [`Policy::on`] takes the [`Event`]s: what came of the step, a watch that fired, a timer that ran
//! out. It returns the timers to start, with delays in units that the driver measures. The
//! [dispatcher](crate::dispatcher) drives it in production, an exhaustive model in the tests.
//!
//! ```text
//!                     items                                    resumed, or polled
//!                    ┌─────┐                                 ┌─────────────────────┐
//!                    ▼     │        the queue is paused      ▼                     │
//!  Lost ──open──▶   Idle ──take───▶ Pausing ──watch pause─▶ Paused ────────────────┘
//!                    ▲     │
//!      answered, or  │     │ no item, or other sessions take items, too
//!      withdrawn     │     ▼
//!                  Waiting ◀──register── Registering
//! ```
//!
//! Beside its phase a session may owe *leadership*: it has changed the registry, or removed something from
//! it, so that requests of others may be answerable or may have become the first without their owners
//! knowing it. Such a session fulfills before anything else until a fulfillment changes nothing.
//!
//! # Constants
//!
//! What chose each: items a second on a cluster of one process, with it and without it, in alternating rounds of
//! `cargo xtask bench hc_dequeue`. *64 sessions* have one consumer each.
//!
//! | constant | value | what it buys | with | without |
//! |---|---|---|---|---|
//! | [`ANSWER`] | 1 transaction | a session that meets others finds its answer with its first look as a rule | 64 sessions: 4,790 pops | 3,940 |
//! | [`GRACE`] | 2 transactions | the session that leads answers a new first request, instead of two sessions that meet | 64 sessions: 1,960 acknowledged, 0.03 conflicts for each, 99th percentile 57 ms | 1,680; 0.32; 232 ms |
//! | [`GRACE_OF_MANY`] | 4 transactions | the same while consumers ask again at once: each fulfillment is for many | 64 sessions: 4,790 pops; 64 consumers in 4 processes: 11,100 | 1,790; 8,170 |
//! | [`Lead::HandOver`] | | a session that met another leader leaves the items to it, and makes sure of the first request only | 64 sessions: 4,790 pops, 1,960 acknowledged | 4,360; 1,790 |
//! | `STAGED_TAKES` in `dispatcher::pace` | 64 requests | sessions that met others register at once, and no fast path fails | 64 sessions: 4,790 pops; 64 consumers in 4 processes: 11,100 | 1,560; 6,900 |
//! | the take ahead in `dispatcher::take` | 1 | a take reads while the one before it commits | 1, 16, 64 consumers of one session: 870, 12,500, 28,500 pops | 660, 7,900, 22,300 |
//! | `GATHERING_TURNS` in `dispatcher` | 32 turns of the scheduler | consumers that were just served are in the next take, too | 16, 64 consumers: 12,500, 28,500 pops; on `embedded:` 55,000, 110,000 | 7,200, 20,800; 36,000, 72,800 |
//! | `PATIENCES_PER_LEASE` in `dispatcher::steps` | 5 | after the death of a session that leads, the next ones take over one after another, a fifth of a lease apart | | no session would take over |
//! | `PAUSE_AFTER_FAILURE` in `dispatcher` | 100 ms | a store that refuses everything is not asked in a loop | | |

#[cfg(test)]
mod model;
mod request;

use self::request::Request;
pub(crate) use self::request::{Reason, Scope};
use crate::registry::request::{Precedence, Woken};

/// After how many of its own transactions a session that has registered looks for the answer, while
/// other sessions take items, too.
pub(crate) const ANSWER: u32 = 1;

/// For how many of its own transactions a session that has become the first leaves the lead to
/// another one, while other sessions take items, too. A session that leads needs one of them to answer
/// the request, and the answer needs another to be noticed.
pub(crate) const GRACE: u32 = 2;

/// The same while consumers ask again at once.
pub(crate) const GRACE_OF_MANY: u32 = 4;

/// The state of a session. `R` identifies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Policy<R> {
    phase: Phase<R>,
    lead: Option<Lead>,
    is_closing: bool,
    #[cfg(test)]
    fault: Option<Fault>,
}

/// Where a session is on the way from a wish to items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase<R> {
    /// It has no session: there was none yet, or it was declared dead, or it may have a request of which it
    /// does not know.
    Lost,
    Idle,
    /// It met others, or found no item: it registers a request next.
    Registering,
    /// It found the queue paused: it arms a watch next.
    Pausing,
    /// It sleeps until the queue is resumed.
    Paused,
    Waiting(Request<R>),
}

/// What a session that owes leadership takes with its next fulfillment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lead {
    /// Items for every request, and then for its own consumers.
    Everybody,
    /// Nothing: another session leads, too, or this one ends. The fulfillment removes requests of the dead
    /// and notifies the session whose request is the first.
    HandOver,
}

/// The next thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<R> {
    /// Nothing, until an event or a consumer.
    Rest,
    OpenSession,
    /// Give items back, in a transaction of their own.
    GiveBack,
    /// Return some items of a dead session, or remove it.
    Bury,
    /// The fast path.
    Take,
    Register,
    WatchPause,
    /// Read how things stand for a request, and take over the answer if there is one.
    Look {
        request: R,
        scope: Scope,
    },
    /// Take over what a request was answered with.
    Collect(R),
    Fulfill {
        lead: Lead,
        request: Option<R>,
    },
    Withdraw(R),
}

/// What a decision depends on beside the policy's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) wants: Wants,
    pub(crate) returns: Returns,
    /// Whether a step for a dead session is due: one is known, and the last such step was followed by a
    /// fulfillment.
    pub(crate) buries: bool,
    pub(crate) pace: Pace,
}

/// What consumers want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Nothing,
    /// Items, and all of them wait.
    Items,
    /// Items, and one of them at least does not wait.
    ItemsNow,
}

/// What is to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    Nothing,
    /// Items that are completed.
    Completed,
    /// Items that go back to the queue, among others.
    ToQueue,
}

/// How busy the queue is, as the driver has measured it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Whether other sessions take items, too.
    pub(crate) is_contended: bool,
    /// Whether consumers that were served ask again at once.
    pub(crate) asks_again: bool,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<R> {
    SessionOpened,
    /// The session is dead, or a transaction that registers a request has an unknown outcome: the request
    /// would be answered, and no session would look for the answer.
    SessionLost,
    /// A take was given items, or did not see enough of the queue to decide.
    Taken,
    /// A take found no item.
    NoItem,
    /// A take met a conflict, or found that others have requests.
    MetOthers,
    /// A take found the queue paused.
    IsPaused,
    PauseWatched,
    /// There is no pause any more.
    Resumed,
    Registered(R),
    /// The request was not answered.
    Waits {
        is_first: bool,
        /// Whether there are items, if that was read.
        has_items: Option<bool>,
        /// Which request is the first, if that was read.
        precedence: Option<Precedence<R>>,
    },
    /// The answer was taken over. `next` is the request that was registered with it.
    Answered {
        next: Option<R>,
    },
    /// There was no answer: the session was notified that its request is the first.
    NotAnswered,
    /// The request is not in the registry, and was not answered.
    Gone,
    Fulfilled {
        has_changed: bool,
        /// Whether the own request was answered.
        own: bool,
    },
    /// A fulfillment met a conflict.
    FulfillConflicted,
    Withdrawn,
    /// The request is not in the registry any more.
    NotWithdrawn,
    /// A step failed, with an outcome that may be unknown.
    Failed(Step<R>),
    FoundDead,
    /// A step for a dead session has ended, or failed.
    Buried,
    Woken(Woken),
    Elapsed(Timer),
    /// Consumers get nothing any more: the session is to end.
    Closing,
}

/// What a session waits for. A timer that is started anew replaces the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The answer to a request is likely there.
    Answer,
    /// A session whose request is the first may lead.
    Grace,
    /// The first request has had its time.
    Patience,
    /// A session that sleeps looks, although nothing woke it.
    Poll,
}

/// How long a timer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// As long as this many transactions like the last one, the poll interval at most.
    Transactions(u32),
    /// This many times the patience of one rank.
    Ranks(u32),
    /// The poll interval, or until a delayed item is due.
    PollInterval,
}

/// A timer to start.
pub(crate) type Start = (Timer, Delay);

/// A rule that a test breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A session that has fulfilled leaves without another look.
    NoSecondLook,
    /// A session that has withdrawn its request leaves without a look.
    NoLookAfterWithdrawal,
    /// A session whose fulfillment has an unknown outcome leaves without a look.
    NoLookInDoubt,
    /// A session that leads and meets another one leaves without a look.
    NoLookAfterConflict,
    /// What is to be given back is kept while a request waits.
    StraysKept,
}

impl<R: Copy + PartialEq> Policy<R> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Lost,
            lead: None,
            is_closing: false,
            #[cfg(test)]
            fault: None,
        }
    }

    /// Returns the next step. Its outcome is to be passed to [`on`](Self::on) before the next call, unless
    /// it is rest, or to give items back.
    pub(crate) fn next(&mut self, facts: Facts) -> Step<R> {
        if matches!(self.phase, Phase::Lost) {
            return match self.is_closing {
                true => Step::Rest,
                false => Step::OpenSession,
            };
        }
        // Before anything is taken: what comes back comes first.
        if facts.returns == Returns::ToQueue && !self.keeps_strays() {
            return Step::GiveBack;
        }
        if facts.buries {
            return Step::Bury;
        }
        if let Some(lead) = self.lead {
            let lead = if self.is_closing {
                Lead::HandOver
            } else {
                lead
            };
            let request = self.request().map(|request| request.id);
            return Step::Fulfill { lead, request };
        }
        match self.serve(facts) {
            // No consumer wants anything with which they could go.
            Step::Rest if facts.returns == Returns::Completed => Step::GiveBack,
            step => step,
        }
    }

    /// Returns the next step on the way from a wish to items.
    fn serve(&mut self, facts: Facts) -> Step<R> {
        let wants_nothing = facts.wants == Wants::Nothing;
        match self.phase {
            Phase::Waiting(request) if request.is_answered() => Step::Collect(request.id),
            Phase::Waiting(request) if wants_nothing => Step::Withdraw(request.id),
            Phase::Waiting(request) => request.next(facts.wants),
            Phase::Registering | Phase::Pausing if wants_nothing => {
                self.phase = Phase::Idle;
                Step::Rest
            }
            _ if wants_nothing => Step::Rest,
            Phase::Registering => Step::Register,
            Phase::Pausing => Step::WatchPause,
            Phase::Paused if facts.wants == Wants::Items => Step::Rest,
            Phase::Idle | Phase::Paused if facts.pace.is_contended => Step::Register,
            Phase::Lost | Phase::Idle | Phase::Paused => Step::Take,
        }
    }

    /// Takes note of an event. Returns the timers to start.
    pub(crate) fn on(&mut self, event: Event<R>, pace: Pace) -> Vec<Start> {
        match event {
            Event::SessionLost => self.phase = Phase::Lost,
            Event::SessionOpened | Event::Taken | Event::Resumed | Event::Gone => {
                self.phase = Phase::Idle;
            }
            Event::NoItem | Event::MetOthers => self.phase = Phase::Registering,
            Event::IsPaused => self.phase = Phase::Pausing,
            Event::PauseWatched => {
                self.phase = Phase::Paused;
                return vec![(Timer::Poll, Delay::PollInterval)];
            }
            Event::Registered(id) | Event::Answered { next: Some(id) } => {
                return self.register(id, pace);
            }
            Event::Answered { next: None } => self.phase = Phase::Idle,
            Event::NotAnswered => return self.not_answered(pace),
            Event::Waits {
                is_first,
                has_items,
                precedence,
            } => return self.wait_or_lead(is_first, has_items, precedence),
            Event::Fulfilled { has_changed, own } => self.fulfilled(has_changed, own),
            Event::FulfillConflicted => return self.meet_leader(pace),
            Event::Withdrawn => self.withdrawn(),
            Event::NotWithdrawn => {
                if let Some(request) = self.request_mut() {
                    request.answer();
                }
            }
            Event::Failed(step) => self.failed(step),
            // Another session may be asleep after a request of the dead.
            Event::FoundDead | Event::Buried => self.owe(Lead::Everybody),
            Event::Woken(woken) => self.wake(woken.into()),
            Event::Elapsed(timer) => self.elapsed(timer),
            Event::Closing => self.is_closing = true,
        }
        Vec::new()
    }

    /// Returns whether a timer runs that ends before the poll interval, or does more.
    #[cfg(test)]
    fn has_better_timer(&self) -> bool {
        let request = self.request();
        request.is_some_and(|request| !request.may_lead || request.patience.is_some())
    }

    /// Returns whether the session owes leadership.
    pub(crate) fn leads(&self) -> bool {
        self.lead.is_some()
    }

    /// Returns whether the session sleeps on a watch.
    pub(crate) fn is_asleep(&self) -> bool {
        match self.phase {
            Phase::Paused => true,
            Phase::Waiting(request) => request.is_asleep(),
            _ => false,
        }
    }

    fn request(&self) -> Option<Request<R>> {
        match self.phase {
            Phase::Waiting(request) => Some(request),
            _ => None,
        }
    }

    fn request_mut(&mut self) -> Option<&mut Request<R>> {
        match &mut self.phase {
            Phase::Waiting(request) => Some(request),
            _ => None,
        }
    }

    /// Notes a request that was registered.
    fn register(&mut self, id: R, pace: Pace) -> Vec<Start> {
        if !pace.is_contended {
            self.phase = Phase::Waiting(Request::new(id));
            return Vec::new();
        }
        self.phase = Phase::Waiting(Request::with_leader(id));
        vec![
            (Timer::Answer, Delay::Transactions(ANSWER)),
            (Timer::Grace, grace(pace)),
        ]
    }

    /// The request is the first, as another session says, which may still be leading.
    fn not_answered(&mut self, pace: Pace) -> Vec<Start> {
        let Some(request) = self.request_mut() else {
            return Vec::new();
        };
        if request.is_answered() {
            // It is neither answered nor in the registry.
            self.phase = Phase::Idle;
            return Vec::new();
        }
        request.look_again(pace)
    }

    fn wait_or_lead(
        &mut self,
        is_first: bool,
        has_items: Option<bool>,
        precedence: Option<Precedence<R>>,
    ) -> Vec<Start> {
        let Some(request) = self.request_mut() else {
            return Vec::new();
        };
        let (leads, starts) = request.wait_or_lead(is_first, has_items, precedence);
        if leads {
            self.owe(Lead::Everybody);
        }
        starts
    }

    fn fulfilled(&mut self, has_changed: bool, own: bool) {
        // A session that leads leaves only after a fulfillment that changed nothing.
        if !has_changed || self.breaks(Fault::NoSecondLook) {
            self.lead = None;
        }
        if own {
            self.phase = Phase::Idle;
        }
    }

    /// Another session leads, too, and has answered the request as a rule. Two that lead would go on to meet:
    /// this one owes the others no more than a look.
    fn meet_leader(&mut self, pace: Pace) -> Vec<Start> {
        self.lead = match self.breaks(Fault::NoLookAfterConflict) {
            true => None,
            false => Some(Lead::HandOver),
        };
        let request = self.request_mut();
        request.map_or_else(Vec::new, |request| request.look_again(pace))
    }

    fn withdrawn(&mut self) {
        self.phase = Phase::Idle;
        // The next session may be asleep after this request.
        if !self.breaks(Fault::NoLookAfterWithdrawal) {
            self.owe(Lead::Everybody);
        }
    }

    /// Notes that a step failed: what it was to do may have been done, or may still be.
    fn failed(&mut self, step: Step<R>) {
        match step {
            Step::Withdraw(_) => self.owe(Lead::Everybody),
            Step::Fulfill { .. } if self.breaks(Fault::NoLookInDoubt) => self.lead = None,
            _ => {}
        }
    }

    /// Owes leadership from now on. What the session sleeps for may change.
    fn owe(&mut self, lead: Lead) {
        self.lead = Some(lead);
        self.wake(Reason::Changed);
    }

    fn wake(&mut self, reason: Reason) {
        match &mut self.phase {
            Phase::Waiting(request) => request.wake(reason),
            Phase::Paused => self.phase = Phase::Idle,
            _ => {}
        }
    }

    fn elapsed(&mut self, timer: Timer) {
        match (timer, &mut self.phase) {
            (Timer::Poll, _) => self.wake(Reason::Overdue),
            (timer, Phase::Waiting(request)) => request.elapsed(timer),
            _ => {}
        }
    }

    fn keeps_strays(&self) -> bool {
        self.breaks(Fault::StraysKept) && self.request().is_some()
    }

    #[cfg(test)]
    fn breaks(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    #[cfg(not(test))]
    fn breaks(&self, _: Fault) -> bool {
        false
    }
}

/// Returns for how long another session is left to lead.
fn grace(pace: Pace) -> Delay {
    Delay::Transactions(match pace.asks_again {
        true => GRACE_OF_MANY,
        false => GRACE,
    })
}
