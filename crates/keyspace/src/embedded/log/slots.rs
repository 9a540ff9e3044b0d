//! The slots of a log: which segment each one holds, and the spare for the next segment.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::super::files::{File, Files, Slot};
use super::recover::Recovered;
use super::segment::{FRAMES_START, Header, LogId, Sizes};

/// The number of free slots that are kept for later segments. Others are removed.
const MAX_FREE: usize = 1;

/// An empty segment that is certainly on disk, including its name.
#[derive(Debug)]
pub(in super::super) struct Spare {
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
pub(in super::super) struct Slots {
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
    pub(in super::super) fn start(
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
            files.remove(slot)?;
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
    /// If the call fails, for example because the disk is full, the log has not changed. The call may be
    /// repeated.
    pub(in super::super) fn prepare(&mut self, salt: u64) -> io::Result<Spare> {
        let (slot, file) = match self.free.front() {
            Some(&slot) => {
                let file = self.files.open(slot)?;
                (slot, file.ok_or(io::ErrorKind::NotFound)?)
            }
            None => {
                let slot = Slot(self.next_segment);
                self.folder_is_synced = false;
                let file = self.files.create(slot)?;
                self.free.push_front(slot);
                (slot, file)
            }
        };
        let first_bytes = (FRAMES_START + self.sizes.grow_bytes).min(self.sizes.segment_bytes);
        let header = Header {
            id: self.id,
            segment: self.next_segment,
            salt,
            file_bytes: file.len()?.max(first_bytes),
        };
        write_header(&file, &header)?;
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

    /// Frees the segments before `segment`. The record that the log begins there must already be on disk.
    pub(in super::super) fn free_before(&mut self, segment: u64) -> io::Result<()> {
        let kept = self.segments.split_off(&segment);
        let freed = std::mem::replace(&mut self.segments, kept);
        self.free.extend(freed.into_values());
        while self.free.len() > MAX_FREE
            && let Some(slot) = self.free.pop_back()
        {
            self.files.remove(slot)?;
        }
        Ok(())
    }

    /// Removes every slot durably. The record that the store has no log must already be on disk.
    pub(in super::super) fn remove_all(&mut self) -> io::Result<()> {
        let segments = std::mem::take(&mut self.segments);
        for slot in segments.into_values().chain(self.free.drain(..)) {
            self.files.remove(slot)?;
        }
        self.files.sync_folder()
    }
}

/// Writes the header, and extends a shorter file with zeros to the length that the header says.
fn write_header(file: &File, header: &Header) -> io::Result<()> {
    let mut bytes = header.encode().to_vec();
    if file.len()? < header.file_bytes {
        file.set_len(header.file_bytes)?;
        let file_bytes = usize::try_from(header.file_bytes).map_err(io::Error::other)?;
        bytes.resize(file_bytes, 0);
    }
    file.write(0, &bytes)
}
