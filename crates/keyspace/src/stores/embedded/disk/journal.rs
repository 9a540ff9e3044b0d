//! The publisher's view of the log of an open store.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::contract::env::Environment;
use crate::stores::embedded::log::append_error::AppendError;
use crate::stores::embedded::log::frame::Record;
use crate::stores::embedded::log::recover::{LogEnd, Start};
use crate::stores::embedded::log::segment::{LogId, Sizes};
use crate::stores::embedded::log::slots::Slots;
use crate::stores::embedded::log::writer::Writer;
use crate::stores::embedded::runs::manifest::LogStart;

/// Appends batches to the log, and continues it in further segments.
pub(crate) struct Journal {
    id: LogId,
    /// Shared with the checkpointer, which frees segments.
    slots: Arc<Mutex<Slots>>,
    writer: Writer,
    /// The segment that is being written.
    start: Start,
    env: Environment,
}

impl Journal {
    /// Begins a segment after the `end` of the recovered log. Writes nothing to it yet.
    pub(crate) fn start(
        id: LogId,
        mut slots: Slots,
        sizes: Sizes,
        env: Environment,
        end: &LogEnd,
    ) -> io::Result<Self> {
        let spare = slots.prepare(salt(&env))?;
        Ok(Self {
            id,
            slots: Arc::new(Mutex::new(slots)),
            writer: Writer::start(sizes, spare, end),
            start: Start {
                segment: end.segment + 1,
                frame: end.last_frame + 1,
            },
            env,
        })
    }

    pub(crate) fn slots(&self) -> Arc<Mutex<Slots>> {
        self.slots.clone()
    }

    /// Returns the start of a log that begins with the current segment.
    pub(crate) fn place(&self) -> LogStart {
        LogStart {
            id: self.id.log,
            start: self.start,
        }
    }

    /// Appends a frame, in a new segment if it needs one.
    ///
    /// # Errors
    /// [`AppendError::NoSpace`] if the system is short of something. Nothing was appended, and the call may be
    /// repeated.
    pub(crate) fn append(&mut self, record: &mut Record) -> Result<(), AppendError> {
        match self.writer.append(record) {
            Err(AppendError::NoSpare) => {
                let spare = self.slots.lock().prepare(salt(&self.env))?;
                self.writer.give_spare(spare);
                self.writer.append(record)?;
            }
            appended => appended?,
        }
        let segment = self.writer.segment();
        if segment != self.start.segment {
            // The segment begins with a Begin frame, and this frame is the second one.
            let frame = self.writer.next_frame() - 2;
            self.start = Start { segment, frame };
        }
        Ok(())
    }

    /// Returns whether a batch can be appended without preparing more room on the disk, which takes long.
    pub(crate) fn has_room(&self, record: &Record) -> bool {
        self.writer.has_room(record)
    }

    /// Makes the appended frames survive a power loss.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn salt(env: &Environment) -> u64 {
    u64::from_be_bytes(env.random_bytes())
}
