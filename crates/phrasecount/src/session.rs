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
        let end = async {
            workers.shut_down().await?;
            export.shut_down().await
        };
        let loaded = self.shut_down(loaded, end).await?;
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
        })
        .await;
        self.shut_down(worked, workers.shut_down()).await
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
        self.shut_down(exported, export.shut_down()).await
    }

    /// Lets the workers finish after a job.
    async fn shut_down<T>(
        &self,
        done: Result<T>,
        shut_down: impl Future<Output = Result<()>>,
    ) -> Result<T> {
        let end = async {
            self.progress.detail(|| "stopping: Ctrl-C stops at once");
            shut_down.await
        };
        end_after(done, Box::pin(end)).await
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

/// Runs what a second signal cuts short: the store may be gone, and the end of the program would wait for it.
async fn unless_stopped_again<T>(end: impl Future<Output = Result<T>>) -> Result<T> {
    match until_stopped(end).await {
        Err(Error::Stopped(stop)) => Err(Error::StoppedAgain(stop)),
        ended => ended,
    }
}

/// Ends what a job has worked with, and returns what became of the job. After a failure that is dropped instead,
/// because to end it would fail again.
pub(crate) async fn end_after<T>(
    done: Result<T>,
    end: impl Future<Output = Result<()>>,
) -> Result<T> {
    if !is_orderly(&done) {
        return done;
    }
    match (unless_stopped_again(end).await, done) {
        (Ok(()), done) => done,
        (Err(error), Err(Error::Stopped(stop))) if error.is_no_answer() => {
            Err(Error::StoppedInSilence(stop))
        }
        (Err(error), _) => Err(error),
    }
}

/// Returns the error of the disk, if that is why a store gave no answer, and otherwise the error that was given.
pub(crate) async fn explain(store: &Corpus, error: Error) -> Error {
    let cause = async { Ok(store.cause_of_silence(&error).await) };
    match (unless_stopped_again(cause).await, error) {
        (Ok(Some(cause)) | Err(cause), _) => cause,
        // A program that was to stop leaves its work to the next run in any case.
        (Ok(None), Error::StoppedInSilence(stop)) => Error::Stopped(stop),
        (Ok(None), error) => error,
    }
}

/// Returns whether a job ended in a way that lets the workers and the store be shut down.
fn is_orderly<T>(done: &Result<T>) -> bool {
    matches!(
        done,
        Ok(_) | Err(Error::Stopped(_) | Error::Displaced { .. } | Error::Listen { .. })
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use console::terminal::Stop;
    use export_queue::combine::hc_dequeue::NotEnded;

    use super::*;
    use crate::keyspace::{Code, Subspace};

    fn not_ended() -> NotEnded {
        NotEnded {
            recipe: Subspace::from("work"),
            limit: Duration::from_secs(10),
        }
    }

    async fn store() -> Corpus {
        let time_limit = Duration::from_secs(60);
        Corpus::open("memory:", time_limit).await.unwrap()
    }

    #[tokio::test]
    async fn a_stop_stays_a_stop_if_the_store_gives_no_answer_at_the_end() {
        let ends: [Error; 4] = [
            Error::Queue(not_ended().into()),
            Error::Counts(not_ended().into()),
            Error::Exports(not_ended().into()),
            Error::Keyspace(Code::TRANSACTION_TIMED_OUT.into()),
        ];
        for error in ends {
            let done = Err::<(), _>(Error::Stopped(Stop::Terminated));
            let ended = end_after(done, async { Err(error) }).await.unwrap_err();
            assert!(matches!(ended, Error::StoppedInSilence(_)), "{ended:?}");
            assert!(ended.is_no_answer());
            // The store has no error of a disk.
            let explained = explain(&store().await, ended).await;
            let is_stop = matches!(explained, Error::Stopped(Stop::Terminated));
            assert!(is_stop, "{explained:?}");
            assert_eq!(explained.exit_status(), 143);
        }
    }

    #[tokio::test]
    async fn another_failure_at_the_end_is_the_error_and_after_a_failure_nothing_is_ended() {
        let full = || Error::Keyspace(Code::IO_ERROR.into());
        let done = Err::<(), _>(Error::Stopped(Stop::Interrupted));
        let ended = end_after(done, async { Err(full()) }).await;
        assert!(matches!(ended, Err(Error::Keyspace(_))), "{ended:?}");
        let silent = end_after(Ok(()), async { Err(Error::Queue(not_ended().into())) }).await;
        assert!(matches!(silent, Err(Error::Queue(_))), "{silent:?}");
        let failed = end_after(Err::<(), _>(full()), async { Err(Error::Memory) }).await;
        assert!(matches!(failed, Err(Error::Keyspace(_))), "{failed:?}");
    }
}
