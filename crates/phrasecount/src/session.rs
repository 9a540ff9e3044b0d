//! The commands: each combines parts of the pipeline.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use console::terminal;

use crate::arguments::{Command, Files, TOP};
use crate::corpus::Corpus;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::load::load;
use crate::progress::{Progress, Tally};
use crate::report::Report;
use crate::stats::stats;
use crate::top;
use crate::work::{self, Workers};

/// A run of the program on a store.
pub(crate) struct Session<'a> {
    pub(crate) store: &'a Corpus,
    pub(crate) tally: Arc<Tally>,
    pub(crate) progress: Progress,
}

impl Session<'_> {
    pub(crate) async fn execute(&self, command: Command) -> Result<Report> {
        let mut report = Report::default();
        match command {
            Command::Run {
                files,
                out,
                workers,
            } => {
                self.run(&files, &out.out, workers.workers, &mut report)
                    .await?;
            }
            Command::Load { files } => {
                let load = load(self.store, &files.directory, files.choice(), &self.progress);
                report.loaded(&until_stopped(load).await?);
            }
            Command::Work {
                workers,
                until_idle,
            } => {
                self.work(workers.workers, until_idle).await?;
                report.phrases_counted(self.tally.phrases_moved());
            }
            Command::Export { out, until_idle } => {
                self.export(&out.out, until_idle).await?;
                report.counts_exported(self.tally.counts_exported());
            }
            Command::Top { count } => report.top(&top::top(self.store, count).await?),
            Command::Get { phrase } => report.count(top::get(self.store, &phrase).await?),
            Command::Stats => stats(self.store, &mut report).await?,
        }
        Ok(report)
    }

    /// Loads, counts and exports at the same time, until everything is done.
    async fn run(
        &self,
        files: &Files,
        out: &Path,
        workers: u16,
        report: &mut Report,
    ) -> Result<()> {
        let environment = self.store.runner.environment();
        let begun = environment.now();
        let export = Export::start(self.store, out, &self.tally, &self.progress).await?;
        let table = export.table.clone();
        let workers =
            Workers::start(self.store, workers.into(), &self.tally, &self.progress).await?;
        let job = Box::pin(async {
            let choice = files.choice();
            let loaded = load(self.store, &files.directory, choice, &self.progress).await?;
            work::wait_idle(self.store, &self.tally, &self.progress).await?;
            export
                .wait_idle(self.store, &self.tally, &self.progress)
                .await?;
            Ok(loaded)
        });
        let loaded = until_stopped(export.unless_it_fails(self.store, job)).await;
        if is_orderly(&loaded) {
            self.shut_down(async {
                workers.shut_down().await?;
                export.shut_down().await
            })
            .await?;
        }
        let loaded = loaded?;
        report.top(&table.top(TOP)?);
        report.loaded(&loaded);
        report.phrases_counted(self.tally.phrases_moved());
        report.counts_exported(self.tally.counts_exported());
        let seconds = environment.now().saturating_sub(begun).as_secs_f64();
        report.rate(loaded.bytes, seconds);
        Ok(())
    }

    async fn work(&self, workers: u16, until_idle: bool) -> Result<()> {
        let workers =
            Workers::start(self.store, workers.into(), &self.tally, &self.progress).await?;
        let worked = until_stopped(async {
            if until_idle {
                return work::wait_idle(self.store, &self.tally, &self.progress).await;
            }
            self.progress.line("working until Ctrl-C or SIGTERM");
            std::future::pending().await
        });
        let worked = worked.await;
        if is_orderly(&worked) {
            self.shut_down(workers.shut_down()).await?;
        }
        worked
    }

    async fn export(&self, out: &Path, until_idle: bool) -> Result<()> {
        let export = Export::start(self.store, out, &self.tally, &self.progress).await?;
        let job = Box::pin(async {
            if until_idle {
                let idle = export.wait_idle(self.store, &self.tally, &self.progress);
                return idle.await;
            }
            self.progress.line("exporting until Ctrl-C or SIGTERM");
            std::future::pending().await
        });
        let exported = until_stopped(export.unless_it_fails(self.store, job)).await;
        if is_orderly(&exported) {
            self.shut_down(export.shut_down()).await?;
        }
        exported
    }

    /// Lets the workers finish.
    async fn shut_down(&self, shut_down: impl Future<Output = Result<()>>) -> Result<()> {
        let told = async {
            self.progress.detail(|| "stopping: Ctrl-C stops at once");
            shut_down.await
        };
        unless_stopped_again(Box::pin(told)).await
    }
}

/// Runs a job until it ends or until the program is asked to stop. Committed work is kept.
async fn until_stopped<T>(job: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        // The signals are polled first, so that they are handled before the job reports that it has begun. If they
        // cannot be handled, there is nothing to wait for.
        biased;
        Ok(stop) = terminal::stopped() => Err(Error::Stopped(stop)),
        done = job => done,
    }
}

/// Runs the end of the program, which a second signal cuts short: the store may be gone, and the end would wait for it.
pub(crate) async fn unless_stopped_again(end: impl Future<Output = Result<()>>) -> Result<()> {
    match until_stopped(end).await {
        Err(Error::Stopped(stop)) => Err(Error::StoppedAgain(stop)),
        ended => ended,
    }
}

/// Returns whether a job ended in a way that lets the workers and the store be shut down. After a failure they are
/// dropped instead, because shutting them down would fail again.
pub(crate) fn is_orderly<T>(done: &Result<T>) -> bool {
    matches!(
        done,
        Ok(_) | Err(Error::Stopped(_) | Error::Displaced { .. } | Error::Listen { .. })
    )
}
