//! Counts every phrase of four words in the files of a directory, and keeps the counts in SQLite.
//!
//! ```text
//! cargo run --release -p export-queue --example phrasecount -- run docs
//! cargo run --release -p export-queue --example phrasecount -- get "what the caller must"
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
mod source;
mod sqlite;
mod store;
mod text;
mod top;
mod work;

use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use export_queue::combine::hc_dequeue::microqueue::keyspace;
use tokio::runtime;

use crate::error::{Error, Result};
use crate::export::Export;
use crate::load::load;
use crate::progress::{Progress, Tally};
use crate::report::Report;
use crate::store::Store;
use crate::work::Workers;

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
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "embedded:phrasecount.keyspace"
    )]
    db: String,

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
    /// Print how many documents and phrases there are, and what is left to be done.
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
            ExitCode::from(error.exit_status())
        }
    }
}

async fn execute(command: Command, options: &Options) -> Result<()> {
    if let Command::Run { directory, .. } | Command::Load { directory } = &command {
        // Before a store is made for nothing.
        source::check(directory)?;
    }
    let store = Store::open(&options.db).await?;
    let session = Session {
        store: &store,
        tally: Arc::default(),
        progress: Progress::new(options.quiet, options.verbose),
    };
    let report = session.execute(command).await;
    store.close().await?;
    report?.print(options.json)
}

/// A run of the program on a store.
struct Session<'a> {
    store: &'a Store,
    tally: Arc<Tally>,
    progress: Progress,
}

impl Session<'_> {
    async fn execute(&self, command: Command) -> Result<Report> {
        let mut report = Report::default();
        match command {
            Command::Run {
                directory,
                out,
                workers,
            } => {
                self.run(&directory, &out.out, workers.workers, &mut report)
                    .await?;
            }
            Command::Load { directory } => {
                let load = load(self.store, &directory, &self.progress);
                report.loaded(&until_stopped(load).await?);
            }
            Command::Work {
                workers,
                until_idle,
            } => {
                self.work(workers.workers, until_idle).await?;
                report.phrases_counted(self.tally.phrases_moved());
            }
            Command::Export { out, until_idle } => {
                self.export(&out.out, until_idle).await?;
                report.counts_exported(self.tally.counts_exported());
            }
            Command::Top { count } => report.top(&top::top(self.store, count).await?),
            Command::Get { phrase } => report.count(top::get(self.store, &phrase).await?),
            Command::Stats => top::stats(self.store, &mut report).await?,
        }
        Ok(report)
    }

    /// Loads, counts and exports at the same time, until all is done.
    async fn run(
        &self,
        directory: &Path,
        out: &Path,
        workers: u16,
        report: &mut Report,
    ) -> Result<()> {
        let environment = self.store.runner.environment();
        let begun = environment.now();
        let export = Export::start(self.store, out, &self.tally, &self.progress).await?;
        let table = export.table.clone();
        let workers =
            Workers::start(self.store, workers.into(), &self.tally, &self.progress).await?;
        let job = async {
            let loaded = load(self.store, directory, &self.progress).await?;
            work::wait_idle(self.store, &self.tally, &self.progress).await?;
            export
                .wait_idle(self.store, &self.tally, &self.progress)
                .await?;
            Ok(loaded)
        };
        let loaded = until_stopped(job).await;
        workers.shut_down().await?;
        export.shut_down().await?;
        let loaded = loaded?;
        report.top(&table.top(TOP)?);
        report.loaded(&loaded);
        report.phrases_counted(self.tally.phrases_moved());
        report.counts_exported(self.tally.counts_exported());
        let seconds = environment.now().saturating_sub(begun).as_secs_f64();
        report.rate(loaded.bytes, seconds);
        Ok(())
    }

    async fn work(&self, workers: u16, until_idle: bool) -> Result<()> {
        let workers =
            Workers::start(self.store, workers.into(), &self.tally, &self.progress).await?;
        let worked = until_stopped(async {
            if until_idle {
                return work::wait_idle(self.store, &self.tally, &self.progress).await;
            }
            self.progress.line("working until Ctrl-C");
            std::future::pending().await
        });
        let worked = worked.await;
        workers.shut_down().await?;
        worked
    }

    async fn export(&self, out: &Path, until_idle: bool) -> Result<()> {
        let export = Export::start(self.store, out, &self.tally, &self.progress).await?;
        let exported = until_stopped(async {
            if until_idle {
                return export
                    .wait_idle(self.store, &self.tally, &self.progress)
                    .await;
            }
            self.progress.line("exporting until Ctrl-C");
            std::future::pending().await
        });
        let exported = exported.await;
        export.shut_down().await?;
        exported
    }
}

/// Does something until it is done, or until Ctrl-C. What was committed by then is kept.
async fn until_stopped<T>(job: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = job => done,
        // An error: there is nothing to wait for.
        Ok(()) = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    }
}
