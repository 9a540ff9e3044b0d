//! A request that waits for its answer.

use crate::protocol::request::{Precedence, Woken};

use super::{Delay, Pace, Start, Step, Timer, Wants, grace};

/// The session's only request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OwnRequest<R> {
    pub(super) id: R,
    pub(super) stage: Stage,
    /// Whether the session leads if the request is the first. While other sessions take items, too, it does not do so
    /// at first: usually one of them leads, and answers this request with its next fulfillment.
    pub(super) may_lead: bool,
    pub(super) patience: Option<Patience<R>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The answer is probably on its way. Nothing is watched.
    Expecting,
    /// The session checks next.
    Checking(Reason),
    /// A watch is set.
    Sleeping,
    /// The request is no longer in the registry: it was answered or removed.
    Answered,
}

/// Why a session checks its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// A watch reports that the request was answered.
    Granted,
    /// The request may have become the first, or there may be an item.
    Changed,
    /// Nothing has happened for the poll interval.
    Overdue,
}

impl From<Woken> for Reason {
    fn from(woken: Woken) -> Self {
        match woken {
            Woken::Granted => Self::Granted,
            Woken::Changed => Self::Changed,
        }
    }
}

/// What a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Whether the request was answered.
    Answer,
    /// Also whether it is the first, and if so, whether there are items.
    First,
    /// As `First`; if it is not the first, also whether there are items, and which request is the first.
    Precedence,
}

/// The patience with another request that is the first while there are items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Patience<R> {
    first: R,
    pub(super) is_over: bool,
}

impl<R: Copy + PartialEq> OwnRequest<R> {
    pub(super) fn new(id: R) -> Self {
        Self {
            id,
            stage: Stage::Checking(Reason::Changed),
            may_lead: true,
            patience: None,
        }
    }

    /// Returns a request that another session will probably answer.
    pub(super) fn with_leader(id: R) -> Self {
        Self {
            stage: Stage::Expecting,
            may_lead: false,
            ..Self::new(id)
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.stage == Stage::Answered
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.stage == Stage::Sleeping
    }

    pub(super) fn answer(&mut self) {
        self.stage = Stage::Answered;
    }

    /// Returns the next step for consumers that want items. A caller whose time is over is answered when a check has
    /// found no item. If a check has found one, the first request has its time, also for such a caller.
    pub(super) fn next(&self, wants: Wants) -> Step<R> {
        let is_hasty = wants == Wants::ItemsNow;
        let must_know = is_hasty && self.may_lead && self.patience.is_none();
        match self.stage {
            Stage::Expecting => Step::Rest,
            Stage::Sleeping if !must_know => Step::Rest,
            Stage::Answered | Stage::Checking(Reason::Granted) => Step::Collect(self.id),
            Stage::Checking(reason) => self.check(reason, is_hasty),
            Stage::Sleeping => self.check(Reason::Changed, is_hasty),
        }
    }

    /// Returns a check. Until the session may lead, it only checks and watches for the answer, since it could do
    /// nothing else.
    fn check(&self, reason: Reason, is_hasty: bool) -> Step<R> {
        let scope = match reason {
            _ if !self.may_lead => Scope::Answer,
            _ if is_hasty || reason == Reason::Overdue => Scope::Precedence,
            _ => Scope::First,
        };
        Step::Check {
            request: self.id,
            scope,
        }
    }

    /// Checks again, and leaves the lead to another session for a while if others take items, too.
    pub(super) fn check_again(&mut self, pace: Pace) -> Vec<Start> {
        *self = Self {
            may_lead: self.may_lead && !pace.is_contended,
            ..Self::new(self.id)
        };
        if pace.is_contended {
            vec![(Timer::Grace, grace(pace))]
        } else {
            Vec::new()
        }
    }

    /// Decides after a check of an unanswered request whether the session leads and, if not, how long it sleeps.
    pub(super) fn wait_or_lead(
        &mut self,
        is_first: bool,
        has_items: Option<bool>,
        precedence: Option<Precedence<R>>,
    ) -> (bool, Vec<Start>) {
        let mut starts = Vec::new();
        if has_items == Some(true) {
            let leads = match precedence {
                None => is_first && self.may_lead,
                Some(precedence) => self.loses_patience(precedence, &mut starts),
            };
            if leads {
                self.patience = None;
                return (true, starts);
            }
        }
        if is_first || has_items == Some(false) {
            // No other session has to lead, or there is nothing to grant.
            self.patience = None;
        }
        if self.patience.is_some_and(|patience| patience.is_over) {
            self.stage = Stage::Checking(Reason::Overdue);
        } else {
            self.stage = Stage::Sleeping;
            starts.push((Timer::Poll, Delay::PollInterval));
        }
        (false, starts)
    }

    /// Returns whether the first request has had its time.
    fn loses_patience(&mut self, precedence: Precedence<R>, starts: &mut Vec<Start>) -> bool {
        let first = precedence.first;
        match self.patience {
            Some(patience) if patience.first == first => patience.is_over,
            _ => {
                let is_over = false;
                self.patience = Some(Patience { first, is_over });
                starts.push((Timer::Patience, Delay::Ranks(precedence.rank)));
                false
            }
        }
    }

    pub(super) fn wake(&mut self, reason: Reason) {
        if self.stage == Stage::Sleeping {
            self.stage = Stage::Checking(reason);
        }
    }

    pub(super) fn elapsed(&mut self, timer: Timer) {
        match timer {
            Timer::Answer if self.stage == Stage::Expecting => {
                self.stage = Stage::Checking(Reason::Changed);
            }
            Timer::Grace if !self.may_lead => {
                self.may_lead = true;
                if matches!(self.stage, Stage::Expecting | Stage::Sleeping) {
                    self.stage = Stage::Checking(Reason::Changed);
                }
            }
            Timer::Patience => {
                if let Some(patience) = &mut self.patience {
                    patience.is_over = true;
                    self.wake(Reason::Overdue);
                }
            }
            Timer::Answer | Timer::Grace | Timer::Poll => {}
        }
    }
}
