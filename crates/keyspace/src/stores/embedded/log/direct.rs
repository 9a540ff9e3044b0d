//! Writes that bypass the operating system's page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use super::frame::BLOCK_BYTES;
use crate::stores::embedded::backend::{Backend, FileBackend, is_shortage};

/// The largest direct write, in bytes. With larger ones, the page cache is faster: it writes several parts
/// to the disk at the same time.
const MAX_DIRECT_BYTES: usize = 64 << 10;

/// A file whose writes of a few whole blocks bypass the page cache, if the file system allows it.
///
/// Such a write takes as long as the disk does, and the flush after it finds nothing to write. Together they
/// are faster than a write to the page cache and a flush. A read, a flush or a larger write works as in any
/// file: the operating system keeps the page cache and the disk consistent.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: FileBackend,
    /// The same file, opened with `O_DIRECT`. `None` if its file system has no such writes.
    direct: Option<File>,
    /// Whether the disk turned a direct write down.
    is_refused: AtomicBool,
}

impl DirectFile {
    /// Wraps the file at `path`, which is open as `file`.
    ///
    /// # Errors
    /// If the system is short of descriptors: later, direct writes may be possible.
    pub(crate) fn new(file: FileBackend, path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let opened = options.write(true).custom_flags(flags).open(path);
        let direct = match opened {
            Err(error) if is_shortage(&error) => return Err(error),
            opened => opened.ok(),
        };
        Ok(Self {
            file,
            direct,
            is_refused: AtomicBool::new(false),
        })
    }

    /// Writes to the disk. Returns false if the data must go through the page cache instead.
    fn write_direct(&self, offset: u64, data: &[u8]) -> io::Result<bool> {
        let is_possible = data.len() <= MAX_DIRECT_BYTES
            && data.len().is_multiple_of(BLOCK_BYTES)
            && offset.is_multiple_of(BLOCK_BYTES as u64)
            && !self.is_refused.load(Ordering::Relaxed);
        let Some(direct) = &self.direct else {
            return Ok(false);
        };
        if !is_possible {
            return Ok(false);
        }
        // The disk reads the data from memory that must be aligned, too.
        let mut buffer = vec![0; data.len() + BLOCK_BYTES];
        let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
        let aligned = &mut buffer[start..start + data.len()];
        aligned.copy_from_slice(data);
        match direct.write_all_at(aligned, offset) {
            Ok(()) => Ok(true),
            // The blocks of the disk are larger.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Backend for DirectFile {
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
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.write_direct(offset, data)? {
            Ok(())
        } else {
            self.file.write(offset, data)
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};
    use tempfile::NamedTempFile;

    use super::*;

    fn open(file: &NamedTempFile) -> DirectFile {
        let backend = FileBackend::new(file.reopen().unwrap());
        DirectFile::new(backend, file.path()).unwrap()
    }

    /// Makes random writes, of whole blocks and others, and checks the content after each.
    fn write_and_check(file: &DirectFile) {
        const FILE_BYTES: usize = 1 << 20;
        let mut rng = StdRng::seed_from_u64(0);
        let mut expected = vec![0; FILE_BYTES];
        file.set_len(FILE_BYTES as u64).unwrap();
        for _ in 0..200 {
            let unit = if rng.random() { BLOCK_BYTES } else { 1 };
            let len = unit * rng.random_range(1..=2 * MAX_DIRECT_BYTES / unit);
            let offset = unit * rng.random_range(0..=(FILE_BYTES - len) / unit);
            let written = &mut expected[offset..offset + len];
            rng.fill_bytes(written);
            file.write(offset as u64, written).unwrap();
            if rng.random_ratio(1, 4) {
                file.sync_data().unwrap();
            }
            let mut content = vec![0; FILE_BYTES];
            file.read(0, &mut content).unwrap();
            assert!(content == expected, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn reads_see_direct_writes_and_others() {
        let file = NamedTempFile::new().unwrap();
        write_and_check(&open(&file));
    }

    #[test]
    fn a_file_system_without_direct_writes_is_written_through_the_cache() {
        let file = NamedTempFile::new().unwrap();
        let without = DirectFile {
            direct: None,
            ..open(&file)
        };
        write_and_check(&without);
    }

    #[test]
    fn a_disk_that_turns_a_direct_write_down_is_written_through_the_cache() {
        let file = NamedTempFile::new().unwrap();
        // This file of the kernel turns everything down that is not a number, with EINVAL.
        let refusing = OpenOptions::new()
            .write(true)
            .open("/proc/self/oom_score_adj");
        let refused = DirectFile {
            direct: Some(refusing.unwrap()),
            ..open(&file)
        };
        assert!(!refused.write_direct(0, &[b'x'; BLOCK_BYTES]).unwrap());
        write_and_check(&refused);
    }

    #[test]
    fn a_direct_write_that_fails_is_an_error() {
        let file = NamedTempFile::new().unwrap();
        let failing = DirectFile {
            direct: Some(File::open(file.path()).unwrap()),
            ..open(&file)
        };
        assert!(failing.write(0, &[1; BLOCK_BYTES]).is_err());
    }
}
