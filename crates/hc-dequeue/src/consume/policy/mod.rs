//! Decides what a session does next, without a store, a clock or a task.
//!
//! A [`Policy`] is a state machine. [`Policy::next`] returns the next [`Step`]: a transaction to run, or rest.
//! [`Policy::on`] takes the [`Event`]s: the result of a step, a watch that fired, or a timer that ran out. It returns
//! the timers to start, with delays in units that the driver measures. The [dispatcher](crate::consume::dispatcher)
//! drives the policy in production, and an exhaustive model drives it in tests.
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
//! Besides its phase, a session may owe *leadership*: it has changed the registry, so that requests of other sessions
//! may be answerable or may have become the first without their sessions being notified. Such a session fulfills before
//! anything else, until a fulfillment changes nothing.
//!
//! A worker's session may also take items ahead of its handlers, into its [reserve](reserve).
//!
//! # Constants
//!
//! The table shows the measurements that justify each constant: items per second on a cluster of one process, with and
//! without the mechanism, in alternating rounds of `cargo xtask bench hc_dequeue`. Compare the figures of a row only:
//! those of `docs/benchmarks.md` are from other runs. In rows with *64 sessions*, each session has one consumer.
//!
//! | constant | value | effect | with | without |
//! |---|---|---|---|---|
//! | [`ANSWER`] | 1 transaction | a contended session usually finds its answer at its first check | 64 sessions: 4,790 pops | 3,940 |
//! | [`GRACE`] | 2 transactions | the leading session answers a new first request, and the session of that request does not collide with it | 64 sessions: 1,960 acknowledged, 0.03 conflicts for each, 99th percentile 57 ms | 1,680; 0.32; 232 ms |
//! | [`GRACE_OF_MANY`] | 4 transactions | the same while consumers ask again at once: each fulfillment serves many | 64 sessions: 4,790 pops; 64 consumers in 4 processes: 11,100 | 1,790; 8,170 |
//! | [`Lead::HandOver`] | | a session that collided with another leader leaves the items to it, and only notifies the first request | 64 sessions: 4,790 pops, 1,960 acknowledged | 4,360; 1,790 |
//! | `REQUESTS_AFTER_CONTENTION` in `dispatcher::pace` | 64 requests | contended sessions register at once, and no fast path fails | 64 sessions: 4,790 pops; 64 consumers in 4 processes: 11,100 | 1,560; 6,900 |
//! | the take ahead in `dispatcher::take` | 1 | a take reads while the previous one commits | 1, 16, 64 consumers of one session: 870, 12,500, 28,500 pops | 660, 7,900, 22,300 |
//! | `MAX_GATHERING_TURNS` in `dispatcher` | 32 turns of the scheduler | the next take also serves consumers that were just served | 16, 64 consumers: 12,500, 28,500 pops; on `embedded:` 55,000, 110,000 | 7,200, 20,800; 36,000, 72,800 |
//! | `PATIENCES_PER_LEASE` in `dispatcher::steps` | 5 | after a leading session dies, the next ones take over one after another, a fifth of a lease apart | | no session would take over |
//! | the [`reserve`] | up to 8 takes | handlers do not wait for takes, and one take serves many of them | `process` on `embedded:`, 1, 16, 64 handlers: 9,800, 28,000, 36,300 | 5,000, 16,300, 29,500 |
//! | `PAUSE_AFTER_FAILURE` in `dispatcher` | 100 ms | a store that refuses every transaction is not called in a tight loop | | |

mod request;
pub(crate) mod reserve;
#[cfg(test)]
mod tests;

use self::request::OwnRequest;
pub(crate) use self::request::{Reason, Scope};
use crate::protocol::request::{Precedence, Woken};

/// How many of its own transactions a session that has registered waits before it checks for the answer, while other
/// sessions take items, too.
const ANSWER: u32 = 1;

/// For how many of its own transactions a session whose request has become the first leaves the lead to another
/// session, while other sessions take items, too. The leading session needs one transaction to answer the request,
/// and this session needs another one to notice the answer.
pub(crate) const GRACE: u32 = 2;

/// The same while consumers ask again at once.
const GRACE_OF_MANY: u32 = 4;

/// The state of a session. `R` identifies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Policy<R> {
    phase: Phase<R>,
    lead: Option<Lead>,
    /// Whether the last take found as many items as it wanted, so that there may be more.
    has_more: bool,
    /// Whether the session takes nothing ahead of its handlers any more, because it will end.
    is_draining: bool,
    /// Whether it ends.
    is_closing: bool,
}

/// The progress of a session from a demand to items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase<R> {
    /// It has no session: it has never had one, it was declared dead, or it may have a request that it does not know.
    Lost,
    Idle,
    /// Other sessions take items, too, or it found no item: next, it registers a request.
    Registering,
    /// It found the queue paused: next, it sets a watch.
    Pausing,
    /// It sleeps until the queue is resumed.
    Paused,
    Waiting(OwnRequest<R>),
}

