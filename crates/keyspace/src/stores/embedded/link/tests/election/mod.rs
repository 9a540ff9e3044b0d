//! Checks the rules of an [election] in every order of the steps of a few processes.
//!
//! Each process seeks a seat at one store with the functions that the library runs, makes transactions there, and may
//! close the store, be stopped, or be killed at any moment. All transactions read and write the same key, so that two
//! of them commit only one after the other.
//!
//! A broken rule is a [`Bug`], and each one makes a property fail.

mod ends;
mod steps;
mod viewers;

use std::collections::BTreeSet;

use conformance::scale;
use stateright::{Checker, HasDiscoveries, Model, Property};

use self::steps::{Action, Budget, Bug, Call, Commit, ElectionModel, Phase, Process, Seat, State};
use crate::stores::embedded::link::election::{self, Candidacy};

/// The number of threads that check the model.
const THREADS: usize = 2;

const ONE_SERVES: &str = "at most one process serves";
const REACHABLE: &str = "the socket leads to the process that serves";
const ONE_OWNER: &str = "a transaction has a read version and a verdict of one owner";
const KEPT: &str = "an acknowledged commit stays in the log";
const ONCE: &str = "a transaction commits once";
const SERIAL: &str = "a commit has read what the commit before it wrote";
const STRICT: &str = "a transaction reads what was acknowledged before it began";
const SETTLES: &str = "unless an owner is stopped, all processes come to have seats";
const KNOWN: &str = "a commit that was refused did not happen";
const CLEAN: &str = "the last process to close a store leaves one file";
const VIEWED: &str = "no viewer owns a store that an application has open";

impl Model for ElectionModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let process = |candidacy: &Candidacy| Process {
            seat: Seat::Seeking(election::first(*candidacy, false)),
            is_stopped: false,
            opened_at: 0,
            attempts: 0,
            call: Call::Idle,
            known: None,
            has_hold: false,
            is_wanted: false,
            is_present: false,
            is_last: false,
        };
        vec![State {
            processes: self.candidacies.iter().map(process).collect(),
            lock: None,
            socket: None,
            log: Vec::new(),
            clock: 0,
            acknowledged: Vec::new(),
            budget: self.budget,
            has_mixed: false,
            has_stale: false,
            has_lost_socket: false,
            is_closed: true,
            has_killed: false,
            refused: Vec::new(),
        }]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        for me in 0..self.candidacies.len() {
            actions.extend([
                Action::Seek(me),
                Action::Proceed(me),
                Action::Close(me),
                Action::Kill(me),
                Action::Stop(me),
                Action::Continue(me),
                Action::Begin(me, false),
                Action::Begin(me, true),
                Action::Drop(me),
                Action::Commit(me),
                Action::Request(me),
                Action::Reply(me),
                Action::Lose(me),
                Action::Queue(me),
                Action::Leave(me),
                Action::LoseSocket(me),
            ]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.take(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_SERVES, |model: &Self, state: &State| {
                let seats = state.processes.iter().map(|process| &process.seat);
                seats.filter(|seat| model.is_serving(seat)).count() <= 1
            }),
            Property::always(REACHABLE, |_, state: &State| {
                let is_serving =
                    |me: &usize| state.processes[*me].seat == Seat::Owner(Phase::Serving);
                let mut serving = (0..state.processes.len()).filter(is_serving);
                state.has_lost_socket || serving.all(|me| state.socket == Some(me))
            }),
            Property::always(ONE_OWNER, |_, state: &State| !state.has_mixed),
            Property::always(KEPT, |_, state: &State| {
                let versions: Vec<_> = state.log.iter().map(|commit| commit.version).collect();
                state
                    .acknowledged
                    .iter()
                    .all(|version| versions.contains(version))
            }),
            Property::always(ONCE, |_, state: &State| {
                let commits = state.log.iter();
                let names: BTreeSet<_> = commits.map(|it| (it.process, it.attempt)).collect();
                names.len() == state.log.len()
            }),
            Property::always(SERIAL, |_, state: &State| {
                let pairs = state.log.iter().zip(state.log.iter().skip(1));
                pairs
                    .into_iter()
                    .all(|(one, next)| next.read >= one.version)
            }),
            Property::always(STRICT, |_, state: &State| !state.has_stale),
            Property::always(SETTLES, Self::settles),
            Property::always(KNOWN, |_, state: &State| {
                let is_refused = |it: &Commit| state.refused.contains(&(it.process, it.attempt));
                !state.log.iter().any(is_refused)
            }),
            Property::always(CLEAN, |_, state: &State| {
                let mut seats = state.processes.iter().map(|process| &process.seat);
                let has_ended = seats.all(|seat| *seat == Seat::Gone) && !state.has_killed;
                state.is_closed || !has_ended
            }),
            Property::always(VIEWED, |model: &Self, state: &State| {
                !(model.is_viewed(state) && state.processes.iter().any(|it| it.has_hold))
            }),
        ]
    }
}

fn model(bug: Option<Bug>) -> ElectionModel {
    ElectionModel {
        candidacies: vec![Candidacy::Owner; 2],
        attempts: 2,
        budget: Budget {
            kills: 1,
            closes: 1,
            stops: 1,
            leaves: 0,
            losses: 0,
        },
        has_ends: false,
        bug,
    }
}

