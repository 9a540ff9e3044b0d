//! The protocol of the staged registry, checked in every order of its steps.
//!
//! The model has a few sessions that take a few items from one queue. A checker visits every state that they can
//! reach. The [policy](super) itself decides what a session does next, and the functions of the
//! [protocol](crate::protocol) themselves stage its transactions.
//!
//! - [`database`]: committed data in a compact form, and optimistic transactions with their conflicts.
//! - [`rows`]: the rows that the compact form stands for.
//! - [`protocol`]: runs the crate's functions on these rows.
//! - [`bug`]: planted bugs between the functions and the rows.
//! - [`state`]: committed data, transactions in flight, and the memory of processes.
//! - [`policy_bug`]: the policy with a planted bug.
//! - [`representative`]: states that cannot be distinguished, of which one is visited.
//! - [`steps`]: all kinds of steps; those of a [`dispatcher`], of a [`handler`], and in the [`life`] of a session.
//! - [`promises`]: properties that must hold.
//! - [`progress`]: a measure of the remaining work.
//!
//! # Why states are not rows
//!
//! A state has its committed data in 32 bytes, and can be renamed by moving bytes. A function of the crate runs once
//! for each database that states have in common, which are few: some 18,000 runs on 1,450 databases serve the 162,003
//! states and 831,542 steps of the largest ordinary test.
//!
//! # What happens
//!
//! A transaction begins in one step and commits in another, unless all of its reads are in its conflict ranges: such
//! a transaction can be considered to happen at its commit, and takes one step. Every process may take any step that
//! the protocol allows, at any time. In addition, the following may happen, each up to a number of times given by a
//! [`Budget`](state::Budget):
//!
//! - An item is enqueued.
//! - A process falls silent at any point. Either it comes back late, or it continues with its steps and its
//!   deliveries until it finds its session dead. It need not take any of these steps: a process that takes none has
//!   crashed, after or before its commit.
//! - A living process gives up waiting for the outcome of a take or a fulfillment, and continues. The commit lands at
//!   any later time or never. The process learns the outcomes of its other commits.
//! - A process loses a delivery while the handler continues and acknowledges late, or not at all.
//! - A request is withdrawn.
//! - The time of a consumer is over before it has an item.
//! - The queue is paused, and later resumed.
//! - A session that has no request and does not lead ends properly. If it has a reserve, it first gives that back while
//!   its handler may still end.
//! - A take, a fulfillment or a request wants one item more than the consumer, for the reserve. So does a take for the
//!   reserve alone. The handler takes the next item from the reserve as soon as it is free.
//! - A handler never ends.
//!
//! In one test, an item of a kind that no session takes is the first in the queue. It must stay as it is. In others,
//! one of three sessions takes items of another kind, of which none comes, and so has a registry of its own. Each
//! session removes the requests of a dead one from either registry; from another registry than its own, in a
//! transaction of two steps.
//!
//! An item in a reserve may have been there for too long at any time.
//!
//! The ordinary run has two sessions, two items and, in most tests, one death. The long run has three sessions, three
//! items and two deaths, and two items and one death where everything else is combined. It needs optimizations, without
//! which the sizes stay the ordinary ones: `TEST_RUN=long cargo test --release -p fdbq-hc-dequeue --lib policy`.
//!
//! There is no clock. The measurements of a driver may have any value at any time. The timers of a healthy queue (for
//! the answer, and for the time in which another session leads) run out at any time while there is nothing else to
//! do. Timers for failures run out only where this matters, and only after a failure: after a commit in doubt, or while
//! a process that has fallen silent leads or its session is not removed. Otherwise, a session that sleeps stays asleep
//! until it is woken. A heartbeat counts as old when its process is silent.
//!
//! # What must hold
//!
//! No item is lost, no item takes effect twice, and further [`promises`]. That everything can be finished is checked
//! for single states, in two parts that together imply it for runs:
//!
//! 1. Each step leaves less work, by a [measure](progress) that is computed at every step. Therefore no run is
//!    infinite, and no fairness between processes needs to be assumed.
//! 2. In a state from which only steps of the budget lead on, or none, all items have taken effect, except that of a
//!    handler that never ends, and all dead sessions are removed.
//!
//! After the last event of the budget, the processes therefore finish, whichever steps they take. The request of a
//! removed session may remain; `protocol::fulfill` clears it when it reads it, and is among the steps. Steps that need
//! not happen are not counted in the second part: those of a process that has fallen silent, and a commit of which no
//! process waits for the outcome.
//!
//! # What is visited once
//!
//! Of states or orders of steps that cannot be distinguished by what follows, one is visited:
//!
//! - Sessions differ only by their names.
//! - A transaction begins as late as possible: see [`Move`](steps::Move).
//! - A process [forgets](representative) what it cannot use any more.
//! - When a timer for failures runs out, the check that it causes follows at once.
//! - The searches of `reclaim` for what a dead session has left read by snapshot. In the model they are in conflict, so
//!   that their transactions take one step. This excludes one case: a request that becomes the first during the search,
//!   by a concurrent removal, stays until another session loses patience.
//! - In the long run, the timers of a healthy queue run out at once. Until the timer for the answer, a session does
//!   nothing, and until the timer for the lead it only takes over an answer. It may do both after the timers, too,
//!   since it may take its next step at any time. In the ordinary run, these timers run out at any time, which checks
//!   the policy in the meantime.
//!
//! # What is left out
//!
//! Of a reserve, how its size follows from durations is left to unit tests of [`reserve`](super::reserve). Its items
//! are handed out in the order of their ids. An item is never barred from a reserve, and the items to be given back are
//! never only completed or delayed ones, with which a take could fill the reserve. A request that is registered with an
//! answer is not for the reserve.
//!
//! A session has one request and one consumer. The consumer wants nothing between a withdrawal and the first check
//! after it. Except for the reserve, all requests want the same number of items. No more than one transaction removes a
//! session from another registry at a time.
//! A session that finds itself dead opens another session, which is one of the others in the model. Delayed items, dead
//! letters, `pop` and limits on batches are not modeled. The search of `remove_requests` reads one request instead of
//! the first 1,000, so that others are left for a later fulfillment.
//!
//! One part of the crate is repeated instead of run: an acknowledgement by the application compares the numbers of
//! grants as `give_back` does.

