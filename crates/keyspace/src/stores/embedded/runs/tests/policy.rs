//! The bounds that the rules of merges keep, whatever the sizes of runs.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::policy::{MergeRole, RunLimits, RunSize, hidden, is_full, next_merge};
use crate::stores::embedded::tests::seeds;

const MIB: u64 = 1 << 20;

const LIMITS: RunLimits = RunLimits {
    max_runs: 8,
    garbage_bytes: 64 << 20,
};

fn free(bytes: u64) -> RunSize {
    RunSize {
        bytes,
        hidden_bytes: 0,
        role: MergeRole::Free,
    }
}

/// A store in which parts replace rows at random, as sizes of runs.
struct Flood {
    runs: Vec<RunSize>,
    live: u64,
    merged: u64,
    parts: u64,
    most_runs: usize,
    most_bytes: u64,
}

impl Flood {
    fn new(live: u64) -> Self {
        Self {
            runs: vec![free(live)],
            live,
            merged: 0,
            parts: 0,
            most_runs: 0,
            most_bytes: 0,
        }
    }

    /// Does the next step of a merge. Returns false if there is none.
    fn step(&mut self, is_at_rest: bool) -> bool {
        const STEP: u64 = 64 * MIB;
        let Some(range) = next_merge(&self.runs, LIMITS, is_at_rest) else {
            return false;
        };
        assert!(range.start < range.end && range.end <= self.runs.len());
        let all: u64 = self.runs[range.clone()].iter().map(|run| run.bytes).sum();
        let step = all.min(STEP);
        for run in &mut self.runs[range.clone()] {
            run.role = MergeRole::Input;
            let taken = u128::from(run.bytes) * u128::from(step) / u128::from(all.max(1));
            run.bytes -= taken as u64;
        }
        let output = self.runs.get(range.end);
        if output.is_none_or(|output| output.role != MergeRole::Output) {
            let role = MergeRole::Output;
            self.runs.insert(range.end, RunSize { role, ..free(0) });
        }
        let is_oldest = range.end + 1 == self.runs.len();
        let output = &mut self.runs[range.end];
        output.bytes += step;
        self.merged += step;
        if is_oldest {
            // Of several entries of a key, one is left.
            let more = output.bytes.saturating_sub(self.live);
            self.merged -= more.min(step);
            output.bytes -= more;
        }
        if step == all {
            output.role = MergeRole::Free;
            self.runs.drain(range);
        }
        true
    }

    /// Adds parts. After each, `steps` steps of merges are done, and more if another part had to wait.
    fn run(&mut self, parts: u64, steps: usize) {
        const PART: u64 = 16 * MIB;
        for _ in 0..parts {
            while is_full(&self.runs, LIMITS) {
                assert!(
                    self.step(false),
                    "no merge makes room for the next part: {:?}",
                    self.runs
                );
            }
            self.runs.insert(0, free(PART));
            self.parts += PART;
            let outputs = self.runs.iter().filter(|run| run.role == MergeRole::Output);
            self.most_runs = self.most_runs.max(self.runs.len() - outputs.count());
            self.most_bytes = self.most_bytes.max(self.bytes());
            for _ in 0..steps {
                self.step(false);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }
}

#[test]
fn random_overwrites_keep_the_number_of_runs_their_bytes_and_what_merges_write_within_bounds() {
    for (live, most_written) in [
        (64, 3.0),
        (256, 4.0),
        (1024, 5.5),
        (4096, 7.0),
        (16_384, 9.0),
    ] {
        for steps in [1, 2, 10] {
            let mut flood = Flood::new(live * MIB);
            flood.run(2_000, steps);
            let written = flood.merged as f64 / flood.parts as f64;
            println!(
                "{live} MiB, {steps} steps: {} runs, {:.2} times the live bytes, {written:.2} bytes merged per byte",
                flood.most_runs,
                flood.most_bytes as f64 / flood.live as f64
            );
            assert!(flood.most_runs <= LIMITS.max_runs);
            assert!(flood.most_bytes <= flood.live * 11 / 5 + 64 * MIB);
            assert!(written <= most_written, "{written}");
            while flood.step(true) {}
            assert!(flood.runs.len() <= 3);
            assert!(flood.bytes() * 4 <= flood.live * 5);
        }
    }
}

#[test]
fn whatever_their_sizes_runs_do_not_wait_for_a_merge_that_never_comes() {
    for seed in seeds(2_000) {
        let mut rng = StdRng::seed_from_u64(seed);
        let live = 1 << rng.random_range(0..36);
        let mut flood = Flood::new(live);
        for _ in 0..rng.random_range(1..40) {
            let bytes = 1 << rng.random_range(0..36);
            let hidden_bytes = if rng.random() { bytes } else { 0 };
            flood.runs.insert(
                0,
                RunSize {
                    hidden_bytes,
                    ..free(bytes)
                },
            );
            let mut steps = 0;
            while is_full(&flood.runs, LIMITS) {
                assert!(flood.step(false), "seed {seed}: {:?}", flood.runs);
                steps += 1;
                assert!(steps < 100_000, "seed {seed}: {:?}", flood.runs);
            }
        }
        while flood.step(true) {}
        assert!(
            flood.runs.len() <= 3 && hidden(&flood.runs, LIMITS).is_none(),
            "seed {seed}"
        );
    }
}

#[test]
fn a_run_that_hides_most_of_the_oldest_is_merged_with_it() {
    let clear = |hidden_bytes| RunSize {
        hidden_bytes,
        ..free(100)
    };
    let large = free(1000 * MIB);
    assert_eq!(next_merge(&[clear(100 * MIB), large], LIMITS, false), None);
    assert_eq!(
        next_merge(&[clear(600 * MIB), large], LIMITS, false),
        Some(0..2)
    );
    assert_eq!(hidden(&[clear(100 * MIB), large], LIMITS), None);
    assert_eq!(hidden(&[clear(600 * MIB), large], LIMITS), Some(0..2));
}
