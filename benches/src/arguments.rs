//! The arguments of a benchmark: its workloads, how much to measure, and flags.

use std::env;

/// The arguments of a benchmark.
#[derive(Debug, Clone)]
pub struct Arguments {
    flags: Vec<String>,
    named: Vec<String>,
}

impl Arguments {
    /// Returns those of this process.
    #[must_use]
    pub fn get() -> Self {
        Self::new(env::args().skip(1))
    }

    fn new(arguments: impl Iterator<Item = String>) -> Self {
        // `cargo bench` passes a flag of its own to every benchmark.
        let (flags, named) = arguments.partition(|argument| argument.starts_with('-'));
        Self { flags, named }
    }

    /// Says whether a workload is wanted: all are, unless some are named.
    #[must_use]
    pub fn wants(&self, workload: &str) -> bool {
        self.named.is_empty() || self.named.iter().any(|named| named == workload)
    }

    /// Says whether curves are to be drawn.
    #[must_use]
    pub fn wants_plots(&self) -> bool {
        self.has("--plot")
    }

    /// Returns how much to measure.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let is_long = env::var_os("TEST_RUN").is_some_and(|run| run == "long");
        self.extent_of(is_long)
    }

    fn extent_of(&self, is_long: bool) -> Extent {
        if !self.has("--bench") {
            Extent::Test
        } else if is_long {
            Extent::Long
        } else {
            Extent::Short
        }
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }
}

/// How much a benchmark measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// As little as runs every line once: `cargo test` runs the benchmark. The figures mean nothing.
    Test,
    /// What a developer waits for: `cargo xtask bench` runs it.
    Short,
    /// What published figures deserve: `cargo xtask bench` runs it with `--long`.
    Long,
}

impl Extent {
    /// Returns the one of three amounts that belongs to this extent.
    pub fn choose<T>(self, test: T, short: T, long: T) -> T {
        match self {
            Self::Test => test,
            Self::Short => short,
            Self::Long => long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Arguments {
        Arguments::new(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn every_workload_is_wanted_unless_some_are_named() {
        assert!(arguments(&["--bench"]).wants("idle"));
        let named = arguments(&["--bench", "idle", "--plot"]);
        assert!(named.wants("idle") && named.wants_plots());
        assert!(!named.wants("busy"));
        assert!(!arguments(&["plot"]).wants_plots());
    }

    #[test]
    fn without_the_flag_of_cargo_bench_a_run_is_a_test_however_long_tests_are() {
        for is_long in [false, true] {
            assert_eq!(arguments(&["idle"]).extent_of(is_long), Extent::Test);
        }
        let bench = arguments(&["--bench"]);
        assert_eq!(bench.extent_of(false), Extent::Short);
        assert_eq!(bench.extent_of(true), Extent::Long);
        assert_eq!(Extent::Short.choose(1, 2, 3), 2);
    }
}