mod bug;
mod database;
mod dispatcher;
mod handler;
mod life;
mod policy_bug;
mod progress;
mod promises;
mod protocol;
mod representative;
mod rows;
mod state;
mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use conformance::scale;
use stateright::{Checker, HasDiscoveries, Model};

use self::bug::Bug;
use self::policy_bug::PolicyBug;
use self::promises::{
    FINISHES, IN_ORDER, LATE_REFUSED, LIVING_SPARED, LONG_ALONE, NONE_IDLE, NOT_KEPT,
    NOTHING_STALE, ONE_PLACE, OWNED, PROGRESSES,
};
use self::protocol::Functions;
use self::state::Budget;
use self::steps::Protocol;

/// As many items as two sessions need to collide, and no failures.
const QUIET: Budget = Budget {
    arrivals: 2,
    deaths: 0,
    doubts: 0,
    lapses: 0,
    withdrawals: 0,
    endings: 0,
    pauses: 0,
    asks: 0,
    hurries: 0,
    ahead: 0,
    long: 0,
    notices: 0,
    unknown: false,
    stranger: false,
};

/// How many threads check one model.
const THREADS: usize = 2;

/// Chooses the size of a run. The long sizes take a build with optimizations.
fn size(short: usize, long: usize) -> usize {
    if cfg!(debug_assertions) {
        return short;
    }
    scale(short, long)
}

/// Returns the bounds of a run in which deaths are the only failures.
fn deaths() -> Budget {
    Budget {
        arrivals: size(2, 3),
        deaths: size(1, 2),
        ..QUIET
    }
}

/// Returns the bounds of a run in which one session takes items of another kind.
fn strangers() -> Budget {
    Budget {
        arrivals: 1,
        deaths: 1,
        stranger: true,
        ..QUIET
    }
}

