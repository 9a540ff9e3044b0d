//! The thread that merges runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::shared::EngineShared;
use crate::contract::error::Result;
use crate::stores::embedded::backend::is_shortage;
use crate::stores::embedded::runs::damage::FileError;

/// How long no run was added when the store is at rest.
const REST: Duration = Duration::from_secs(10);

/// How often the merger looks at a store at rest: until no state holds old runs any more.
const MAX_RESTS: u32 = 4;

/// How long a merge waits for room on the disk before it tries again.
const SHORTAGE_WAIT: Duration = Duration::from_secs(1);

/// What the checkpointer and the merger tell each other.
#[derive(Default)]
pub(super) struct Merges {
    state: Mutex<MergesState>,
    /// Notified when a run was added, and at the end.
    for_merger: Condvar,
    /// Notified after each step of a merge, and at the end.
    for_checkpointer: Condvar,
}

#[derive(Default)]
struct MergesState {
    has_new_run: bool,
    is_closed: bool,
    /// Whether checkpoints no longer wait for merges.
    is_hurried: bool,
    /// Whether the merger uses the store's file.
    is_running: bool,
}

impl Merges {
    /// Announces a run.
    pub(super) fn run_added(&self) {
        self.state.lock().has_new_run = true;
        self.for_merger.notify_one();
    }

    /// Lets the checkpointer go on, however many runs there are: the store is being closed.
    pub(super) fn hurry(&self) {
        self.state.lock().is_hurried = true;
        self.for_checkpointer.notify_one();
    }

    /// Waits until there are few enough runs for another one, or no more merges, or the store is being closed.
    pub(super) fn wait_for_room(&self, is_full: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.is_running && !state.is_closed && !state.is_hurried && is_full() {
            self.for_checkpointer.wait(&mut state);
        }
    }

    /// Announces the merger's thread. It looks at the runs at once.
    pub(super) fn start(&self) {
        let mut state = self.state.lock();
        state.is_running = true;
        state.has_new_run = true;
    }

    /// Ends the merges.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.for_merger.notify_one();
        self.for_checkpointer.notify_one();
    }

    /// Waits until the merger no longer uses the store's file.
    pub(super) fn wait_for_end(&self) {
        let mut state = self.state.lock();
        while state.is_running {
            self.for_checkpointer.wait(&mut state);
        }
    }

    /// Waits for a run, up to `limit` if there is one. Returns `None` at the end, and otherwise whether there was one.
    fn wait(&self, limit: Option<Duration>) -> Option<bool> {
        let mut state = self.state.lock();
        let is_idle = |state: &mut MergesState| !state.is_closed && !state.has_new_run;
        match limit {
            Some(limit) => {
                self.for_merger.wait_while_for(&mut state, is_idle, limit);
            }
            None => self.for_merger.wait_while(&mut state, is_idle),
        }
        let has_new_run = std::mem::take(&mut state.has_new_run);
        if state.is_closed {
            None
        } else {
            Some(has_new_run)
        }
    }

    /// Returns whether the next step of a merge may begin. In a store that is no longer at rest, other merges come
    /// first.
    fn may_step(&self, is_at_rest: bool) -> bool {
        let state = self.state.lock();
        let is_disturbed = is_at_rest && state.has_new_run;
        !state.is_closed && !is_disturbed
    }

    fn stepped(&self) {
        // The checkpointer does not look at the runs between this and the notification.
        drop(self.state.lock());
        self.for_checkpointer.notify_one();
    }

    pub(super) fn end(&self) {
        self.state.lock().is_running = false;
        self.for_checkpointer.notify_one();
    }
}

/// Merges runs.
pub(super) struct Merger {
    shared: Arc<EngineShared>,
}

/// Announces the end of the thread, also after a panic.
struct Running<'a>(&'a Merges);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Merger {
    pub(super) fn new(shared: Arc<EngineShared>) -> Self {
        Self { shared }
    }

    /// Merges until the store has ended.
    pub(super) fn run(self) -> Result<()> {
        let merges = &self.shared.merges;
        let _running = Running(merges);
        let mut limit = Some(REST);
        let mut rests = 0;
        let mut has_room = true;
        while let Some(has_new_run) = merges.wait(limit) {
            // Without room, the same merge is tried again.
            let is_at_rest = has_room && !has_new_run;
            has_room = true;
            let mut has_merged = false;
            while has_room && merges.may_step(is_at_rest) {
                match self.step(is_at_rest) {
                    Ok(true) => {
                        has_merged = true;
                        merges.stepped();
                    }
                    Ok(false) => break,
                    Err(FileError::Io(cause)) if is_shortage(&cause) => {
                        tracing::warn!(%cause, "a merge waits for room on the disk");
                        // Meanwhile the log may need what the merge has written in vain.
                        let cut = self.shared.runs.cut();
                        cut.map_err(|cause| self.shared.fail(cause))?;
                        has_room = false;
                    }
                    Err(cause) => return Err(self.shared.fail(cause)),
                }
            }
            if is_at_rest && has_merged {
                self.let_window_go();
            }
            rests = if is_at_rest { rests + 1 } else { 0 };
            limit = if !has_room {
                Some(SHORTAGE_WAIT)
            } else if rests < MAX_RESTS {
                Some(REST)
            } else {
                None
            };
        }
        Ok(())
    }

    /// Makes the window read the newest runs. Otherwise, it would hold the old ones until the next batch, and their
    /// room in the file.
    pub(super) fn let_window_go(&self) {
        self.shared.commit_nothing();
    }

    #[cfg(test)]
    pub(super) fn expire(&self) {
        self.shared.timeline.expire();
    }

    #[cfg(test)]
    pub(super) fn step_or_fail(&self, is_at_rest: bool) -> Result<bool> {
        self.step(is_at_rest)
            .map_err(|cause| self.shared.fail(cause))
    }

    /// Does the next step of a merge. Returns false if there is nothing to merge.
    pub(super) fn step(&self, is_at_rest: bool) -> std::result::Result<bool, FileError> {
        let timeline = &self.shared.timeline;
        self.shared
            .runs
            .merge_step(is_at_rest, |runs| timeline.merged(runs))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_checkpoint_waits_for_room_until_a_step_makes_some_or_the_store_is_closed() {
        for end in [Merges::hurry, Merges::close, Merges::end] {
            let merges = Merges::default();
            // Without a merger, nothing would end the wait.
            merges.wait_for_room(|| true);
            merges.start();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| merges.wait_for_room(|| true));
                merges.stepped();
                assert!(!waiting.is_finished());
                end(&merges);
            });
            merges.wait_for_room(|| true);
        }
        let merges = Merges::default();
        merges.start();
        let is_full = Mutex::new(true);
        thread::scope(|scope| {
            scope.spawn(|| merges.wait_for_room(|| *is_full.lock()));
            *is_full.lock() = false;
            merges.stepped();
        });
    }

    #[test]
    fn a_store_whose_merges_begin_is_not_at_rest() {
        let merges = Merges::default();
        merges.start();
        assert_eq!(merges.wait(None), Some(true));
        assert_eq!(merges.wait(Some(Duration::ZERO)), Some(false));
    }
}
