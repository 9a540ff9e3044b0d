//! Checks the passes over a bucket in every order of the events that may happen to it.
//!
//! The model has one bucket with three keys, and a checker that visits every reachable state. It runs the
//! recipe's own functions, on a [store](conformance::checker_store) whose rows are the state of the model,
//! so it contains no copy of their rules.
//!
//! - [`bug`]: the rules that a planted bug breaks.
//! - [`protocol`]: the transactions.
//! - [`steps`]: which steps can happen in which state.
//! - [`state`]: the committed rows, the transactions in flight, and the events that have actually
//!   happened.
//! - [`promises`]: the properties that must hold.
//! - [`conflicts`]: the writes that make a pass in flight fail.
//! - [`overload`]: a bucket whose observer fails, in one order of steps.
//!
//! # Events
//!
//! A transaction begins in one step and commits in another, unless all its reads are in its conflict
//! ranges. Such a transaction might as well happen entirely at its commit, and in the model it does. The
//! following events happen at any time, within a [`Budget`](state::Budget) that limits how often each one
//! happens:
//!
//! - Blocks are added, in any order.
//! - A pass begins that takes everything, reports one change, takes the updates of one key, or takes
//!   those of one key from the first block, so that a block is folded in part. It commits at any later
//!   time or never. It therefore makes no difference whether its worker waits, has died, or does not know
//!   the outcome and makes another pass.
//! - A pass withholds the reports of a key.
//! - The observer adds an update to the bucket in the transaction that reports.
//! - `initialize` loads a key.
//! - A record that is set aside is redriven: a key that is withheld, or an update that does not decode.
//! - A block gets a versionstamp that sorts before the existing blocks, as in a restored store.
//!
//! The model leaves out blocks that are broken as a whole, values that do not decode, and additional
//! buckets. The runner commits additions exactly once, and so does the model.

mod bug;
mod conflicts;
mod overload;
mod promises;
mod protocol;
mod state;
mod steps;

use std::collections::BTreeSet;

use conformance::scale;
use stateright::{Checker, HasDiscoveries, Model};

use crate::tests::model::bug::Bug;
use crate::tests::model::promises::{
    CURRENT_DIFFERS, END_IS_TRUE, FINISHES, NEW_IS_SUM, OLD_IS_NEW, ONCE, STATE_KNOWS,
    WITHHELD_NOTED,
};
use crate::tests::model::protocol::{Protocol, Update};
use crate::tests::model::state::Budget;
use crate::tests::model::steps::PassModel;

/// The number of threads that check one model.
const THREADS: usize = 2;

/// Two concurrent passes, and no rare events.
const QUIET: Budget = Budget {
    flights: 2,
    loads: 0,
    withholdings: 0,
    redrives: 0,
    additions: 0,
    restored: 0,
};

/// Two keys in one block, and one of them returns to its old value.
const BLOCKS: &[&[Update]] = &[&[(0, Some(1)), (1, Some(2))], &[(0, Some(-1))]];

/// The same, with more blocks.
const MORE_BLOCKS: &[&[Update]] = &[
    BLOCKS[0],
    BLOCKS[1],
    &[(1, Some(4)), (0, Some(8))],
    &[(1, Some(-2))],
];

/// Three keys, so that two may wait while the third one is reported.
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

/// Visits every reachable state of the model.
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
fn keeps_its_promises_under_all_interleavings() {
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