fn catch(bug: Bug, property: &'static str) {
    catch_in(model(Some(bug)), property);
}

fn catch_in(model: ElectionModel, property: &'static str) {
    let bug = model.bug;
    let expected = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(expected).spawn_bfs().join();
    println!("{bug:?}: {} states", checker.unique_state_count());
    checker.assert_any_discovery(property);
}

fn check(model: ElectionModel) {
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "elections: {} steps between {} states, {} in a row at most",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

#[test]
fn the_rules_of_an_election_hold_in_every_order_of_steps() {
    check(model(None));
}

#[test]
fn the_rules_hold_among_three_processes() {
    check(ElectionModel {
        candidacies: vec![Candidacy::Owner; 3],
        attempts: 1,
        budget: Budget {
            kills: 1,
            closes: scale(0, 1) as u8,
            stops: 0,
            leaves: 0,
            losses: 0,
        },
        has_ends: false,
        bug: None,
    });
}

#[test]
fn catches_an_owner_that_unlocks_the_store_before_its_end() {
    catch(Bug::UnlocksFirst, ONE_SERVES);
}

#[test]
fn catches_a_candidate_that_takes_the_lock_away() {
    catch(Bug::TakesLock, ONE_SERVES);
}

#[test]
fn catches_a_socket_that_is_removed_without_the_lock() {
    catch(Bug::RemovesSocketLate, REACHABLE);
}

#[test]
fn catches_a_transaction_of_two_owners() {
    catch(Bug::ChangesOwner, ONE_OWNER);
}

#[test]
fn catches_an_owner_that_takes_read_versions_of_another() {
    catch(Bug::TakesOldVersions, SERIAL);
}

#[test]
fn catches_a_read_version_that_was_asked_for_before_the_transaction() {
    catch(Bug::SharesVersions, STRICT);
}

/// A model of viewers and applications, which make few transactions.
fn viewers(candidacies: &[Candidacy], bug: Option<Bug>) -> ElectionModel {
    ElectionModel {
        candidacies: candidacies.to_vec(),
        attempts: u8::from(candidacies.len() == 2),
        budget: Budget {
            kills: 1,
            closes: 1,
            stops: u8::from(candidacies.len() == 2),
            leaves: 0,
            losses: 0,
        },
        has_ends: false,
        bug,
    }
}

#[test]
fn the_rules_hold_between_viewers_and_applications() {
    use Candidacy::{Client, Owner, Viewer};
    let groups: [&[Candidacy]; 6] = [
        &[Viewer, Owner],
        &[Viewer, Client],
        &[Viewer, Viewer],
        &[Viewer, Viewer, Owner],
        &[Viewer, Viewer, Client],
        &[Viewer, Owner, Owner],
    ];
    for group in groups {
        check(viewers(group, None));
    }
}

#[test]
fn catches_a_viewer_that_takes_over_beside_an_application() {
    let beside = [Candidacy::Viewer, Candidacy::Owner, Candidacy::Owner];
    catch_in(viewers(&beside, Some(Bug::ViewsAlone)), VIEWED);
}

#[test]
fn catches_a_viewer_that_does_not_hand_the_store_over() {
    let beside = [Candidacy::Viewer, Candidacy::Owner];
    catch_in(viewers(&beside, Some(Bug::KeepsStore)), SETTLES);
}

#[test]
fn catches_viewers_that_wait_for_each_other() {
    let viewers_alone = [Candidacy::Viewer; 2];
    catch_in(
        viewers(&viewers_alone, Some(Bug::GivesWayToViewers)),
        SETTLES,
    );
}

/// A model of processes that close the store, of commits that wait for an owner, and of sockets that are lost.
fn ends(candidacies: &[Candidacy], bug: Option<Bug>) -> ElectionModel {
    ElectionModel {
        candidacies: candidacies.to_vec(),
        attempts: 1,
        budget: Budget {
            kills: u8::from(candidacies.len() == 2),
            closes: 2,
            stops: 0,
            leaves: 2,
            losses: u8::from(candidacies.len() == 2),
        },
        has_ends: true,
        bug,
    }
}

#[test]
fn the_rules_hold_when_processes_close_the_store_in_every_order() {
    use Candidacy::{Client, Owner, Viewer};
    let groups: [&[Candidacy]; 6] = [
        &[Owner, Owner],
        &[Owner, Client],
        &[Owner, Viewer],
        &[Viewer, Viewer],
        &[Owner, Client, Viewer],
        &[Owner, Client, Owner],
    ];
    for group in groups {
        let attempts = u8::from(!group.contains(&Viewer) || group.len() == 2);
        check(ElectionModel {
            attempts,
            ..ends(group, None)
        });
    }
}

#[test]
fn catches_an_owner_that_makes_no_other_socket() {
    catch_in(
        ends(&[Candidacy::Owner; 2], Some(Bug::KeepsNoSocket)),
        SETTLES,
    );
}

#[test]
fn catches_an_owner_that_does_not_look_whether_the_others_have_left() {
    catch_in(ends(&[Candidacy::Owner; 2], Some(Bug::LooksOnce)), CLEAN);
}

#[test]
fn catches_a_client_that_answers_a_commit_before_it_sends_it() {
    let beside = [Candidacy::Owner, Candidacy::Client, Candidacy::Owner];
    catch_in(ends(&beside, Some(Bug::AnswersFirst)), KNOWN);
}
