//! Decides what a worker does next, without a store, a clock or a task.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::job::Next;
use crate::bucket::Bucket;

/// The buckets that a session works on. `S` is the state that a job keeps for a bucket.
#[derive(Debug)]
pub(super) struct Agenda<S> {
    work: BTreeMap<Bucket, Work<S>>,
    /// The buckets whose next step is due, in the order in which they became due.
    ready: VecDeque<Bucket>,
    reading: Reading,
}

/// Whether the worker must read which buckets have work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// It has read recently, and nothing has changed since.
    Fresh,
    /// Something has changed: it reads as soon as it could do more than it knows of.
    Stale,
    /// It reads immediately.
    Due,
}

/// A bucket that this session works on.
#[derive(Debug)]
struct Work<S> {
    /// `None` while a step is under way.
    state: Option<S>,
    /// Whether a read found work in the bucket while a step was under way.
    again: bool,
    /// Whether this session has taken the bucket over because it made no progress.
    is_takeover: bool,
}

/// The next thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task<S> {
    /// Nothing, until a step ends or an alarm fires.
    Rest,
    /// Read which buckets have work.
    Read,
    /// Start a step in a bucket.
    Step(Bucket, S),
}

impl<S: Default> Agenda<S> {
    /// Returns the agenda of a worker that has read nothing yet.
    pub(super) fn new() -> Self {
        Self {
            work: BTreeMap::new(),
            ready: VecDeque::new(),
            reading: Reading::Due,
        }
    }

    /// Returns the next task. Another step may start if there `is_room`.
    pub(super) fn next(&mut self, is_room: bool) -> Task<S> {
        let reads = match self.reading {
            Reading::Fresh => false,
            Reading::Stale => is_room && self.ready.is_empty(),
            // From time to time it also reads while it has work, since there may be other buckets and
            // sessions.
            Reading::Due => true,
        };
        if reads {
            self.reading = Reading::Fresh;
            return Task::Read;
        }
        while is_room && let Some(bucket) = self.ready.pop_front() {
            let work = self.work.get_mut(&bucket);
            if let Some(state) = work.and_then(|work| work.state.take()) {
                return Task::Step(bucket, state);
            }
        }
        Task::Rest
    }

    /// Records that there may be new work.
    pub(super) fn changed(&mut self) {
        if self.reading == Reading::Fresh {
            self.reading = Reading::Stale;
        }
    }

    /// Records that it is time to read, whether or not something has changed.
    pub(super) fn read(&mut self) {
        self.reading = Reading::Due;
    }

    /// Records that a bucket has work.
    pub(super) fn add(&mut self, bucket: Bucket, is_takeover: bool) {
        if let Some(work) = self.work.get_mut(&bucket) {
            work.again |= work.state.is_none();
            return;
        }
        let work = Work {
            state: Some(S::default()),
            again: false,
            is_takeover,
        };
        self.work.insert(bucket, work);
        self.ready.push_back(bucket);
    }

    /// Records that a step has ended. Returns the time after which the bucket is [due](Self::due), if it
    /// must wait.
    pub(super) fn end(
        &mut self,
        bucket: Bucket,
        state: S,
        next: Next,
        is_holder: bool,
    ) -> Option<Duration> {
        let work = self.work.get_mut(&bucket)?;
        let again = std::mem::take(&mut work.again);
        work.state = Some(state);
        match next {
            Next::After(wait) => return Some(wait),
            _ if !is_holder && !work.is_takeover => {
                self.work.remove(&bucket);
            }
            Next::Done if !again => {
                self.work.remove(&bucket);
            }
            Next::Done | Next::Again => self.ready.push_back(bucket),
        }
        None
    }

    /// Records that the next step in a bucket is due.
    pub(super) fn due(&mut self, bucket: Bucket) {
        self.ready.push_back(bucket);
    }

    /// Returns whether the session works on a bucket.
    pub(super) fn contains(&self, bucket: Bucket) -> bool {
        self.work.contains_key(&bucket)
    }

    /// Returns the buckets that the session works on.
    pub(super) fn buckets(&self) -> Vec<Bucket> {
        self.work.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Bucket = Bucket(1);
    const B: Bucket = Bucket(2);

    /// Returns an agenda that has read, with something to do in two buckets.
    fn agenda() -> Agenda<u8> {
        let mut agenda = Agenda::new();
        assert_eq!(agenda.next(false), Task::Read);
        agenda.add(A, false);
        agenda.add(B, false);
        agenda
    }

    #[test]
    fn buckets_take_turns_as_far_as_there_is_room() {
        let mut agenda = agenda();
        assert_eq!(agenda.next(false), Task::Rest);
        assert_eq!(agenda.next(true), Task::Step(A, 0));
        assert_eq!(agenda.end(A, 7, Next::Again, true), None);
        assert_eq!(agenda.next(true), Task::Step(B, 0));
        assert_eq!(agenda.next(true), Task::Step(A, 7));
        assert_eq!(agenda.next(true), Task::Rest);
    }

    #[test]
    fn a_change_is_read_once_there_is_room_and_nothing_else_to_begin() {
        let mut agenda = agenda();
        agenda.changed();
        assert_eq!(agenda.next(true), Task::Step(A, 0));
        assert_eq!(agenda.next(true), Task::Step(B, 0));
        assert_eq!(agenda.next(false), Task::Rest);
        assert_eq!(agenda.next(true), Task::Read);
        assert_eq!(agenda.next(true), Task::Rest);
        agenda.read();
        assert_eq!(agenda.next(false), Task::Read);
    }

    #[test]
    fn a_bucket_seen_again_during_its_step_gets_another_one() {
        let mut agenda = agenda();
        assert_eq!(agenda.next(true), Task::Step(A, 0));
        agenda.add(A, false);
        assert_eq!(agenda.end(A, 1, Next::Done, true), None);
        assert_eq!(agenda.next(true), Task::Step(B, 0));
        assert_eq!(agenda.next(true), Task::Step(A, 1));
        assert_eq!(agenda.end(A, 2, Next::Done, true), None);
        assert_eq!(agenda.buckets(), [B]);
    }

    #[test]
    fn a_bucket_of_another_session_is_left_unless_it_was_taken_over() {
        let mut agenda = agenda();
        let taken = Bucket(3);
        agenda.add(taken, true);
        for bucket in [A, B, taken] {
            assert_eq!(agenda.next(true), Task::Step(bucket, 0));
        }
        assert_eq!(agenda.end(A, 1, Next::Again, false), None);
        assert_eq!(agenda.end(taken, 1, Next::Again, false), None);
        assert_eq!(agenda.buckets(), [B, taken]);
    }

    #[test]
    fn a_step_that_waits_is_due_when_its_time_is_over() {
        let mut agenda = agenda();
        let wait = Duration::from_secs(1);
        assert_eq!(agenda.next(true), Task::Step(A, 0));
        assert_eq!(agenda.end(A, 1, Next::After(wait), true), Some(wait));
        assert_eq!(agenda.next(true), Task::Step(B, 0));
        assert_eq!(agenda.next(true), Task::Rest);
        agenda.due(A);
        assert_eq!(agenda.next(true), Task::Step(A, 1));
    }
}
