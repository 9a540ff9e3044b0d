//! Random histories of writers and workers that fail, hang and die, on every store, against a model.

mod history;
mod mortal;

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};

use combine::{Combiner, Sum};
use conformance::chaos::Faults;
use conformance::scale;
use conformance::stores::{Kind, TestStore};
use futures::FutureExt;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::{JoinError, JoinSet};

use crate::common::Stored;
use history::{Course, Play, play};

conformance::on_every_store!(threads:
    sums_are_conserved_when_workers_die,
    values_are_updates_in_commit_order_when_workers_die,
);

/// The number of histories that run at the same time.
const AT_ONCE: usize = 16;

/// Returns the history of a seed.
fn history_of<U, V>(
    seed: u64,
    combine: fn(&String, Option<V>, Vec<U>) -> Option<V>,
    draw: fn(&mut StdRng) -> U,
) -> Play<U, V> {
    let place = usize::try_from(seed).unwrap();
    Play {
        seed,
        bucket_count: [1, 7, 1009][place % 3],
        faults: Faults::all([0.0, 0.01, 0.05][place / 3 % 3]),
        has_deaths: !seed.is_multiple_of(5),
        combine,
        draw,
    }
}

/// Returns the seeds to run: `SEED`, or a number that depends on the length of the run.
fn seeds(store: &TestStore) -> Vec<u64> {
    let share = if store.kind == Kind::Memory { 1 } else { 2 };
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (0..(scale(36, 2_000) / share) as u64).collect(),
    }
}

async fn sums_are_conserved_when_workers_die(store: TestStore) {
    let combine = |key: &String, current, updates| Sum.fold(key, current, updates);
    // Small numbers, so that keys return to zero again and again.
    play_all(store, combine, |rng| rng.random_range(-2..=2_i64)).await;
}

async fn values_are_updates_in_commit_order_when_workers_die(store: TestStore) {
    /// Appends. An empty update starts over.
    fn append(
        _: &String,
        current: Option<Vec<u32>>,
        updates: Vec<Option<u32>>,
    ) -> Option<Vec<u32>> {
        updates.into_iter().fold(current, |value, update| {
            let mut value = value.unwrap_or_default();
            value.push(update?);
            Some(value)
        })
    }
    let draw = |rng: &mut StdRng| {
        if rng.random_bool(0.1) {
            return None;
        }
        Some(rng.random())
    };
    play_all(store, append, draw).await;
}

async fn play_all<U, V>(
    store: TestStore,
    combine: fn(&String, Option<V>, Vec<U>) -> Option<V>,
    draw: fn(&mut StdRng) -> U,
) where
    U: Stored + Clone,
    V: Stored + Clone + PartialEq + std::fmt::Debug,
{
    let mut total = Course::default();
    let mut playing = JoinSet::new();
    for seed in seeds(&store) {
        if playing.len() == AT_ONCE {
            total += ended(playing.join_next().await);
        }
        let history = history_of(seed, combine, draw);
        let played = AssertUnwindSafe(play(store.fresh(), history)).catch_unwind();
        playing.spawn(played.map(move |course| (seed, course)));
    }
    while !playing.is_empty() {
        total += ended(playing.join_next().await);
    }
    println!("{total:?}");
    if std::env::var("SEED").is_err() {
        // Otherwise these would not be such histories.
        let Course {
            unknown,
            killed,
            hung,
            checks,
            ..
        } = total;
        assert!(
            unknown > 0 && killed > 0 && hung > 0 && checks > 0,
            "{total:?}"
        );
    }
}

/// A history that has ended, with its seed.
type Ended = (u64, Result<Course, Box<dyn Any + Send>>);

/// Returns the result of a history, or prints how to run it again.
fn ended(ended: Option<Result<Ended, JoinError>>) -> Course {
    let (seed, course) = ended.unwrap().unwrap();
    course.unwrap_or_else(|panic| {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        eprintln!("again: SEED={seed} cargo test -p fdbq-combine --test it model {test}");
        resume_unwind(panic)
    })
}
