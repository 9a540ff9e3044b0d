//! The thread that makes batches durable and visible.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Durability;
use super::checkpoint::Checkpoint;
use super::engine::Shared;
use super::journal::Journal;
use super::layers::FrozenPart;
use super::log::effect::Effects;
use super::log::frame::Record;
use super::log::writer::AppendError;
use super::pipeline::Batch;
use crate::error::Result;

/// The pause before a batch is written again to a full disk.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);

/// Owns the log and publishes batches.
pub(super) struct Publisher {
    shared: Arc<Shared>,
    /// The log, `None` for a store in memory.
    journal: Option<Journal>,
    durability: Durability,
    /// When the oldest unflushed batch was written, on the environment's clock.
    unflushed_since: Option<Duration>,
    /// The newest version that was published or claimed.
    newest_version: i64,
    /// The segment in which the log of the active part begins.
    part_segment: u64,
    /// A batch for which the disk had no room.
    postponed: Option<Batch>,
    /// The number of transactions in the last batch, and the duration of its flush.
    last_group: (usize, Duration),
}

impl Publisher {
    pub(super) fn new(
        shared: Arc<Shared>,
        journal: Option<Journal>,
        durability: Durability,
        newest_version: i64,
    ) -> Self {
        let log = journal.as_ref().map(Journal::place);
        Self {
            part_segment: log.map_or(0, |log| log.start.segment),
            shared,
            journal,
            durability,
            unflushed_since: None,
            newest_version,
            postponed: None,
            last_group: (0, Duration::ZERO),
        }
    }

    /// Publishes batches until the pipeline is closed and empty, or the store has ended. All batches are
    /// then in the log, on disk.
    pub(super) fn run(mut self) -> Result<()> {
        let shared = self.shared.clone();
        while shared.pipeline().wait(self.idle_limit()) {
            self.gather();
            self.step()?;
            while self.postponed.is_some() {
                let goes_on = shared.pipeline().pause(FULL_DISK_PAUSE);
                self.step()?;
                if !goes_on {
                    self.give_up()?;
                }
            }
        }
        shared.timeline().check()?;
        self.finish()
    }

    /// Ends the store if a batch still waits for room.
    fn give_up(&mut self) -> Result<()> {
        let Some(batch) = self.postponed.take() else {
            return Ok(());
        };
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = self.shared.poison(full);
        batch.answer_unknown();
        Err(error)
    }

