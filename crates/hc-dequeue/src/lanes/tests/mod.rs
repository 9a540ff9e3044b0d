//! Lanes, slots and notices in every order of transactions.
//!
//! The functions of the protocol themselves run on rows, which are the state of the model. A transaction begins in one
//! step and commits in a later one, or never, as after a crash of its process. One whose reads are all in its conflict
//! ranges happens at its commit, and takes one step.
//!
//! - [`spec`]: what may happen.
//! - [`world`]: the steps; [`worlds`]: with which items, sessions and limits they run.
//! - [`rows`]: the rows, and what a commit does with them.
//! - [`promises`]: what must hold.
//! - [`bug`]: planted bugs.
//! - [`costs`]: what steps read and write.
//!
//! Versionstamps are numbered anew after each step, since only their equality matters. Records have the same counts
//! after each step: the numbers of grants have a [model](crate::consume) of their own. So the states are finite, and no
//! step is limited but changes of limits and deaths.
//!
//! Left out: weights and more than one item for each turn, cut-off reads of notices, and damaged rows. These have tests
//! of their own.

mod bug;
mod costs;
mod promises;
mod rows;
mod spec;
mod world;
mod worlds;

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model};

use self::bug::Bug;
use self::promises::{
    COVERED, EXACT, IN_TIME, NONE_HIDDEN, ONLY_STARTS, PARKED, TOLD, WITHIN_LIMIT, WITHIN_RATE,
};
use self::spec::{How, ItemSpec, Op, TIMELESS, Time, World};
use self::world::LaneModel;
use self::worlds::{
    BRIEF, TIME, ahead, blocked, bursts, configured, dead_by_sessions_alone, dying,
    dying_with_sessions, granted, let_go, levels_with_slots, one_by_one, ordered, paused,
    paused_again, pops, rated, resumed, returns, slow_before, swept, swept_twice, unlimited,
    unused, unused_of_a_burst,
};
use crate::items::group_limits::GroupLimits;
use crate::items::rate::Rate;
use crate::protocol::Purpose;

const A: &[u8] = b"a";

const ONE: GroupLimits = GroupLimits::new().with_limit(1);
const TWO: GroupLimits = GroupLimits::new().with_limit(2);
const ORDERED: GroupLimits = GroupLimits::ordered();
const BLOCKED: GroupLimits = GroupLimits::ordered().with_dead_letters_blocking();

/// A start every two units of time.
const RATE: Rate = Rate::new(1, Duration::from_millis(2));
const RATED: GroupLimits = GroupLimits::new().with_rate(RATE);
const SLOW: GroupLimits = GroupLimits::new().with_rate(Rate::new(1, Duration::from_millis(6)));

const fn item(group: &'static [u8], priority: i8) -> ItemSpec {
    ItemSpec { group, priority }
}

/// Two items of a group.
fn pair() -> World {
    World {
        items: vec![item(A, 0), item(A, 0)],
        limits: vec![(A, ONE)],
        purposes: [Purpose::Deliver; 2],
        returns: vec![How::Complete],
        ops: vec![],
        changes: 0,
        doubts: 0,
        is_mortal: false,
        time: TIMELESS,
    }
}

/// The returns in a large world: also releases in a build that is optimized.
fn complete_or_release() -> Vec<How> {
    if cfg!(debug_assertions) {
        vec![How::Complete]
    } else {
        vec![How::Complete, How::Release]
    }
}

/// Visits every state of a world.
fn check(world: World) {
    let checker = LaneModel::new(world, None)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Breaks a rule, and expects that a property fails. Looks depth first: most rules fail only after many steps.
fn catch(bug: Bug, property: &'static str, world: World) {
    let checker = LaneModel::new(world, Some(bug))
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([property].into()))
        .spawn_dfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_any_discovery(property);
}

#[test]
fn a_limit_of_one_holds_with_returns_inside_and_outside_of_takes() {
    check(World {
        returns: vec![How::Complete, How::Release],
        ..pair()
    });
}

#[test]
fn pops_need_a_free_slot() {
    check(World {
        purposes: [Purpose::Deliver, Purpose::Pop],
        ..pair()
    });
    check(World {
        items: vec![item(A, 0), item(A, 0), item(b"", 0)],
        purposes: [Purpose::Deliver, Purpose::Pop],
        ..pair()
    });
}

