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
//! queue; an exporter writes SQLite. Each arrow is one transaction, so that every content counts once
//! even if processes die at any moment: kill it and start it again, and it goes on where it was. Files that were edited
//! or removed since take out what they had added.
//!
//! The parts can be run alone. With `--db fdb:`, in a build with FoundationDB, `load`, any number of
//! `work` and an `export` share the work from different machines.
//!
//! The table is `phrases(phrase, documents, occurrences, sequence)`: in how many distinct contents a
//! phrase occurs, and how often in all of them. Copies, also in other letter case or spacing, count
//! once. [`text`] says what a phrase is, and [`choice`] which files are counted.
//!
//! Exit status: 0 done, 1 failed, 2 asked wrongly, 130 stopped by Ctrl-C.

mod arguments;
mod choice;
mod corpus;
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
mod text;
mod top;
mod work;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use export_queue::keyspace;
use mimalloc::MiMalloc;
use tokio::runtime;

use crate::arguments::{Arguments, Command, Options};
use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::session::Session;

/// Memory goes from one thread to another all the time, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

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
            let _ = writeln!(io::stderr(), "error: {}", keyspace::error::chain(&error));
            if error.is_no_answer() {
                let time_limit = options.time_limit;
                let _ = writeln!(
                    io::stderr(),
                    "the store gave no answer for {time_limit} seconds: check that it runs, and start again"
                );
            }
            ExitCode::from(error.exit_status())
        }
    }
}

async fn execute(command: Command, options: &Options) -> Result<()> {
    if let Some(files) = command.files() {
        // Before a store is made for nothing.
        source::check(&files.directory)?;
    }
    let time_limit = Duration::from_secs(options.time_limit.into());
    let store = match command.only_looks() {
        true => Corpus::open_existing(&options.db, time_limit).await?,
        false => Corpus::open(&options.db, time_limit).await?,
    };
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
