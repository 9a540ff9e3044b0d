//! Reads a log after a crash.
//!
//! # Torn or corrupt
//!
//! Let X be the first offset without a valid frame, where frame k should begin.
//!
//! 1. If the next segment has a valid Begin, it must record that the log ended at X with frame k-1. In that
//!    case X comes after a Seal, or an earlier recovery has decided that the log ended at X. Otherwise the
//!    log is corrupt.
//! 2. If there is no such segment, look for a valid frame after X, in the segment of X or in the next one,
//!    with a number above k, which records that frame k had been flushed. If there is one, the log is
//!    corrupt.
//! 3. Otherwise frame k was not flushed, and the log ends at X.
//!
//! If a sealed segment has no next header, a segment of the log is missing, because the Seal is written
//! only after the next header is on disk. If a segment after the end of the log has begun, the log is
//! corrupt, because a segment begins only after the Seal of the one before was flushed.
//!
//! Frames that a slot held earlier are not valid, because each segment has its own salt.
//!
//! # Cut or not written
//!
//! A log that was cut, or whose end was overwritten, looks like one that ended there. The file of a segment
//! that the log has reached therefore must be as long as its header and its [marks](Mark) say, and frame k
//! must not be one that a mark says was flushed. The log has reached a segment once it has a valid Begin or
//! the one before is sealed. A spare that a crash left may be shorter than its header says.

use std::collections::BTreeMap;
use std::io;

use super::effect::Effects;
use super::files::{Files, Slot};
use super::frame::{BLOCK_BYTES, Content, Defect, Frame, FramePlace};
use super::segment::{FORMAT, FRAMES_START, Header, HeaderDefect, LogId, Mark};
use crate::stores::embedded::backend::{Backend, File};

/// The reason why a log is refused. No file was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// A segment that the log must have is missing.
    #[error("segment {segment} of the log is missing")]
    Missing { segment: u64 },
    /// Data that was flushed is no longer there.
    #[error("at byte {offset}: {reason}")]
    Corrupt {
        slot: Slot,
        offset: u64,
        reason: String,
    },
    #[error("slot {:016x} of the log has format {found}, this version reads up to {supported}", slot.0)]
    NewerFormat {
        slot: Slot,
        found: u32,
        supported: u32,
    },
    /// The file belongs to another store or to another program.
    #[error("slot {:016x} of the log is not of this store", slot.0)]
    Foreign { slot: Slot },
    /// The slots hold newer batches than the store, although the store has no log.
    #[error("slot {:016x} of the log has commits that the store has not", slot.0)]
    Newer { slot: Slot },
    #[error("the log cannot be read")]
    Io(#[from] io::Error),
}

impl LogError {
    /// Returns the error for the first segment of a log without its first frame.
    pub(crate) fn without_frames(slot: Slot) -> Self {
        corrupt(
            slot,
            FRAMES_START,
            "the first frame of the log is not valid".to_owned(),
        )
    }
}

/// The start of a log. Both numbers count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) segment: u64,
    /// The number of that segment's first frame.
    pub(crate) frame: u64,
}

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEnd {
    pub(crate) segment: u64,
    /// The offset of the next frame, in bytes.
    pub(crate) offset: u64,
    pub(crate) last_frame: u64,
    /// The newest version of a batch or a clock frame, `None` if there is neither.
    pub(crate) newest_version: Option<i64>,
}

impl LogEnd {
    /// Returns the start of the segment after the end.
    pub(crate) fn next_start(&self) -> Start {
        Start {
            segment: self.segment + 1,
            frame: self.last_frame + 1,
        }
    }
}

/// The result of recovering a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) end: LogEnd,
    /// The segments that were read, and their slots.
    pub(crate) segments: BTreeMap<u64, Slot>,
    /// The slot of the segment after the last one, which has not begun. If the last segment is sealed and
    /// this slot is missing, the log is refused.
    pub(crate) next: Option<Slot>,
    /// The other slots, which hold no part of the log.
    pub(crate) unused: Vec<Slot>,
}

