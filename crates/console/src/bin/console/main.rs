//! Sees and changes every queue of a store.
//!
//! ```sh
//! cargo run --release -p fdbq-console -- queues --db embedded:jobs.keyspace
//! ```
//!
//! Exit status: 0 done, 1 failed, 2 the command is wrong, 3 there is no such queue, item or key, 4 an audit or a check
//! found something, 5 the store is open in another process, and cannot be joined, 130 stopped by Ctrl-C, 143 stopped
//! by `SIGTERM`.

// What a command prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod bulk;
mod check;
mod commands;
mod failure;
mod limit_options;
mod output;
mod thread;

use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;

use console::{Console, terminal};
use export_queue::keyspace::embedded::{self, Role, Sharing};
use export_queue::keyspace::url::StoreUrl;
use export_queue::keyspace::{self, RunOptions, Runner, Store};
use tokio::runtime::{self, Runtime};

use crate::arguments::{Arguments, Command};
use crate::failure::{CommandFailure, Result, Status};
use crate::thread::on_thread;

fn main() -> ExitCode {
    let arguments: Arguments = terminal::parse();
    let outcome = start(&arguments.command).and_then(|runtime| {
        let outcome = runtime.block_on(execute(arguments));
        // What still runs ends with the process. The end of the runtime would make a task panic that is about to sleep.
        std::mem::forget(runtime);
        outcome
    });
    let status = outcome.unwrap_or_else(|failure| {
        terminal::tell_error(&failure);
        failure.status()
    });
    status.into()
}

/// Starts the runtime of a command. A command is done on the thread of the program; requests for pages are answered on
/// as many threads as the machine has cores.
fn start(command: &Command) -> Result<Runtime> {
    let mut runtime = match command {
        Command::Serve(_) => {
            let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
            terminal::check_threads(threads).map_err(CommandFailure::Threads)?;
            let mut runtime = runtime::Builder::new_multi_thread();
            runtime.worker_threads(threads);
            runtime
        }
        _ => runtime::Builder::new_current_thread(),
    };
    runtime
        .enable_all()
        .build()
        .map_err(CommandFailure::Runtime)
}

/// Opens the store of a URL, if there is anything to see in it. Unless this process `owns` an embedded store as
/// applications do, it is a viewer, and says so if it owns the store because no other process has it open.
fn open(db: &str, owns: bool, json: bool) -> Result<Store> {
    let path = match db.parse() {
        Ok(StoreUrl::Memory) => return Err(CommandFailure::Memory),
        Ok(StoreUrl::Embedded { path }) => path,
        _ => return keyspace::open_existing(db).map_err(CommandFailure::open),
    };
    let sharing = if owns { Sharing::Share } else { Sharing::Yield };
    let options = embedded::Options::new().with_sharing(sharing);
    let store = options.open_existing(path).map_err(CommandFailure::open)?;
    if store.role() == Role::Owner && !owns && !json {
        terminal::tell(
            "no other process has the store open: this one owns it until an application opens it\n",
        );
    }
    Ok(store.into())
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
    let owns = match &command {
        Command::Own => true,
        Command::Serve(options) => options.own,
        _ => false,
    };
    let store = open(db, owns, options.json)?;
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
        // A signal ends the wait for a disk that hangs. Without a thread for it, nothing does.
        let closing = store.clone();
        let ended = on_thread(move || closing.close()).await;
        ended.unwrap_or_else(|_| store.close()).and(closed)
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
