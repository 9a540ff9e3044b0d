//! Exporting: the counts go to a SQLite file.
//!
//! A store exports to one file. Another one takes its place: it gets a subscription of its own, is
//! filled with what was counted before, and the subscription of the former file is removed, which
//! would hold the log back: whoever exports to that file ends.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use export_queue::{
    BoxError, ExportOptions, Exporter, Sequence, SequencedExport, Start, Subscription, Worker,
    WorkerOptions, async_trait,
};
use tokio::sync::{Mutex, mpsc};
use tokio::task::spawn_blocking;

use crate::corpus::{Corpus, Count, REST, random_id};
use crate::error::{Error, Result};
use crate::keyspace::error::chain;
use crate::keyspace::{Bytes, Transaction};
use crate::progress::{Progress, Tally};
use crate::sqlite::{Row, SequenceBytes, Table};
use crate::top::{Page, page};
use crate::work::GRACE;

/// How many buckets are read while one batch is written: SQLite has one writer.
const BUCKETS_AT_ONCE: usize = 2;

/// How many bytes of counts go into one transaction of SQLite, in the order of their phrases: the more,
/// the more of them lie on the same page of the file.
const BYTES_PER_BATCH: usize = 4 << 20;

/// Writes batches into the file.
struct ToSqlite {
    table: Table,
    /// What does not pass by itself, such as a full disk.
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
        let mut rows: Vec<_> = batch.iter().map(row).collect();
        rows.sort_by(|a, b| a.phrase.cmp(&b.phrase));
        let table = self.table.clone();
        match spawn_blocking(move || table.take(&rows)).await? {
            Ok(()) => {}
            Err(error @ Error::Locked { .. }) => {
                self.progress
                    .line(format_args!("will be tried again: {}", chain(&error)));
                return Err(error.into());
            }
            Err(error) => {
                let problem = chain(&error).to_string();
                // If there is nobody to tell, the program has come to its end.
                let _ = self.failures.send(error);
                return Err(problem.into());
            }
        }
        self.tally.exported(batch.len());
        self.progress
            .detail(|| format!("exported {} counts", batch.len()));
        Ok(())
    }
}

/// This process's export to a file.
pub(crate) struct Export {
    pub(crate) table: Table,
    path: PathBuf,
    subscription: Subscription<String, Option<Count>>,
    worker: Worker,
    failures: Mutex<mpsc::UnboundedReceiver<Error>>,
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
        // From here on, and not before, the file gets everything that changes.
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
        let options = ExportOptions::new()
            .worker(WorkerOptions::new().concurrency(BUCKETS_AT_ONCE))
            .bytes_per_batch(BYTES_PER_BATCH)
            .batch_interval(REST)
            .coalesce(true);
        let (failed, failures) = mpsc::unbounded_channel();
        let exporter = ToSqlite {
            table: table.clone(),
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
            failures: Mutex::new(failures),
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

    /// Does something until it is done, the file cannot be written, or another one takes its place.
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
        Ok(self.worker.shut_down(GRACE).await?)
    }
}

/// Writes into the file what is in the counts. A count gets the sequence after the version that it was
/// read at: it is newer than every export from before, and older than every one that is to come.
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
        let (rows, table): (Vec<_>, _) = (rows.collect(), table.clone());
        let is_last = rows.is_empty();
        let begin = begin.filter(|_| is_last);
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
    // What is reported meanwhile is exported after this.
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
        let (tally, progress) = (Arc::default(), Progress::new(true, false));
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