impl Recovered {
    /// Returns an empty log, which begins with segment 1 and frame 1. The slots `unused` hold no part of
    /// it.
    pub(crate) fn nothing(unused: Vec<Slot>) -> Self {
        Self {
            end: LogEnd {
                segment: 0,
                offset: 0,
                last_frame: 0,
                newest_version: None,
            },
            segments: BTreeMap::new(),
            next: None,
            unused,
        }
    }
}

/// A batch that was read from the log.
#[derive(Debug, Clone)]
pub(crate) struct Replayed<'a> {
    pub(crate) version: i64,
    pub(crate) effects: Effects<'a>,
}

/// Reads the log `id` from `start` on, and calls `visit` with each batch newer than `after`, in the order
/// of the log. Writes nothing.
///
/// The log may turn out to be damaged after batches were visited. If the call fails, drop everything that
/// was visited.
///
/// # Errors
/// [`LogError`], and the error that `visit` returns.
pub(crate) fn recover<E: From<LogError>>(
    files: &dyn Files,
    id: LogId,
    start: Start,
    after: i64,
    mut visit: impl FnMut(Replayed<'_>) -> Result<(), E>,
) -> Result<Recovered, E> {
    let mut visit = |batch: Replayed<'_>| {
        if batch.version > after {
            visit(batch)
        } else {
            Ok(())
        }
    };
    let survey = Survey::take(files, id, start.segment)?;
    let end = survey.scan(files, start, &mut visit)?;
    survey.check_none_after(files, end.segment + 1)?;
    if let Some(&slot) = survey.foreign.first() {
        return Err(LogError::Foreign { slot }.into());
    }
    Ok(survey.divide(end))
}

/// Inspects the slots of a store that has no log, for example after a crash at the end of a close. They can
/// be removed, because the store contains everything in them. `last_version` is the store's newest commit.
///
/// A slot that has lost frames is refused, because they may have been newer commits.
///
/// # Errors
/// [`LogError::Newer`] if the slots hold a newer commit, and [`LogError::Corrupt`] if they may have held one.
pub(crate) fn leftovers(
    files: &dyn Files,
    store: [u8; 16],
    last_version: i64,
) -> Result<Recovered, LogError> {
    let slots = files.list()?;
    for &slot in &slots {
        let file = open(files, slot)?;
        let header = match read_header(slot, &file)? {
            SlotContent::Nothing => continue,
            SlotContent::Other => return Err(LogError::Foreign { slot }),
            SlotContent::Header(header) => header,
        };
        if header.id.store != store {
            return Err(LogError::Foreign { slot });
        }
        let bytes = read(&*file, usize::MAX)?;
        let segment = Segment {
            slot,
            header,
            bytes,
        };
        let Ok(begin) = segment.frame(FRAMES_START) else {
            continue;
        };
        let mut scan = Scan::new(Start {
            segment: header.segment,
            frame: begin.place.number,
        });
        scan.read(&segment, &mut |batch| {
            if batch.version > last_version {
                return Err(LogError::Newer { slot });
            }
            Ok(())
        })?;
        scan.check_torn(&segment)?;
    }
    Ok(Recovered::nothing(slots))
}

/// The headers of all slots.
struct Survey {
    /// The log's segments, beginning with its first one.
    segments: BTreeMap<u64, (Slot, Header)>,
    unused: Vec<Slot>,
    /// The unused slots that hold nothing but zeros.
    empty: Vec<Slot>,
    /// The slots that hold something else than a segment.
    foreign: Vec<Slot>,
}

