//! Sees and changes every queue of a store.
//!
//! ```text
//! cargo run --release -p fdbq-console -- queues --db embedded:jobs.keyspace
//! ```
//!
//! Exit status: 0 done, 1 failed, 2 the command is wrong, 3 there is no such queue, item or key, 4 an audit or a check
//! found something, 5 the store is open in another process that does not share it, 130 stopped by Ctrl-C, 143 stopped
//! by `SIGTERM`.

// What a command prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod bulk;
mod check;
mod commands;
mod failure;
mod output;

use std::process::ExitCode;
use std::time::Duration;

use console::{Console, terminal};
use export_queue::keyspace::url::StoreUrl;
use export_queue::keyspace::{self, RunOptions, Runner, Store};
use tokio::runtime;
use tokio::task::spawn_blocking;

use crate::arguments::{Arguments, Command};
use crate::failure::{CommandFailure, Result, Status};

fn main() -> ExitCode {
    let arguments: Arguments = terminal::parse();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime
        .map_err(CommandFailure::Runtime)
        .and_then(|runtime| {
            let outcome = runtime.block_on(execute(arguments));
            // What still runs ends with the process. The end of the runtime would wait for a thread that copies a store
            // or reads an answer, and would make a task panic that is about to sleep.
            std::mem::forget(runtime);
            outcome
        });
    let status = outcome.unwrap_or_else(|failure| {
        terminal::tell_error(&failure);
        failure.status()
    });
    status.into()
}

/// Opens the store of a URL, if there is anything to see in it.
fn open(db: &str) -> Result<Store> {
    match db.parse() {
        Ok(StoreUrl::Memory) => Err(CommandFailure::Memory),
        _ => keyspace::open_existing(db).map_err(CommandFailure::open),
    }
}

async fn execute(arguments: Arguments) -> Result<Status> {
    let Arguments { command, options } = arguments;
    let db = options.db.as_deref().ok_or(CommandFailure::NoStoreNamed)?;
    // A damaged store cannot be opened.
    if matches!(command, Command::Check) {
        return tokio::select! {
            biased;
            stopped = stopped() => stopped,
            checked = check::check(db, options.json) => checked,
        };
    }
    let store = open(db)?;
    let limits =
        RunOptions::default().with_time_limit(Duration::from_secs(options.time_limit.into()));
    let runner = Runner::with_options(store.clone(), limits);
    let console = Console::new(&runner);
    let context = commands::Context {
        store: &store,
        console: &console,
        options: &options,
    };
    let outcome = match command {
        // To stop it is how it ends.
        Command::Own | Command::Serve(_) => commands::run(&context, command).await,
        command => tokio::select! {
            // First, so that from now on Ctrl-C no longer ends the process by itself.
            biased;
            stopped = stopped() => return stopped,
            outcome = commands::run(&context, command) => outcome,
        },
    };
    // Closing loses nothing: a change has committed, or it has not.
    let close = async {
        let closed = runner.close().await;
        // On a thread of its own, so that a signal ends the wait for a disk that hangs.
        let ended = spawn_blocking(move || store.close()).await;
        ended.expect("closing does not panic").and(closed)
    };
    let closed = tokio::select! {
        biased;
        stopped = stopped() => return stopped,
        closed = close => closed,
    };
    let status = outcome?;
    closed?;
    Ok(status)
}

/// Returns once the program is asked to stop.
async fn stopped() -> Result<Status> {
    Err(CommandFailure::stopped(terminal::stopped().await))
}
