//! Which times of a schedule have fired.
//!
//! A process whose wall clock is ahead fires times that lie in the future, and passes over the times before them. After
//! its clock is corrected, those that it has passed over must fire, and those that it has fired must not fire again. So
//! the record of a schedule has the *runs* of times that have fired: within a run, no time was passed over.

/// The largest number of runs that are remembered. The oldest ones are forgotten first.
pub(crate) const MAX_RUNS: usize = 8;

/// Consecutive times that have fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// The times that have fired, as runs, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FiredTimes(Vec<Run>);

impl FiredTimes {
    /// Returns the given runs, unless they overlap or are not ascending.
    pub(crate) fn of_runs(runs: Vec<Run>) -> Option<Self> {
        let are_valid = runs.len() <= MAX_RUNS
            && runs.iter().all(|run| run.first <= run.last)
            && runs.is_sorted_by(|one, next| one.last < next.first);
        if are_valid { Some(Self(runs)) } else { None }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.0
    }

    /// Returns the newest time that has fired.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.0.last().map(|run| run.last)
    }

    /// Returns the run that contains a time.
    pub(crate) fn run_of(&self, time: u64) -> Option<Run> {
        let later = self.0.partition_point(|run| run.last < time);
        self.0.get(later).copied().filter(|run| run.first <= time)
    }

    /// Returns the first and the last time of each run, for another expression: it may have times between them that
    /// have not fired.
    pub(crate) fn ends(&self) -> Self {
        let ends = self.0.iter().flat_map(|run| [run.first, run.last]);
        let mut runs: Vec<_> = ends
            .map(|time| Run {
                first: time,
                last: time,
            })
            .collect();
        runs.dedup();
        let left = runs.len().saturating_sub(MAX_RUNS);
        Self(runs.split_off(left))
    }

    /// Adds a time that is in no run. `after` returns the schedule's next time after a time.
    pub(crate) fn add(&mut self, time: u64, after: impl Fn(u64) -> Option<u64>) {
        let at = self.0.partition_point(|run| run.last < time);
        let follows = at > 0 && after(self.0[at - 1].last) == Some(time);
        let later = self.0.get(at).map(|run| run.first);
        let precedes = later.is_some() && after(time) == later;
        if follows && precedes {
            self.0[at - 1].last = self.0[at].last;
            self.0.remove(at);
        } else if follows {
            self.0[at - 1].last = time;
        } else if precedes {
            self.0[at].first = time;
        } else {
            let alone = Run {
                first: time,
                last: time,
            };
            self.0.insert(at, alone);
        }
        if self.0.len() > MAX_RUNS {
            self.0.remove(0);
        }
    }
}