impl Survey {
    fn take(files: &dyn Files, id: LogId, first_segment: u64) -> Result<Self, LogError> {
        let mut survey = Self {
            segments: BTreeMap::new(),
            unused: Vec::new(),
            empty: Vec::new(),
            foreign: Vec::new(),
        };
        for slot in files.list()? {
            let file = open(files, slot)?;
            let header = match read_header(slot, &file)? {
                SlotContent::Nothing => {
                    survey.unused.push(slot);
                    survey.empty.push(slot);
                    continue;
                }
                SlotContent::Other => {
                    survey.foreign.push(slot);
                    continue;
                }
                SlotContent::Header(header) => header,
            };
            if header.id.store != id.store {
                return Err(LogError::Foreign { slot });
            }
            if header.id.log != id.log || header.segment < first_segment {
                survey.unused.push(slot);
                continue;
            }
            if let Some((other, _)) = survey.segments.insert(header.segment, (slot, header)) {
                let reason = format!("slot {:016x} holds the same segment", other.0);
                return Err(corrupt(slot, 0, reason));
            }
        }
        Ok(survey)
    }

    /// Reads all segments in order, and returns the end of the log.
    fn scan<E: From<LogError>>(
        &self,
        files: &dyn Files,
        start: Start,
        visit: &mut impl FnMut(Replayed<'_>) -> Result<(), E>,
    ) -> Result<LogEnd, E> {
        let first = self.load(files, start.segment)?;
        let mut segment = first.ok_or_else(|| self.missing(start.segment))?;
        segment.check_whole()?;
        let mut scan = Scan::new(start);
        loop {
            scan.read(&segment, visit)?;
            let Some(next) = self.load(files, scan.end.segment + 1)? else {
                if scan.is_sealed {
                    return Err(self.missing(scan.end.segment + 1).into());
                }
                scan.check_torn(&segment)?;
                return Ok(scan.end);
            };
            if !scan.goes_on(&segment, &next)? {
                return Ok(scan.end);
            }
            segment = next;
        }
    }

    /// Returns the error for a segment that no slot holds. If a slot holds nothing or something else, that
    /// is probably what is left of it.
    fn missing(&self, segment: u64) -> LogError {
        match self.foreign.iter().chain(&self.empty).next() {
            Some(&slot) => corrupt(
                slot,
                0,
                format!("segment {segment} of the log is not there"),
            ),
            None => LogError::Missing { segment },
        }
    }

    /// Reads a whole segment. `None` if no slot holds it.
    fn load(&self, files: &dyn Files, segment: u64) -> Result<Option<Segment>, LogError> {
        let Some(&(slot, header)) = self.segments.get(&segment) else {
            return Ok(None);
        };
        let bytes = read(&*open(files, slot)?, usize::MAX)?;
        Ok(Some(Segment {
            slot,
            header,
            bytes,
        }))
    }

    /// Checks that no segment after `segment` has begun.
    fn check_none_after(&self, files: &dyn Files, segment: u64) -> Result<(), LogError> {
        for &later in self.segments.keys().filter(|&&later| later > segment) {
            if let Some(later) = self.load(files, later)?
                && !matches!(later.frame(FRAMES_START), Err(Defect::Invalid))
            {
                let reason = "the segment has begun, the one before it has not".to_owned();
                return Err(corrupt(later.slot, FRAMES_START, reason));
            }
        }
        Ok(())
    }

    /// Separates the segments that are part of the log from later ones.
    fn divide(self, end: LogEnd) -> Recovered {
        let mut recovered = Recovered {
            end,
            segments: BTreeMap::new(),
            next: None,
            unused: self.unused,
        };
        for (segment, (slot, _)) in self.segments {
            if segment <= end.segment {
                recovered.segments.insert(segment, slot);
            } else if segment == end.segment + 1 {
                recovered.next = Some(slot);
            } else {
                recovered.unused.push(slot);
            }
        }
        recovered
    }
}

/// A segment that was read completely.
struct Segment {
    slot: Slot,
    header: Header,
    bytes: Vec<u8>,
}

impl Segment {
    /// Reads the frame at `offset`.
    fn frame(&self, offset: u64) -> Result<Frame<'_>, Defect> {
        Frame::parse(self.at(offset), self.header.salt)
    }

    fn at(&self, offset: u64) -> &[u8] {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.bytes.get(offset..).unwrap_or_default()
    }

