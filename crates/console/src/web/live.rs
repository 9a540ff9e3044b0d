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

/// What moves of a queue: a row of the overview, or most of the queue's page.
pub(super) struct Row {
    pub(super) name: String,
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
        let states = match &live.queue.state {
            QueueState::ExportQueue(state) => state.subscriptions.clone(),
            _ => Vec::new(),
        };
        let subscriptions = states.into_iter().zip(&live.subscriptions);
        let judge = |(one, series)| (Verdict::of_subscription(&one, series), one);
        Self {
            subscriptions: subscriptions.map(judge).collect(),
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
    pub(super) codecs: String,
    pub(super) prefix: String,
    pub(super) row: Row,
}

impl QueueLive {
    /// Returns how a queue stands. The links begin with `base`.
    pub(super) fn of(base: &str, live: &Live) -> Self {
        Self {
            codecs: live.queue.codecs.join(", "),
            prefix: live.queue.prefix.clone(),
            row: Row::of(base, live),
        }
    }

    /// Returns the name of the recipe, in words.
    pub(super) fn recipe(&self) -> &'static str {
        match &self.row.state {
            QueueState::HcDequeue(_) => "queue with consumers",
            QueueState::Combine(_) => "combine queue",
            QueueState::ExportQueue(_) => "export queue",
            QueueState::Microqueue(_) => "microqueue",
            QueueState::Unreadable { .. } => "unreadable",
        }
    }

    /// Returns whether it is a queue with consumers, and whether it is paused.
    pub(super) fn paused(&self) -> Option<bool> {
        match &self.row.state {
            QueueState::HcDequeue(state) => Some(state.paused),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::{CombineState, DequeueState, ExportState, MicroqueueState, Queue};
    use crate::web::history::{Sample, Series};

    const EVIL: &str = "<b onclick=\"x\">'&";

    fn live(name: &str, state: QueueState) -> Live {
        let history = |sample: &dyn Fn(Duration) -> Sample| {
            let mut series = Series::default();
            for second in 0..60 {
                series.record(sample(Duration::from_secs(second)));
            }
            series
        };
        let states = match &state {
            QueueState::ExportQueue(state) => &state.subscriptions[..],
            _ => &[],
        };
        let subscriptions = states
            .iter()
            .map(|one| history(&|at| Sample::of_subscription(at, one)))
            .collect();
        let series = history(&|at| Sample::of(at, &state));
        let queue = Queue {
            name: name.to_owned(),
            prefix: "00".to_owned(),
            codecs: vec![EVIL.to_owned()],
            state,
        };
        Live {
            queue,
            series,
            subscriptions,
        }
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
            has_more_dead: true,
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
            set_aside: 1_000,
            has_more_set_aside: true,
            damaged_buckets: vec![5],
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
            "4 queues: 1 unreadable, 1 without consumers, 1 with dead letters, 1 with records set aside, \
             1 with damaged buckets.",
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

    /// A parser drops blanks before the first element. If a page had some there, its script would take every element
    /// for another one at the first event, and the focus would be lost.
    #[test]
    fn what_moves_begins_with_an_element() {
        let states = states();
        let overview = OverviewLive::of("", &states).render().unwrap();
        let queue = QueueLive::of("", &states[0]).render().unwrap();
        for html in [overview, queue] {
            assert!(html.starts_with("<p"), "{html}");
        }
    }

    #[test]
    fn counts_that_ended_early_and_damaged_buckets_are_marked_on_both_pages() {
        let states = states();
        let pages = [
            OverviewLive::of("", &states).render(),
            QueueLive::of("", &states[0]).render(),
            QueueLive::of("", &states[1]).render(),
        ];
        let [overview, combine, export] = pages.map(|page| page.unwrap());
        for page in [&overview, &combine] {
            assert!(page.contains(r#"<strong class="dead">1,000+</strong>"#));
            assert!(page.contains("bucket 5 is damaged: nothing of it is combined"));
        }
        for page in [&overview, &export] {
            assert!(page.contains(r#"<strong class="dead">2+</strong>"#));
        }
    }

    #[test]
    fn damaged_buckets_and_paused_subscriptions_are_visible_on_both_pages() {
        let mut damaged = subscription("search", false, 1);
        damaged.damaged_buckets = vec![3];
        let mut paused = subscription("mirror", false, 0);
        paused.paused = true;
        let state = QueueState::ExportQueue(ExportState {
            buckets: 4,
            subscriptions: vec![damaged, paused],
        });
        let lives = [live("changes", state)];
        let overview = OverviewLive::of("", &lives).render().unwrap();
        assert!(overview.contains("1 with damaged buckets"), "{overview}");
        let queue = QueueLive::of("", &lives[0]).render().unwrap();
        for page in [overview, queue] {
            let rows: Vec<_> = page.split("<tr").collect();
            let row = |name: &str| rows.iter().find(|row| row.contains(name)).unwrap();
            assert!(row("search").contains("bucket 3 is damaged: nothing of it is exported"));
            assert!(row("mirror").contains("</span> paused</span>"));
        }
    }

    #[test]
    fn a_first_item_that_sessions_skip_and_unknown_kinds_stand_beside_the_verdict_on_both_pages() {
        let state = QueueState::HcDequeue(DequeueState {
            paused: true,
            queued: 2,
            delayed: 0,
            held: 0,
            dead: 0,
            completed: 0,
            cancelled: 0,
            removed: 0,
            oldest_seconds: Some(1.0),
            problem: Some(EVIL.to_owned()),
            unknown_kinds: vec![EVIL.to_owned()],
            sessions: 1,
        });
        let lives = [live("jobs", state)];
        let overview = OverviewLive::of("", &lives).render().unwrap();
        assert!(overview.contains("its first item does not decode: sessions skip it"));
        let queue = QueueLive::of("", &lives[0]).render().unwrap();
        assert!(queue.contains("Its first item does not decode: sessions skip it."));
        for page in [overview, queue] {
            assert!(page.contains("</span> paused</span>"), "{page}");
            assert!(page.contains("no worker knows `"), "{page}");
            assert!(!page.contains("<b onclick"), "{page}");
        }
    }

    #[test]
    fn every_recipe_has_a_page() {
        let texts = [
            "Pending updates",
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
