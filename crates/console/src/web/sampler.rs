//! One look at the store for all tabs that listen.
//!
//! A task looks at what is listened to, at most once in each [`PERIOD`], as long as there are listeners, and publishes
//! what it saw. A listener that is slow sees the newest state when it comes back: nothing is buffered for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use export_queue::keyspace::Environment;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::history::{Sample, Series};
use crate::error::Result;
use crate::report::{Queue, QueueState};

/// How far apart two looks at the store are at least.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// How long one look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// How many listeners there may be.
pub(super) const MAX_LISTENERS: usize = 100;

/// How many queues and subscriptions have a history at most. Beyond, the ones whose names come last have none.
const MAX_SERIES: usize = 2_000;

/// What a listener listens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topic {
    /// The first page of the overview.
    Overview,
    /// The queue of a name.
    Queue(String),
}

/// What is listened to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) overview: bool,
    pub(super) queues: Vec<String>,
}

/// What a look has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The queues of the overview. Empty if nothing listens to it.
    pub(super) overview: Vec<Queue>,
    /// Those of the queues listened to that are there and not in the overview.
    pub(super) others: Vec<Queue>,
}

/// How the sampler looks at the store.
pub(super) type Look = Box<dyn Fn(Watched) -> BoxFuture<'static, Result<Seen>> + Send + Sync>;

/// A queue, and how it stood during the last minutes.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) queue: Queue,
    pub(super) series: Series,
    /// Those of the subscriptions of an export queue, in their order.
    pub(super) subscriptions: Vec<Series>,
}

/// What has a history: a queue, or a subscription of one.
type Subject = (String, Option<String>);

/// What one look has seen, with the history.
#[derive(Debug)]
pub(super) struct Tick {
    /// The queues of the overview.
    pub(super) overview: Vec<Live>,
    others: Vec<Live>,
    /// The overview as the listeners get it: rendered by the first one.
    pub(super) rendered: OnceLock<Arc<str>>,
}

impl Tick {
    /// Returns a queue, if it is there.
    pub(super) fn queue(&self, name: &str) -> Option<&Live> {
        let mut queues = self.overview.iter().chain(&self.others);
        queues.find(|live| live.queue.name == name)
    }
}

/// What a listener gets next.
#[derive(Debug, Clone)]
pub(super) enum News {
    Seen(Arc<Tick>),
    /// The store could not be looked at, for this reason.
    Failed(Arc<str>),
}

/// Looks at the store for all listeners. Clones share it.
#[derive(Clone)]
pub(super) struct Sampler {
    shared: Arc<Shared>,
}

struct Shared {
    env: Environment,
    look: Look,
    state: Mutex<State>,
    /// What the last look has seen. `None`: there was none yet.
    latest: watch::Sender<Option<News>>,
}

#[derive(Default)]
struct State {
    topics: Vec<Topic>,
    is_running: bool,
    histories: BTreeMap<Subject, Series>,
}

