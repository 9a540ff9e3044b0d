//! The parts of pages that move: rendered once for the page, and again for each event.

use askama::Template;

use super::chart::Chart;
use super::sampler::Live;
use super::text;
use super::verdict::{Verdict, summary};
use crate::report::{QueueState, Subscription};

/// All queues, by recipe.
#[derive(Template)]
#[template(path = "overview_live.html")]
pub(super) struct OverviewLive {
    pub(super) summary: String,
    dequeues: Vec<Row>,
    combines: Vec<Row>,
    exports: Vec<Row>,
    microqueues: Vec<Row>,
    unreadable: Vec<Row>,
}

impl OverviewLive {
    /// Returns the overview of these queues. The links begin with `base`.
    pub(super) fn of(base: &str, lives: &[Live]) -> Self {
        let rows = |is_kind: fn(&QueueState) -> bool| -> Vec<Row> {
            let lives = lives.iter().filter(|live| is_kind(&live.queue.state));
            lives.map(|live| Row::of(base, live)).collect()
        };
        Self {
            summary: summary(lives),
            dequeues: rows(|state| matches!(state, QueueState::HcDequeue(_))),
            combines: rows(|state| matches!(state, QueueState::Combine(_))),
            exports: rows(|state| matches!(state, QueueState::ExportQueue(_))),
            microqueues: rows(|state| matches!(state, QueueState::Microqueue(_))),
            unreadable: rows(|state| matches!(state, QueueState::Unreadable { .. })),
        }
    }
}

/// A queue in the overview.
struct Row {
    name: String,
    href: String,
    verdict: Verdict,
    state: QueueState,
    /// Those of an export queue.
    subscriptions: Vec<(Verdict, Subscription)>,
    rates: Flow,
    rate_chart: Chart,
    age_chart: Chart,
}

impl Row {
    fn of(base: &str, live: &Live) -> Self {
        let subscriptions = match &live.queue.state {
            QueueState::ExportQueue(state) => state.subscriptions.clone(),
            _ => Vec::new(),
        };
        let judge = |one| (Verdict::of_subscription(&one, &live.series), one);
        Self {
            subscriptions: subscriptions.into_iter().map(judge).collect(),
            name: live.queue.name.clone(),
            href: format!("{base}/queues/{}", text::segment(&live.queue.name)),
            verdict: Verdict::of(live),
            state: live.queue.state.clone(),
            rates: Flow::of(live),
            rate_chart: Chart::of_rates(&live.series),
            age_chart: Chart::of_ages(&live.series),
        }
    }
}

/// Rates as texts.
struct Flow {
    entering: String,
    leaving: String,
}

impl Flow {
    fn of(live: &Live) -> Self {
        match live.series.rates() {
            Some(rates) => Self {
                entering: text::rate(rates.entering),
                leaving: text::rate(rates.leaving),
            },
            None => Self {
                entering: "–".to_owned(),
                leaving: "–".to_owned(),
            },
        }
    }
}

/// How one queue stands.
#[derive(Template)]
#[template(path = "queue_live.html")]
pub(super) struct QueueLive {
    pub(super) name: String,
    pub(super) codecs: String,
    pub(super) prefix: String,
    pub(super) state: QueueState,
    href: String,
    verdict: Verdict,
    subscriptions: Vec<(Verdict, Subscription)>,
    rates: Flow,
    rate_chart: Chart,
    age_chart: Chart,
}

impl QueueLive {
    /// Returns how a queue stands. The links begin with `base`.
    pub(super) fn of(base: &str, live: &Live) -> Self {
        let row = Row::of(base, live);
        Self {
            codecs: live.queue.codecs.join(", "),
            prefix: live.queue.prefix.clone(),
            name: row.name,
            href: row.href,
            verdict: row.verdict,
            subscriptions: row.subscriptions,
            state: row.state,
            rates: row.rates,
            rate_chart: row.rate_chart,
            age_chart: row.age_chart,
        }
    }

