//! The rules of merges, on runs that are only sizes: they choose what may be merged, make room when a run waits for it,
//! and come to rest.

use std::ops::Range;

use conformance::scale;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::policy::{MergeRole, RunLimits, RunSize, hidden, is_full, next_merge};
use crate::stores::embedded::tests::seeds;

const LIMITS: RunLimits = RunLimits {
    max_runs: 12,
    garbage_bytes: 64 << 20,
};

/// What a step of a merge writes, in bytes.
const STEP_BYTES: u64 = 64 << 20;

/// A run that is only a size.
#[derive(Debug, Clone)]
struct Sized {
    id: u64,
    into: Option<u64>,
    bytes: u64,
    hidden_bytes: u64,
}

/// The runs of a store, newest first.
#[derive(Debug, Default)]
struct Store {
    runs: Vec<Sized>,
    last_run: u64,
}

impl Store {
    fn sizes(&self) -> Vec<RunSize> {
        let is_output = |id| self.runs.iter().any(|run| run.into == Some(id));
        let size = |run: &Sized| RunSize {
            bytes: run.bytes,
            hidden_bytes: run.hidden_bytes,
            role: match run.into {
                Some(_) => MergeRole::Input,
                None if is_output(run.id) => MergeRole::Output,
                None => MergeRole::Free,
            },
        };
        self.runs.iter().map(size).collect()
    }

    fn is_full(&self) -> bool {
        is_full(&self.sizes(), LIMITS)
    }

    fn add(&mut self, bytes: u64, hidden_bytes: u64) {
        self.last_run += 1;
        let run = Sized {
            id: self.last_run,
            into: None,
            bytes,
            hidden_bytes,
        };
        self.runs.insert(0, run);
    }

    /// Checks that a merge of these runs may go on or begin.
    fn check(&self, range: &Range<usize>) {
        let sizes = self.sizes();
        let inputs = &self.runs[range.clone()];
        assert!(!inputs.is_empty(), "{sizes:?}");
        let into = inputs[0].into;
        assert!(inputs.iter().all(|run| run.into == into), "{sizes:?}");
        match into {
            Some(_) => {
                let all = self.runs.iter().filter(|run| run.into == into).count();
                assert_eq!(inputs.len(), all, "{sizes:?}");
            }
            None => {
                assert!(inputs.len() > 1, "{sizes:?}");
                let mut sizes = sizes[range.clone()].iter();
                assert!(sizes.all(|run| run.role == MergeRole::Free));
            }
        }
    }

    /// Does a step of a merge: the same share of each input goes to the output.
    fn merge(&mut self, range: Range<usize>) {
        self.check(&range);
        let has_older = range.end < self.runs.len();
        let inputs = &mut self.runs[range.clone()];
        let left: u64 = inputs.iter().map(|run| run.bytes).sum();
        let hidden_bytes = inputs.iter().map(|run| run.hidden_bytes).sum();
        let is_last = left <= STEP_BYTES;
        let id = inputs[0].into.unwrap_or(self.last_run + 1);
        let is_new = inputs[0].into.is_none();
        for run in inputs.iter_mut() {
            run.into = Some(id);
            let share = u128::from(run.bytes) * u128::from(STEP_BYTES) / u128::from(left.max(1));
            run.bytes -= run.bytes.min(share as u64);
        }
        if is_new {
            self.last_run += 1;
            let output = Sized {
                id,
                into: None,
                bytes: 0,
                hidden_bytes: if has_older { hidden_bytes } else { 0 },
            };
            self.runs.insert(range.end, output);
        }
        self.runs[range.end].bytes += left.min(STEP_BYTES);
        if is_last {
            self.runs.drain(range);
        }
    }

    /// Merges as long as the rules say so. Returns the number of steps.
    fn merge_all(&mut self, next: impl Fn(&Self) -> Option<Range<usize>>) -> usize {
        for step in 0..1_000_000 {
            let Some(range) = next(self) else {
                return step;
            };
            self.merge(range);
        }
        panic!("merges do not end: {:?}", self.sizes());
    }
}

/// A store whose parts come faster or slower than merges. It begins with the bytes of a large or a small run.
fn live(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut store = Store::default();
    let part_bytes: u64 = 1 << rng.random_range(10..28);
    let steps_per_part = rng.random_range(0..4);
    let hides = rng.random_range(0..4);
    if rng.random() {
        store.add(1 << rng.random_range(20..40), 0);
    }
    for _ in 0..300 {
        let next = |store: &Store| next_merge(&store.sizes(), LIMITS, false);
        while store.is_full() {
            let Some(range) = next(&store) else {
                panic!("no merge makes room: {:#?}", store.sizes());
            };
            store.merge(range);
        }
        let hidden_bytes = if rng.random_range(0..4) < hides {
            rng.random_range(0..1 << 30)
        } else {
            0
        };
        store.add(rng.random_range(1..=part_bytes), hidden_bytes);
        let sizes = store.sizes();
        let outputs = sizes
            .iter()
            .filter(|run| run.role == MergeRole::Output)
            .count();
        assert!(sizes.len() - outputs <= LIMITS.max_runs, "{sizes:?}");
        for _ in 0..steps_per_part {
            let Some(range) = next(&store) else { break };
            store.merge(range);
        }
    }
    store.merge_all(|store| next_merge(&store.sizes(), LIMITS, true));
    let sizes = store.sizes();
    let (oldest, others) = sizes.split_last().expect("there are runs");
    let others_bytes: u64 = others.iter().map(|run| run.bytes).sum();
    assert!(sizes.len() <= 3, "{sizes:?}");
    assert!(others_bytes <= oldest.bytes / 4, "{sizes:?}");
    store.merge_all(|store| hidden(&store.sizes(), LIMITS));
}

#[test]
fn merges_make_room_and_come_to_rest() {
    for seed in seeds(scale(300, 20_000)) {
        println!("to repeat: TEST_SEED={seed}");
        live(seed);
    }
}

#[test]
fn a_store_is_merged_at_its_close_if_most_of_it_is_hidden() {
    let run = |bytes, hidden_bytes| RunSize {
        bytes,
        hidden_bytes,
        role: MergeRole::Free,
    };
    let gib = 1 << 30;
    assert_eq!(hidden(&[], LIMITS), None);
    assert_eq!(hidden(&[run(gib, 0)], LIMITS), None);
    assert_eq!(hidden(&[run(100, 0), run(gib, 0)], LIMITS), None);
    assert_eq!(hidden(&[run(100, gib / 3), run(gib, 0)], LIMITS), None);
    assert_eq!(
        hidden(&[run(100, gib / 2), run(100, gib / 3), run(gib, 0)], LIMITS),
        Some(0..3)
    );
    // More is hidden than there is.
    assert_eq!(
        hidden(&[run(100, 2 * gib), run(gib, 0)], LIMITS),
        Some(0..2)
    );
    assert_eq!(hidden(&[run(100, 50), run(50, 0)], LIMITS), None);
}
