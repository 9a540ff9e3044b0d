//! Whether consumers keep up, in a word.

use std::time::Duration;

use askama::Template;

use super::history::Series;
use super::sampler::Live;
use crate::report::{QueueState, Subscription};

/// Over which time the age of the oldest item is compared.
const SPAN: Duration = Duration::from_secs(30);

/// From which age on a growing one is a problem.
const PATIENCE_SECONDS: f64 = 5.0;

/// How fast the age grows, in seconds for each second, where consumers fall behind. It is 1 where nothing leaves.
const GROWTH: f64 = 0.5;

/// Whether consumers keep up. The greater, the more a queue needs attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Template)]
#[template(path = "verdict.html")]
pub(super) enum Verdict {
    /// Nothing waits.
    Idle,
    /// Something waits, and the oldest does not get older and older.
    KeepsUp,
    /// Something waits, and the history is too short to say more.
    Unknown,
    /// Nothing is granted on an operator's wish.
    Paused,
    /// The oldest gets older and older.
    FallsBehind,
    /// Something waits, is delayed or is held, and no session lives that could take it or give it back.
    NoConsumers,
    /// The queue cannot be read.
    Unreadable,
}

impl Verdict {
    pub(super) fn of(live: &Live) -> Self {
        match &live.queue.state {
            QueueState::Microqueue(state) if state.items == 0 => Self::Idle,
            QueueState::Microqueue(_) => Self::Unknown,
            QueueState::HcDequeue(state) if state.paused => Self::Paused,
            // Only a session makes delayed items ready, and returns what dead sessions hold.
            QueueState::HcDequeue(state) if state.sessions == 0 => judge(
                state.queued + state.delayed + state.held > 0,
                0,
                &live.series,
            ),
            QueueState::HcDequeue(state) => judge(state.queued > 0, state.sessions, &live.series),
            QueueState::Combine(state) => {
                judge(state.pending_updates > 0, state.sessions, &live.series)
            }
            QueueState::ExportQueue(state) => {
                let subscriptions = state.subscriptions.iter().zip(&live.subscriptions);
                let verdicts =
                    subscriptions.map(|(one, series)| Self::of_subscription(one, series));
                verdicts.max().unwrap_or(Self::Idle)
            }
            QueueState::Unreadable { .. } => Self::Unreadable,
        }
    }

    /// Returns the verdict on a subscription of an export queue with this history.
    pub(super) fn of_subscription(one: &Subscription, series: &Series) -> Self {
        if one.paused {
            Self::Paused
        } else {
            judge(one.pending_entries > 0, one.sessions, series)
        }
    }

    /// Returns the words for it.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Idle => "nothing waits",
            Self::KeepsUp => "keeps up",
            Self::Unknown => "items wait",
            Self::Paused => "paused",
            Self::FallsBehind => "falling behind",
            Self::NoConsumers => "no consumers",
            Self::Unreadable => "unreadable",
        }
    }

    /// Returns a sign that differs in shape, not only in color.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Idle => "○",
            Self::KeepsUp => "●",
            Self::Unknown => "◌",
            Self::Paused => "❚❚",
            Self::FallsBehind => "▲",
            Self::NoConsumers | Self::Unreadable => "■",
        }
    }

    /// Returns the class of its style.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Idle | Self::Unknown => "calm",
            Self::KeepsUp => "good",
            Self::Paused => "pause",
            Self::FallsBehind => "warn",
            Self::NoConsumers | Self::Unreadable => "bad",
        }
    }
}

fn judge(waits: bool, sessions: usize, series: &Series) -> Verdict {
    let age = series.newest().map_or(0.0, |newest| newest.age_seconds);
    match (waits, sessions, series.age_growth(SPAN)) {
        (false, ..) => Verdict::Idle,
        (true, 0, _) => Verdict::NoConsumers,
        (true, _, Some(growth)) if growth >= GROWTH && age >= PATIENCE_SECONDS => {
            Verdict::FallsBehind
        }
        (true, _, Some(_)) => Verdict::KeepsUp,
        (true, _, None) => Verdict::Unknown,
    }
}

/// Returns in one sentence how all queues stand.
pub(super) fn summary(queues: &[Live]) -> String {
    let verdicts: Vec<_> = queues.iter().map(Verdict::of).collect();
    let count = |verdict| verdicts.iter().filter(|one| **one == verdict).count();
    let count_of = |has: fn(&QueueState) -> bool| {
        let states = queues.iter().map(|live| &live.queue.state);
        states.filter(|state| has(state)).count()
    };
    let troubles: Vec<_> = [
        (count(Verdict::Unreadable), "unreadable"),
        (count(Verdict::NoConsumers), "without consumers"),
        (count(Verdict::FallsBehind), "falling behind"),
        (count(Verdict::Paused), "paused"),
        (
            count_of(skips_first_item),
            "with a first item that does not decode",
        ),
        (
            count_of(has_unknown_kinds),
            "with kinds that no worker knows",
        ),
        (count_of(has_dead_letters), "with dead letters"),
        (count_of(has_set_aside), "with records set aside"),
        (count_of(has_damaged_buckets), "with damaged buckets"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, text)| format!("{count} {text}"))
    .collect();
    let queues = match verdicts.len() {
        0 => return "No queue is registered in this store yet.".to_owned(),
        1 => "1 queue".to_owned(),
        more => format!("{more} queues"),
    };
    if troubles.is_empty() {
        format!("{queues}, none needs attention.")
    } else {
        format!("{queues}: {}.", troubles.join(", "))
    }
}

