//! Runs an example on a store, with the console beside it if that is wanted.
//!
//! Exit status: 0 if the example showed what it claims, 1 if `relay` found that a line did not arrive exactly once and
//! in order, 2 if the example could not run.

// What it prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use console::terminal::{self, Stop, parse_address};
use console::{Console, Mounted, WebOptions};
use examples::{append, inverted_index, payments, relay, rollup, word_count};
use keyspace::{Runner, Store, Subspace};

/// Runs an example, which checks what it shows
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    example: Example,

    /// The store: `memory:`, `embedded:<path>`, `fdb:` or `fdb:<cluster file>`
    #[arg(long, global = true, value_name = "URL", default_value = "memory:")]
    db: String,

    /// Serves the console at this address. Examples but `relay` are then repeated until Ctrl-C
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = parse_address)]
    console: Option<SocketAddr>,
}

#[derive(Subcommand)]
enum Example {
    /// Many writers append to one text without reading it (combine)
    Append,
    /// An observer keeps an index in step with the values (combine)
    InvertedIndex,
    /// Acknowledges a payment and enqueues its receipt in one transaction (hc-dequeue)
    Payments,
    /// Sends every line of the text files in a directory through a queue (microqueue)
    Relay(relay::Arguments),
    /// A measure by x, y and time, with all its sums (combine)
    Rollup,
    /// Counts the words of documents that change (combine)
    WordCount,
}

impl Example {
    /// Runs the example. Returns whether it showed what it claims.
    async fn run(&self, runner: &Runner<Store>) -> anyhow::Result<bool> {
        let root = |name| Subspace::from(name);
        match self {
            Self::Append => append::run(runner, &root("append")).await?,
            Self::InvertedIndex => inverted_index::run(runner, &root("inverted_index")).await?,
            Self::Payments => payments::run(runner, &root("shop")).await?,
            Self::Relay(arguments) => return Ok(relay::run(runner, arguments).await?),
            Self::Rollup => rollup::run(runner, &root("rollup")).await?,
            Self::WordCount => word_count::run(runner, &root("word_count")).await?,
        }
        Ok(true)
    }

    /// Runs the example again and again until Ctrl-C. The last run is not cut short, since the next one starts from
    /// what it leaves.
    async fn repeat(
        &self,
        runner: &Runner<Store>,
        stopped: impl Future<Output = io::Result<Stop>> + Send + 'static,
    ) -> anyhow::Result<bool> {
        let stopped = tokio::spawn(stopped);
        let mut holds = true;
        while holds && !stopped.is_finished() {
            holds = self.run(runner).await?;
        }
        Ok(holds)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(terminal::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            terminal::tell(terminal::line(format_args!("error: {error:#}")) + "\n");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let store = keyspace::open(&arguments.db).context("cannot open the store")?;
    let runner = &Runner::new(store.clone());
    let pages = match arguments.console {
        None => None,
        Some(address) => {
            let console = Console::new(runner);
            let pages = console::mount(console, address, WebOptions::new())
                .await
                .with_context(|| format!("cannot serve the console at {address}"))?;
            Some(pages)
        }
    };
    let address = pages.as_ref().map(Mounted::address);
    let print = |address| terminal::print(format_args!("the console is at http://{address}\n"));
    let holds = match (arguments.example, address) {
        (example, None) => example.run(runner).await?,
        (example @ Example::Relay(_), Some(address)) => {
            print(address)?;
            example.run(runner).await?
        }
        (example, Some(address)) => {
            // From now on, Ctrl-C does not end the process by itself.
            let stopped = terminal::stopped();
            print(address)?;
            example.repeat(runner, stopped).await?
        }
    };
    runner.close().await?;
    store.close()?;
    Ok(holds)
}