#[test]
fn an_ordered_group_waits_for_what_has_started() {
    for limits in [ORDERED, BLOCKED] {
        check(World {
            limits: vec![(A, limits)],
            returns: vec![How::Complete, How::Release, How::Discard],
            ops: vec![Op::Redrive(0), Op::Purge(0)],
            ..pair()
        });
    }
}

#[test]
fn each_dead_letter_enqueues_a_death_even_if_outcomes_of_takes_are_unknown() {
    for limits in [GroupLimits::new(), BLOCKED] {
        check(World {
            limits: vec![(A, limits)],
            ..dying()
        });
    }
    check(dying_with_sessions());
}

#[test]
fn a_delayed_item_keeps_its_slot_or_frees_it() {
    for limits in [ONE, ORDERED] {
        check(World {
            limits: vec![(A, limits)],
            returns: vec![How::Complete, How::Delay],
            ops: vec![Op::Cancel(0)],
            ..pair()
        });
    }
}

#[test]
fn limits_change_at_any_time() {
    for limits in [ONE, ORDERED, GroupLimits::new()] {
        check(World {
            limits: vec![(A, limits)],
            returns: vec![How::Complete, How::Release],
            ops: vec![
                Op::Configure(A, Some(GroupLimits::new().with_limit(0))),
                Op::Configure(A, Some(ORDERED)),
                Op::Configure(A, None),
            ],
            changes: 2,
            ..pair()
        });
    }
}

#[test]
fn a_group_is_paused_at_any_time_with_or_without_limits() {
    for limits in [vec![(A, ONE)], vec![(A, ORDERED)], vec![]] {
        check(World {
            limits,
            ops: vec![Op::Pause(A), Op::Resume(A)],
            changes: 2,
            ..returns()
        });
    }
    check(World {
        ops: vec![Op::Pause(A), Op::Resume(A)],
        changes: 2,
        time: BRIEF,
        ..rated()
    });
    check(World {
        limits: vec![],
        ops: vec![Op::TakeAhead, Op::Pause(A)],
        changes: 1,
        ..ahead()
    });
}

#[test]
fn default_limits_change_and_lanes_are_swept() {
    check(World {
        limits: vec![(b"", GroupLimits::new().with_limit(0))],
        ops: vec![
            Op::Configure(b"", Some(ONE)),
            Op::Configure(b"", Some(TWO)),
            Op::Sweep,
        ],
        changes: 2,
        ..pair()
    });
}

#[test]
fn two_groups_two_priorities_and_items_without_a_group() {
    check(World {
        items: vec![item(A, 0), item(b"b", 1), item(b"", 0)],
        limits: vec![(A, ONE), (b"b", ONE)],
        returns: complete_or_release(),
        ..pair()
    });
    check(World {
        items: vec![item(A, 0), item(A, 1), item(A, 0)],
        limits: vec![(A, TWO)],
        ..pair()
    });
}

#[test]
fn a_take_reads_ahead_while_the_last_one_commits() {
    for limits in [vec![(A, ONE)], vec![(A, TWO)], vec![]] {
        check(World { limits, ..ahead() });
    }
    check(World {
        items: vec![item(A, 0), item(A, 0)],
        purposes: [Purpose::Pop, Purpose::Deliver],
        ops: vec![Op::TakeAhead, Op::Configure(A, Some(ONE))],
        changes: 1,
        ..ahead()
    });
}

#[test]
fn requests_are_answered_and_sessions_die_with_their_grants() {
    for limits in [ONE, ORDERED] {
        check(World {
            limits: vec![(A, limits)],
            ops: vec![Op::Register, Op::Fulfill, Op::Collect, Op::Die, Op::Reclaim],
            ..pair()
        });
    }
}

#[test]
fn starts_are_within_the_rate_whatever_wall_clocks_say() {
    for (burst, ahead) in [
        (1, [Some(0), Some(0)]),
        (1, [Some(0), Some(2)]),
        (2, [Some(0), Some(1)]),
        (1, [Some(0), None]),
        (2, [Some(0), None]),
    ] {
        let limits = GroupLimits::new().with_rate(RATE.with_burst(burst));
        check(World {
            limits: vec![(A, limits)],
            time: Time { ahead, ..TIME },
            ..rated()
        });
    }
}

