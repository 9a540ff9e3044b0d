//! Clients that close the store, the files that are left, and sockets that are lost.

use super::steps::{Bug, Call, ElectionModel, Line, Phase, Process, Request, Seat, State};

impl ElectionModel {
    /// Begins a commit that waits for an owner.
    pub(super) fn queue(&self, next: &mut State, me: usize) -> Option<()> {
        let process = next.running(me)?;
        let is_waiting = matches!(process.seat, Seat::Seeking(_)) && process.is_present;
        let may_begin = process.call == Call::Idle && process.attempts < self.attempts;
        if !(self.has_ends && is_waiting && may_begin) {
            return None;
        }
        process.attempts += 1;
        process.call = Call::Queued;
        Some(())
    }

    /// Commits what has waited until this process became the owner.
    pub(super) fn serve_queued(&self, next: &mut State, me: usize) {
        let process = &mut next.processes[me];
        if process.call == Call::Queued {
            process.call = Call::Idle;
            let attempt = process.attempts;
            let version = self.judge(next, me, (me, attempt), next.clock, None);
            next.acknowledged.extend(version);
        }
    }

    /// Closes a client.
    pub(super) fn leave(&self, next: &mut State, me: usize) -> Option<()> {
        next.budget.leaves = next.budget.leaves.checked_sub(1)?;
        let process = next.running(me)?;
        let is_client = matches!(process.seat, Seat::Seeking(_) | Seat::Client(_));
        if !(is_client && process.is_present) {
            return None;
        }
        let attempt = process.attempts;
        if process.call == Call::Queued {
            next.refused.push((me, attempt));
            let owner = next.socket.filter(|owner| next.may_welcome(*owner));
            if let Some(owner) = owner
                && self.bug == Some(Bug::AnswersFirst)
            {
                self.judge(next, owner, (me, attempt), next.clock, None);
            }
        }
        let is_last = next.is_last(me);
        next.processes[me].end();
        next.is_closed |= is_last && next.lock.is_none();
        Some(())
    }

    /// An owner that has unlocked the store looks whether the processes to which it left the store are still there.
    pub(super) fn look_again(&self, next: &mut State, me: usize) {
        let was_last = next.processes[me].is_last;
        let is_left = next.is_last(me) && next.lock.is_none() && self.bug != Some(Bug::LooksOnce);
        next.is_closed |= was_last || is_left;
    }
}

impl State {
    /// Returns whether no other process has the store open.
    pub(super) fn is_last(&self, me: usize) -> bool {
        let mut others = self.processes.iter().enumerate();
        others.all(|(place, process)| place == me || !process.is_present)
    }

    pub(super) fn lose_socket(&mut self, me: usize) -> Option<()> {
        self.budget.losses = self.budget.losses.checked_sub(1)?;
        let is_serving = self.processes[me].seat == Seat::Owner(Phase::Serving);
        if !is_serving || self.socket != Some(me) {
            return None;
        }
        self.socket = None;
        self.has_lost_socket = true;
        Some(())
    }

    fn may_welcome(&self, owner: usize) -> bool {
        let owner = &self.processes[owner];
        owner.seat == Seat::Owner(Phase::Serving) && !owner.is_stopped
    }
}

impl Process {
    /// Becomes a client of `owner`. What has waited is sent.
    pub(super) fn follow(&mut self, owner: usize) -> Line {
        self.is_present = true;
        let mut requests = Vec::new();
        if self.call == Call::Queued {
            self.call = Call::Sent;
            requests.push(Request::Blind {
                attempt: self.attempts,
            });
        }
        Line {
            owner,
            requests,
            replies: Vec::new(),
            is_over: false,
        }
    }
}