impl Sampler {
    pub(super) fn new(env: Environment, look: Look) -> Self {
        let shared = Shared {
            env,
            look,
            state: Mutex::default(),
            latest: watch::Sender::new(None),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Listens to a topic. Returns `None` if there are too many listeners already.
    pub(super) fn listen(&self, topic: Topic) -> Option<Listener> {
        let mut state = self.shared.state();
        if state.topics.len() >= MAX_LISTENERS {
            return None;
        }
        state.topics.push(topic.clone());
        let mut latest = self.shared.latest.subscribe();
        // What was seen before this listener came may be old, and may lack its topic.
        latest.mark_unchanged();
        if !state.is_running {
            state.is_running = true;
            tokio::spawn(run(self.shared.clone()));
        }
        Some(Listener {
            shared: self.shared.clone(),
            topic,
            latest,
        })
    }

    /// Adds a queue that was looked at for a page to the history, and returns it with its history.
    pub(super) fn live(&self, queue: Queue) -> Live {
        let now = self.shared.env.now();
        self.shared.state().live(now, queue)
    }
}

/// Listens to what the sampler sees. The sampler rests when there is none.
pub(super) struct Listener {
    shared: Arc<Shared>,
    topic: Topic,
    latest: watch::Receiver<Option<News>>,
}

impl Listener {
    pub(super) fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Waits for the next look, and returns what the newest one has seen.
    ///
    /// # Cancel safety
    /// Nothing is lost but what newer news replace.
    pub(super) async fn next(&mut self) -> News {
        let changed = self.latest.changed().await;
        changed.expect("the listener itself keeps the sender");
        let latest = self.latest.borrow_and_update().clone();
        latest.expect("nothing is published before something was seen")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let found = state
            .topics
            .iter()
            .position(|topic| *topic == self.topic)
            .expect("every listener has its topic in the list");
        state.topics.swap_remove(found);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        (self.state.lock()).expect("nothing panics while it holds the state")
    }

    /// Returns what is listened to, or that the task ends.
    fn watched(&self) -> Option<Watched> {
        let mut state = self.state();
        if state.topics.is_empty() {
            state.is_running = false;
            return None;
        }
        let mut watched = Watched::default();
        for topic in &state.topics {
            match topic {
                Topic::Overview => watched.overview = true,
                Topic::Queue(name) if watched.queues.contains(name) => {}
                Topic::Queue(name) => watched.queues.push(name.clone()),
            }
        }
        Some(watched)
    }

    fn publish(&self, seen: Option<Result<Seen>>) {
        let news = match seen {
            Some(Ok(seen)) => News::Seen(Arc::new(self.state().tick(self.env.now(), seen))),
            Some(Err(error)) => {
                let reason = export_queue::keyspace::error::chain(&error).to_string();
                News::Failed(reason.into())
            }
            None => News::Failed("the store does not answer in time".into()),
        };
        self.latest.send_replace(Some(news));
    }
}

impl State {
    fn tick(&mut self, now: Duration, seen: Seen) -> Tick {
        let mut lives = |queues: Vec<Queue>| -> Vec<Live> {
            let queues = queues.into_iter();
            queues.map(|queue| self.live(now, queue)).collect()
        };
        let overview = lives(seen.overview);
        let others = lives(seen.others);
        self.histories.retain(|_, series| series.forget(now));
        Tick {
            overview,
            others,
            rendered: OnceLock::new(),
        }
    }

    fn live(&mut self, now: Duration, queue: Queue) -> Live {
        let series = self.recorded(&queue.name, None, Sample::of(now, &queue.state));
        let states = match &queue.state {
            QueueState::ExportQueue(state) => &state.subscriptions[..],
            _ => &[],
        };
        let subscriptions = states.iter().map(|one| {
            let sample = Sample::of_subscription(now, one);
            self.recorded(&queue.name, Some(&one.name), sample)
        });
        Live {
            series,
            subscriptions: subscriptions.collect(),
            queue,
        }
    }

    /// Adds a sample to a history, and returns the history.
    fn recorded(&mut self, queue: &str, subscription: Option<&str>, sample: Sample) -> Series {
        let subject = (queue.to_owned(), subscription.map(str::to_owned));
        let series = self.histories.entry(subject).or_default();
        series.record(sample);
        let series = series.clone();
        if self.histories.len() > MAX_SERIES {
            self.histories.pop_last();
        }
        series
    }
}

/// Looks at the store again and again while there are listeners.
async fn run(shared: Arc<Shared>) {
    while let Some(watched) = shared.watched() {
        let look = (shared.look)(watched);
        let seen = shared.env.timeout(LOOK_LIMIT, look).await;
        shared.publish(seen);
        shared.env.sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ExportState, Subscription};
    use crate::web::verdict::Verdict;

    fn subscription(name: &str, paused: bool, lag_seconds: f64) -> Subscription {
        Subscription {
            name: name.to_owned(),
            paused,
            lag_seconds: Some(lag_seconds),
            pending_entries: 1,
            pending_bytes: 1,
            has_more: false,
            dead: 0,
            has_more_dead: false,
            holds_log_back: paused,
            damaged_buckets: Vec::new(),
            sessions: 1,
        }
    }

    #[test]
    fn a_subscription_is_judged_by_its_own_history() {
        let mut state = State::default();
        let mut live_at = |second: u32| {
            let subscriptions = vec![
                subscription("healthy", false, 0.1),
                subscription("paused", true, second.into()),
                subscription("stuck", false, second.into()),
            ];
            let queue = Queue {
                name: "changes".to_owned(),
                prefix: String::new(),
                codecs: Vec::new(),
                state: QueueState::ExportQueue(ExportState {
                    buckets: 1,
                    subscriptions,
                }),
            };
            state.live(Duration::from_secs(second.into()), queue)
        };
        for second in 0..59 {
            live_at(second);
        }
        let live = live_at(59);
        let QueueState::ExportQueue(export) = &live.queue.state else {
            panic!("an export queue");
        };
        let subscriptions = export.subscriptions.iter().zip(&live.subscriptions);
        let verdicts = subscriptions.map(|(one, series)| Verdict::of_subscription(one, series));
        let expected = [Verdict::KeepsUp, Verdict::Paused, Verdict::FallsBehind];
        assert_eq!(verdicts.collect::<Vec<_>>(), expected);
    }
}