    /// Returns what the header and the marks say that the segment has had.
    fn mark(&self) -> Mark {
        let grown = Mark::decode(&self.bytes, self.header.salt);
        grown.unwrap_or(Mark {
            file_bytes: self.header.file_bytes,
            flushed_through: 0,
        })
    }

    /// Checks that the file of a segment that the log has reached was not cut.
    fn check_whole(&self) -> Result<(), LogError> {
        let had = self.mark().file_bytes;
        let len = self.bytes.len() as u64;
        if len < had {
            let reason = format!("the file was cut: it had {had} bytes");
            return Err(corrupt(self.slot, len, reason));
        }
        Ok(())
    }

    /// Checks that the file was not cut, and that its mark does not say that frame `number`, which is missing
    /// at `offset`, had been flushed.
    fn check_mark(&self, offset: u64, number: u64) -> Result<(), LogError> {
        self.check_whole()?;
        if self.mark().flushed_through >= number {
            let reason = format!("frame {number} had been flushed, as the segment's header says");
            return Err(corrupt(self.slot, offset, reason));
        }
        Ok(())
    }

    /// Checks that no frame from `offset` on records that frame `number`, which is missing, had been
    /// flushed.
    fn check_not_flushed(&self, offset: u64, number: u64, from: u64) -> Result<(), LogError> {
        let says_flushed =
            |place: FramePlace| place.number > number && place.flushed_through >= number;
        let offsets = (from..self.bytes.len() as u64).step_by(BLOCK_BYTES);
        for later in offsets {
            // Check the place first: checksums over bytes that are not a frame would take long.
            if Frame::unchecked_place(self.at(later)).is_some_and(says_flushed)
                && self.frame(later).is_ok()
            {
                let reason = format!("frame {number} had been flushed, as the one at {later} says");
                return Err(corrupt(self.slot, offset, reason));
            }
        }
        Ok(())
    }
}

/// The progress of reading a log.
struct Scan {
    end: LogEnd,
    is_sealed: bool,
    newest_batch: Option<i64>,
}

impl Scan {
    fn new(start: Start) -> Self {
        Self {
            end: LogEnd {
                segment: start.segment,
                offset: FRAMES_START,
                last_frame: start.frame.saturating_sub(1),
                newest_version: None,
            },
            is_sealed: false,
            newest_batch: None,
        }
    }

