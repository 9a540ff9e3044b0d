//! A long import survives a deployment: the worker that has begun it is shut down, and another one goes on.
//!
//! Each transaction imports some rows and says how far the import is. A step mails that it is done, once.
//!
//! `cargo run -p examples --example import` runs it in memory. With a URL it runs there: `embedded:import.keyspace` or
//! `fdb:`.

use std::future::pending;
use std::time::Duration;

use export_queue::BoxError;
use export_queue::hc_dequeue::{Delivery, Handler, Queue, Settings, Status, Worker, WorkerOptions};
use export_queue::keyspace::{
    self, Database, Isolation, OpenOptions, RangeQuery, Runner, Subspace, Transaction, Tx,
};

const ROWS: u64 = 5_000;

/// How many rows a transaction imports.
const AT_ONCE: u64 = 1_000;

/// Where the file server hangs, until a deployment repairs it.
const HANGS_AT: u64 = 3_000;

/// Imports files.
struct Importer<D: Database> {
    runner: Runner<D>,
    table: Subspace,
    mails: Queue<String>,
    /// Whether this version reads the whole file.
    is_repaired: bool,
}

impl<D: Database> Importer<D> {
    /// Stands for a file server.
    async fn read(&self, file: &str, from: u64) -> Vec<String> {
        if from == HANGS_AT && !self.is_repaired {
            pending::<()>().await;
        }
        let rows = from..ROWS.min(from + AT_ONCE);
        rows.map(|row| format!("row {row} of {file}")).collect()
    }
}

impl<D: Database> Handler<String> for Importer<D> {
    type Output = Result<(), BoxError>;

    /// Handles a job: its value is the name of the file.
    async fn handle(&self, job: Delivery<String>) -> Self::Output {
        let table = &self.table;
        let mut next: u64 = job.checkpoint_as()?.unwrap_or(0);
        println!("{} goes on at row {next}", job.value());
        while next < ROWS {
            let rows = &self.read(job.value(), next).await;
            let end = next + rows.len() as u64;
            let import_some = async |tr: Tx<_>| {
                for (number, row) in (next..).zip(rows) {
                    tr.set(&table.pack(&number), row.as_bytes());
                }
                job.set_checkpoint_as(&tr, &end).await?;
                job.set_progress(&tr, end, ROWS, "importing").await
            };
            self.runner.run(import_some).await?;
            next = end;
            job.keep_alive()?;
        }
        let report = async |tr: Tx<_>| {
            let mail = &format!("{} is imported", job.value());
            self.mails.enqueue(&tr, mail).await.map(drop)
        };
        Ok(job.step("report", report).await?)
    }
}

/// Starts a version of the application.
async fn deploy<D: Database>(
    runner: &Runner<D>,
    root: &Subspace,
    is_repaired: bool,
) -> Result<(Queue<String>, Worker<String>), BoxError> {
    let importer = Importer {
        runner: runner.clone(),
        table: root.subspace(&"table"),
        mails: Queue::open(runner, root.subspace(&"mails")).await?,
        is_repaired,
    };
    let settings = Settings::new().with_keep_done(Duration::from_secs(3_600));
    let subspace = root.subspace(&"imports");
    let imports = Queue::open_with(runner, subspace, settings, OpenOptions::new()).await?;
    let worker = imports
        .work_by(runner, WorkerOptions::new(), importer)
        .await?;
    Ok((imports, worker))
}

pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let (imports, worker) = deploy(runner, root, false).await?;
    let item = imports.submit(runner, &"customers.csv".to_owned()).await?;
    let progress = async || {
        let read = async |tr: Tx<_>| imports.status(&tr, &item).await;
        let status: Option<Status<String>> = runner.run(read).await?;
        let said = status.and_then(|status| status.progress);
        Ok::<_, BoxError>(said.map_or(0, |said| said.done))
    };
    while progress().await? < HANGS_AT {
        tokio::task::yield_now().await;
    }
    println!("{} of {ROWS} rows are imported", progress().await?);
    // The handler still waits for the file server.
    worker.shut_down(Duration::ZERO).await?;

    let (_, worker) = deploy(runner, root, true).await?;
    imports.await_done(runner, &item).await?;
    worker.shut_down(Duration::from_secs(5)).await?;
    assert_eq!(progress().await?, ROWS);
    let (begin, end) = root.subspace(&"table").range();
    let rows = async |tr: Tx<_>| {
        let query = RangeQuery::keys(begin.clone(), end.clone());
        keyspace::read_all(&tr, query, Isolation::Snapshot).await
    };
    assert_eq!(runner.run(rows).await?.len() as u64, ROWS);
    let mails = Queue::<String>::open(runner, root.subspace(&"mails")).await?;
    let mailed = async |tr: Tx<_>| mails.len(&tr).await;
    assert_eq!(runner.run(mailed).await?, 1);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1);
    let store = keyspace::open(url.as_deref().unwrap_or("memory:"))?;
    let runner = Runner::new(store.clone());
    run(&runner, &Subspace::from("import")).await?;
    runner.close().await?;
    Ok(store.close()?)
}
