//! Random histories of many sessions that fail and die at every step of the protocol, on every store.

mod history;
mod process;

use std::time::Duration;

use conformance::chaos::Faults;
use conformance::scale;
use conformance::stores::{Kind, TestStore};
use futures::StreamExt;

use crate::common::AT_ONCE;
use history::{Course, HOUR, Play, play};

conformance::on_every_store!(threads: whatever_dies_nothing_is_lost_and_nothing_is_effective_twice);

/// Less than the time between two heartbeats.
const SHORT: Duration = Duration::from_millis(20);

/// Returns the history of a seed.
fn history_of(seed: u64) -> Play {
    let keeps: [&[Duration]; 3] = [
        &[HOUR],
        &[Duration::ZERO, HOUR],
        &[HOUR, Duration::ZERO, SHORT],
    ];
    Play {
        seed,
        faults: Faults::all([0.0, 0.01, 0.05][seed as usize % 3]),
        deaths: !seed.is_multiple_of(5),
        pops: seed.is_multiple_of(4),
        works: seed % 3 == 1,
        groups: seed % 8 < 5,
        batches: seed % 7 < 4,
        keeps: keeps[seed as usize / 4 % 3].to_vec(),
    }
}

/// Returns the seeds to play: `SEED`, or as many as the length of the run requires.
fn seeds(store: &TestStore) -> Vec<u64> {
    if let Ok(seed) = std::env::var("SEED") {
        return vec![seed.parse().expect("SEED is a number")];
    }
    let share = if store.kind == Kind::Memory { 1 } else { 2 };
    (0..(scale(48, 10_000) / share) as u64).collect()
}

async fn whatever_dies_nothing_is_lost_and_nothing_is_effective_twice(store: TestStore) {
    let mut total = Course::default();
    let histories = seeds(&store).into_iter().map(|seed| {
        let store = store.fresh();
        async move { (seed, tokio::spawn(play(store, history_of(seed))).await) }
    });
    let mut courses = futures::stream::iter(histories).buffer_unordered(AT_ONCE);
    while let Some((seed, course)) = courses.next().await {
        let course = course
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
            .unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        total.enqueued += course.enqueued;
        total.killed += course.killed;
        total.late_refused += course.late_refused;
        total.late_accepted += course.late_accepted;
        total.unanswered_pops += course.unanswered_pops;
        total.cancelled += course.cancelled;
        total.merged += course.merged;
        total.kept += course.kept;
        total.configured += course.configured;
        total.limited += course.limited;
        total.most_slots = total.most_slots.max(course.most_slots);
        total.starts += course.starts;
        total.batches += course.batches;
        total.cancelled_batches += course.cancelled_batches;
        total.members += course.members;
        total.callbacks += course.callbacks;
        total.deaths += course.deaths;
        total.parts += course.parts;
    }
    println!("{total:?}");
    if std::env::var("SEED").is_err() {
        // Otherwise the histories would have tested nothing.
        assert!(total.enqueued > 0 && total.killed > 0);
        assert!(total.cancelled > 0 && total.merged > 0);
        assert!(total.kept > 0 && total.configured > 0);
        assert!(total.limited > 0 && total.most_slots == 2);
        assert!(total.starts > 0);
        assert!(total.batches > 0 && total.cancelled_batches > 0);
        assert!(total.members > 0 && total.callbacks > 0);
        assert!(total.deaths > 0);
        assert!(total.parts > 0);
    }
}