    /// Reads the frames of a segment up to its Seal or the first invalid frame.
    fn read<E: From<LogError>>(
        &mut self,
        segment: &Segment,
        visit: &mut impl FnMut(Replayed<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.is_sealed {
            let corrupt = |reason| corrupt(segment.slot, self.end.offset, reason);
            let frame = match segment.frame(self.end.offset) {
                Ok(frame) => frame,
                Err(Defect::Invalid) => break,
                Err(Defect::Malformed(reason)) => return Err(corrupt(reason).into()),
            };
            self.check(&frame).map_err(corrupt)?;
            self.end.offset += frame.bytes as u64;
            self.end.last_frame = frame.place.number;
            match frame.content {
                Content::Begin(_) => {}
                Content::Batch { version, effects } => {
                    self.newest_batch = Some(version);
                    self.end.newest_version = self.end.newest_version.max(Some(version));
                    visit(Replayed { version, effects })?;
                }
                Content::Clock { version } => {
                    self.end.newest_version = self.end.newest_version.max(Some(version));
                }
                Content::Seal => self.is_sealed = true,
            }
        }
        Ok(())
    }

    /// Checks that a frame is valid after the frames that were read. Returns the reason if it is not.
    fn check(&self, frame: &Frame<'_>) -> Result<(), String> {
        let expected = self.end.last_frame + 1;
        if frame.place.number != expected {
            let found = frame.place.number;
            return Err(format!("expected frame {expected}, found frame {found}"));
        }
        let is_first = self.end.offset == FRAMES_START;
        match &frame.content {
            Content::Begin(begin) if is_first => {
                let previous = self.end.segment.checked_sub(1);
                if Some(begin.previous_segment) != previous
                    || begin.last_frame != self.end.last_frame
                {
                    return Err(format!("the segment does not begin here: {begin:?}"));
                }
            }
            Content::Begin(_) => return Err("a segment begins twice".to_owned()),
            _ if is_first => return Err("the segment has no Begin".to_owned()),
            Content::Batch { version, .. } if self.newest_batch >= Some(*version) => {
                return Err(format!("version {version} follows {:?}", self.newest_batch));
            }
            Content::Batch { .. } | Content::Clock { .. } | Content::Seal => {}
        }
        Ok(())
    }

    /// Returns true if the log continues in `next`, and moves to its start in that case.
    fn goes_on(&mut self, segment: &Segment, next: &Segment) -> Result<bool, LogError> {
        let number = self.end.last_frame + 1;
        let begin = match next.frame(FRAMES_START) {
            Ok(frame) => match frame.content {
                Content::Begin(begin) => begin,
                content => {
                    let reason = format!("expected a Begin, found {content:?}");
                    return Err(corrupt(next.slot, FRAMES_START, reason));
                }
            },
            Err(Defect::Malformed(reason)) => {
                return Err(corrupt(next.slot, FRAMES_START, reason));
            }
            Err(Defect::Invalid) => {
                if self.is_sealed {
                    // It was on disk before the Seal was written.
                    next.check_mark(FRAMES_START, number)?;
                } else {
                    self.check_torn(segment)?;
                }
                next.check_not_flushed(FRAMES_START, number, FRAMES_START)?;
                return Ok(false);
            }
        };
        if begin.end != self.end.offset || begin.last_frame != self.end.last_frame {
            let reason = format!("frame {number} is not valid, the next segment says {begin:?}");
            return Err(corrupt(segment.slot, self.end.offset, reason));
        }
        next.check_whole()?;
        self.end.segment += 1;
        self.end.offset = FRAMES_START;
        self.is_sealed = false;
        Ok(true)
    }

    fn check_torn(&self, segment: &Segment) -> Result<(), LogError> {
        let number = self.end.last_frame + 1;
        segment.check_mark(self.end.offset, number)?;
        segment.check_not_flushed(self.end.offset, number, self.end.offset)
    }
}

fn corrupt(slot: Slot, offset: u64, reason: String) -> LogError {
    LogError::Corrupt {
        slot,
        offset,
        reason,
    }
}

fn open(files: &dyn Files, slot: Slot) -> Result<File, LogError> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    match files.open(slot) {
        // It is no regular file.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(LogError::Foreign { slot }),
        opened => Ok(opened?.ok_or_else(gone)?),
    }
}

/// The content of a slot.
enum SlotContent {
    /// The file is still empty.
    Nothing,
    /// The file holds something else than a segment.
    Other,
    Header(Header),
}

fn read_header(slot: Slot, file: &File) -> Result<SlotContent, LogError> {
    match Header::decode(&read(&**file, BLOCK_BYTES)?) {
        Ok(Some(header)) => Ok(SlotContent::Header(header)),
        Ok(None) if read(&**file, usize::MAX)?.iter().all(|&byte| byte == 0) => {
            Ok(SlotContent::Nothing)
        }
        Ok(None) => Err(corrupt(slot, 0, "there is no header".to_owned())),
        Err(HeaderDefect::Damaged(reason)) => Err(corrupt(slot, 0, reason)),
        Err(HeaderDefect::Foreign) => Ok(SlotContent::Other),
        Err(HeaderDefect::NewerFormat { found }) => Err(LogError::NewerFormat {
            slot,
            found,
            supported: FORMAT,
        }),
    }
}

/// Reads a file from its start, up to `max_bytes` bytes.
fn read(file: &dyn Backend, max_bytes: usize) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len.min(max_bytes)];
    file.read(0, &mut bytes)?;
    Ok(bytes)
}
