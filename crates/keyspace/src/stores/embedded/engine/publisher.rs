//! Makes batches durable and visible: on a thread, or on that of a lone caller.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::part_growth::PartGrowth;
use super::pipeline::{Batch, Pipeline};
use super::shared::EngineShared;
use crate::contract::error::Result;
use crate::stores::embedded::disk::checkpoint::Checkpoint;
use crate::stores::embedded::disk::journal::Journal;
use crate::stores::embedded::layers::FrozenPart;
use crate::stores::embedded::log::append_error::AppendError;
use crate::stores::embedded::log::effect::Effects;
use crate::stores::embedded::log::frame::Record;
use crate::stores::embedded::options::Durability;

/// The pause before a batch is written again while the system is short of room on the disk, descriptors or memory.
/// Before each attempt, the publisher flushes the acknowledged commits whose flush is due. If the store is closed in
/// the meantime, it tries once more.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The longest flush that may block the thread of a caller. If flushes take longer, waking the publisher's
/// thread costs little in comparison.
const MAX_SHORT_FLUSH: Duration = Duration::from_micros(500);

/// The most batches in a row that callers publish.
const MAX_LONE_BATCHES: u32 = 32;

/// Owns the log and publishes batches.
pub(crate) struct Publisher {
    shared: Arc<EngineShared>,
    /// The log, `None` for a store in memory.
    journal: Option<Journal>,
    durability: Durability,
    /// When the oldest unflushed batch was written, on the environment's clock.
    unflushed_since: Option<Duration>,
    /// The newest version that was published, or is in a clock frame.
    newest_version: i64,
    /// The segment in which the log of the active part begins.
    part_segment: u64,
    /// A batch that waits because the system was short of something for the log, and what the system said.
    postponed: Option<(Batch, io::Error)>,
    /// The number of transactions in the last batch, and in the open one when that was published.
    expected: usize,
    /// How long the last batch was written and flushed, zero if its flush was left for later.
    last_flush: Duration,
    lone: Lone,
    growth: PartGrowth,
}

/// How many batches callers may publish themselves.
///
/// While a caller publishes, its thread cannot run the other tasks that would join the batch. So the
/// publisher's thread takes a batch from time to time, and if several transactions meet in it, all batches
/// until they no longer do.
#[derive(Default)]
struct Lone {
    /// How many batches were allowed after the last one that the thread published.
    allowed: u32,
    /// How many of them are left.
    left: u32,
}

impl Lone {
    /// Allows more batches, because the thread publishes one.
    fn renew(&mut self) {
        self.allowed = (2 * self.allowed).clamp(1, MAX_LONE_BATCHES);
        self.left = self.allowed;
    }
}

impl Publisher {
    pub(super) fn new(
        shared: Arc<EngineShared>,
        journal: Option<Journal>,
        durability: Durability,
        newest_version: i64,
    ) -> Self {
        let log = journal.as_ref().map(Journal::place);
        let growth = PartGrowth::new(shared.timeline.environment().now());
        Self {
            part_segment: log.map_or(0, |log| log.start.segment),
            shared,
            journal,
            durability,
            unflushed_since: None,
            newest_version,
            postponed: None,
            expected: 0,
            last_flush: Duration::ZERO,
            lone: Lone::default(),
            growth,
        }
    }

    /// Publishes batches until the pipeline is closed and empty, or the store has ended. All batches are
    /// then in the log, on disk.
    pub(super) fn run(shared: &EngineShared, publisher: &Mutex<Self>) -> Result<()> {
        let served = Self::serve(&shared.pipeline, publisher);
        let mut publisher = publisher.lock();
        let finished = served
            .and_then(|()| shared.timeline.check())
            .and_then(|()| publisher.finish());
        publisher.journal = None;
        publisher.postponed = None;
        finished
    }

