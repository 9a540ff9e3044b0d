//! The slots of a log: which segment each holds, and the spare that the log goes on to.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::super::files::{File, Files, Slot};
use super::recover::Recovered;
use super::segment::{FRAMES_START, Header, LogId, Sizes};

/// How many free slots are kept for later segments; others are removed.
const MAX_FREE: usize = 1;

/// A segment without frames that is on disk for certain, its name included.
#[derive(Debug)]
pub(in super::super) struct Spare {
    pub(super) file: File,
    pub(super) segment: u64,
    pub(super) salt: u64,
    /// How many bytes of the file were written.
    pub(super) grown_bytes: u64,
}

/// The slots of one log.
#[derive(Debug)]
pub(in super::super) struct Slots {
    files: Arc<dyn Files>,
    id: LogId,
    sizes: Sizes,
    /// The slots of the log's segments, those of spares included.
    segments: BTreeMap<u64, Slot>,
    /// Slots whose content is not needed. A spare is made of the first one.
    free: VecDeque<Slot>,
    next_segment: u64,
    /// False if a power loss might still take a slot away.
    folder_is_synced: bool,
}

impl Slots {
    /// Begins with what a log was recovered from, or with a new log: flushes the segments that were
    /// read, since a crash of the process may have left parts of them in the operating system's cache
    /// only, and removes the slots that are not used.
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
        // A later segment that is no longer used must be gone before another slot gets its number.
        files.sync_folder()?;
        Ok(Self {
            files,
            id,
            sizes,
            segments: recovered.segments,
            // Its header stays until it is written again: a sealed segment needs a next one.
            free: recovered.next.into_iter().collect(),
            next_segment: recovered.end.segment + 1,
            folder_is_synced: true,
        })
    }

    /// Makes the next segment, in a free slot or in a new one. `salt` must be random: frames
    /// that the slot held before are not valid with another salt.
    ///
    /// A failure, for example of a full disk, leaves the log as it was. The call may be repeated.
    pub(in super::super) fn prepare(&mut self, salt: u64) -> io::Result<Spare> {
        let slot = match self.free.front() {
            Some(&slot) => slot,
            None => {
                let slot = Slot(self.next_segment);
                self.folder_is_synced = false;
                self.files.create(slot)?;
                self.free.push_front(slot);
                slot
            }
        };
        let file = self.files.open(slot)?.ok_or(io::ErrorKind::NotFound)?;
        let header = Header {
            id: self.id,
            segment: self.next_segment,
            salt,
        };
        let first_bytes = (FRAMES_START + self.sizes.grow_bytes).min(self.sizes.segment_bytes);
        let grown_bytes = write_header(&file, &header, first_bytes)?;
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
            grown_bytes,
        })
    }

    /// Frees the segments before `segment`. That the log begins there must be on disk by now.
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

    /// Removes every slot for certain. That the store has no log must be on disk by now.
    pub(in super::super) fn remove_all(&mut self) -> io::Result<()> {
        let segments = std::mem::take(&mut self.segments);
        for slot in segments.into_values().chain(self.free.drain(..)) {
            self.files.remove(slot)?;
        }
        self.files.sync_folder()
    }
}

/// Writes the header, and zeros up to `first_bytes` into a file that is shorter. Returns how many
/// bytes of the file were written.
fn write_header(file: &File, header: &Header, first_bytes: u64) -> io::Result<u64> {
    let len = file.len()?;
    if len >= first_bytes {
        file.write(0, &header.encode())?;
        return Ok(len);
    }
    file.set_len(first_bytes)?;
    let mut bytes = header.encode().to_vec();
    bytes.resize(usize::try_from(first_bytes).map_err(io::Error::other)?, 0);
    file.write(0, &bytes)?;
    Ok(first_bytes)
}
