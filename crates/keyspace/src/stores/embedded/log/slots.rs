//! The slots of a log: which segment each one holds, and the spare for the next segment.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::append_error::AppendError;
use super::files::{Files, Slot};
use super::frame::BLOCK_BYTES;
use super::recover::Recovered;
use super::segment::{FRAMES_START, Header, LogId, Mark, Sizes};
use crate::stores::embedded::backend::File;

/// The number of free slots that are kept for later segments. Others are removed.
const MAX_FREE: usize = 1;

/// An empty segment that is certainly on disk, including its name.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) file: File,
    pub(super) segment: u64,
    pub(super) salt: u64,
    /// The number of bytes of the file that were written.
    pub(super) grown_bytes: u64,
    /// The number of marks that were written.
    pub(super) marks: u64,
}

/// The slots of one log.
#[derive(Debug)]
pub(crate) struct Slots {
    files: Arc<dyn Files>,
    id: LogId,
    sizes: Sizes,
    /// The slots of the log's segments, including those of spares.
    segments: BTreeMap<u64, Slot>,
    /// Slots whose content is no longer needed. The first one becomes the next spare.
    free: VecDeque<Slot>,
    next_segment: u64,
    /// False if a power loss might still undo the creation of a slot.
    folder_is_synced: bool,
}

impl Slots {
    /// Takes over a recovered log or a new one.
    ///
    /// Flushes the segments that were read, because after a crash of the process, parts of them may be only
    /// in the operating system's cache. Removes the slots that are not used.
    pub(crate) fn start(
        files: Arc<dyn Files>,
        id: LogId,
        sizes: Sizes,
        recovered: Recovered,
    ) -> io::Result<Self> {
        for &slot in recovered.segments.values() {
            let file = files.open(slot)?.ok_or(io::ErrorKind::NotFound)?;
            file.sync_data()?;
        }
        for &slot in &recovered.unused {
            remove(&*files, slot)?;
        }
        // An unused later segment must be gone before another slot gets its number.
        files.sync_folder()?;
        Ok(Self {
            files,
            id,
            sizes,
            segments: recovered.segments,
            // Its header stays until it is overwritten: a sealed segment needs a next one.
            free: recovered.next.into_iter().collect(),
            next_segment: recovered.end.segment + 1,
            folder_is_synced: true,
        })
    }

    /// Prepares the next segment, in a free slot or in a new one. `salt` must be random, so that frames
    /// that the slot held before are not valid in the new segment.
    ///
    /// # Errors
    /// [`AppendError::NoSpace`] if the system is short of something. The log has not changed, and the call
    /// may be repeated.
    pub(crate) fn prepare(&mut self, salt: u64) -> Result<Spare, AppendError> {
        let (slot, file) = self.open_free().map_err(AppendError::of_preparing)?;
        let first_bytes = (FRAMES_START + self.sizes.grow_bytes).min(self.sizes.segment_bytes);
        let file_bytes = fill(&file, first_bytes).map_err(AppendError::of_preparing)?;
        let header = Header {
            id: self.id,
            segment: self.next_segment,
            salt,
            file_bytes,
        };
        let written = file.write(0, &header.encode());
        written.map_err(AppendError::of_preparing)?;
        // After a flush that failed, another one may succeed and still have lost what was written.
        file.sync_data()?;
        if !self.folder_is_synced {
            self.files.sync_folder()?;
            self.folder_is_synced = true;
        }
        self.free.pop_front();
        self.segments.insert(self.next_segment, slot);
        self.next_segment += 1;
        Ok(Spare {
            file,
            segment: header.segment,
            salt,
            grown_bytes: header.file_bytes,
            marks: 0,
        })
    }

    /// Opens the first free slot, or creates one.
    fn open_free(&mut self) -> io::Result<(Slot, File)> {
        while let Some(&slot) = self.free.front() {
            if let Some(file) = self.files.open(slot)? {
                return Ok((slot, file));
            }
            // It was removed from outside.
            self.free.pop_front();
        }
        let slot = Slot(self.next_segment);
        self.folder_is_synced = false;
        let file = self.files.create(slot)?;
        self.free.push_front(slot);
        Ok((slot, file))
    }

    /// Frees the segments before `segment`. The record that the log begins there must already be on disk.
    pub(crate) fn free_before(&mut self, segment: u64) -> io::Result<()> {
        let kept = self.segments.split_off(&segment);
        let freed = std::mem::replace(&mut self.segments, kept);
        self.free.extend(freed.into_values());
        while self.free.len() > MAX_FREE
            && let Some(slot) = self.free.pop_back()
        {
            remove(&*self.files, slot)?;
        }
        Ok(())
    }

    /// Returns whether the files of all segments are there.
    pub(crate) fn are_whole(&self) -> bool {
        let listed = self.files.list().unwrap_or_default();
        self.segments.values().all(|slot| listed.contains(slot))
    }

    /// Removes every slot durably. The record that the store has no log must already be on disk.
    pub(crate) fn remove_all(&mut self) -> io::Result<()> {
        let segments = std::mem::take(&mut self.segments);
        for slot in segments.into_values().chain(self.free.drain(..)) {
            remove(&*self.files, slot)?;
        }
        self.files.sync_folder()
    }
}

/// Removes a slot whose content is no longer needed, unless it was removed from outside.
fn remove(files: &dyn Files, slot: Slot) -> io::Result<()> {
    match files.remove(slot) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = files.path(slot);
            tracing::warn!(path = %path.display(), "a file of the log was removed while the store was open");
            Ok(())
        }
        removed => removed,
    }
}

/// Makes the disk hold at least `least_bytes` bytes of a file, whose content no longer matters. Returns the length
/// of the file.
fn fill(file: &File, least_bytes: u64) -> io::Result<u64> {
    let filled_bytes = filled_bytes(file)?;
    let file_bytes = filled_bytes.max(least_bytes);
    file.set_len(file_bytes)?;
    if filled_bytes < file_bytes {
        write_zeros(file, filled_bytes, file_bytes)?;
    }
    Ok(file_bytes)
}

/// Returns up to where the bytes of a free file were once written. The rest may be a hole, for which the disk may
/// have no room.
///
/// A header and a mark are written after what they count.
fn filled_bytes(file: &File) -> io::Result<u64> {
    let Some((block, header)) = read_header(file)? else {
        return Ok(0);
    };
    let mark = Mark::decode(&block, header.salt);
    let file_bytes = mark.map_or(header.file_bytes, |mark| mark.file_bytes);
    Ok(file_bytes.min(file.len()?))
}

/// Returns whether a slot holds a segment of a log.
pub(crate) fn has_segment(files: &dyn Files) -> io::Result<bool> {
    for slot in files.list()? {
        if let Some(file) = files.open(slot)?
            && read_header(&file)?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the first block of a segment. `None` if the file holds none.
fn read_header(file: &File) -> io::Result<Option<([u8; BLOCK_BYTES], Header)>> {
    let mut block = [0; BLOCK_BYTES];
    if file.len()? < FRAMES_START {
        return Ok(None);
    }
    file.read(0, &mut block)?;
    let header = Header::decode(&block).ok().flatten();
    Ok(header.map(|header| (block, header)))
}

/// Writes zeros from an offset up to another one, where the file ends. If they cannot be written, the file ends at
/// the first one.
pub(super) fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(to - from).map_err(io::Error::other)?];
    let written = file.write(from, &zeros);
    if written.is_err() {
        // The part that was written may be needed elsewhere.
        let _ = file.set_len(from);
    }
    written
}
