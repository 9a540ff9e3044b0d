//! Batches in every order of transactions.
//!
//! The functions of the protocol themselves run on rows, which are the state of the model. A look at batches reads in
//! one step and commits in a later one, or never, as after a crash of its process. So does every other transaction
//! whose reads are not all in its conflict ranges.
//!
//! - [`world`]: the steps.
//! - [`promises`]: what must hold.
//! - [`bug`]: planted bugs.
//! - [`looks`]: tests of looks, without a model.
//!
//! Versionstamps are numbered anew after each step, since only their equality matters. Items end without being held:
//! how they end while sessions hold them is the subject of other models.

mod bug;
mod looks;
mod promises;
mod world;

use stateright::{Checker, HasDiscoveries, Model};

use self::bug::Bug;
use self::promises::{CLOSED, COUNTED, COVERED, EARLY, EXACT, INDEXED, ONCE};
use self::world::{BatchModel, BatchSpec, World};

const PLAIN: BatchSpec = BatchSpec {
    parent: None,
    has_callback: true,
    dead_letters_stay: false,
};

/// A batch with two members.
fn single() -> World {
    World {
        batches: vec![PLAIN],
        items: vec![0, 0],
        adds_by_members: true,
        dies: false,
        cancels: false,
    }
}

/// A batch in another one, with a member each.
fn nested() -> World {
    World {
        batches: vec![
            PLAIN,
            BatchSpec {
                parent: Some(0),
                ..PLAIN
            },
        ],
        items: vec![1, 0],
        ..single()
    }
}

/// Visits every state of a world.
fn check(world: World) {
    let checker = BatchModel::new(world, None)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Breaks a rule, and expects that a property fails.
fn catch(bug: Bug, property: &'static str, world: World) {
    let checker = BatchModel::new(world, Some(bug))
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!("{} states", checker.unique_state_count());
    checker.assert_any_discovery(property);
}

#[test]
fn members_end_die_and_add_members() {
    for dead_letters_stay in [false, true] {
        check(World {
            batches: vec![BatchSpec {
                dead_letters_stay,
                ..PLAIN
            }],
            dies: true,
            ..single()
        });
    }
}

#[test]
fn a_parent_waits_for_the_batch_in_it() {
    check(nested());
    for has_callback in [true, false] {
        check(World {
            batches: vec![
                PLAIN,
                BatchSpec {
                    parent: Some(0),
                    has_callback,
                    ..PLAIN
                },
            ],
            cancels: true,
            ..nested()
        });
    }
}

#[test]
fn batches_are_nested_three_deep() {
    let within = |parent| BatchSpec {
        parent: Some(parent),
        ..PLAIN
    };
    check(World {
        batches: vec![PLAIN, within(0), within(1)],
        items: vec![2],
        ..nested()
    });
}

#[test]
fn bugs_are_caught() {
    let dying = || World {
        dies: true,
        ..single()
    };
    for (bug, property, world) in [
        (Bug::NoNoticeAtEnd, COVERED, single()),
        (Bug::NoNoticeAtClose, COVERED, single()),
        (Bug::NoNoticeAtDeath, COVERED, dying()),
        (Bug::NoNoticeOfParent, COVERED, silent()),
        (Bug::ClearInsteadOfCompare, COVERED, single()),
        (Bug::AddWithoutRow, EXACT, single()),
        (Bug::ClosedUnseen, CLOSED, single()),
        (Bug::AddWithoutOpen, CLOSED, single()),
        (Bug::EndWithoutPending, EARLY, single()),
        (Bug::EndWhileOpen, EARLY, single()),
        (Bug::CallbackOutside, EARLY, nested()),
        (Bug::NotAdded, EXACT, single()),
        (Bug::EndedTwice, EXACT, single()),
        (Bug::DeadStaysPending, EXACT, dying()),
        (Bug::RowsStay, ONCE, single()),
        (Bug::NotTold, COUNTED, single()),
        (Bug::NotIndexed, INDEXED, single()),
        (Bug::CallbackNotIndexed, INDEXED, nested()),
        (Bug::IndexStays, INDEXED, single()),
    ] {
        println!("{bug:?}");
        catch(bug, property, world);
    }
}

/// A world in which the inner batch has no callback.
fn silent() -> World {
    World {
        batches: vec![
            PLAIN,
            BatchSpec {
                parent: Some(0),
                has_callback: false,
                ..PLAIN
            },
        ],
        ..nested()
    }
}
