//! Consumers that wait: how soon they get what is enqueued, and what waiting costs.

use std::sync::Arc;
use std::time::Duration;

use benches::contender::{Contender, ITEM, Popped, Site};
use benches::meter::Metered;
use benches::processor_time;
use benches::stage::{Stage, runtime};
use benches::statistics::percentile;
use benches::table::Table;
use conformance::scale;
use keyspace::{Environment, Subspace};

/// Longer than any step takes here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// How long a consumer needs, with a margin, until it waits without further work.
pub(crate) const SETTLING: Duration = Duration::from_millis(20);

/// How many consumers wait when the cost of waiting is measured.
const CONSUMERS: usize = 100;

pub(crate) fn site(stage: &Stage, place: &Subspace) -> Site {
    Site {
        db: Metered::new(stage.db().clone()),
        root: place.clone(),
    }
}

/// Returns a table of the times from the call of enqueue, in one session, to its acknowledgement
/// and to the delivery to a consumer that waits in another one.
pub(crate) fn latency(stage: &Stage) -> String {
    let measure = |place: &Subspace| runtime().block_on(measure_latency(&site(stage, place)));
    let times = stage.on_a_clean_place(measure);
    let names = ["to its acknowledgement", "to the delivery"];
    let table = times.into_table("from the call of enqueue", names);
    format!("From the call of enqueue to an idle consumer\n\n{table}")
}

/// The times from calls to their ends, and to the deliveries that follow from them, in microseconds.
#[derive(Default)]
pub(crate) struct Times([Vec<u32>; 2]);

impl Times {
    pub(crate) fn push(&mut self, began: Duration, ends: [Duration; 2]) {
        for (times, end) in self.0.iter_mut().zip(ends) {
            let micros = (end - began).as_micros();
            times.push(u32::try_from(micros).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn into_table(self, title: &str, names: [&str; 2]) -> Table {
        let mut table = Table::new([title, "median", "99th percentile"]);
        for (name, mut micros) in names.into_iter().zip(self.0) {
            micros.sort_unstable();
            let [median, late] = [50, 99].map(|percent| {
                let micros = percentile(&micros, percent).expect("it was measured");
                format!("{:.2} ms", f64::from(micros) / 1e3)
            });
            table.push([name.to_owned(), median, late]);
        }
        table
    }
}

async fn measure_latency(site: &Site) -> Times {
    let env = Environment::system();
    let producer = Popped::open(site).await;
    let consumer = Arc::new(Popped::open(site).await);
    let mut times = Times::default();
    for _ in 0..scale(200, 2_000) {
        let waiting = tokio::spawn({
            let consumer = consumer.clone();
            let env = env.clone();
            async move {
                assert_eq!(consumer.pop_within(PATIENCE).await, Some(ITEM));
                env.now()
            }
        });
        env.sleep(SETTLING).await;
        let began = env.now();
        producer.enqueue(&[ITEM]).await;
        let acknowledged = env.now();
        let delivered = waiting.await.expect("the consumer does not panic");
        times.push(began, [acknowledged, delivered]);
    }
    times
}

/// Returns a table of the cost of consumers that wait at an empty queue, compared with no consumers.
pub(crate) fn cost(stage: &Stage) -> String {
    let mut table = Table::new([
        "consumers",
        "sessions",
        "processor time, of one core",
        "commits per second",
    ]);
    for (consumers, sessions) in [(0, 0), (CONSUMERS, 1), (CONSUMERS, CONSUMERS)] {
        let measure = |place: &Subspace| {
            let measured = measure_cost(site(stage, place), consumers, sessions);
            runtime().block_on(measured)
        };
        let [processor, commits] = stage.on_a_clean_place(measure);
        let percent = 100.0 * processor;
        table.push([
            consumers.to_string(),
            sessions.to_string(),
            format!("{percent:.2}%"),
            format!("{commits:.1}"),
        ]);
    }
    format!("Waiting at an empty queue\n\n{table}")
}

/// Returns the processor time and the number of commits in a second.
async fn measure_cost(site: Site, consumers: usize, sessions: usize) -> [f64; 2] {
    let env = Environment::system();
    let mut opened = Vec::new();
    for _ in 0..sessions {
        opened.push(Arc::new(Popped::open(&site).await));
    }
    for consumer in 0..consumers {
        let session = opened[consumer % sessions].clone();
        tokio::spawn(async move { session.pop_within(PATIENCE).await });
    }
    // The first to come and the last to leave have more to do than to wait.
    env.sleep(50 * SETTLING).await;
    let before = (processor_time(), site.db.reading());
    let began = env.now();
    env.sleep(Duration::from_secs(scale(5, 30) as u64)).await;
    let seconds = (env.now() - began).as_secs_f64();
    let processor = processor_time() - before.0;
    let commits = (site.db.reading() - before.1).commits;
    [processor.as_secs_f64() / seconds, commits as f64 / seconds]
}
