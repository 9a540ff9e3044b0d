//! Queues of all recipes.

use console::report::{
    CombineState, DequeueState, ExportState, Queue, QueueState, Queues, Subscription,
};

use console::terminal::line;

use super::{Show, at_least, fields, next_page, optional_span, table, text, yes};

impl Show for Queues {
    fn show(&self) -> String {
        if self.queues.is_empty() {
            return "There are no queues: each is registered when an application opens it first.\n"
                .to_owned();
        }
        let header = [
            "QUEUE", "RECIPE", "WAITING", "HELD", "DEAD", "OLDEST", "SESSIONS", "STATE",
        ];
        let rows = self.queues.iter().map(|queue| {
            let Summary {
                recipe,
                waiting,
                held,
                dead,
                oldest,
                sessions,
                state,
            } = Summary::of(&queue.state);
            let name = queue.name.clone();
            vec![name, recipe, waiting, held, dead, oldest, sessions, state]
        });
        let mut shown = table(&header, rows);
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

/// The row of a queue in the list of all.
#[derive(Default)]
struct Summary {
    recipe: String,
    waiting: String,
    held: String,
    dead: String,
    oldest: String,
    sessions: String,
    state: String,
}

impl Summary {
    fn of(state: &QueueState) -> Self {
        match state {
            QueueState::Microqueue(state) => Self {
                recipe: "microqueue".to_owned(),
                waiting: at_least(state.items, state.has_more),
                ..Self::default()
            },
            QueueState::HcDequeue(state) => Self::of_dequeue(state),
            QueueState::Combine(state) => Self::of_combine(state),
            QueueState::ExportQueue(state) => Self::of_export(state),
            QueueState::Unreadable {
                registered,
                problem,
            } => Self {
                recipe: registered.clone(),
                state: problem.clone(),
                ..Self::default()
            },
            _ => Self::default(),
        }
    }

    fn of_dequeue(state: &DequeueState) -> Self {
        Self {
            recipe: "hc-dequeue".to_owned(),
            waiting: match state.delayed {
                0 => state.queued.to_string(),
                delayed => format!("{} + {delayed} delayed", state.queued),
            },
            held: state.held.to_string(),
            dead: state.dead.to_string(),
            oldest: optional_span(state.oldest_seconds),
            sessions: state.sessions.to_string(),
            state: dequeue_text(state),
        }
    }

    fn of_combine(state: &CombineState) -> Self {
        Self {
            recipe: "combine".to_owned(),
            waiting: at_least(state.pending_updates, state.has_more),
            dead: at_least(state.set_aside, state.has_more_set_aside),
            oldest: optional_span(state.lag_seconds),
            sessions: state.sessions.to_string(),
            state: if state.damaged_buckets.is_empty() {
                String::new()
            } else {
                "is damaged".to_owned()
            },
            ..Self::default()
        }
    }

    fn of_export(state: &ExportState) -> Self {
        let all = &state.subscriptions;
        let lags = all.iter().filter_map(|one| one.lag_seconds);
        let pending = all.iter().map(|one| one.pending_entries).max();
        let states = all.iter().flat_map(|one| {
            let states = [
                (one.paused, "paused"),
                (one.holds_log_back, "holds the log back"),
                (!one.damaged_buckets.is_empty(), "is damaged"),
            ];
            states
                .into_iter()
                .filter(|(is, _)| *is)
                .map(|(_, what)| format!("{} {what}", one.name))
        });
        let has_more_dead = all.iter().any(|one| one.has_more_dead);
        Self {
            recipe: "export-queue".to_owned(),
            waiting: at_least(
                pending.unwrap_or_default(),
                all.iter().any(|one| one.has_more),
            ),
            dead: at_least(sum(all, |one| one.dead), has_more_dead),
            oldest: optional_span(lags.max_by(f64::total_cmp)),
            sessions: sum(all, |one| one.sessions).to_string(),
            state: states.collect::<Vec<_>>().join(", "),
            ..Self::default()
        }
    }
}

/// Returns what is wrong with a queue with consumers, or that it is paused.
fn dequeue_text(state: &DequeueState) -> String {
    let mut texts = Vec::new();
    if state.paused {
        texts.push("paused".to_owned());
    }
    if state.problem.is_some() {
        texts.push("its first item does not decode: sessions skip it".to_owned());
    }
    texts.extend(state.unknown_kinds_text());
    texts.join(", ")
}

fn sum(subscriptions: &[Subscription], number: impl Fn(&Subscription) -> usize) -> usize {
    subscriptions.iter().map(number).sum()
}

impl Show for Queue {
    fn show(&self) -> String {
        let head = [
            ("queue", self.name.clone()),
            ("codecs", line(self.codecs.join(", "))),
        ];
        let (state, more) = match &self.state {
            QueueState::Microqueue(state) => {
                let items = at_least(state.items, state.has_more);
                (vec![("items", items)], None)
            }
            QueueState::HcDequeue(state) => (dequeue_fields(state), None),
            QueueState::Combine(state) => (combine_fields(state), None),
            QueueState::ExportQueue(state) => {
                let buckets = state.buckets.to_string();
                (vec![("buckets", buckets)], Some(subscriptions(state)))
            }
            QueueState::Unreadable {
                registered,
                problem,
            } => {
                let recipe = ("recipe", line(registered));
                (vec![recipe, ("problem", problem.clone())], None)
            }
            _ => (Vec::new(), None),
        };
        let mut shown = fields(head.into_iter().chain(state));
        if let Some(more) = more {
            shown += "\n";
            shown += &more;
        }
        shown
    }
}

fn dequeue_fields(state: &DequeueState) -> Vec<(&'static str, String)> {
    let counts = [
        ("queued", state.queued),
        ("delayed", state.delayed),
        ("held", state.held),
        ("dead", state.dead),
        ("completed", state.completed),
        ("cancelled", state.cancelled),
        ("removed", state.removed),
    ]
    .map(|(name, count)| (name, count.to_string()));
    let rest = [
        ("paused", yes(state.paused)),
        ("oldest", optional_span(state.oldest_seconds)),
        ("sessions", state.sessions.to_string()),
        ("problem", text(state.problem.as_ref())),
        (
            "unknown kinds",
            state.unknown_kinds_text().unwrap_or_default(),
        ),
    ];
    counts.into_iter().chain(rest).collect()
}

fn combine_fields(state: &CombineState) -> Vec<(&'static str, String)> {
    let pending = |count| at_least(count, state.has_more);
    vec![
        ("buckets", state.buckets.to_string()),
        ("pending updates", pending(state.pending_updates)),
        ("pending bytes", pending(state.pending_bytes)),
        ("lag", optional_span(state.lag_seconds)),
        ("damaged buckets", damaged(&state.damaged_buckets)),
        (
            "set aside",
            at_least(state.set_aside, state.has_more_set_aside),
        ),
        ("sessions", state.sessions.to_string()),
    ]
}

fn subscriptions(state: &ExportState) -> String {
    let header = [
        "SUBSCRIPTION",
        "PENDING",
        "BYTES",
        "LAG",
        "DEAD",
        "SESSIONS",
        "PAUSED",
        "HOLDS LOG BACK",
        "DAMAGED BUCKETS",
    ];
    let rows = state.subscriptions.iter().map(|subscription| {
        vec![
            subscription.name.clone(),
            at_least(subscription.pending_entries, subscription.has_more),
            at_least(subscription.pending_bytes, subscription.has_more),
            optional_span(subscription.lag_seconds),
            at_least(subscription.dead, subscription.has_more_dead),
            subscription.sessions.to_string(),
            yes(subscription.paused),
            yes(subscription.holds_log_back),
            damaged(&subscription.damaged_buckets),
        ]
    });
    table(&header, rows)
}

/// Returns the buckets of which nothing is exported.
fn damaged(buckets: &[u32]) -> String {
    let buckets: Vec<_> = buckets.iter().map(u32::to_string).collect();
    buckets.join(", ")
}
