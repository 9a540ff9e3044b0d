//! Counts every phrase of four words in the files of a directory, and keeps the counts in SQLite.
//!
//! ```sh
//! cargo run --release -p phrasecount -- run docs
//! cargo run --release -p phrasecount -- get "what the caller must"
//! ```
//!
//! The pipeline:
//!
//! 1. `load` copies the documents of the directory to the store, and enqueues every content that is new or gone.
//! 2. Workers take contents from the queue and add their phrases to a combine queue.
//! 3. The observer of the combine queue adds every changed count to an export queue.
//! 4. An exporter writes the counts to SQLite.
//!
//! Each step commits in transactions that also move the input on, so every content counts exactly once, even if
//! processes die at any moment. Kill the program and start it again, and it continues where it was. If a file was
//! edited or removed, its old phrases are subtracted.
//!
//! Each part can run alone. In a build with FoundationDB, `--db fdb:` lets `load`, any number of `work` and an
//! `export` share the work from different machines.
//!
//! The table is `phrases(phrase, documents, occurrences, sequence)`. It has the number of distinct contents that
//! contain a phrase, and the number of occurrences in all of them. Copies of a file count once, even if letter case
//! or spacing differs. [`text`] defines a phrase, and [`choice`] decides which files are counted.
//!
//! The exit status is 0 for success, 1 for a failure, 2 for wrong arguments, 130 after Ctrl-C, and 143 after `SIGTERM`.

// What it prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod choice;
mod corpus;
mod count;
mod error;
mod export;
mod load;
mod markdown;
mod pages;
mod progress;
mod report;
mod session;
mod source;
mod sqlite;
mod stats;
mod text;
mod top;
mod work;

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use console::terminal;
use export_queue::keyspace;
use mimalloc::MiMalloc;
use tokio::runtime::{self, Runtime};

use crate::arguments::{Arguments, Command, Options};
use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::session::Session;

/// Memory moves between threads all the time, and the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The largest number of threads for blocking work (reading files and writing SQLite): each of them keeps its own
/// memory.
const MAX_BLOCKING_THREADS: usize = 4;

fn main() -> ExitCode {
    let Arguments { command, options } = terminal::parse();
    let executed = start().and_then(|runtime| {
        let executed = runtime.block_on(execute(command, &options));
        // What still runs ends with the process. The end of the runtime would wait for a thread that reads a file, and
        // would make a task panic that is about to sleep.
        std::mem::forget(runtime);
        executed
    });
    match executed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::tell_error(&error);
            if error.is_no_answer() {
                let time_limit = options.time_limit;
                terminal::tell(format_args!(
                    "the store gave no answer for {time_limit} seconds: check that it is running, and start again\n"
                ));
            }
            ExitCode::from(error.exit_status())
        }
    }
}

/// Starts the threads of the program.
fn start() -> Result<Runtime> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let all = threads + MAX_BLOCKING_THREADS;
    terminal::check_threads(all).map_err(Error::Threads)?;
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.worker_threads(threads);
    runtime.max_blocking_threads(MAX_BLOCKING_THREADS);
    runtime.enable_all().build().map_err(Error::Runtime)
}

async fn execute(command: Command, options: &Options) -> Result<()> {
    if let Some(files) = command.files() {
        // This check comes first, so that a mistyped directory creates no store.
        source::check(&files.directory)?;
    }
    if let Some(out) = command.out() {
        sqlite::check(out, &options.db)?;
    }
    let time_limit = Duration::from_secs(options.time_limit.into());
    let store = if command.only_looks() {
        Corpus::open_existing(&options.db, time_limit).await?
    } else {
        Corpus::open(&options.db, time_limit).await?
    };
    let session = Session {
        store: &store,
        tally: Arc::default(),
        progress: Progress::new(options.quiet, options.verbose),
    };
    let report = async {
        let _pages = match options.console {
            Some(address) => Some(pages::serve(&store, address, &session.progress).await?),
            None => None,
        };
        session.execute(command).await
    };
    match session::end_after(report.await, store.close()).await {
        Ok(report) => report.print(options.json),
        Err(error) => Err(session::explain(&store, error).await),
    }
}
