//! Sees and changes every queue of a store.
//!
//! ```text
//! cargo run --release -p console -- queues --db embedded:jobs.keyspace
//! ```
//!
//! Exit status: 0 done, 1 failed, 2 the command is wrong, 3 there is no such queue, item or key, 4 an audit found
//! something, 5 the store is open in another process, 130 stopped by Ctrl-C.

mod arguments;
mod bulk;
mod commands;
mod failure;
mod output;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use console::Console;
use export_queue::keyspace::url::StoreUrl;
use export_queue::keyspace::{self, RunOptions, Runner, Store};
use tokio::runtime;

use crate::arguments::{Arguments, Command};
use crate::failure::{Failure, Result, Status};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(Failure::Runtime).and_then(|runtime| {
        let outcome = runtime.block_on(execute(arguments));
        // A thread that waits for an answer, or copies a store, must not delay the end.
        runtime.shutdown_background();
        outcome
    });
    let status = outcome.unwrap_or_else(|failure| {
        // If nothing reads the text, there is the exit status.
        let _ = writeln!(io::stderr(), "error: {}", keyspace::error::chain(&failure));
        failure.status()
    });
    status.into()
}

/// Opens the store of a URL, if there is anything to see in it.
fn open(db: &str) -> Result<Store> {
    match db.parse() {
        Ok(StoreUrl::Memory) => Err(Failure::Memory),
        _ => keyspace::open_existing(db).map_err(Failure::open),
    }
}

async fn execute(arguments: Arguments) -> Result<Status> {
    let Arguments { command, options } = arguments;
    let db = options.db.as_deref().ok_or(Failure::NoStoreNamed)?;
    let store = open(db)?;
    let limits = RunOptions::default().time_limit(Duration::from_secs(options.time_limit.into()));
    let runner = Runner::with_options(store.clone(), limits);
    let console = Console::new(runner.clone());
    let context = commands::Context {
        store: &store,
        console: &console,
        options: &options,
    };
    let outcome = match command {
        // To stop it is how it ends.
        Command::Serve(_) => commands::run(&context, command).await,
        command => tokio::select! {
            // First, so that from now on Ctrl-C no longer ends the process by itself.
            biased;
            stopped = interrupted() => return stopped,
            outcome = commands::run(&context, command) => outcome,
        },
    };
    // Closing loses nothing: a change has committed, or it has not.
    let closed = runner.close().await;
    let closed = store.close().and(closed);
    let status = outcome?;
    closed?;
    Ok(status)
}

/// Returns once Ctrl-C was pressed.
async fn interrupted() -> Result<Status> {
    match tokio::signal::ctrl_c().await {
        Ok(()) => Err(Failure::Interrupted),
        Err(error) => Err(Failure::Runtime(error)),
    }
}
