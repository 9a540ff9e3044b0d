//! The passes over a bucket, checked in every order of what may happen to it.
//!
//! The model has one bucket with three keys, and a checker that visits every state that it can reach. What
//! runs in it are the recipe's own functions, on a [`store`] whose rows are the state of the model: it
//! has no copy of their rules.
//!
//! - [`store`]: rows, and optimistic transactions with their conflicts.
//! - [`bug`]: the rules that a planted bug breaks.
//! - [`protocol`]: the transactions.
//! - [`steps`]: which can happen when.
//! - [`state`]: what is committed, in flight, and what has really happened.
//! - [`promises`]: what must hold.
//! - [`conflicts`]: what makes a pass fail that is in flight.
//! - [`overload`]: a bucket whose observer fails, in one order of steps.
//! - [`export`]: positions inside the blocks of a log, and its trim, in a model of their own.
//!
//! # What happens
//!
//! A transaction begins in one step and commits in another, unless all that it read is in its conflict
//! ranges: such a transaction might as well happen at its commit, and it does. Everything happens at any
//! time, and within a [`Budget`](state::Budget), which bounds how often,
//!
//! - blocks are added, in any order;
//! - passes begin that take everything, report one change, take one key's updates, or one key's from the
//!   first block, so that a block is folded in part. Each lands at any later time or never: so it makes
//!   no difference whether its worker waits, has died, or does not know the outcome and makes another
//!   pass;
//! - a pass withholds the reports of a key;
//! - the observer adds an update to the bucket in the transaction that reports;
//! - a key is loaded by `initialize`;
//! - what is aside is tried again: a key that is withheld, or an update that does not decode;
//! - a block gets a stamp that sorts before those that are there, as in a restored store.
//!
//! What is left out: blocks that are broken as a whole, values that do not decode, and more than one
//! bucket. The runner commits additions exactly once, and here they are committed once.

mod bug;
mod conflicts;
mod export;
mod overload;
mod promises;
mod protocol;
mod state;
mod steps;
mod store;

use std::collections::BTreeSet;

use conformance::scale;
use stateright::{Checker, HasDiscoveries, Model};

use crate::model::bug::Bug;
use crate::model::promises::{
    CURRENT_DIFFERS, END_IS_TRUE, FINISHES, NEW_IS_SUM, OLD_IS_NEW, ONCE, STATE_KNOWS,
    WITHHELD_NOTED,
};
use crate::model::protocol::{Protocol, Update};
use crate::model::state::Budget;
use crate::model::steps::PassModel;

/// How many threads check one model.
const THREADS: usize = 2;

/// Two passes at the same time, and nothing out of the ordinary.
const QUIET: Budget = Budget {
    flights: 2,
    loads: 0,
    withholdings: 0,
    redrives: 0,
    additions: 0,
    restored: 0,
};

/// Two keys in one block, and one of them back where it was.
const BLOCKS: &[&[Update]] = &[&[(0, Some(1)), (1, Some(2))], &[(0, Some(-1))]];

/// The same, and more.
const MORE_BLOCKS: &[&[Update]] = &[
    BLOCKS[0],
    BLOCKS[1],
    &[(1, Some(4)), (0, Some(8))],
    &[(1, Some(-2))],
];

/// Three keys, so that two may wait while a third one is reported.
const THREE_KEYS: &[&[Update]] = &[
    &[(0, Some(1)), (1, Some(2)), (2, Some(4))],
    &[(0, Some(-1))],
    &[(2, Some(8)), (1, Some(-2))],
];

/// Updates that do not decode, in blocks with others.
const WITH_BROKEN: &[&[Update]] = &[
    &[(0, None), (1, Some(1))],
    &[(0, Some(2))],
    &[(1, None), (1, Some(-1))],
];