fn skips_first_item(state: &QueueState) -> bool {
    matches!(state, QueueState::HcDequeue(state) if state.problem.is_some())
}

fn has_unknown_kinds(state: &QueueState) -> bool {
    matches!(state, QueueState::HcDequeue(state) if !state.unknown_kinds.is_empty())
}

fn has_dead_letters(state: &QueueState) -> bool {
    match state {
        QueueState::HcDequeue(state) => state.dead > 0,
        QueueState::ExportQueue(state) => state.subscriptions.iter().any(|one| one.dead > 0),
        _ => false,
    }
}

fn has_set_aside(state: &QueueState) -> bool {
    matches!(state, QueueState::Combine(state) if state.set_aside > 0)
}

fn has_damaged_buckets(state: &QueueState) -> bool {
    match state {
        QueueState::Combine(state) => !state.damaged_buckets.is_empty(),
        QueueState::ExportQueue(state) => {
            let mut subscriptions = state.subscriptions.iter();
            subscriptions.any(|one| !one.damaged_buckets.is_empty())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{DequeueState, Queue};
    use crate::web::history::Sample;

    fn live(seconds: u64, grows: bool, state: DequeueState) -> Live {
        let mut series = Series::default();
        for second in 0..seconds {
            series.record(Sample {
                at: Duration::from_secs(second),
                flow: None,
                age_seconds: if grows { second as f64 } else { 30.0 },
            });
        }
        let queue = Queue {
            name: "jobs".to_owned(),
            prefix: String::new(),
            codecs: Vec::new(),
            state: QueueState::HcDequeue(state),
        };
        Live {
            queue,
            series,
            subscriptions: Vec::new(),
        }
    }

    fn state(queued: u64, sessions: usize, paused: bool) -> DequeueState {
        DequeueState {
            paused,
            queued,
            delayed: 0,
            held: 0,
            dead: 0,
            completed: 0,
            cancelled: 0,
            removed: 0,
            oldest_seconds: None,
            problem: None,
            unknown_kinds: Vec::new(),
            sessions,
        }
    }

    #[test]
    fn a_queue_is_judged_by_what_waits_which_sessions_live_and_how_its_age_grows() {
        let table = [
            (live(60, true, state(0, 0, false)), Verdict::Idle),
            (live(60, true, state(5, 0, false)), Verdict::NoConsumers),
            (live(60, true, state(5, 1, true)), Verdict::Paused),
            (live(60, true, state(5, 1, false)), Verdict::FallsBehind),
            (live(60, false, state(5, 1, false)), Verdict::KeepsUp),
            (live(5, true, state(5, 1, false)), Verdict::Unknown),
        ];
        for (live, verdict) in &table {
            assert_eq!(Verdict::of(live), *verdict);
        }
        let lives = table.map(|(live, _)| live);
        let text = "6 queues: 1 without consumers, 1 falling behind, 1 paused.";
        assert_eq!(summary(&lives), text);
        assert_eq!(summary(&lives[..1]), "1 queue, none needs attention.");
    }

    #[test]
    fn a_first_item_that_does_not_decode_changes_no_verdict() {
        let skipping = |sessions, paused| DequeueState {
            problem: Some("the record is corrupt".to_owned()),
            ..state(5, sessions, paused)
        };
        let table = [
            (live(60, false, skipping(1, false)), Verdict::KeepsUp),
            (live(60, true, skipping(1, false)), Verdict::FallsBehind),
            (live(60, true, skipping(1, true)), Verdict::Paused),
            (live(60, true, skipping(0, false)), Verdict::NoConsumers),
        ];
        for (live, verdict) in &table {
            assert_eq!(Verdict::of(live), *verdict);
        }
        let text = "1 queue: 1 with a first item that does not decode.";
        assert_eq!(summary(&[live(60, false, skipping(1, false))]), text);
    }

    #[test]
    fn without_sessions_delayed_and_held_items_need_a_consumer() {
        for (delayed, held) in [(0, 500), (500, 0)] {
            let unserved = |sessions| DequeueState {
                delayed,
                held,
                ..state(0, sessions, false)
            };
            let lives = [live(60, false, unserved(0))];
            assert_eq!(Verdict::of(&lives[0]), Verdict::NoConsumers);
            assert_eq!(summary(&lives), "1 queue: 1 without consumers.");
            let served = live(60, false, unserved(1));
            assert_eq!(Verdict::of(&served), Verdict::Idle);
        }
    }

    #[test]
    fn a_kind_that_no_worker_knows_changes_no_verdict_and_is_in_the_summary() {
        let unknown = DequeueState {
            unknown_kinds: vec!["invoice".to_owned()],
            ..state(5, 1, false)
        };
        let lives = [live(60, false, unknown)];
        assert_eq!(Verdict::of(&lives[0]), Verdict::KeepsUp);
        let text = "1 queue: 1 with kinds that no worker knows.";
        assert_eq!(summary(&lives), text);
    }

    #[test]
    fn the_summary_names_queues_with_dead_letters() {
        let dead = DequeueState {
            dead: 10_000,
            ..state(0, 1, false)
        };
        let text = "1 queue: 1 with dead letters.";
        assert_eq!(summary(&[live(60, false, dead)]), text);
    }
}
