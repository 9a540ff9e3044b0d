//! What viewers and applications do with the lock that keeps viewers from owning the store, and which of them wait for
//! others.

use super::steps::{Action, Bug, ElectionModel, Phase, Process, Seat, State};
use crate::stores::embedded::link::election::{Candidacy, Outcome};

impl ElectionModel {
    /// Returns whether a candidate may take the lock, if it is free.
    pub(super) fn may_open(&self, state: &State, me: usize) -> bool {
        if self.candidacies[me] != Candidacy::Viewer {
            return !self.is_viewed(state);
        }
        let is_viewer_waiting = |other: usize| {
            other != me
                && self.candidacies[other] == Candidacy::Viewer
                && state.processes[other].seat != Seat::Gone
        };
        match self.bug {
            Some(Bug::ViewsAlone) => true,
            Some(Bug::GivesWayToViewers) if (0..self.candidacies.len()).any(is_viewer_waiting) => {
                false
            }
            _ => !state.processes.iter().any(|process| process.has_hold),
        }
    }

    /// Returns whether an application will have its part of the lock before the pause of a viewer is over: its own
    /// pauses are shorter.
    pub(super) fn is_sought(&self, state: &State) -> bool {
        let mut processes = state.processes.iter().zip(&self.candidacies);
        processes.any(|(process, candidacy)| {
            let is_seeking = matches!(process.seat, Seat::Seeking(_)) && !process.is_stopped;
            *candidacy != Candidacy::Viewer && is_seeking && !process.has_hold
        })
    }

    /// Returns whether a viewer has the lock that applications share.
    pub(super) fn is_viewed(&self, state: &State) -> bool {
        let processes = state.processes.iter().zip(&self.candidacies);
        let mut viewers = processes.filter(|(_, candidacy)| **candidacy == Candidacy::Viewer);
        viewers.any(|(viewer, _)| match viewer.seat {
            Seat::Owner(phase) => phase != Phase::Unlocked,
            _ => false,
        })
    }

    pub(super) fn connect(&self, next: &mut State, me: usize) -> Option<Outcome<(), usize, ()>> {
        let is_viewer = self.candidacies[me] == Candidacy::Viewer;
        if !is_viewer && !self.is_viewed(next) {
            next.processes[me].has_hold = true;
        }
        let Some(owner) = next.socket else {
            return Some(Outcome::Unanswered);
        };
        let has_hold = next.processes[me].has_hold;
        let process = &mut next.processes[owner];
        if process.seat != Seat::Owner(Phase::Serving) {
            return Some(Outcome::Unanswered);
        }
        // One that is stopped takes connections, and does not answer.
        (!process.is_stopped).then_some(())?;
        if !is_viewer && self.candidacies[owner] == Candidacy::Viewer {
            process.is_wanted = true;
            return Some(Outcome::Unanswered);
        }
        if !is_viewer && !has_hold {
            return Some(Outcome::Unanswered);
        }
        Some(Outcome::Welcomed(owner))
    }

    /// Returns whether all processes come to have seats if nothing more happens to them.
    pub(super) fn settles(&self, state: &State) -> bool {
        const ROUNDS: usize = 8;
        let mut state = state.clone();
        for _ in 0..ROUNDS * state.processes.len() {
            for me in 0..state.processes.len() {
                let steps = [
                    Action::Request(me),
                    Action::Reply(me),
                    Action::Lose(me),
                    Action::Proceed(me),
                    Action::Seek(me),
                ];
                for step in steps {
                    state = self.take(&state, step).unwrap_or(state);
                }
            }
        }
        let is_stopped_owner =
            |process: &Process| process.is_stopped && matches!(process.seat, Seat::Owner(_));
        let is_waiting = state.processes.iter().any(is_stopped_owner);
        // An application that cannot or must not own the store keeps viewers waiting.
        let candidacies = || state.processes.iter().zip(&self.candidacies);
        let waits = |(process, candidacy): (&Process, &Candidacy)| {
            process.has_hold && (process.is_stopped || *candidacy == Candidacy::Client)
        };
        let owns = |(process, candidacy): (&Process, &Candidacy)| {
            *candidacy == Candidacy::Owner && process.seat != Seat::Gone && !process.is_stopped
        };
        let is_waiting = is_waiting || (candidacies().any(waits) && !candidacies().any(owns));
        let has_seat = |process: &Process| match &process.seat {
            Seat::Gone | Seat::Owner(Phase::Serving) => true,
            Seat::Client(line) => state.processes[line.owner].seat == Seat::Owner(Phase::Serving),
            Seat::Seeking(_) | Seat::Owner(_) => false,
        };
        let mut processes = state.processes.iter();
        is_waiting || processes.all(|process| process.is_stopped || has_seat(process))
    }
}