/// What a session that owes leadership does in its next fulfillment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lead {
    /// Grants items for every request, and then for its own consumers.
    Everybody,
    /// Grants nothing, because another session also leads or this one ends. The fulfillment removes requests of dead
    /// sessions and notifies the session of the first request.
    HandOver,
}

/// The next step to perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<R> {
    /// Nothing, until an event or a call of a consumer.
    Rest,
    OpenSession,
    /// Gives items back, in a transaction of their own.
    GiveBack,
    /// Returns some items of a dead session, or removes the session.
    Reclaim,
    /// The fast path.
    Take,
    Register,
    WatchPause,
    /// Checks the request, and takes over the answer if there is one.
    Check {
        request: R,
        scope: Scope,
    },
    /// Takes over the answer to a request.
    Collect(R),
    Fulfill {
        lead: Lead,
        request: Option<R>,
    },
    Withdraw(R),
}

/// The facts that a decision depends on besides the policy's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) wants: Wants,
    pub(crate) reserve: ReserveFill,
    pub(crate) returns: Returns,
    /// Whether a step for a dead session is due: a dead session is known, and the last such step was followed by a
    /// fulfillment.
    pub(crate) reclaims: bool,
    pub(crate) pace: Pace,
}

/// The demand of the consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Nothing,
    /// Items, and all of the callers have time to wait.
    Items,
    /// Items, and the time of at least one caller is over.
    ItemsNow,
}

/// The items that wait for handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReserveFill {
    /// There is no room for another one.
    Full,
    /// There is room.
    Room,
    /// The handlers will soon find none.
    Low,
}

/// The items that are to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returns {
    Nothing,
    /// Only items that are not granted next: they are completed, delayed or dead letters.
    Away,
    /// Items that are granted before others, perhaps among others.
    ToFront,
}

/// How busy the queue is, as measured by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Whether other sessions also take items.
    pub(crate) is_contended: bool,
    /// Whether consumers that were just served ask again at once.
    pub(crate) asks_again: bool,
}

/// An event that the driver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<R> {
    SessionOpened,
    /// The session is dead, or a transaction that registers a request has an unknown outcome. In the latter case the
    /// request could be answered, and the session would not look for the answer.
    SessionLost,
    /// A take was granted items, or did not see enough of the queue to decide.
    Taken {
        /// Whether it was granted fewer items than it wanted.
        is_short: bool,
    },
    /// A take found no item.
    NoItem,
    /// A take failed with a conflict, or found requests of other sessions.
    Contended,
    /// A take found the queue paused.
    IsPaused,
    PauseWatched,
    /// The queue is no longer paused.
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
    /// A fulfillment failed with a conflict.
    FulfillConflicted,
    Withdrawn,
    /// The request is no longer in the registry.
    NotWithdrawn,
    /// A step failed, with an outcome that may be unknown.
    Failed(Step<R>),
    FoundDead,
    /// A step for a dead session has ended, or failed.
    Reclaimed,
    Woken(Woken),
    Elapsed(Timer),
    /// The session will end once the deliveries have: it takes nothing ahead of its handlers any more.
    Draining,
    /// The session is to end: consumers get no more items.
    Closing,
}

/// A timer of the policy. Starting a timer again replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The answer to a request has probably been written.
    Answer,
    /// A session whose request is the first may start to lead.
    Grace,
    /// The session with the first request has had its time to lead.
    Patience,
    /// A session that sleeps checks, although nothing woke it.
    Poll,
}

/// The length of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// The duration of this many transactions like the last one, but at most the poll interval.
    Transactions(u32),
    /// This many times the patience of one rank.
    Ranks(u32),
    /// The poll interval, or until a delayed item is due; less while the time of a caller is over.
    PollInterval,
}

/// A timer to start.
pub(crate) type Start = (Timer, Delay);

