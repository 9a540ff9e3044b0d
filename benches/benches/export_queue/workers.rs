//! The same pipeline with counts that are combined, and with counts that are read and written back.

use std::cmp::Reverse;

use benches::contender::Site;
use benches::figures::{Figures, Rounds, turns};
use benches::meter::Metered;
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;

use crate::Told;
use crate::corpus::Corpus;
use crate::counting::{Combined, Known, ReadModifyWrite, drain};
use crate::phrases::{Counts, of_document};

/// The size of a document.
const DOCUMENT_BYTES: usize = 8_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ReadModifyWrite,
    Combined,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::ReadModifyWrite => "read-modify-write",
            Self::Combined => "combine",
        }
    }
}

/// The outcome of a way with a number of workers.
struct WorkersOutcome {
    workers: usize,
    way: Way,
    rounds: Rounds,
}

/// Counts documents by several numbers of workers.
pub(crate) fn measure(stage: &Stage) -> Told {
    let documents = Corpus::read(scale(1, 16))?.documents(DOCUMENT_BYTES);
    let known = most_frequent(&documents);
    let mut outcomes: Vec<_> = [1, 4, 16]
        .into_iter()
        .flat_map(|workers| [Way::ReadModifyWrite, Way::Combined].map(|way| (workers, way)))
        .map(|(workers, way)| WorkersOutcome {
            workers,
            way,
            rounds: Rounds::default(),
        })
        .collect();
    for turn in turns(outcomes.len(), scale(1, 3)) {
        let outcome = &mut outcomes[turn];
        let figures = outcome.measure(stage, &documents, &known);
        outcome.rounds.push(figures);
    }
    Ok(format!(
        "{} documents of {DOCUMENT_BYTES} bytes counted by workers of one process, until all is settled\
         \n\n{}",
        documents.len(),
        table(&outcomes)
    ))
}

/// Returns the phrase that occurs most often, and how often.
fn most_frequent(documents: &[String]) -> Known {
    let mut counts = Counts::new();
    for (phrase, count) in documents.iter().flat_map(|document| of_document(document)) {
        counts.entry(phrase).or_default().add(count);
    }
    let most = counts
        .into_iter()
        .min_by_key(|(phrase, count)| (Reverse(count.occurrences), phrase.clone()));
    most.expect("there are phrases")
}

impl WorkersOutcome {
    fn measure(&self, stage: &Stage, documents: &[String], known: &Known) -> Figures {
        let sample = stage.on_a_clean_place(|place| {
            let store = stage.db();
            let workers = self.workers;
            let site = &Site {
                db: Metered::new(store.clone()),
                root: place.clone(),
            };
            let runtime = runtime();
            match self.way {
                Way::ReadModifyWrite => runtime.block_on(drain::<ReadModifyWrite>(
                    site, store, documents, workers, known,
                )),
                Way::Combined => {
                    runtime.block_on(drain::<Combined>(site, store, documents, workers, known))
                }
            }
        });
        if self.way == Way::Combined {
            assert_eq!(sample.reading.conflicts, 0, "a worker met a conflict");
        }
        sample.into()
    }
}

fn table(outcomes: &[WorkersOutcome]) -> Table {
    let mut table = Table::new([
        "workers",
        "way",
        "documents per second",
        "MB/s",
        "times read-modify-write",
        "times one worker",
        "conflicts per document",
        "median",
        "99th percentile",
    ]);
    for outcome in outcomes {
        let rounds = &outcome.rounds;
        let rate = rounds.median(|figures| figures.rate);
        let times = |workers, way| {
            let other = outcomes
                .iter()
                .find(|other| (other.workers, other.way) == (workers, way))
                .expect("every way is measured with every number");
            format!("{:.2}", rounds.median_ratio(&other.rounds))
        };
        table.push([
            outcome.workers.to_string(),
            outcome.way.name().to_owned(),
            format!("{rate:.0}"),
            format!("{:.2}", rate * DOCUMENT_BYTES as f64 / 1e6),
            times(outcome.workers, Way::ReadModifyWrite),
            times(1, outcome.way),
            format!("{:.2}", rounds.median(|figures| figures.conflicts_per_item)),
            format!("{:.1} ms", rounds.median(|figures| figures.median_millis)),
            format!("{:.1} ms", rounds.median(|figures| figures.late_millis)),
        ]);
    }
    table
}
