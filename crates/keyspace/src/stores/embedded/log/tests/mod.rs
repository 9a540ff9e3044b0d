//! Small logs on a disk that fails.

mod chain;
mod crash;
mod damage;
mod flaw;
mod writer;

use std::io;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::flaw::{Flaw, Flawed};
use super::append_error::AppendError;
use super::effect::Effect;
use super::files::Files;
use super::frame::{BLOCK_BYTES, Record};
use super::recover::{LogError, Recovered, Start, recover};
use super::segment::{LogId, Sizes};
use super::slots::Slots;
use super::writer::Writer;
use crate::stores::embedded::tests::disk::{Disk, Image};

const ID: LogId = LogId {
    store: [1; 16],
    log: [2; 16],
};

/// The header, a Begin, three blocks of frames and the Seal.
const SIZES: Sizes = Sizes {
    segment_bytes: 6 * BLOCK_BYTES as u64,
    grow_bytes: 2 * BLOCK_BYTES as u64,
};

/// A batch that was sent to a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    version: i64,
    body: Vec<u8>,
    segment: u64,
}

/// What is known about a log over all its openings.
#[derive(Debug, Clone)]
struct Model {
    /// The batches that may be in the log, in order.
    sent: Vec<Sent>,
    /// The number of batches that are flushed.
    flushed: usize,
    /// The last version of a batch, including batches that were lost.
    version: i64,
    /// The start of the log, which the store's own file records.
    start: Start,
    /// Whether the store's own file may name the log.
    exists: bool,
    /// The planted bug.
    flaw: Option<Flaw>,
    rng: StdRng,
}

/// The version and the effects of a batch.
type BatchContent = (i64, Vec<u8>);

impl Model {
    fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        Self {
            sent: Vec::new(),
            flushed: 0,
            version: 0,
            start: Start {
                segment: 1,
                frame: 1,
            },
            exists: false,
            flaw,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Returns the files through which the log accesses its disk.
    fn files(&self, disk: &Disk) -> Arc<dyn Files> {
        match self.flaw {
            Some(flaw) => Arc::new(Flawed::new(disk.clone(), flaw)),
            None => Arc::new(disk.clone()),
        }
    }

    fn salt(&mut self) -> u64 {
        match self.flaw {
            Some(Flaw::SaltReused) => 7,
            _ => self.rng.random(),
        }
    }

    /// Returns the batches that are only in the log.
    fn expected(&self) -> Vec<BatchContent> {
        let first = self.start.segment;
        let in_log = self.sent.iter().filter(|sent| sent.segment >= first);
        in_log
            .map(|sent| (sent.version, sent.body.clone()))
            .collect()
    }

    /// Recovers the log of a disk after a possible crash, checks it, and continues from there.
    fn recover(&mut self, files: &dyn Files) -> Result<Recovered, String> {
        let (found, recovered) =
            read(files, self.start).map_err(|error| format!("refused: {error}"))?;
        let expected = self.expected();
        if !expected.starts_with(&found) {
            return Err("recovered what is not the first batches in order".to_owned());
        }
        let count = self.sent.len() - expected.len() + found.len();
        if count < self.flushed {
            return Err(format!(
                "recovered {count} batches, {} were flushed",
                self.flushed
            ));
        }
        self.sent.truncate(count);
        Ok(recovered)
    }
}

/// Reads all batches of a log.
fn read(files: &dyn Files, start: Start) -> Result<(Vec<BatchContent>, Recovered), LogError> {
    let mut found = Vec::new();
    let recovered = recover::<LogError>(files, ID, start, 0, |batch| {
        let mut body = Vec::new();
        batch.effects.for_each(|effect| effect.encode(&mut body));
        found.push((batch.version, body));
        Ok(())
    })?;
    Ok((found, recovered))
}

/// Checks the remaining content of a log's disk after a possible crash. All flushed batches are recovered,
/// the others may be missing from some point on, and recovery writes nothing.
fn check(model: &Model, image: Image) -> Result<(), String> {
    let disk = Disk::with(image);
    let before = disk.image();
    model.clone().recover(&disk)?;
    assert!(disk.image() == before, "recovery has written");
    Ok(())
}

/// An open log.
struct Log {
    slots: Slots,
    writer: Writer,
}

/// A step of a store that the log takes part in.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Appends a batch of this number of blocks.
    Append(usize),
    /// Appends a clock frame.
    Clock,
    Flush,
    /// Prepares the spare, unless there is one.
    Prepare,
    /// Continues in the spare.
    RollOver,
    /// Frees all segments before the current one.
    Free,
}

