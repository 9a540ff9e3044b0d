//! Producers and consumers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use microqueue::Item;
use microqueue::keyspace::run::{Attempt, Runner};
use microqueue::keyspace::{Code, Database, Transaction};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};

use super::error::{Error, Result};
use super::files::{Content, Source};
use super::store::{Line, Received, ReceivedLine, Store};
use crate::say;

/// The number of lines that one transaction moves.
const BATCH_LINES: usize = 500;

/// The most bytes of text that one transaction enqueues, unless a single line is larger.
const BATCH_BYTES: usize = 256 * 1024;

/// The role of a task in a run.
#[derive(Default)]
pub(crate) struct Side {
    counts: Mutex<Counts>,
}

/// The numbers of a side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) lines: u64,
    pub(crate) conflicts: u64,
    pub(crate) retries: u64,
    /// The time from the start of the run to the end of the side's last task.
    pub(crate) elapsed: Duration,
}

/// A run that relays a directory into the consumers' records.
pub(crate) struct Relay<D: Database> {
    pub(crate) store: Store,
    pub(crate) runner: Runner<D>,
    pub(crate) enqueued: Side,
    pub(crate) dequeued: Side,
    sources: Vec<Source>,
    /// The number of sources that a producer has started.
    begun: AtomicUsize,
    /// Whether to print a line for every batch.
    progress: bool,
}

impl<D: Database> Relay<D> {
    pub(crate) fn new(runner: Runner<D>, sources: Vec<Source>, progress: bool) -> Self {
        Self {
            store: Store::new(),
            runner,
            enqueued: Side::default(),
            dequeued: Side::default(),
            sources,
            begun: AtomicUsize::new(0),
            progress,
        }
    }

    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Binds the store to a directory, since a store relays only one directory.
    pub(crate) async fn claim(&self, directory: &Path) -> Result<()> {
        let directory = &directory.display().to_string();
        self.runner
            .run(|tr| async move { self.store.claim(&tr, directory).await })
            .await
    }

    /// Runs until every line is enqueued and the queue is empty.
    pub(crate) async fn run(self: &Arc<Self>, producers: u64, consumers: u64) -> Result<()> {
        let start = self.runner.environment().now();
        let (produced, seen) = watch::channel(());
        let mut tasks = JoinSet::new();
        for _ in 0..producers {
            let relay = self.clone();
            let produced = produced.clone();
            tasks.spawn(async move {
                relay.produce(&produced).await?;
                let elapsed = relay.runner.environment().now() - start;
                relay.enqueued.ended(elapsed);
                Ok::<_, Error>(())
            });
        }
        // The producers hold the channel open. It closes when the last of them finishes.
        drop(produced);
        for consumer in 0..consumers {
            let relay = self.clone();
            let seen = seen.clone();
            tasks.spawn(async move {
                relay.consume(consumer, seen).await?;
                let elapsed = relay.runner.environment().now() - start;
                relay.dequeued.ended(elapsed);
                Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics or is aborted")?;
        }
        Ok(())
    }

    async fn produce(&self, produced: &watch::Sender<()>) -> Result<()> {
        while let Some(source) = self.next_source() {
            let Content::Text(text) = block_in_place(|| source.read())? else {
                continue;
            };
            let file = source.name.as_str();
            let lines = &text.lines().collect::<Vec<_>>();
            loop {
                let enqueued = self
                    .runner
                    .run(|tr| async move {
                        let attempt = tr.attempt();
                        self.enqueued.attempt(&attempt);
                        self.enqueue(&tr, file, lines).await
                    })
                    .await?;
                if enqueued == 0 {
                    break;
                }
                self.enqueued.moved(enqueued);
                self.report(format_args!("enqueued {enqueued} lines of {file}"));
                produced.send_replace(());
            }
        }
        Ok(())
    }

    /// Enqueues the next lines of a file and advances its position past them.
    async fn enqueue(&self, tr: &impl Transaction, file: &str, lines: &[&str]) -> Result<u64> {
        let position = self.store.position(tr, file).await?;
        let rest = lines
            .get(position as usize..)
            .ok_or_else(|| Error::Shortened {
                file: file.to_owned(),
                lines: lines.len() as u64,
                relayed: position,
            })?;
        let batch = batch(file, position, rest);
        if !batch.is_empty() {
            self.store.queue.enqueue_all(tr, &batch).await?;
            let next = position + batch.len() as u64;
            self.store.set_position(tr, file, next)?;
        }
        Ok(batch.len() as u64)
    }

    async fn consume(&self, consumer: u64, mut produced: watch::Receiver<()>) -> Result<()> {
        loop {
            // This is checked before the dequeue. If a dequeue that started after the last producer had
            // finished finds nothing, it is the last one.
            let finished = produced.has_changed().is_err();
            produced.mark_unchanged();
            let dequeued = self
                .runner
                .run(|tr| async move {
                    let attempt = tr.attempt();
                    self.dequeued.attempt(&attempt);
                    self.dequeue(&tr, consumer).await
                })
                .await?;
            if dequeued > 0 {
                self.dequeued.moved(dequeued);
                self.report(format_args!("consumer {consumer} took {dequeued} lines"));
            } else if finished {
                return Ok(());
            } else {
                // An error means that the last producer has finished, so the queue is checked once more.
                let _closed = produced.changed().await;
            }
        }
    }

    /// Dequeues lines and records that this consumer has received them.
    async fn dequeue(&self, tr: &impl Transaction, consumer: u64) -> Result<u64> {
        let lines = self.store.queue.dequeue_batch(tr, BATCH_LINES).await?;
        self.store.record(tr, consumer, &by_file(&lines))?;
        Ok(lines.len() as u64)
    }

    fn next_source(&self) -> Option<&Source> {
        self.sources.get(self.begun.fetch_add(1, Ordering::Relaxed))
    }

    fn report(&self, what: fmt::Arguments<'_>) {
        if self.progress {
            say(what);
        }
    }
}

impl Side {
    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    fn update(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
    }

    /// Counts an attempt of a transaction.
    fn attempt(&self, attempt: &Attempt) {
        if let Some(code) = attempt.after {
            self.update(|counts| {
                counts.retries += 1;
                counts.conflicts += u64::from(code == Code::NOT_COMMITTED);
            });
        }
    }

    /// Counts lines that were committed.
    fn moved(&self, lines: u64) {
        self.update(|counts| counts.lines += lines);
    }

    /// Notes that one of the side's tasks has ended.
    fn ended(&self, elapsed: Duration) {
        self.update(|counts| counts.elapsed = counts.elapsed.max(elapsed));
    }
}

/// Returns the items of the lines that one transaction enqueues.
fn batch(file: &str, position: u64, lines: &[&str]) -> Vec<Line> {
    let mut bytes = 0;
    (position + 1..)
        .zip(lines)
        .take(BATCH_LINES)
        .take_while(|(_, text)| {
            let first = bytes == 0;
            bytes += file.len() + text.len();
            first || bytes <= BATCH_BYTES
        })
        .map(|(number, text)| Line {
            file: file.to_owned(),
            number,
            text: (*text).to_owned(),
        })
        .collect()
}

/// Groups successive lines of one file.
fn by_file(items: &[Item<Line>]) -> Vec<Received> {
    items
        .chunk_by(|one, next| one.value.file == next.value.file)
        .map(|run| Received {
            file: run[0].value.file.clone(),
            lines: run
                .iter()
                .map(|item| ReceivedLine::new(item.value.number, &item.value.text))
                .collect(),
        })
        .collect()
}