/// Visits every state that the model can reach.
fn check(blocks: &'static [&'static [Update]], block_count: usize, budget: Budget) {
    let blocks = &blocks[..block_count];
    let model = PassModel {
        protocol: Protocol::new(None),
        blocks,
        budget,
    };
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{budget:?}, {} blocks: {} steps between {} states, {} in a row at most",
        blocks.len(),
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

/// Breaks a rule, and expects that a property fails.
fn catch(bug: Bug, property: &'static str, blocks: &'static [&'static [Update]], budget: Budget) {
    let model = PassModel {
        protocol: Protocol::new(Some(bug)),
        blocks,
        budget,
    };
    let expected = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(expected).spawn_bfs().join();
    println!("{bug:?}: {} states", checker.unique_state_count());
    checker.assert_any_discovery(property);
}

#[test]
fn keeps_its_promises_with_passes_at_the_same_time() {
    let budget = Budget {
        flights: scale(2, 3),
        ..QUIET
    };
    check(MORE_BLOCKS, scale(3, 4), budget);
}

#[test]
fn keeps_its_promises_while_several_keys_wait() {
    let budget = Budget {
        withholdings: 1,
        redrives: scale(0, 1),
        ..QUIET
    };
    check(THREE_KEYS, scale(2, 3), budget);
}

#[test]
fn keeps_its_promises_while_keys_are_loaded() {
    let budget = Budget { loads: 1, ..QUIET };
    check(MORE_BLOCKS, scale(3, 4), budget);
}

#[test]
fn keeps_its_promises_while_keys_are_withheld_and_tried_again() {
    let budget = Budget {
        withholdings: 1,
        redrives: 1,
        ..QUIET
    };
    check(MORE_BLOCKS, scale(3, 4), budget);
}

#[test]
fn keeps_its_promises_while_updates_are_set_aside_and_tried_again() {
    let budget = Budget {
        redrives: 1,
        ..QUIET
    };
    check(WITH_BROKEN, scale(2, 3), budget);
}

#[test]
fn keeps_its_promises_while_the_observer_adds() {
    let budget = Budget {
        additions: scale(1, 2),
        ..QUIET
    };
    check(MORE_BLOCKS, scale(3, 4), budget);
}

#[test]
fn keeps_its_promises_while_stamps_run_backwards() {
    let budget = Budget {
        restored: scale(1, 2),
        ..QUIET
    };
    check(MORE_BLOCKS, scale(3, 4), budget);
}

#[test]
fn keeps_its_promises_whatever_happens_together() {
    let budget = Budget {
        flights: 2,
        loads: 1,
        withholdings: 1,
        redrives: 1,
        additions: 1,
        restored: 1,
    };
    check(WITH_BROKEN, scale(2, 3), budget);
}

#[test]
fn catches_a_pass_that_does_not_conflict_with_another() {
    let budget = Budget {
        redrives: 1,
        ..QUIET
    };
    catch(Bug::StateNotInConflict, ONCE, WITH_BROKEN, budget);
}

#[test]
fn catches_a_pass_that_does_not_conflict_on_the_log() {
    let budget = Budget {
        restored: 1,
        ..QUIET
    };
    catch(Bug::LogNotInConflict, ONCE, MORE_BLOCKS, budget);
}

#[test]
fn catches_a_pass_that_does_not_conflict_on_the_values() {
    let budget = Budget { loads: 1, ..QUIET };
    catch(Bug::ValuesNotInConflict, ONCE, BLOCKS, budget);
    catch(Bug::ValuesNotInConflict, OLD_IS_NEW, BLOCKS, budget);
}

#[test]
fn catches_a_load_that_does_not_conflict_on_the_current_value() {
    let budget = Budget { loads: 1, ..QUIET };
    catch(Bug::CurrentNotInConflict, ONCE, BLOCKS, budget);
}

#[test]
fn catches_a_report_before_the_end_of_the_log() {
    catch(Bug::EndIgnored, NEW_IS_SUM, BLOCKS, QUIET);
    catch(Bug::EndIgnored, END_IS_TRUE, BLOCKS, QUIET);
}

#[test]
fn catches_a_pass_that_folds_the_begin_of_a_block_again() {
    catch(Bug::PositionIgnored, ONCE, BLOCKS, QUIET);
}

#[test]
fn catches_a_clear_after_the_observer() {
    let budget = Budget {
        additions: 1,
        ..QUIET
    };
    catch(Bug::ClearedLate, ONCE, BLOCKS, budget);
}

#[test]
fn catches_a_current_value_that_cannot_say_none() {
    catch(Bug::NoneUnsaid, ONCE, BLOCKS, QUIET);
}

#[test]
fn catches_a_key_that_keeps_its_current_value() {
    catch(Bug::CurrentKept, CURRENT_DIFFERS, BLOCKS, QUIET);
}

#[test]
fn catches_a_pass_that_takes_whole_blocks_only() {
    catch(Bug::WholeBlocks, FINISHES, BLOCKS, QUIET);
}

#[test]
fn catches_a_pass_that_forgets_that_there_are_current_values() {
    catch(Bug::StateForgets, STATE_KNOWS, BLOCKS, QUIET);
}

#[test]
fn catches_a_key_that_is_no_longer_withheld_and_stays_aside() {
    let budget = Budget {
        withholdings: 1,
        ..QUIET
    };
    catch(Bug::NoteKept, WITHHELD_NOTED, BLOCKS, budget);
}
