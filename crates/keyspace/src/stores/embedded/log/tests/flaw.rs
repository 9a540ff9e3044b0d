//! Bugs that are planted below the log, to prove that the checks find them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stores::embedded::backend::Backend;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::files::{Files, Slot};
use super::super::frame::BLOCK_BYTES;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::tests::disk::Disk;

/// The bug of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Each frame and each mark record that no frame had been flushed.
    NoneFlushed,
    /// Each frame records that all frames before it had been flushed.
    AllFlushed,
    /// All segments have the same salt.
    SaltReused,
    /// A spare is not flushed before the previous segment is sealed.
    SpareNotFlushed,
    /// A segment is not marked when it has grown.
    GrowthNotMarked,
}

/// The files of a log with a bug.
#[derive(Debug)]
pub(super) struct Flawed {
    disk: Disk,
    flaw: Flaw,
}

impl Flawed {
    pub(super) fn new(disk: Disk, flaw: Flaw) -> Self {
        Self { disk, flaw }
    }

    fn file(&self, file: File) -> File {
        Arc::new(FlawedFile {
            file,
            flaw: self.flaw,
            has_frames: AtomicBool::new(false),
        })
    }
}

impl Files for Flawed {
    fn open(&self, slot: Slot) -> io::Result<Option<File>> {
        Ok(self.disk.open(slot)?.map(|file| self.file(file)))
    }

    fn create(&self, slot: Slot) -> io::Result<File> {
        Ok(self.file(self.disk.create(slot)?))
    }

    fn remove(&self, slot: Slot) -> io::Result<()> {
        self.disk.remove(slot)
    }

    fn list(&self) -> io::Result<Vec<Slot>> {
        self.disk.list()
    }

    fn path(&self, slot: Slot) -> PathBuf {
        self.disk.path(slot)
    }

    fn sync_folder(&self) -> io::Result<()> {
        match self.flaw {
            Flaw::SpareNotFlushed => Ok(()),
            _ => self.disk.sync_folder(),
        }
    }
}

#[derive(Debug)]
struct FlawedFile {
    file: File,
    flaw: Flaw,
    /// True once a frame was written, not only the header.
    has_frames: AtomicBool,
}

impl Backend for FlawedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.flaw {
            Flaw::SpareNotFlushed if !self.has_frames.load(Ordering::Relaxed) => Ok(()),
            _ => self.file.sync_data(),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let is_header = offset == 0;
        if is_header || data.iter().all(|&byte| byte == 0) {
            return self.file.write(offset, data);
        }
        let is_mark = data.len() < BLOCK_BYTES;
        if is_mark && self.flaw == Flaw::GrowthNotMarked {
            return Ok(());
        }
        self.has_frames.store(true, Ordering::Relaxed);
        let mut salt = [0; 8];
        self.file.read(56, &mut salt)?;
        let salt = u64::from_be_bytes(salt);
        let mut frames = data.to_vec();
        if is_mark && self.flaw == Flaw::NoneFlushed {
            frames[8..16].fill(0);
            let checksum = xxh3_64_with_seed(&frames[..16], salt);
            frames[16..].copy_from_slice(&checksum.to_be_bytes());
        }
        each_frame(&mut frames, |frame| {
            let number = u64::from_be_bytes(*frame[16..].first_chunk().unwrap());
            let flushed_through = match self.flaw {
                Flaw::NoneFlushed => 0,
                Flaw::AllFlushed => number - 1,
                Flaw::SaltReused | Flaw::SpareNotFlushed | Flaw::GrowthNotMarked => return,
            };
            frame[24..32].copy_from_slice(&flushed_through.to_be_bytes());
            let checksum = xxh3_64_with_seed(&frame[8..], salt);
            frame[..8].copy_from_slice(&checksum.to_be_bytes());
        });
        self.file.write(offset, &frames)
    }
}

/// Calls `change` with each frame of a write, without the padding. Zeros are not frames.
fn each_frame(mut bytes: &mut [u8], change: impl Fn(&mut [u8])) {
    while bytes.len() >= BLOCK_BYTES {
        let len = u32::from_be_bytes(*bytes[8..].first_chunk().unwrap()) as usize;
        if len == 0 {
            return;
        }
        change(&mut bytes[..len]);
        bytes = &mut bytes[len.next_multiple_of(BLOCK_BYTES)..];
    }
}
