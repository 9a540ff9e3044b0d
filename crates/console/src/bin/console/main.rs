//! Sees and changes every queue of a store.
//!
//! ```text
//! cargo run --release -p console -- queues --db embedded:jobs.keyspace
//! ```
//!
//! Exit status: 0 done, 1 failed, 2 asked wrongly, 3 there is no such queue, item or key, 4 an audit found something
//! or the store is open in another process, 130 stopped by Ctrl-C.

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
use crate::failure::{Failure, Result};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::Runtime);
    match runtime.and_then(|runtime| runtime.block_on(execute(arguments))) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // If nothing reads the text, there is the exit status.
            let _ = writeln!(io::stderr(), "error: {}", keyspace::error::chain(&failure));
            ExitCode::from(failure.exit_status())
        }
    }
}

/// Opens the store of a URL, if there is anything to see in it.
fn open(db: &str) -> Result<Store> {
    match db.parse() {
        Ok(StoreUrl::Memory) => Err(Failure::Memory),
        _ => keyspace::open_existing(db).map_err(Failure::open),
    }
}

async fn execute(arguments: Arguments) -> Result<u8> {
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
            outcome = commands::run(&context, command) => outcome,
            stopped = interrupted() => stopped,
        },
    };
    // A change has committed, or it has not: closing loses nothing.
    let closed = runner.close().await;
    store.close()?;
    closed?;
    outcome
}

/// Returns once Ctrl-C was pressed.
async fn interrupted() -> Result<u8> {
    match tokio::signal::ctrl_c().await {
        Ok(()) => Err(Failure::Interrupted),
        Err(error) => Err(Failure::Runtime(error)),
    }
}
