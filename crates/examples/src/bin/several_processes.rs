//! A web process and worker processes share one embedded store, without a server for it. In four terminals:
//!
//! ```console
//! $ cargo run -p examples --bin several_processes -- web
//! $ cargo run -p examples --bin several_processes -- work
//! $ cargo run -p examples --bin several_processes -- work
//! $ curl -X POST 'http://127.0.0.1:8080/enqueue?name=17.png' && curl http://127.0.0.1:8080/done
//! ```
//!
//! # When a process ends
//!
//! The first process owns the file `jobs.keyspace`, and the others are its clients. Each of them may be the owner.
//!
//! | | is killed | is stopped by Ctrl-C or `SIGTERM` |
//! |---|---|---|
//! | the web process | requests without an answer may have enqueued their jobs, or not | it answers its requests |
//! | a worker | its jobs return to the queue after a lease, two seconds | it completes the jobs that it has begun |
//! | the owner | a client recovers the store, and owns it | it hands the store over to a client |
//!
//! No acknowledged job is lost, and each takes effect exactly once:
//!
//! - A job is acknowledged after its commit, and takes effect in the transaction that completes it.
//! - The name of a job is its dedupe id: a caller may repeat a request that failed, and the job is enqueued once.
//! - The other processes wait for the next owner. [`Runner::run`] and the workers retry their transactions.
//!
//! A deployment therefore restarts one process after the other, in any order, while the others continue. The process
//! that ends last leaves a single file.
//!
//! # What it does not do
//!
//! - It does not restart processes: a service manager does. After the disk has failed, restart all of them.
//! - It keeps the name of a job for one day after the job is completed. After that, the name is another job.
//! - It does not replace an owner that hangs, as after `SIGSTOP`: the others wait until it continues or is killed.
//! - It does not run on several machines, nor in several processes on Windows. On a cluster, with `--db fdb:`, it does.

// What it prints goes through `terminal`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use clap::{Parser, Subcommand};
use console::terminal;
use futures::FutureExt;
use hc_dequeue::{Delivery, Enqueue, Error, Queue, Settings, WorkerOptions};
use keyspace::{Isolation, MutationOp, OpenOptions, Runner, Store, Subspace, Transaction, Tx};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Takes jobs over HTTP, or does them. All processes share one store
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,

    /// The store: `embedded:<path>`, `fdb:` or `fdb:<cluster file>`
    #[arg(long, global = true, default_value = "embedded:jobs.keyspace")]
    db: String,
}

#[derive(Subcommand)]
enum Role {
    /// Enqueues a job: `POST /enqueue?name=<name>`. Counts those that are done: `GET /done`
    Web {
        /// The address to listen at
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Does the jobs
    Work,
}

/// The store and its queue, as each process opens them. Clones share them.
#[derive(Clone)]
struct Jobs {
    runner: Runner<Store>,
    queue: Queue<String>,
}

/// Creates the queue, or opens it.
async fn open(store: Store) -> hc_dequeue::Result<Jobs> {
    let runner = Runner::new(store);
    let settings = Settings::new()
        .with_lease(Duration::from_secs(2))
        .with_dedupe_retention(Duration::from_secs(24 * 60 * 60));
    let queue = Queue::open_with(&runner, "jobs", settings, OpenOptions::default()).await?;
    Ok(Jobs { runner, queue })
}

/// Returns the subspace that counts the jobs that took effect: in `"all"`, and each in `"name" / name`.
fn done() -> Subspace {
    Subspace::from("done")
}

/// Does a job in the transaction that completes it. Here, it only counts the job.
async fn do_job(tr: impl Transaction, job: Delivery<String>) {
    for counter in [done().pack(&"all"), done().pack(&("name", job.value()))] {
        tr.atomic(MutationOp::Add, &counter, &1_u64.to_le_bytes());
    }
}

#[derive(Deserialize)]
struct Job {
    name: String,
}

/// Returns the answer to a request that failed.
fn failure(error: Error) -> (StatusCode, String) {
    let status = match error {
        Error::DedupeId { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}

type Answer = Result<String, (StatusCode, String)>;

async fn enqueue(State(jobs): State<Jobs>, Query(job): Query<Job>) -> Answer {
    let once = Enqueue::new().with_dedupe(job.name.clone());
    let enqueued = jobs.queue.submit_with(&jobs.runner, &job.name, &once).await;
    // A job that was enqueued before is acknowledged again.
    enqueued
        .map(|_job| "enqueued\n".to_owned())
        .map_err(failure)
}

async fn count_done(State(jobs): State<Jobs>) -> Answer {
    let read = async |tr: Tx<_>| {
        let stored = tr.get(&done().pack(&"all"), Isolation::Serializable);
        Ok::<_, Error>(stored.await?)
    };
    let stored = jobs.runner.run(read).await.map_err(failure)?;
    let count = stored.map_or(0, |count| {
        u64::from_le_bytes(count[..].try_into().expect("only `Add` writes it"))
    });
    Ok(format!("{count}\n"))
}

/// Serves until the process is asked to stop, and then answers the requests that it has.
async fn serve(jobs: &Jobs, address: SocketAddr, stopped: JoinHandle<()>) -> anyhow::Result<()> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.with_context(|| format!("cannot listen at {address}"))?;
    let address = listener.local_addr()?;
    terminal::print(format_args!("listening at http://{address}\n"))?;
    let pages = Router::new()
        .route("/enqueue", post(enqueue))
        .route("/done", get(count_done))
        .with_state(jobs.clone());
    let server = axum::serve(listener, pages);
    Ok(server.with_graceful_shutdown(stopped.map(drop)).await?)
}

/// Does jobs until the process is asked to stop, and then completes those that it has begun.
async fn work(jobs: &Jobs, stopped: JoinHandle<()>) -> anyhow::Result<()> {
    let Jobs { runner, queue } = jobs;
    let handler = |tr: Tx<_>, job| do_job(tr, job);
    let worker = queue.process(runner, WorkerOptions::new(), handler).await?;
    terminal::print("working\n")?;
    stopped.await?;
    worker.shut_down(Duration::from_secs(10)).await?;
    Ok(())
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    // From now on, a signal does not end the process by itself.
    let signals = terminal::stopped();
    let stopped = tokio::spawn(async {
        if let Err(error) = signals.await {
            terminal::tell_error(&error);
        }
    });
    let store = keyspace::open(&arguments.db).context("cannot open the store")?;
    let jobs = open(store.clone()).await?;
    match arguments.role {
        Role::Web { listen } => serve(&jobs, listen, stopped).await?,
        Role::Work => work(&jobs, stopped).await?,
    }
    jobs.runner.close().await?;
    // Hands an embedded store over, if this process owns it.
    Ok(store.close()?)
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = run(terminal::parse()).await {
        terminal::tell_error(error.as_ref());
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}
