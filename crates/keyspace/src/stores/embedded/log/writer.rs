//! Appends frames to a chain of segments.

use std::io;

use super::append_error::AppendError;
use super::frame::{BLOCK_BYTES, Begin, FramePlace, Record};
use super::recover::LogEnd;
use super::segment::{FRAMES_START, Mark, SEAL_BYTES, Sizes};
use super::slots::{Spare, write_zeros};

/// Appends to a log. Appending and flushing are separate calls: a frame is certainly on disk once the next
/// flush has returned.
#[derive(Debug)]
pub(crate) struct Writer {
    sizes: Sizes,
    segment: Spare,
    /// The offset of the next frame. At the start of a segment, the Begin frame is written together with
    /// that frame.
    end: u64,
    begin: Begin,
    spare: Option<Spare>,
    next_frame: u64,
    flushed_through: u64,
    has_failed: bool,
}

impl Writer {
    /// Continues a log, which ended at `end`, in `spare`. Writes nothing yet.
    pub(crate) fn start(sizes: Sizes, spare: Spare, end: &LogEnd) -> Self {
        assert_eq!(spare.segment, end.segment + 1, "the chain has no gap");
        Self {
            sizes,
            segment: spare,
            end: FRAMES_START,
            begin: Begin {
                previous_segment: end.segment,
                end: end.offset,
                last_frame: end.last_frame,
            },
            spare: None,
            next_frame: end.last_frame + 1,
            flushed_through: end.last_frame,
            has_failed: false,
        }
    }

    /// Returns true until the writer has been given the segment after the current one.
    #[cfg(test)]
    pub(crate) fn needs_spare(&self) -> bool {
        self.spare.is_none()
    }

    /// Gives the writer the next segment.
    pub(crate) fn give_spare(&mut self, spare: Spare) {
        assert!(self.spare.is_none() && spare.segment == self.segment.segment + 1);
        self.spare = Some(spare);
    }

    /// Returns the number of the segment that is being written.
    pub(crate) fn segment(&self) -> u64 {
        self.segment.segment
    }

    /// Returns the number of the next frame, unless that frame begins a segment.
    pub(crate) fn next_frame(&self) -> u64 {
        self.next_frame
    }

    /// Writes a frame in one call, after a Begin frame if it is the first of its segment. If the frame does
    /// not fit into the segment, the log first continues in the spare.
    pub(crate) fn append(&mut self, record: &mut Record) -> Result<(), AppendError> {
        let max_end = self.sizes.segment_bytes - SEAL_BYTES;
        let bytes = record.frame_bytes() as u64;
        if FRAMES_START + BLOCK_BYTES as u64 + bytes > max_end {
            return Err(AppendError::TooLarge { bytes });
        }
        if !self.is_empty() && self.end + bytes > max_end {
            self.roll_over()?;
        }
        self.make_room(record)?;
        self.attempt(|writer| writer.write(record))?;
        Ok(())
    }

    /// Returns whether a frame fits into the part of the segment that was already written once.
    pub(crate) fn has_room(&self, record: &Record) -> bool {
        self.end + self.bytes_to_write(record) <= self.segment.grown_bytes
    }

    /// Makes the appended frames survive a power loss.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.attempt(|writer| {
            writer.segment.file.sync_data()?;
            writer.flushed_through = writer.next_frame - 1;
            Ok(())
        })
    }

    /// Ends and flushes the segment, so that the next frame begins the next one. Does nothing if the
    /// segment has no frames.
    pub(crate) fn roll_over(&mut self) -> Result<(), AppendError> {
        if self.is_empty() {
            return Ok(());
        }
        if self.spare.is_none() {
            return Err(AppendError::NoSpare);
        }
        let mut seal = Record::seal();
        self.make_room(&seal)?;
        self.attempt(|writer| writer.write(&mut seal))?;
        self.flush()?;
        self.begin = Begin {
            previous_segment: self.segment.segment,
            end: self.end,
            last_frame: self.next_frame - 1,
        };
        self.segment = self.spare.take().ok_or(AppendError::NoSpare)?;
        self.end = FRAMES_START;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.end == FRAMES_START
    }

    fn write(&mut self, record: &mut Record) -> io::Result<()> {
        let salt = self.segment.salt;
        if !self.is_empty() {
            let place = self.next_place();
            return self.write_bytes(record.finish(place, salt));
        }
        let mut begin = Record::begin(self.begin);
        let mut bytes = begin.finish(self.next_place(), salt).to_vec();
        bytes.extend_from_slice(record.finish(self.next_place(), salt));
        self.write_bytes(&bytes)
    }

    fn next_place(&mut self) -> FramePlace {
        let number = self.next_frame;
        self.next_frame += 1;
        FramePlace {
            number,
            flushed_through: self.flushed_through,
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.segment.file.write(self.end, bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Returns the size of a frame, and of the Begin frame if that comes before it.
    fn bytes_to_write(&self, record: &Record) -> u64 {
        let begin_bytes = if self.is_empty() { BLOCK_BYTES } else { 0 };
        (begin_bytes + record.frame_bytes()) as u64
    }

    /// Makes room for a frame, and for the Begin frame if that comes before it. Appends nothing.
    fn make_room(&mut self, record: &Record) -> Result<(), AppendError> {
        self.check()?;
        let grown = self.grow(self.end + self.bytes_to_write(record));
        self.has_failed = matches!(grown, Err(AppendError::Io(_)));
        grown
    }

    /// Writes zeros until at least `end` bytes of the segment were written.
    ///
    /// Flushes them before the segment is marked as that long, and writes frames there only after that. So
    /// a file that is shorter than its mark says was cut, and no flushed frame is after its mark.
    ///
    /// The flush covers frames, too. If it fails, it is unknown which of them are on disk, so that is never a
    /// shortage.
    fn grow(&mut self, end: u64) -> Result<(), AppendError> {
        while self.segment.grown_bytes < end {
            let from = self.segment.grown_bytes;
            let to = (from + self.sizes.grow_bytes).min(self.sizes.segment_bytes);
            let file = &self.segment.file;
            let filled = file.set_len(to).and_then(|()| write_zeros(file, from, to));
            filled.map_err(AppendError::of_preparing)?;
            file.sync_data()?;
            let mark = Mark {
                file_bytes: to,
                flushed_through: self.flushed_through,
            };
            let offset = Mark::offset(self.segment.marks);
            let marked = file.write(offset, &mark.encode(self.segment.salt));
            marked.map_err(AppendError::of_preparing)?;
            self.segment.marks += 1;
            self.segment.grown_bytes = to;
        }
        Ok(())
    }

    /// Runs a call, unless an earlier one has failed.
    fn attempt(&mut self, call: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        let outcome = call(self);
        self.has_failed = outcome.is_err();
        outcome
    }

    fn check(&self) -> io::Result<()> {
        if self.has_failed {
            Err(io::Error::other("an earlier write of the log has failed"))
        } else {
            Ok(())
        }
    }
}
