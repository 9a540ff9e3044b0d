//! A file of the operating system.

use std::fs::{File, TryLockError};
use std::io;

use super::Backend;

/// What an opening does with a store's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads it. Other readers may do so, too.
    Read,
    /// Reads and writes it. Nothing else has it open then.
    Write,
}

/// A file of the operating system.
#[derive(Debug)]
pub(crate) struct FileBackend(File);

impl FileBackend {
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }

    /// Locks the file until it is closed. Returns `None` if it is locked in another way.
    pub(crate) fn lock(file: File, access: Access) -> io::Result<Option<Self>> {
        let locked = match access {
            Access::Read => file.try_lock_shared(),
            Access::Write => file.try_lock(),
        };
        match locked {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for FileBackend {
    /// Ends the lock. Closing the file is not enough: a child process that has not begun its program yet has the file
    /// open, too.
    fn drop(&mut self) {
        // A file that was never locked has no lock to end.
        let _ = self.0.unlock();
    }
}

impl Backend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    #[cfg(unix)]
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, out, offset)
    }

    #[cfg(windows)]
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        use std::os::windows::fs::FileExt;

        let mut done = 0;
        while done < out.len() {
            match self.0.seek_read(&mut out[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    #[cfg(unix)]
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, bytes, offset)
    }

    #[cfg(windows)]
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        use std::os::windows::fs::FileExt;

        let mut done = 0;
        while done < bytes.len() {
            match self.0.seek_write(&bytes[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }
}
