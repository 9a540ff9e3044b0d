//! Exporting: writes the counts to a SQLite file.
//!
//! A store exports to one file. If an export names another file, that file takes over: it gets its own subscription and
//! is filled with the existing counts. The subscription of the previous file is removed, because it would keep the log
//! from being trimmed, and an export to the previous file ends with an error.

use std::future::Future;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use export_queue::{
    BoxError, Exporter, Sequence, SequencedExport, Start, Subscription, Worker, WorkerOptions,
    async_trait,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_blocking;

use crate::corpus::{Corpus, Count, random_id};
use crate::error::{Error, Result};
use crate::keyspace::error::chain;
use crate::keyspace::{Bytes, Environment, Transaction};
use crate::progress::{Progress, Tally};
use crate::sqlite::{Row, SequenceBytes, Table};
use crate::top::{Page, page};
use crate::work::GRACE;

/// How many buckets are exported at the same time.
const BUCKETS_AT_ONCE: usize = 16;

/// How many bytes of counts a batch of a bucket has.
const BYTES_PER_BATCH: usize = 256 << 10;

/// How long a transaction of SQLite waits for batches of other buckets. In a larger transaction, more rows share a
/// page of the file, which saves two thirds of the bytes written. While there is much to export, the next batches come
/// in this time. At the end none comes, and the time is lost.
const GATHERING: Duration = Duration::from_millis(30);

/// A batch that waits to be written.
struct Batch {
    rows: Vec<Row>,
    done: oneshot::Sender<Result<(), String>>,
}

/// Writes batches to the file. A transaction of SQLite takes all batches that arrived before it began, in the order of
/// their phrases.
struct ToSqlite {
    env: Environment,
    table: Table,
    waiting: Mutex<Vec<Batch>>,
    /// Notified when the number of waiting batches equals the number of buckets exported at the same time: no more
    /// can come.
    all_wait: Notify,
    /// Held while a batch writes.
    turn: tokio::sync::Mutex<()>,
    /// A failure that a retry does not cure, such as a full disk.
    failures: mpsc::UnboundedSender<Error>,
    tally: Arc<Tally>,
    progress: Progress,
}

#[async_trait]
impl Exporter<String, Option<Count>> for ToSqlite {
    async fn export(
        &self,
        batch: &[SequencedExport<String, Option<Count>>],
    ) -> Result<(), BoxError> {
        let row = |export: &SequencedExport<String, Option<Count>>| Row {
            phrase: export.key.clone(),
            count: export.value,
            sequence: export.sequence.to_bytes(),
        };
        let rows = batch.iter().map(row).collect();
        let (done, written) = oneshot::channel();
        let waiting = {
            let mut waiting = self.waiting.lock();
            waiting.push(Batch { rows, done });
            waiting.len()
        };
        if waiting == BUCKETS_AT_ONCE {
            self.all_wait.notify_one();
        }
        let turn = self.turn.lock().await;
        if written.is_empty() {
            self.write().await;
        }
        drop(turn);
        written.await??;
        self.tally.exported(batch.len());
        self.progress
            .detail(|| format!("exported {} counts", batch.len()));
        Ok(())
    }
}

impl ToSqlite {
    /// Writes the waiting batches, and reports the outcome to each.
    async fn write(&self) {
        // Wait until the time is over or all batches that can come are there.
        let _ = self.env.timeout(GATHERING, self.all_wait.notified()).await;
        let waiting = mem::take(&mut *self.waiting.lock());
        let mut rows = Vec::with_capacity(waiting.iter().map(|batch| batch.rows.len()).sum());
        let mut done = Vec::new();
        for batch in waiting {
            rows.extend(batch.rows);
            done.push(batch.done);
        }
        rows.sort_unstable_by(|a, b| a.phrase.cmp(&b.phrase));
        let table = self.table.clone();
        let written = spawn_blocking(move || table.take(&rows))
            .await
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let result = written.map_err(|error| self.report(error));
        for done in done {
            // If the batch has reached its time limit, nothing receives this, and it is exported again.
            let _ = done.send(result.clone());
        }
    }

    /// Reports why the file was not written, and returns the reason as text.
    fn report(&self, error: Error) -> String {
        let problem = chain(&error).to_string();
        match error {
            Error::Locked { .. } => {
                let line = format_args!("trying again: {problem}");
                self.progress.line(line);
            }
            // If nothing receives it, the program is already ending.
            error => drop(self.failures.send(error)),
        }
        problem
    }
}

/// The export of this process to a file.
pub(crate) struct Export {
    pub(crate) table: Table,
    path: PathBuf,
    subscription: Subscription<String, Option<Count>>,
    worker: Worker,
    failures: tokio::sync::Mutex<mpsc::UnboundedReceiver<Error>>,
}

impl Export {
    /// Opens the file and begins to export to it.
    pub(crate) async fn start(
        store: &Corpus,
        path: &Path,
        tally: &Arc<Tally>,
        progress: &Progress,
    ) -> Result<Self> {
        let (table, origin) = Table::open(path, &store.id, &random_id(&store.runner))?;
        let name = &*origin.subscription;
        let look = |tr| async move { store.exports.subscriptions(&tr).await };
        let subscriptions = store.runner.run(look).await?;
        let is_known = subscriptions.iter().any(|other| other == name);
        if !is_known {
            table.begin_to_fill()?;
        }
        // From here on, the file gets every change.
        let subscription = store
            .exports
            .subscribe(&store.runner, name, Start::Oldest)
            .await?;
        for other in subscriptions.iter().filter(|other| *other != name) {
            let remove = |tr| async move { store.exports.unsubscribe(&tr, other).await };
            store.runner.run(remove).await?;
        }
        if !is_known || !origin.is_filled {
            fill(store, &table).await?;
        }
        let options = WorkerOptions::new()
            .with_concurrency(BUCKETS_AT_ONCE)
            .with_max_batch_bytes(BYTES_PER_BATCH)
            .with_coalesce(true);
        let (failed, failures) = mpsc::unbounded_channel();
        let exporter = ToSqlite {
            env: store.runner.environment().clone(),
            table: table.clone(),
            waiting: Mutex::default(),
            all_wait: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            failures: failed,
            tally: tally.clone(),
            progress: progress.clone(),
        };
        let worker = subscription.work(&store.runner, options, exporter).await?;
        Ok(Self {
            table,
            path: path.to_owned(),
            subscription,
            worker,
            failures: tokio::sync::Mutex::new(failures),
        })
    }

    /// Waits until everything that was queued is in the file.
    pub(crate) async fn wait_idle(
        &self,
        store: &Corpus,
        tally: &Tally,
        progress: &Progress,
    ) -> Result<()> {
        let phase = progress.phase("exporting", 0);
        match self.subscription.wait_idle(&store.runner).await {
            Err(export_queue::Error::NoSubscription { .. }) => return Err(self.displaced()),
            idle => idle?,
        }
        phase.finish(&format!("exported: {} counts", tally.counts_exported()));
        Ok(())
    }

    /// Runs a job until it ends, the file cannot be written, or another file takes over.
    pub(crate) async fn unless_it_fails<T>(
        &self,
        store: &Corpus,
        job: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut failures = self.failures.lock().await;
        let removed = Box::pin(self.subscription.wait_removed(&store.runner));
        tokio::select! {
            done = job => done,
            Some(failure) = failures.recv() => Err(failure),
            removed = removed => {
                removed?;
                Err(self.displaced())
            }
        }
    }

    fn displaced(&self) -> Error {
        let path = self.path.clone();
        Error::Displaced { path }
    }

    pub(crate) async fn shut_down(self) -> Result<()> {
        self.worker.shut_down(GRACE).await?;
        Ok(())
    }
}

/// Writes the existing counts to the file. A count gets the sequence after the version that it was read at, so it is
/// newer than every earlier export and older than every later one.
async fn fill(store: &Corpus, table: &Table) -> Result<()> {
    let mut after: Option<Bytes> = None;
    let mut begin = None;
    loop {
        let last = after.as_deref();
        let look = |tr| async move { read_counts(store, &tr, last).await };
        let (sequence, page) = store.runner.run(look).await?;
        begin = begin.or(Some(sequence));
        after = page.last;
        let rows = page.counts.into_iter().map(|(phrase, count)| Row {
            phrase,
            count: Some(count),
            sequence,
        });
        let rows: Vec<_> = rows.collect();
        let table = table.clone();
        let is_last = rows.is_empty();
        let begin = if is_last { begin } else { None };
        let write = spawn_blocking(move || match begin {
            None => table.take(&rows),
            Some(begin) => table.end_to_fill(&begin),
        });
        match write.await {
            Ok(written) => written?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Reads the counts after a key, with the sequence after the version that they are read at.
async fn read_counts(
    store: &Corpus,
    tr: &impl Transaction,
    after: Option<&[u8]>,
) -> Result<(SequenceBytes, Page)> {
    let sequence = Sequence::after_version(tr.read_version().await?);
    // A snapshot read is safe: a count that is reported meanwhile is exported later.
    Ok((sequence.to_bytes(), page(store, tr, after).await?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conformance::timeout;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn who_exports_to_a_file_that_was_displaced_ends() {
        let store = Corpus::open("memory:", Duration::from_secs(60))
            .await
            .unwrap();
        let place = tempfile::tempdir().unwrap();
        let tally = Arc::default();
        let progress = Progress::new(true, false);
        let [former, latter] = ["former", "latter"].map(|name| place.path().join(name));
        let export = Export::start(&store, &former, &tally, &progress)
            .await
            .unwrap();
        let other = Export::start(&store, &latter, &tally, &progress)
            .await
            .unwrap();
        let work = export.unless_it_fails(&store, std::future::pending::<Result<()>>());
        let idle = export.wait_idle(&store, &tally, &progress);
        let long = Duration::from_secs(30);
        let ended = [timeout(long, work).await, timeout(long, idle).await];
        for ended in ended {
            assert!(matches!(ended, Err(Error::Displaced { path }) if path == former));
        }
        other.wait_idle(&store, &tally, &progress).await.unwrap();
    }
}