    fn serve(pipeline: &Pipeline, publisher: &Mutex<Self>) -> Result<()> {
        // The lock is held only during a step, so that callers can publish while the thread waits.
        let time_left = || publisher.lock().time_left();
        while pipeline.wait(time_left()) {
            let (count, limit) = publisher.lock().group();
            pipeline.gather(count, limit);
            publisher.lock().step_on_thread()?;
            while publisher.lock().postponed.is_some() {
                let goes_on = pipeline.pause(SHORTAGE_PAUSE);
                let mut publisher = publisher.lock();
                publisher.step()?;
                if !goes_on {
                    publisher.give_up()?;
                }
            }
        }
        Ok(())
    }

    /// Publishes the open batch on the publisher's thread.
    pub(crate) fn step_on_thread(&mut self) -> Result<()> {
        self.lone.renew();
        self.step()
    }

    /// Publishes the open batch on the thread of a caller, which saves two wake-ups of threads. Returns
    /// false if the publisher's thread is to do it: it might take long, or more transactions might join.
    ///
    pub(crate) fn step_here(&mut self) -> bool {
        if self.lone.left == 0 || !self.is_quick() {
            return false;
        }
        self.lone.left -= 1;
        let due_before = self.due();
        // After a failure, the transactions have their results, and the store has ended.
        let _ = self.step();
        let is_earlier = |due| due_before.is_none_or(|before| due < before);
        if self.postponed.is_some() || self.due().is_some_and(is_earlier) {
            self.shared.pipeline.call_publisher();
        }
        true
    }

    /// Returns whether publishing the open batch is likely to take no longer than [`MAX_SHORT_FLUSH`]: the last batch
    /// took no longer, nothing else has to be written first, and the new one fits into the part of the log's file that
    /// is already filled with zeros.
    fn is_quick(&self) -> bool {
        self.last_flush <= MAX_SHORT_FLUSH
            && self.postponed.is_none()
            && !self.flush_is_due()
            && self.has_room()
    }

    /// Returns whether the open batch, if there is one, fits into the filled part of the log's file.
    fn has_room(&self) -> bool {
        let Some(journal) = &self.journal else {
            return false;
        };
        let open = self.shared.pipeline.open();
        open.as_ref()
            .is_none_or(|batch| journal.has_room(&batch.record))
    }

    /// Returns the number of transactions that are likely to meet in the next batch, and how long to wait
    /// for them. Tasks whose transactions were just published are likely to commit again. Without a wait,
    /// the tasks would form two groups that take turns, and pay for twice as many flushes.
    fn group(&self) -> (usize, Duration) {
        const FLUSH_SHARE: u32 = 5;
        (self.expected, self.last_flush / FLUSH_SHARE)
    }

    /// Returns the number of transactions that are likely to meet in the next batch.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// Ends the store if a batch still waits for room. Commits that were resolved end with `commit_unknown_result`,
    /// others with `io_error`.
    fn give_up(&mut self) -> Result<()> {
        let Some((batch, cause)) = self.postponed.take() else {
            return Ok(());
        };
        let error = self.shared.poison(cause);
        batch.answer_unknown();
        Err(error)
    }

