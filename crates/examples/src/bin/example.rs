//! Runs an example on a store, with the console beside it if that is wanted.
//!
//! Exit status: 0 if the example showed what it claims, 2 if it could not run.

// What it prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use console::terminal::{self, Stop, parse_address};
use console::{Console, WebOptions};
use examples::{inverted_index, payments};
use keyspace::{Runner, Store, Subspace};

/// Runs an example, which checks what it shows
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    example: Example,

    /// The store: `memory:`, `embedded:<path>`, `fdb:` or `fdb:<cluster file>`
    #[arg(long, global = true, value_name = "URL", default_value = "memory:")]
    db: String,

    /// Serves the console at this address, and repeats the example until Ctrl-C
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = parse_address)]
    console: Option<SocketAddr>,
}

#[derive(Subcommand)]
enum Example {
    /// An observer keeps an index in step with the values (combine)
    InvertedIndex,
    /// Acknowledges a payment and enqueues its receipt in one transaction (hc-dequeue)
    Payments,
}

impl Example {
    async fn run(&self, runner: &Runner<Store>) -> anyhow::Result<()> {
        match self {
            Self::InvertedIndex => {
                inverted_index::run(runner, &Subspace::from("inverted_index")).await?;
            }
            Self::Payments => payments::run(runner, &Subspace::from("shop")).await?,
        }
        Ok(())
    }

    /// Runs the example again and again until Ctrl-C. The last run is not cut short, since the next one starts from
    /// what it leaves.
    async fn repeat(
        &self,
        runner: &Runner<Store>,
        stopped: impl Future<Output = io::Result<Stop>> + Send + 'static,
    ) -> anyhow::Result<()> {
        let stopped = tokio::spawn(stopped);
        while !stopped.is_finished() {
            self.run(runner).await?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(terminal::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::tell(terminal::line(format_args!("error: {error:#}")) + "\n");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let store = keyspace::open(&arguments.db).context("cannot open the store")?;
    let runner = &Runner::new(store.clone());
    match arguments.console {
        None => arguments.example.run(runner).await?,
        Some(address) => {
            let pages = console::mount(Console::new(runner), address, WebOptions::new())
                .await
                .with_context(|| format!("cannot serve the console at {address}"))?;
            // From now on, Ctrl-C does not end the process by itself.
            let stopped = terminal::stopped();
            let address = pages.address();
            terminal::print(format_args!("the console is at http://{address}\n"))?;
            arguments.example.repeat(runner, stopped).await?;
        }
    }
    runner.close().await?;
    store.close()?;
    Ok(())
}