    /// Flushes the published batches, and passes the last part to the checkpointer, unless the part may
    /// stay in the log.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        let (pipeline, checkpoints) = (self.shared.pipeline(), self.shared.checkpoints());
        match pipeline.take_last_part() {
            Some(part) if self.journal.is_some() && !self.shared.keeps_log(part.bytes) => {
                checkpoints.push(Checkpoint {
                    part,
                    last_version: self.newest_version,
                    log: None,
                });
                checkpoints.close();
            }
            _ => checkpoints.abandon(),
        }
        Ok(())
    }

    /// Publishes the open batch if there is one, and otherwise does other work that is due.
    pub(super) fn step(&mut self) -> Result<()> {
        // Check this first, because the next batch may have to wait for room.
        if self.idle_limit() == Some(Duration::ZERO) {
            self.flush()?;
        }
        let postponed = self.postponed.take();
        if let Some(batch) = postponed.or_else(|| self.shared.pipeline().take()) {
            self.commit(batch)?;
        }
        if self.shared.timeline().wants_claim() {
            self.claim()?;
        }
        Ok(())
    }

    /// Waits a moment for the batch to grow, if the previous one had more transactions. The same tasks are
    /// likely to commit again, and one flush for all of them costs as much as one for some.
    fn gather(&self) {
        const FLUSH_SHARE: u32 = 10;
        let (count, flush_time) = self.last_group;
        if count > 1 {
            self.shared
                .pipeline()
                .gather(count, flush_time / FLUSH_SHARE);
        }
    }

    /// Writes a batch to the log, flushes it, publishes its state, fires watches, and sends the results of
    /// its transactions.
    fn commit(&mut self, mut batch: Batch) -> Result<()> {
        match self.write(&mut batch) {
            Ok(()) => {}
            Err(AppendError::NoSpace(cause)) => {
                tracing::warn!(%cause, "commits wait for room on the disk");
                self.postponed = Some(batch);
                return Ok(());
            }
            Err(cause) => {
                let error = self.shared.poison(cause);
                batch.answer_unknown();
                return Err(error);
            }
        }
        let timeline = self.shared.timeline();
        match batch.parts.take() {
            Some(parts) => {
                self.newest_version = batch.version;
                timeline.publish(batch.version, parts, batch.record.body().len());
                self.tell_watches(batch.record.effects());
            }
            None => timeline.abandon_commit(batch.version),
        }
        batch.answer();
        Ok(())
    }

    /// Writes a batch to the log, and flushes it unless the durability lets the flush wait.
    fn write(&mut self, batch: &mut Batch) -> Result<(), AppendError> {
        if let Some(part) = batch.frozen.take() {
            self.hand_over(part)?;
        }
        if batch.parts.is_none() {
            return Ok(());
        }
        let Some(journal) = &mut self.journal else {
            self.shared.timeline().flushed(batch.version);
            return Ok(());
        };
        journal.append(&mut batch.record)?;
        if journal.place().start.segment > self.part_segment {
            self.shared.pipeline().end_part();
        }
        let now = self.shared.timeline().environment().now();
        self.unflushed_since.get_or_insert(now);
        if self.idle_limit() == Some(Duration::ZERO) {
            let started = self.shared.timeline().environment().now();
            self.sync(batch.version)?;
            let took = self.shared.timeline().environment().now() - started;
            self.last_group = (batch.verdicts.len(), took);
        }
        Ok(())
    }

    /// Passes a part to the checkpointer. Its batches are certainly in the log: the tree is never ahead of
    /// the log.
    fn hand_over(&mut self, part: FrozenPart) -> io::Result<()> {
        self.sync(self.newest_version)?;
        let log = self.journal.as_ref().map(Journal::place);
        self.part_segment = log.map_or(0, |log| log.start.segment);
        self.shared.checkpoints().push(Checkpoint {
            part,
            last_version: self.newest_version,
            log,
        });
        Ok(())
    }

    fn tell_watches(&self, effects: Effects<'_>) {
        let registry = self.shared.registry();
        for key in registry.watched(effects) {
            // If the read fails, the store has ended and its watches have failed.
            if let Ok(value) = self.shared.newest().and_then(|newest| newest.get(&key)) {
                registry.tell(&key, value.as_ref());
            }
        }
    }

    /// Returns how long written batches may still wait for a flush.
    fn idle_limit(&self) -> Option<Duration> {
        let interval = match self.durability {
            Durability::Immediate => Duration::ZERO,
            Durability::Relaxed { interval } => interval,
        };
        let now = self.shared.timeline().environment().now();
        let since = self.unflushed_since?;
        Some(interval.saturating_sub(now.saturating_sub(since)))
    }

    /// Flushes the acknowledged batches.
    fn flush(&mut self) -> Result<()> {
        let synced = self.sync(self.newest_version);
        synced.map_err(|cause| self.shared.poison(cause))
    }

    /// Makes all versions up to `version` survive a power loss.
    fn sync(&mut self, version: i64) -> io::Result<()> {
        if let Some(journal) = &mut self.journal
            && self.unflushed_since.take().is_some()
        {
            journal.flush()?;
            self.shared.timeline().flushed(version);
        }
        Ok(())
    }

    /// Claims a version, so that the clock can continue.
    pub(super) fn claim(&mut self) -> Result<()> {
        let Some(version) = self.shared.timeline().claim() else {
            return Ok(());
        };
        if let Some(journal) = &mut self.journal {
            match journal.append(&mut Record::clock(version)) {
                Ok(()) => {}
                Err(AppendError::NoSpace(_)) => return Ok(()),
                Err(cause) => return Err(self.shared.poison(cause)),
            }
            self.unflushed_since.get_or_insert_default();
            self.newest_version = version;
            return self.flush();
        }
        self.shared.timeline().flushed(version);
        Ok(())
    }
}
