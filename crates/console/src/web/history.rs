//! What the counters of a queue were during the last minutes, and the rates that follow from them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::report::{QueueState, Subscription};

/// How far the history goes back.
pub(super) const SPAN: Duration = Duration::from_secs(300);

/// How far apart samples are that are kept. The newest one is kept in any case.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// What a queue's counters were at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// When, by the environment's clock.
    pub(super) at: Duration,
    /// Items that ever came in and were not purged, and items that ever left. Exact; `None` for recipes without
    /// such counters.
    pub(super) flow: Option<(u64, u64)>,
    /// How long the oldest item or entry has waited. Zero if none waits.
    pub(super) age_seconds: f64,
}

impl Sample {
    /// Returns the sample of a queue.
    pub(super) fn of(at: Duration, state: &QueueState) -> Self {
        let (flow, age) = match state {
            QueueState::HcDequeue(state) => {
                let left = state.completed + state.cancelled + state.removed;
                let entered = left + state.queued + state.delayed + state.held + state.dead;
                (Some((entered, left)), state.oldest_seconds)
            }
            QueueState::Combine(state) => (None, state.lag_seconds),
            QueueState::ExportQueue(state) => {
                let lags = state.subscriptions.iter().filter_map(|one| one.lag_seconds);
                (None, lags.reduce(f64::max))
            }
            QueueState::Microqueue(_) | QueueState::Unreadable { .. } => (None, None),
        };
        Self {
            at,
            flow,
            age_seconds: age.unwrap_or_default(),
        }
    }

    /// Returns the sample of a subscription of an export queue.
    pub(super) fn of_subscription(at: Duration, one: &Subscription) -> Self {
        Self {
            at,
            flow: None,
            age_seconds: one.lag_seconds.unwrap_or_default(),
        }
    }
}

/// Items for each second that came in and that left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) entering: f64,
    pub(super) leaving: f64,
}

/// The samples of a queue, the oldest first: at most `SPAN / STEP + 2`.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    samples: VecDeque<Sample>,
}

impl Series {
    /// Adds a sample. One that is not newer than the newest is ignored.
    pub(super) fn record(&mut self, sample: Sample) {
        if self.newest().is_some_and(|newest| sample.at <= newest.at) {
            return;
        }
        let mut newest = self.samples.iter().rev();
        if let (Some(last), Some(before)) = (newest.next(), newest.next())
            && last.at - before.at < STEP
        {
            self.samples.pop_back();
        }
        self.samples.push_back(sample);
        self.forget(sample.at);
    }

    /// Drops the samples that are too old at a time. Returns whether any is left.
    pub(super) fn forget(&mut self, now: Duration) -> bool {
        let is_old = |sample: &Sample| sample.at + SPAN < now;
        while self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        !self.samples.is_empty()
    }

    /// Returns the newest sample.
    pub(super) fn newest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Returns the rates of the last seconds. `None`: there are no two samples yet, or the recipe counts nothing.
    pub(super) fn rates(&self) -> Option<Rates> {
        rates_between(self.before(STEP)?, self.newest()?)
    }

    /// Returns the rates between neighbors, with the times at which they end. The newest one is left out while its
    /// time is so short that single items would make it jump.
    pub(super) fn all_rates(&self) -> Vec<(Duration, Rates)> {
        let pairs = self
            .samples
            .iter()
            .zip(self.samples.iter().skip(1))
            .filter(|(one, next)| next.at - one.at >= STEP / 2);
        let rates = pairs.filter_map(|(one, next)| Some((next.at, rates_between(one, next)?)));
        rates.collect()
    }

    /// Returns the ages of the oldest item with their times.
    pub(super) fn ages(&self) -> Vec<(Duration, f64)> {
        let ages = self.samples.iter();
        ages.map(|sample| (sample.at, sample.age_seconds)).collect()
    }

    /// Returns by how many seconds the age of the oldest item has grown in each second since `span` ago. `None`: the
    /// history is shorter than half of that.
    pub(super) fn age_growth(&self, span: Duration) -> Option<f64> {
        let first = self.before(span)?;
        let last = self.newest()?;
        let seconds = (last.at - first.at).as_secs_f64();
        if seconds < span.as_secs_f64() / 2.0 {
            return None;
        }
        Some((last.age_seconds - first.age_seconds) / seconds)
    }

    /// Returns the newest sample that is at least `span` older than the newest, or the oldest.
    fn before(&self, span: Duration) -> Option<&Sample> {
        let newest = self.newest()?.at;
        let mut samples = self.samples.iter().rev();
        let found = samples.find(|sample| sample.at + span <= newest);
        found.or(self.samples.front())
    }
}

/// A counter that went down is one of a queue that was purged or cleared: nothing is known to have come in.
fn rates_between(one: &Sample, next: &Sample) -> Option<Rates> {
    let seconds = (next.at.checked_sub(one.at)?).as_secs_f64();
    let (entered, left) = one.flow?;
    let (entered_next, left_next) = next.flow?;
    if seconds <= 0.0 {
        return None;
    }
    Some(Rates {
        entering: entered_next.saturating_sub(entered) as f64 / seconds,
        leaving: left_next.saturating_sub(left) as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: impl IntoIterator<Item = (u64, u64, u64, f64)>) -> Series {
        let mut series = Series::default();
        for (second, entered, left, age_seconds) in samples {
            series.record(Sample {
                at: Duration::from_secs(second),
                flow: Some((entered, left)),
                age_seconds,
            });
        }
        series
    }

    #[test]
    fn a_long_history_stays_short_and_recent() {
        let series = series((0..10_000).map(|second| (second, second * 3, second * 2, 0.0)));
        let kept = (SPAN.as_secs() / STEP.as_secs()) as usize + 2;
        assert!(series.samples.len() <= kept, "{}", series.samples.len());
        assert!(series.samples.len() >= kept - 2);
        assert!(series.samples[0].at + SPAN >= series.newest().unwrap().at);
        let expected = Rates {
            entering: 3.0,
            leaving: 2.0,
        };
        assert_eq!(series.rates(), Some(expected));
        assert!(
            series
                .all_rates()
                .iter()
                .all(|(_, rates)| *rates == expected)
        );
    }

    #[test]
    fn rates_need_two_samples_and_never_are_negative() {
        assert_eq!(series([(1, 5, 0, 0.0)]).rates(), None);
        let cleared = series([(1, 500, 400, 0.0), (11, 3, 2, 0.0)]).rates();
        assert_eq!(cleared.unwrap().entering, 0.0);
        let same_time = series([(1, 5, 0, 0.0), (1, 6, 0, 0.0)]);
        assert_eq!(same_time.samples.len(), 1);
    }

    #[test]
    fn a_moment_after_a_sample_is_not_drawn_as_a_rate() {
        let mut series = series((0..=20).map(|second| (second, second * 3, 0, 0.0)));
        let drawn = series.all_rates().len();
        series.record(Sample {
            at: Duration::from_millis(20_010),
            flow: Some((1_000, 0)),
            age_seconds: 0.0,
        });
        assert_eq!(series.all_rates().len(), drawn);
    }

    #[test]
    fn the_age_grows_as_fast_as_time_where_nothing_leaves() {
        let span = Duration::from_secs(30);
        let stuck = series((0..60).map(|second| (second, 10, 0, second as f64)));
        assert_eq!(stuck.age_growth(span), Some(1.0));
        let steady = series((0..60).map(|second| (second, second, second, 2.0)));
        assert_eq!(steady.age_growth(span), Some(0.0));
        let young = series((0..10).map(|second| (second, 10, 0, second as f64)));
        assert_eq!(young.age_growth(span), None);
    }
}