    /// Flushes the published batches, and passes the last part to the checkpointer, unless the part may
    /// stay in the log.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        let pipeline = &self.shared.pipeline;
        let checkpoints = &self.shared.checkpoints;
        // Before the store's file is unlocked: it unlocks the log.
        let Some(journal) = self.journal.take() else {
            checkpoints.abandon();
            return Ok(());
        };
        let is_whole = journal.slots().lock().are_whole();
        drop(journal);
        match pipeline.take_last_part() {
            // What is not in the log is in memory.
            Some(part) if !is_whole || !self.shared.keeps_log(part.bytes) => {
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
        if self.flush_is_due() {
            self.flush()?;
        }
        let postponed = self.postponed.take().map(|(batch, _)| batch);
        if let Some(batch) = postponed.or_else(|| self.shared.pipeline.take()) {
            self.commit(batch)?;
        }
        if self.shared.timeline.wants_clock_frame() {
            self.write_clock()?;
        }
        if self.growth.due().is_some_and(|due| due <= self.now()) {
            self.growth = PartGrowth::new(self.now());
            self.shared.end_part();
        }
        Ok(())
    }

    /// Writes a batch to the log, flushes it, publishes its state, fires watches, and sends the results of
    /// its transactions.
    pub(super) fn commit(&mut self, mut batch: Batch) -> Result<()> {
        // When a store ends, the batches that wait are dropped. This one may contain what atomic operations made of
        // their rows, so it must not be found in the log without them.
        if let Err(error) = self.shared.timeline.check() {
            batch.answer_unknown();
            return Err(error);
        }
        match self.write(&mut batch) {
            Ok(()) => {}
            Err(AppendError::NoSpace(cause)) => {
                tracing::warn!(
                    %cause,
                    "commits wait: the log needs room on the disk, a file descriptor or memory"
                );
                self.postponed = Some((batch, cause));
                return Ok(());
            }
            Err(cause) => {
                let error = self.shared.poison(cause);
                batch.answer_unknown();
                return Err(error);
            }
        }
        let timeline = &self.shared.timeline;
        match batch.parts.take() {
            Some(parts) => {
                self.newest_version = batch.version;
                timeline.publish(batch.version, parts, batch.record.body().len());
                if self.journal.is_some() {
                    self.growth.note(self.now(), batch.part_bytes);
                }
                self.tell_watches(batch.record.effects());
            }
            None => timeline.abandon_commit(batch.version),
        }
        // Before the answers, because an answered task may commit again at once.
        self.expected = batch.verdicts.len() + self.shared.pipeline.len();
        if self.expected > 1 {
            self.lone = Lone::default();
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
            self.shared.timeline.flushed(batch.version);
            return Ok(());
        };
        let started = self.shared.timeline.environment().now();
        journal.append(&mut batch.record)?;
        if journal.place().start.segment > self.part_segment {
            self.shared.pipeline.end_part();
        }
        self.unflushed_since.get_or_insert(started);
        self.last_flush = Duration::ZERO;
        if self.flush_is_due() {
            self.sync(batch.version)?;
            self.last_flush = self.now() - started;
        }
        Ok(())
    }

    /// Passes a part to the checkpointer. Its batches are certainly in the log: the runs are never ahead of
    /// the log.
    fn hand_over(&mut self, part: FrozenPart) -> io::Result<()> {
        self.sync(self.newest_version)?;
        let log = self.journal.as_ref().map(Journal::place);
        self.part_segment = log.map_or(0, |log| log.start.segment);
        self.shared.checkpoints.push(Checkpoint {
            part,
            last_version: self.newest_version,
            log,
        });
        Ok(())
    }

    fn tell_watches(&self, effects: Effects<'_>) {
        let registry = &self.shared.registry;
        for key in registry.watched(effects) {
            // If the read fails, the store has ended and its watches have failed.
            if let Ok(value) = self.shared.newest().and_then(|newest| newest.get(&key)) {
                registry.tell(&key, value.as_ref());
            }
        }
    }

    /// Returns when the written batches must be flushed.
    fn flush_due(&self) -> Option<Duration> {
        let interval = match self.durability {
            Durability::Immediate => Duration::ZERO,
            Durability::Relaxed { interval } => interval,
        };
        Some(self.unflushed_since?.saturating_add(interval))
    }

    fn flush_is_due(&self) -> bool {
        self.flush_due().is_some_and(|due| due <= self.now())
    }

    /// Returns when there is something to do without a batch.
    fn due(&self) -> Option<Duration> {
        [self.flush_due(), self.growth.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the time until there is something to do without a batch.
    fn time_left(&self) -> Option<Duration> {
        Some(self.due()?.saturating_sub(self.now()))
    }

    fn now(&self) -> Duration {
        self.shared.timeline.environment().now()
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
            self.shared.timeline.flushed(version);
        }
        Ok(())
    }

    /// Writes a clock frame, so that the clock can continue. Clock frames do not end a part: once they have filled a
    /// segment, the next commits end the part, which frees the log.
    pub(super) fn write_clock(&mut self) -> Result<()> {
        let Some(version) = self.shared.timeline.version_of_clock_frame() else {
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
        self.shared.timeline.flushed(version);
        Ok(())
    }
}
