//! Relays every line of every text file under a directory through a queue, and checks that each line
//! arrived exactly once and in order.
//!
//! Producers enqueue and consumers dequeue at the same time. The transaction that enqueues also writes
//! the producer's position, and the transaction that dequeues also writes the consumer's record. With an
//! `embedded:` store, a run that was killed therefore continues where it stopped, and a run on a
//! directory that has already been relayed has nothing to do. The check reads the consumers' records from
//! the store.

mod check;
mod error;
mod files;
mod store;
mod transfer;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use microqueue::keyspace::run::Runner;
use microqueue::keyspace::{Database, Isolation, Transaction};

use self::check::Check;
pub use self::error::{Error, Result};
use self::files::Content;
use self::transfer::{Counts, Relay};
use crate::say;

/// What to relay, and how.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The directory.
    directory: PathBuf,

    /// The number of producers. Each file is read by one of them.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=1024)
    )]
    producers: u64,

    /// The number of consumers.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=1024)
    )]
    consumers: u64,

    /// Print a line for every batch.
    #[arg(long)]
    progress: bool,
}

/// The most entries of a list that are printed.
const MAX_SHOWN: usize = 10;

/// Relays, checks and reports. Returns whether every line arrived exactly once and in order.
///
/// # Errors
/// The directory, a file, the store or the queue failed, or the store relays another directory.
pub async fn run<D: Database>(runner: &Runner<D>, arguments: &Arguments) -> Result<bool> {
    let directory = fs::canonicalize(&arguments.directory).map_err(|cause| Error::Read {
        path: arguments.directory.clone(),
        cause,
    })?;
    if !directory.is_dir() {
        return Err(Error::NotADirectory { path: directory });
    }
    let sources = files::find(&directory)?;
    let relay = Arc::new(Relay::new(runner.clone(), sources, arguments.progress));
    relay.claim(&directory).await?;
    relay.run(arguments.producers, arguments.consumers).await?;
    let check = check(&relay).await?;
    report(&relay, &check);
    Ok(check.problems.is_empty())
}

/// Compares the consumers' records in the store with the files.
async fn check<D: Database>(relay: &Relay<D>) -> Result<Check> {
    let mut check = Check::default();
    let mut next = Some(relay.store.records());
    while let Some(query) = next {
        let query = &query;
        let batch = relay
            .runner
            .run(|tr| async move {
                let batch = tr.get_range(query, Isolation::Serializable).await;
                batch.map_err(Error::from)
            })
            .await?;
        next = query.after(&batch);
        for row in batch.rows {
            let (consumer, received) = relay.store.received(row)?;
            check.receive(consumer, received);
        }
    }
    for source in relay.sources() {
        match source.read()? {
            Content::Text(text) => check.compare(&source.name, &text),
            Content::Skipped(reason) => check.skip(&source.name, &reason),
        }
    }
    Ok(check.finish())
}

fn report<D: Database>(relay: &Relay<D>, check: &Check) {
    if !check.skipped.is_empty() {
        say(format_args!("skipped {} files:", check.skipped.len()));
        list(&check.skipped);
    }
    let enqueued = relay.enqueued.counts();
    let dequeued = relay.dequeued.counts();
    if enqueued.lines == 0 && dequeued.lines == 0 {
        say("nothing to do: everything here has been relayed before");
    } else {
        say(format_args!(
            "{:<9}{:>12}{:>10}{:>12}{:>11}{:>9}",
            "", "items", "seconds", "items/s", "conflicts", "retries"
        ));
        row("enqueued", enqueued);
        row("dequeued", dequeued);
    }
    if check.problems.is_empty() {
        say(format_args!(
            "checked: {} lines of {} files arrived exactly once and in order",
            check.lines, check.files
        ));
        return;
    }
    say(format_args!(
        "checked: {} lines of {} files are right, and there are {} problems",
        check.lines,
        check.files,
        check.problems.len()
    ));
    list(&check.problems);
}

fn list(entries: &[String]) {
    for entry in entries.iter().take(MAX_SHOWN) {
        say(format_args!("  {entry}"));
    }
    if entries.len() > MAX_SHOWN {
        say(format_args!("  and {} more", entries.len() - MAX_SHOWN));
    }
}

fn row(name: &str, counts: Counts) {
    let seconds = counts.elapsed.as_secs_f64();
    let rate = counts.lines as f64 / seconds;
    say(format_args!(
        "{name:<9}{:>12}{seconds:>10.2}{rate:>12.0}{:>11}{:>9}",
        counts.lines, counts.conflicts, counts.retries
    ));
}
