//! PlantedBug bugs of the policy: a policy that gets other facts and events than it should, or whose step is changed.

use std::ops::Deref;

use crate::consume::policy::request::Stage;
use crate::consume::policy::{
    Event, Facts, Pace, Phase, Policy, Returns, Scope, Start, Step, Wants,
};

/// A rule that is broken: of the policy, or of a handler that takes the next item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PolicyBug {
    /// After a fulfillment, a session does not fulfill again.
    NoSecondFulfillment,
    /// After a withdrawal, a session does not fulfill.
    NoFulfillmentAfterWithdrawal,
    /// After a fulfillment with an unknown outcome, a session does not fulfill again.
    NoFulfillmentInDoubt,
    /// After a conflict with another leading session, a session does not fulfill again.
    NoFulfillmentAfterConflict,
    /// Items to be given back are kept while a request waits.
    StraysKept,
    /// While the time of a caller is over, a session checks again and again.
    NoRestInHaste,
    /// A reserve is kept although it is overdue.
    ReserveKeptOverdue,
    /// A reserve is kept although the queue was found paused.
    ReserveKeptInPause,
    /// A reserve is kept although the session is to end.
    ReserveKeptAtEnd,
    /// A handler that has become free does not look into the reserve.
    ReserveUnseen,
    /// A session that takes items only for its reserve registers a request.
    RefillByRequest,
    /// A session that has found no item for its reserve looks again.
    RefillInVain,
}

/// The event after which a session that leads does not lead any more.
pub(super) const NOTHING_CHANGED: Event<()> = Event::Fulfilled {
    has_changed: false,
    own: false,
};

/// A policy, and the rule that is broken, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BuggyPolicy {
    pub(super) real: Policy<()>,
    pub(super) bug: Option<PolicyBug>,
}

impl Deref for BuggyPolicy {
    type Target = Policy<()>;

    fn deref(&self) -> &Policy<()> {
        &self.real
    }
}

impl BuggyPolicy {
    pub(super) fn new(bug: Option<PolicyBug>) -> Self {
        BuggyPolicy {
            real: Policy::new(),
            bug,
        }
    }

    /// Returns the next step.
    pub(super) fn next(&mut self, mut facts: Facts) -> Step<()> {
        if self.bug == Some(PolicyBug::StraysKept) && self.request().is_some() {
            facts.returns = Returns::Nothing;
        }
        let step = self.real.next(facts);
        if self.bug == Some(PolicyBug::RefillByRequest)
            && step == Step::Take
            && facts.wants == Wants::Nothing
        {
            return Step::Register;
        }
        if self.bug == Some(PolicyBug::NoRestInHaste)
            && step == Step::Rest
            && facts.wants == Wants::ItemsNow
            && let Some(request) = self.request()
            && request.stage == Stage::Sleeping
            && request.may_lead
        {
            return Step::Check {
                request: request.id,
                scope: Scope::Precedence,
            };
        }
        step
    }

    /// Returns whether the session keeps its reserve.
    pub(super) fn keeps_reserve(&self, is_overdue: bool) -> bool {
        let mut real = self.real;
        match self.bug {
            Some(PolicyBug::ReserveKeptOverdue) => return real.keeps_reserve(false),
            Some(PolicyBug::ReserveKeptInPause)
                if matches!(real.phase, Phase::Pausing | Phase::Paused) =>
            {
                real.phase = Phase::Idle;
            }
            Some(PolicyBug::ReserveKeptAtEnd) => real.is_draining = false,
            _ => {}
        }
        real.keeps_reserve(is_overdue)
    }

    /// Processes an event. Returns the timers to start.
    pub(super) fn on(&mut self, event: Event<()>, pace: Pace) -> Vec<Start> {
        let event = match (self.bug, event) {
            (Some(PolicyBug::NoSecondFulfillment), Event::Fulfilled { own, .. }) => {
                Event::Fulfilled {
                    has_changed: false,
                    own,
                }
            }
            // As if the withdrawal had found the request gone.
            (Some(PolicyBug::NoFulfillmentAfterWithdrawal), Event::Withdrawn) => Event::Gone,
            (Some(PolicyBug::NoFulfillmentInDoubt), Event::Failed(Step::Fulfill { .. })) => {
                NOTHING_CHANGED
            }
            (_, event) => event,
        };
        let starts = self.real.on(event, pace);
        if self.bug == Some(PolicyBug::NoFulfillmentAfterConflict)
            && event == Event::FulfillConflicted
        {
            self.real.on(NOTHING_CHANGED, pace);
        }
        if self.bug == Some(PolicyBug::RefillInVain) && event == Event::NoItem {
            self.real.has_more = true;
        }
        starts
    }
}