impl Log {
    /// Opens the log of a disk.
    fn open(disk: &Disk, model: &mut Model, recovered: Recovered) -> io::Result<Self> {
        let end = recovered.end;
        let mut slots = Slots::start(model.files(disk), ID, SIZES, recovered)?;
        model.flushed = model.sent.len();
        let spare = slots.prepare(model.salt())?;
        model.exists = true;
        Ok(Self {
            slots,
            writer: Writer::start(SIZES, spare, &end),
        })
    }

    /// Opens a new log on an empty disk.
    fn create(disk: &Disk, model: &mut Model) -> io::Result<Self> {
        Self::open(disk, model, Recovered::nothing(Vec::new()))
    }

    fn step(&mut self, model: &mut Model, step: Step) -> io::Result<()> {
        let segment = self.writer.segment();
        let sent = model.sent.len();
        match step {
            Step::Append(blocks) => self.append_batch(model, blocks)?,
            Step::Clock => {
                model.version += 1;
                let version = model.version;
                self.append(model, &mut Record::clock(version))?;
            }
            Step::Flush => {
                self.writer.flush()?;
                model.flushed = model.sent.len();
            }
            Step::Prepare if self.writer.needs_spare() => self.prepare(model)?,
            Step::Prepare => {}
            Step::RollOver => {
                self.prepare_if_needed(model)?;
                self.writer.roll_over().map_err(io::Error::other)?;
            }
            Step::Free => self.free(model)?,
        }
        // Continuing in another segment has flushed the earlier batches.
        if self.writer.segment() != segment {
            model.flushed = model.flushed.max(sent);
        }
        Ok(())
    }

    fn append_batch(&mut self, model: &mut Model, blocks: usize) -> io::Result<()> {
        model.version += 1;
        let mut record = Record::batch(model.version);
        record.push(Effect::Clear { key: b"k" });
        let value =
            vec![model.rng.random(); (blocks - 1) * BLOCK_BYTES + model.rng.random_range(0..4000)];
        record.push(Effect::Set {
            key: &model.version.to_be_bytes(),
            value: &value,
        });
        let sent = Sent {
            version: model.version,
            body: record.body().to_vec(),
            segment: self.writer.segment(),
        };
        model.sent.push(sent);
        let appended = self.append(model, &mut record);
        let last = model.sent.last_mut().unwrap();
        last.segment = self.writer.segment();
        appended
    }

    /// Appends a frame, and gives the writer a spare when it needs one.
    fn append(&mut self, model: &mut Model, record: &mut Record) -> io::Result<()> {
        loop {
            match self.writer.append(record) {
                Err(AppendError::NoSpare) => self.prepare(model)?,
                appended => return appended.map_err(io::Error::other),
            }
        }
    }

    fn prepare_if_needed(&mut self, model: &mut Model) -> io::Result<()> {
        if self.writer.needs_spare() {
            self.prepare(model)
        } else {
            Ok(())
        }
    }

    fn prepare(&mut self, model: &mut Model) -> io::Result<()> {
        let spare = self.slots.prepare(model.salt())?;
        self.writer.give_spare(spare);
        Ok(())
    }

    /// Does what a checkpoint does: the content before the segment is on disk elsewhere, the store's file
    /// records that, and then the segments are freed.
    fn free(&mut self, model: &mut Model) -> io::Result<()> {
        let segment = self.writer.segment();
        self.prepare_if_needed(model)?;
        self.writer.roll_over().map_err(io::Error::other)?;
        if self.writer.segment() == segment {
            return Ok(());
        }
        model.flushed = model.sent.len();
        model.start = Start {
            segment: self.writer.segment(),
            frame: self.writer.next_frame(),
        };
        self.slots.free_before(model.start.segment)
    }
}