impl<R: Copy + PartialEq> Policy<R> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Lost,
            lead: None,
            has_more: false,
            is_draining: false,
            is_closing: false,
        }
    }

    /// Returns the next step. Its result must be passed to [`on`](Self::on) before the next call, unless the step is
    /// to rest or to give items back.
    pub(crate) fn next(&mut self, facts: Facts) -> Step<R> {
        if matches!(self.phase, Phase::Lost) {
            return if self.is_closing {
                Step::Rest
            } else {
                Step::OpenSession
            };
        }
        // Items go back before others are taken, since an item that comes back is granted first.
        if facts.returns == Returns::ToFront {
            return Step::GiveBack;
        }
        if facts.reclaims {
            return Step::Reclaim;
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
            // There is no demand whose transaction could include them.
            Step::Rest if facts.returns == Returns::Away => Step::GiveBack,
            step => step,
        }
    }

    /// Returns the next step on the way from a demand to items.
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
            Phase::Idle if wants_nothing && self.refills(facts) => Step::Take,
            _ if wants_nothing => Step::Rest,
            Phase::Registering => Step::Register,
            Phase::Pausing => Step::WatchPause,
            Phase::Paused if facts.wants == Wants::Items => Step::Rest,
            Phase::Idle | Phase::Paused if facts.pace.is_contended => Step::Register,
            Phase::Lost | Phase::Idle | Phase::Paused => Step::Take,
        }
    }

    /// Returns whether the session takes items only for its reserve. It never registers a request for that: others
    /// that wait have idle handlers.
    fn refills(&self, facts: Facts) -> bool {
        let is_wanted = match facts.reserve {
            ReserveFill::Full => false,
            // The transaction that gives items back takes others, too.
            ReserveFill::Room => facts.returns == Returns::Away,
            ReserveFill::Low => true,
        };
        is_wanted && self.has_more && !facts.pace.is_contended && !self.is_draining
    }

    /// Returns whether the session may keep items in its reserve. `is_overdue` tells whether one of them has been there
    /// for too long.
    pub(crate) fn keeps_reserve(&self, is_overdue: bool) -> bool {
        let is_paused = matches!(self.phase, Phase::Pausing | Phase::Paused);
        !is_overdue && !is_paused && !self.is_draining && self.phase != Phase::Lost
    }

    /// Processes an event. Returns the timers to start.
    pub(crate) fn on(&mut self, event: Event<R>, pace: Pace) -> Vec<Start> {
        match event {
            Event::SessionLost => self.phase = Phase::Lost,
            Event::SessionOpened | Event::Resumed | Event::Gone => self.phase = Phase::Idle,
            Event::Taken { is_short } => {
                self.phase = Phase::Idle;
                self.has_more = !is_short;
            }
            Event::NoItem | Event::Contended => {
                self.phase = Phase::Registering;
                self.has_more = false;
            }
            Event::IsPaused => {
                self.phase = Phase::Pausing;
                self.has_more = false;
            }
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
            Event::FulfillConflicted => return self.fulfill_conflicted(pace),
            Event::Withdrawn => self.withdrawn(),
            Event::NotWithdrawn => {
                if let Some(request) = self.request_mut() {
                    request.answer();
                }
            }
            // The request may be removed, and the session of the next one may be asleep after it.
            Event::Failed(Step::Withdraw(_)) => self.owe(Lead::Everybody),
            // A session whose fulfillment failed still owes leadership.
            Event::Failed(_) => {}
            // Another session may be asleep after a request of the dead session.
            Event::FoundDead | Event::Reclaimed => self.owe(Lead::Everybody),
            Event::Woken(woken) => self.wake(woken.into()),
            Event::Elapsed(timer) => self.elapsed(timer),
            Event::Draining => self.is_draining = true,
            Event::Closing => {
                self.is_draining = true;
                self.is_closing = true;
            }
        }
        Vec::new()
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

    fn request(&self) -> Option<OwnRequest<R>> {
        match self.phase {
            Phase::Waiting(request) => Some(request),
            _ => None,
        }
    }

    fn request_mut(&mut self) -> Option<&mut OwnRequest<R>> {
        match &mut self.phase {
            Phase::Waiting(request) => Some(request),
            _ => None,
        }
    }

    /// Records a request that was registered.
    fn register(&mut self, id: R, pace: Pace) -> Vec<Start> {
        if !pace.is_contended {
            self.phase = Phase::Waiting(OwnRequest::new(id));
            return Vec::new();
        }
        self.phase = Phase::Waiting(OwnRequest::with_leader(id));
        vec![
            (Timer::Answer, Delay::Transactions(ANSWER)),
            (Timer::Grace, grace(pace)),
        ]
    }

    /// Handles the signal that the request is the first. The session that sent it may still be leading.
    fn not_answered(&mut self, pace: Pace) -> Vec<Start> {
        let Some(request) = self.request_mut() else {
            return Vec::new();
        };
        if request.is_answered() {
            // The request is neither answered nor in the registry.
            self.phase = Phase::Idle;
            return Vec::new();
        }
        request.check_again(pace)
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
        // A session stops leading only after a fulfillment that changed nothing.
        if !has_changed {
            self.lead = None;
        }
        if own {
            self.phase = Phase::Idle;
        }
    }

    /// Handles a conflict with another leading session, which has usually answered the request. Two sessions that
    /// both went on leading would keep colliding: this one only fulfills without granting anything.
    fn fulfill_conflicted(&mut self, pace: Pace) -> Vec<Start> {
        self.lead = Some(Lead::HandOver);
        let request = self.request_mut();
        request.map_or_else(Vec::new, |request| request.check_again(pace))
    }

    fn withdrawn(&mut self) {
        self.phase = Phase::Idle;
        // The session of the next request may be asleep after this request.
        self.owe(Lead::Everybody);
    }

    /// Owes leadership from this point on. This may change what the session sleeps for.
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
}

/// Returns how long another session is left to lead.
fn grace(pace: Pace) -> Delay {
    Delay::Transactions(if pace.asks_again {
        GRACE_OF_MANY
    } else {
        GRACE
    })
}