#[test]
fn only_starts_take_tokens() {
    for burst in [1, 2] {
        let mut world = World {
            limits: vec![(A, GroupLimits::new().with_rate(RATE.with_burst(burst)))],
            ..unused()
        };
        // The longer time has ten times as many states.
        if cfg!(debug_assertions) {
            world.time = BRIEF;
        }
        check(world);
    }
    check(World {
        ops: vec![Op::Cancel(0)],
        time: BRIEF,
        ..unused()
    });
    // What a dead session has collected counts as started.
    check(World {
        ops: vec![Op::Register, Op::Fulfill, Op::Collect, Op::Die, Op::Reclaim],
        returns: vec![],
        time: BRIEF,
        ..unused()
    });
}

#[test]
fn a_group_has_a_limit_and_a_rate() {
    check(World {
        limits: vec![(A, RATED.with_limit(1))],
        purposes: [Purpose::Deliver; 2],
        returns: complete_or_release(),
        time: Time { end: 3, ..TIME },
        ..rated()
    });
}

#[test]
fn a_rate_changes_at_any_time() {
    check(World {
        ops: vec![Op::Configure(A, None), Op::Configure(A, Some(SLOW))],
        changes: 2,
        time: BRIEF,
        ..rated()
    });
    check(slow_before());
    check(World {
        time: Time {
            ahead: [Some(0), None],
            ..BRIEF
        },
        ..slow_before()
    });
}

#[test]
fn bugs_are_caught() {
    for (bug, property, world) in [
        (Bug::NoGate, WITHIN_LIMIT, pair()),
        (Bug::NoGate, WITHIN_LIMIT, pops()),
        (Bug::NoGate, WITHIN_LIMIT, granted()),
        (Bug::NoNoticeAtEnqueue, COVERED, pair()),
        (Bug::NoNoticeAtRelease, COVERED, pair()),
        (Bug::NoNoticeAtReturn, COVERED, returns()),
        (Bug::NoNoticeAtConfigure, COVERED, configured()),
        (Bug::NoNoticeAtRedrive, COVERED, ordered()),
        (Bug::NoNoticeAtEnd, COVERED, blocked()),
        (Bug::NoNoticeByTake, COVERED, returns()),
        (Bug::NoNoticeOfTheRest, COVERED, let_go()),
        (Bug::NoticeAtOwnRank, COVERED, levels_with_slots()),
        (Bug::ClearInsteadOfCompare, COVERED, paused_again()),
        (Bug::LimitsNotInConflictOfGrants, WITHIN_LIMIT, paused()),
        (Bug::LimitsNotInConflictOfGrants, WITHIN_LIMIT, resumed()),
        (Bug::PauseUnseen, WITHIN_LIMIT, resumed()),
        (Bug::NoNoticeAtResume, COVERED, resumed()),
        (Bug::LimitsNotInConflictOfReturns, COVERED, unlimited()),
        (Bug::SlotKeptAtTheEnd, EXACT, pair()),
        (Bug::SlotCountedTwice, EXACT, pair()),
        (Bug::SlotNotCounted, EXACT, pair()),
        (Bug::NoMark, COVERED, swept()),
        (Bug::MarkCleared, COVERED, swept_twice()),
        (Bug::SweepWithoutNotices, COVERED, swept()),
        (Bug::NoticesUnseen, NONE_HIDDEN, pair()),
        (Bug::ClearedAhead, COVERED, ahead()),
        (Bug::NoGate, WITHIN_RATE, rated()),
        (Bug::WallClock, WITHIN_RATE, rated()),
        (Bug::StartForgotten, WITHIN_RATE, rated()),
        (Bug::EmptierThanEmpty, IN_TIME, slow_before()),
        (Bug::ParkedTwice, PARKED, rated()),
        (Bug::NotParkedAgain, COVERED, one_by_one()),
        (Bug::ParkedForever, PARKED, rated()),
        (Bug::ParkedTooLong, IN_TIME, bursts()),
        (Bug::TokenKept, ONLY_STARTS, unused()),
        (Bug::TokenBackTwice, ONLY_STARTS, unused()),
        (Bug::TokenBackTwice, WITHIN_RATE, unused_of_a_burst()),
        (Bug::TokenOfAStartBack, WITHIN_RATE, unused()),
        (Bug::LowsForgotten, WITHIN_RATE, unused()),
        (Bug::DeathLater, TOLD, dying()),
        (Bug::DeathLater, TOLD, dead_by_sessions_alone()),
        (Bug::DeathBefore, TOLD, dying()),
        (Bug::DeathTwice, TOLD, dying()),
        (Bug::HeldNotInConflict, TOLD, dying()),
    ] {
        println!("{bug:?}");
        catch(bug, property, world);
    }
}
