//! Counts every phrase of four words in the files of a directory, and keeps the counts in SQLite.
//!
//! ```text
//! cargo run --release -p phrasecount -- run docs
//! cargo run --release -p phrasecount -- get "what the caller must"
//! ```
//!
//! The whole pipeline: `load` makes the documents of the store those of the directory, and enqueues
//! every content that is new, or gone; workers take contents out of the queue and add what they
//! contain to the counts of a combine queue; its observer adds every count that changes to an export
//! queue; an exporter writes SQLite. Each arrow is one transaction, so that every content counts once,
//! whatever dies when: kill it and start it again, and it goes on where it was. Files that were edited
//! or removed since take out what they had added.
//!
//! The parts can be run alone. With `--db fdb:`, in a build with FoundationDB, `load`, any number of
//! `work` and an `export` share the work from different machines.
//!
//! The table is `phrases(phrase, documents, occurrences, sequence)`: in how many distinct contents a
//! phrase occurs, and how often in all of them. Copies, also in other letter case or spacing, count
//! once. [`text`] says what a phrase is.
//!
//! Exit status: 0 done, 1 failed, 2 asked wrongly, 130 stopped by Ctrl-C.

mod count;
mod error;
mod export;
mod load;
mod progress;
mod report;
mod session;
mod source;
mod sqlite;
mod stats;
mod store;
mod text;
mod top;
mod work;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use export_queue::combine::hc_dequeue::microqueue::keyspace;
use tokio::runtime;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::session::Session;
use crate::store::Store;

/// Counts every phrase of four words in the files of a directory, and keeps the counts in SQLite.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
    /// The store: `embedded:<path>`, `memory:`, `fdb:` or `fdb:<cluster file>`.
    ///
    /// `memory:` is for a few megabytes of text: it takes some 300 MB, and 50 MB more for each megabyte.
    /// With an embedded store it is 300 to 400 MB of memory, and a file some 50 times as large as the text.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "embedded:phrasecount.keyspace"
    )]
    db: String,

    /// How long to wait for the store until it counts as gone, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    patience: u16,

    /// Tell nothing while the work goes on.
    #[arg(long, global = true)]
    quiet: bool,

    /// Tell of every document, step and batch.
    #[arg(long, global = true, conflicts_with = "quiet")]
    verbose: bool,

    /// Print the result as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Load a directory, count it and export the counts.
    Run {
        /// The directory. Documents from elsewhere are removed from the store.
        directory: PathBuf,
        #[command(flatten)]
        out: Out,
        #[command(flatten)]
        workers: WorkerCount,
    },
    /// Make the documents of the store those of a directory.
    Load {
        /// The directory. Documents from elsewhere are removed from the store.
        directory: PathBuf,
    },
    /// Count what was loaded, until stopped by Ctrl-C.
    Work {
        #[command(flatten)]
        workers: WorkerCount,
        /// Stop when there is nothing left to count.
        #[arg(long)]
        until_idle: bool,
    },
    /// Export the counts, until stopped by Ctrl-C.
    Export {
        #[command(flatten)]
        out: Out,
        /// Stop when there is nothing left to export.
        #[arg(long)]
        until_idle: bool,
    },
    /// Print the phrases that occur most often.
    Top {
        /// How many.
        #[arg(default_value_t = TOP)]
        count: usize,
    },
    /// Print the counts of a phrase.
    Get {
        /// The phrase: four words.
        #[arg(value_parser = top::phrase)]
        phrase: String,
    },
    /// Print how many documents and phrases there are, what is left to be done, and what was given up.
    Stats,
}

#[derive(Args)]
struct Out {
    /// The SQLite file.
    #[arg(long, value_name = "FILE", default_value = "phrasecount.sqlite")]
    out: PathBuf,
}

#[derive(Args)]
struct WorkerCount {
    /// How many contents are counted at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
}

/// How many phrases are printed.
const TOP: usize = 10;

/// How many threads at most do what blocks them, reading files and writing SQLite: each of them keeps
/// memory of its own.
const BLOCKING_THREADS: usize = 4;

fn main() -> ExitCode {
    let Arguments { command, options } = Arguments::parse();
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(Error::Runtime);
    match runtime.and_then(|runtime| runtime.block_on(execute(command, &options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without anybody who listens there is the exit status.
            let _ = writeln!(io::stderr(), "error: {}", work::describe(&error));
            if error.is_no_answer() {
                let patience = options.patience;
                let _ = writeln!(
                    io::stderr(),
                    "the store gave no answer for {patience} seconds: check that it runs, and start again"
                );
            }
            ExitCode::from(error.exit_status())
        }
    }
}

async fn execute(command: Command, options: &Options) -> Result<()> {
    if let Command::Run { directory, .. } | Command::Load { directory } = &command {
        // Before a store is made for nothing.
        source::check(directory)?;
    }
    let patience = Duration::from_secs(options.patience.into());
    let store = Store::open(&options.db, patience).await?;
    let session = Session {
        store: &store,
        tally: Arc::default(),
        progress: Progress::new(options.quiet, options.verbose),
    };
    let report = session.execute(command).await;
    if session::is_orderly(&report) {
        store.close().await?;
    }
    report?.print(options.json)
}