/// Visits every state that the protocol can reach, with requests for `wanted` items.
fn check(wanted: usize, budget: Budget) {
    let session_count = if budget.stranger { 3 } else { size(2, 3) };
    let protocol = Protocol {
        functions: Arc::new(Functions::new(wanted, None, &budget)),
        session_count,
        budget,
        policy_bug: None,
        is_hurried: session_count > 2,
    };
    let checker = protocol
        .checker()
        .symmetry()
        .threads(THREADS)
        .spawn_dfs()
        .join();
    println!(
        "{budget:?}, {wanted} wanted: {} steps between {} states, {} in a row at most",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    let (databases, runs) = checker.model().functions.counts();
    println!("{runs} runs of functions on {databases} databases");
    checker.assert_properties();
}

/// Breaks a rule of a transaction, and expects that a property fails.
fn catch(bug: Bug, property: &'static str, budget: Budget) {
    catch_in(Some(bug), None, property, budget);
}

/// Breaks a rule of the policy, and expects that a session stops before its work is done.
fn catch_policy_bug(policy_bug: PolicyBug, budget: Budget) {
    catch_in(None, Some(policy_bug), FINISHES, budget);
}

/// Expects that a property fails in one of the states that two sessions reach.
fn catch_in(
    bug: Option<Bug>,
    policy_bug: Option<PolicyBug>,
    property: &'static str,
    budget: Budget,
) {
    let protocol = Protocol {
        functions: Arc::new(Functions::new(1, bug, &budget)),
        session_count: if budget.stranger { 3 } else { 2 },
        budget,
        policy_bug,
        is_hurried: budget.stranger,
    };
    let expected = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = protocol.checker().finish_when(expected).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn keeps_its_promises_while_sessions_die_and_come_back() {
    check(1, deaths());
}

#[test]
fn keeps_its_promises_with_several_items_for_a_request() {
    check(2, deaths());
}

#[test]
fn keeps_its_promises_while_commits_are_in_doubt() {
    let budget = Budget {
        doubts: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_deliveries_lapse() {
    let budget = Budget {
        lapses: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_requests_are_withdrawn_and_sessions_end() {
    let budget = Budget {
        withdrawals: 1,
        endings: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_whatever_happens_together() {
    let budget = Budget {
        arrivals: 2,
        deaths: size(0, 1),
        doubts: 1,
        lapses: 1,
        withdrawals: 1,
        endings: 1,
        pauses: 0,
        asks: 0,
        hurries: 0,
        ahead: 0,
        long: 0,
        notices: 0,
        unknown: false,
        stranger: false,
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_the_time_of_callers_is_over() {
    let budget = Budget {
        hurries: 1,
        pauses: size(1, 0),
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_requests_are_registered_with_answers() {
    let budget = Budget {
        asks: 2,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_the_queue_is_paused() {
    let budget = Budget {
        withdrawals: 1,
        pauses: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_items_are_taken_ahead_of_a_handler_that_never_ends() {
    let budget = Budget {
        ahead: size(1, 2),
        long: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_items_are_taken_ahead_and_deliveries_lapse() {
    let budget = Budget {
        deaths: size(0, 1),
        lapses: 1,
        ahead: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_items_are_taken_ahead_and_commits_are_in_doubt() {
    let budget = Budget {
        deaths: size(0, 1),
        doubts: 1,
        ahead: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_items_are_taken_ahead_and_sessions_pause_and_end() {
    let budget = Budget {
        deaths: size(0, 1),
        endings: 1,
        pauses: 1,
        ahead: 2,
        long: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_a_lane_has_a_notice_and_nothing_to_grant() {
    let budget = Budget {
        deaths: size(0, 1),
        notices: 1,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_an_item_of_a_kind_that_no_session_takes_is_the_first() {
    let budget = Budget {
        asks: 1,
        unknown: true,
        ..deaths()
    };
    check(1, budget);
}

#[test]
fn keeps_its_promises_while_a_session_takes_items_of_another_kind() {
    check(1, strangers());
}

#[test]
fn catches_a_removal_of_requests_that_notifies_nobody_in_another_registry() {
    catch(Bug::NoSignalFromAfar, FINISHES, strangers());
}

#[test]
fn catches_a_removal_of_requests_that_does_not_conflict_with_another_registry() {
    catch(Bug::RegistryNotInConflict, FINISHES, strangers());
}

#[test]
fn catches_a_session_that_looks_at_nothing_behind_an_item_of_an_unknown_kind() {
    let budget = Budget {
        unknown: true,
        ..QUIET
    };
    catch(Bug::UnknownKindEnds, FINISHES, budget);
}

#[test]
fn catches_a_session_that_is_kept_awake_by_an_item_of_an_unknown_kind() {
    let budget = Budget {
        unknown: true,
        ..QUIET
    };
    catch(Bug::UnknownKindGrantable, PROGRESSES, budget);
}

#[test]
fn catches_a_fulfillment_that_keeps_the_notice_of_a_lane_without_anything_to_grant() {
    let budget = Budget {
        notices: 1,
        ..QUIET
    };
    catch(Bug::NoticeKept, PROGRESSES, budget);
}

#[test]
fn catches_a_reclaim_that_does_not_conflict_with_the_heartbeat() {
    let budget = Budget { deaths: 1, ..QUIET };
    catch(Bug::HeartbeatNotInConflict, LIVING_SPARED, budget);
}

#[test]
fn catches_a_grant_that_does_not_conflict_with_the_session() {
    let budget = Budget { deaths: 1, ..QUIET };
    catch(Bug::SessionNotInConflict, OWNED, budget);
}

#[test]
fn catches_a_removal_of_a_session_that_does_not_read_what_is_left() {
    let budget = Budget { deaths: 1, ..QUIET };
    catch(Bug::RemovedUnread, OWNED, budget);
}

#[test]
fn catches_a_fulfillment_that_does_not_conflict_on_items() {
    catch(Bug::ItemsNotInConflict, ONE_PLACE, QUIET);
}

#[test]
fn catches_a_fulfillment_that_grants_the_last_items_first() {
    catch(Bug::LastItemsFirst, IN_ORDER, QUIET);
}

#[test]
fn catches_an_acknowledgement_that_ignores_the_grant_number() {
    let budget = Budget { lapses: 1, ..QUIET };
    catch(Bug::GrantNumberIgnored, LATE_REFUSED, budget);
}

#[test]
fn catches_a_leader_that_leaves_without_a_second_fulfillment() {
    catch_policy_bug(PolicyBug::NoSecondFulfillment, QUIET);
}

#[test]
fn catches_a_withdrawal_without_a_fulfillment_after_it() {
    let budget = Budget {
        withdrawals: 1,
        ..QUIET
    };
    catch_policy_bug(PolicyBug::NoFulfillmentAfterWithdrawal, budget);
}

#[test]
fn catches_a_fulfillment_in_doubt_without_another_after_it() {
    let budget = Budget { doubts: 1, ..QUIET };
    catch_policy_bug(PolicyBug::NoFulfillmentInDoubt, budget);
}

#[test]
fn catches_a_leader_that_meets_another_and_leaves_without_a_fulfillment() {
    let budget = Budget { doubts: 1, ..QUIET };
    catch_policy_bug(PolicyBug::NoFulfillmentAfterConflict, budget);
}

#[test]
fn catches_a_fulfillment_that_notifies_no_session() {
    catch(Bug::NoSignal, FINISHES, QUIET);
}

#[test]
fn catches_a_fulfillment_that_notifies_no_session_while_the_queue_is_paused() {
    let budget = Budget { pauses: 1, ..QUIET };
    catch(Bug::NoSignalInPause, FINISHES, budget);
}

#[test]
fn catches_a_fulfillment_that_notifies_a_request_without_a_conflict() {
    let budget = Budget {
        withdrawals: 1,
        ..QUIET
    };
    catch(Bug::SignalNotInConflict, NOTHING_STALE, budget);
}

#[test]
fn catches_an_answer_that_leaves_the_signal_to_its_request() {
    catch(Bug::SignalKept, NOTHING_STALE, QUIET);
}

#[test]
fn catches_an_enqueue_that_wakes_no_session() {
    catch(Bug::NoWakeByEnqueue, FINISHES, QUIET);
}

#[test]
fn catches_a_session_in_haste_that_does_not_rest() {
    let budget = Budget {
        hurries: 1,
        ..QUIET
    };
    catch_in(None, Some(PolicyBug::NoRestInHaste), PROGRESSES, budget);
}

#[test]
fn catches_a_reserve_that_is_kept_although_it_is_overdue() {
    let budget = Budget {
        ahead: 1,
        long: 1,
        ..QUIET
    };
    let bug = Some(PolicyBug::ReserveKeptOverdue);
    catch_in(None, bug, LONG_ALONE, budget);
}

#[test]
fn catches_a_reserve_that_is_kept_in_a_pause() {
    let budget = Budget {
        pauses: 1,
        ahead: 2,
        ..QUIET
    };
    let bug = Some(PolicyBug::ReserveKeptInPause);
    catch_in(None, bug, NOT_KEPT, budget);
}

#[test]
fn catches_a_reserve_that_is_kept_at_the_end_of_a_session() {
    let budget = Budget {
        endings: 1,
        ahead: 1,
        ..QUIET
    };
    let bug = Some(PolicyBug::ReserveKeptAtEnd);
    catch_in(None, bug, NOT_KEPT, budget);
}

#[test]
fn catches_a_handler_that_does_not_look_into_the_reserve() {
    let budget = Budget { ahead: 1, ..QUIET };
    let bug = Some(PolicyBug::ReserveUnseen);
    catch_in(None, bug, NONE_IDLE, budget);
}

#[test]
fn catches_a_session_that_fills_its_reserve_by_a_request() {
    let budget = Budget { ahead: 1, ..QUIET };
    let bug = Some(PolicyBug::RefillByRequest);
    catch_in(None, bug, PROGRESSES, budget);
}

#[test]
fn catches_a_session_that_looks_for_items_for_its_reserve_again_and_again() {
    let budget = Budget { ahead: 1, ..QUIET };
    let bug = Some(PolicyBug::RefillInVain);
    catch_in(None, bug, PROGRESSES, budget);
}

#[test]
fn catches_a_heartbeat_that_keeps_items_without_a_delivery_while_a_request_waits() {
    let budget = Budget { lapses: 1, ..QUIET };
    catch_policy_bug(PolicyBug::StraysKept, budget);
}