    /// Returns the name of the recipe, in words.
    pub(super) fn recipe(&self) -> &'static str {
        match &self.state {
            QueueState::HcDequeue(_) => "queue with consumers",
            QueueState::Combine(_) => "combine queue",
            QueueState::ExportQueue(_) => "export queue",
            QueueState::Microqueue(_) => "microqueue",
            QueueState::Unreadable { .. } => "unreadable",
        }
    }

    /// Returns whether it is a queue with consumers, and whether it is paused.
    pub(super) fn paused(&self) -> Option<bool> {
        match &self.state {
            QueueState::HcDequeue(state) => Some(state.paused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::{CombineState, ExportState, MicroqueueState, Queue};
    use crate::web::history::{Sample, Series};

    const EVIL: &str = "<b onclick=\"x\">'&";

    fn live(name: &str, state: QueueState) -> Live {
        let mut series = Series::default();
        for second in 0..60 {
            let at = Duration::from_secs(second);
            series.record(Sample::of(at, &state));
        }
        let queue = Queue {
            name: name.to_owned(),
            prefix: "00".to_owned(),
            codecs: vec![EVIL.to_owned()],
            state,
        };
        Live { queue, series }
    }

    fn subscription(name: &str, holds_log_back: bool, sessions: usize) -> Subscription {
        Subscription {
            name: name.to_owned(),
            paused: false,
            lag_seconds: Some(75.0),
            pending_entries: 1_000,
            pending_bytes: 5_000,
            has_more: true,
            dead: 2,
            holds_log_back,
            damaged_buckets: Vec::new(),
            has_more_dead: false,
            sessions,
        }
    }

    fn states() -> Vec<Live> {
        let combine = CombineState {
            buckets: 16,
            pending_updates: 1_234,
            pending_bytes: 10,
            has_more: true,
            lag_seconds: Some(3.0),
            set_aside: 7,
            has_more_set_aside: false,
            sessions: 1,
        };
        let export = ExportState {
            buckets: 4,
            subscriptions: vec![
                subscription("search", false, 1),
                subscription(EVIL, true, 0),
            ],
        };
        let unreadable = QueueState::Unreadable {
            registered: EVIL.to_owned(),
            problem: EVIL.to_owned(),
        };
        let micro = MicroqueueState {
            items: 10_000,
            has_more: true,
        };
        vec![
            live("words", QueueState::Combine(combine)),
            live("changes", QueueState::ExportQueue(export)),
            live("odd", unreadable),
            live(EVIL, QueueState::Microqueue(micro)),
        ]
    }

    #[test]
    fn the_overview_shows_lags_and_which_subscription_holds_the_log_back() {
        let html = OverviewLive::of("", &states()).render().unwrap();
        assert!(!html.contains("<b onclick"), "{html}");
        for text in [
            "1,234+",
            "10,000+",
            "1 min 15 s",
            "4 queues: 1 unreadable, 1 without consumers.",
        ] {
            assert!(html.contains(text), "{text}: {html}");
        }
        let rows: Vec<_> = html
            .split("<tr")
            .filter(|row| row.contains("1 min 15 s"))
            .collect();
        let [search, evil] = rows[..] else {
            panic!("a row for each subscription: {html}");
        };
        assert!(search.contains("keeps up") && !search.contains("holds the log back"));
        assert!(evil.contains("no consumers") && evil.contains("holds the log back"));
    }

    #[test]
    fn every_recipe_has_a_page() {
        let texts = [
            "Updates that wait",
            "holds the log back",
            "registered as",
            "10,000+",
        ];
        for (live, text) in states().iter().zip(texts) {
            let html = QueueLive::of("", live).render().unwrap();
            assert!(html.contains(text), "{text}: {html}");
            assert!(!html.contains("<b onclick"), "{html}");
        }
    }
}
