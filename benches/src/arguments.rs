//! What a benchmark is told: which of its workloads are wanted, and flags.

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
        // Cargo passes a flag of its own to every benchmark.
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
        self.flags.iter().any(|flag| flag == "--plot")
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
}
