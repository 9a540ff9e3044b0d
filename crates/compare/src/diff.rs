//! `cargo xtask diff`: the same random programs on two stores.
//!
//! Prints the smallest program found for each one on which they differ, and ends with one line
//! `N passed, N failed`.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, anyhow, bail};
use conformance::compare;
use conformance::replay::Replay;
use keyspace::{Environment, Store};
use tokio::task::JoinSet;

/// The number of differences after which the comparison stops.
const MAX_FAILURES: usize = 10;

/// What to compare.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffOptions {
    /// The seeds of the programs, the last one excluded
    #[arg(long, value_parser = seeds, value_name = "A..B")]
    seeds: Range<u64>,
    /// The URLs of the two stores; the first one's answers are the expected ones. `fdb:` is the
    /// cluster that `FDB_CLUSTER_FILE` names, or else a private one
    #[arg(long, required = true, num_args = 1)]
    db: Vec<String>,
    /// How many programs run at once, each under a prefix of its own
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let bounds = text.split_once("..");
    let (first, end) = bounds.ok_or("expected two numbers, as in 0..1000")?;
    let number = |text: &str| text.parse().map_err(|error| format!("`{text}`: {error}"));
    let seeds = number(first)?..number(end)?;
    if seeds.is_empty() {
        return Err("there is no seed in it".to_owned());
    }
    Ok(seeds)
}

/// Compares the stores.
pub(crate) fn run(options: &DiffOptions) -> anyhow::Result<ExitCode> {
    let [reference, other] = options.db.as_slice() else {
        bail!("`--db` is needed twice: two stores are compared");
    };
    let open = |url: &String| keyspace::open(url).with_context(|| url.clone());
    let work = Arc::new(Work {
        stores: [open(reference)?, open(other)?],
        // A random prefix keeps several runs on one cluster apart.
        place: Environment::system().random_bytes::<8>(),
        next: AtomicU64::new(options.seeds.start),
        end: options.seeds.end,
        passed: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut workers = JoinSet::new();
        for worker in 0..options.concurrency {
            workers.spawn(work.clone().run(worker));
        }
        while let Some(ended) = workers.join_next().await {
            ended.map_err(|panic| anyhow!(panic))??;
        }
        anyhow::Ok(())
    })?;
    let [passed, failed] = [&work.passed, &work.failed].map(|count| count.load(Ordering::Relaxed));
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

struct Work {
    stores: [Store; 2],
    place: [u8; 8],
    next: AtomicU64,
    end: u64,
    passed: AtomicUsize,
    failed: AtomicUsize,
}

impl Work {
    /// Compares program after program under a prefix of this worker's own.
    async fn run(self: Arc<Self>, worker: u16) -> anyhow::Result<()> {
        let prefix = [b"diff".as_slice(), &self.place, &worker.to_be_bytes()].concat();
        let [reference, store] = self
            .stores
            .clone()
            .map(|store| Replay::new(store, Environment::system()).under(prefix.clone()));
        while self.failed.load(Ordering::Relaxed) < MAX_FAILURES {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                break;
            }
            match compare::check(&reference, &store, seed).await? {
                Some(found) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    println!("{found}\nto repeat it: --seeds {seed}..{}", seed + 1);
                }
                None => {
                    self.passed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        reference.clear().await?;
        store.clear().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_that_is_not_empty() {
        assert_eq!(seeds("3..7"), Ok(3..7));
        for text in ["3", "7..3", "3..3", "a..b", "-1..3"] {
            assert!(seeds(text).is_err(), "{text}");
        }
    }
}
