//! Where a store keeps its bytes: files on a disk, memory, or the simulated disk of the tests.

mod file;
mod memory;
pub(super) mod place;

use std::fmt;
use std::io;
use std::sync::Arc;

pub(crate) use self::file::{Access, FileBackend};
pub(crate) use self::memory::MemoryBackend;

/// An open file. All I/O of a store goes through this trait, so that tests can simulate a disk that loses power
/// or fails.
pub(crate) trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on. Fails with `UnexpectedEof` if there are fewer.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Sets the length. New bytes are zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all writes and the length survive a power loss.
    fn sync_data(&self) -> io::Result<()>;

    /// Writes bytes from `offset` on. A write past the end makes the file longer.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// A shared open file.
pub(crate) type File = Arc<dyn Backend>;

/// Returns whether the system is short of something that it may have again soon: room on the disk, descriptors of
/// files, memory, or a lock that another process holds only for a look.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let has_kind = matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::ResourceBusy
    );
    has_kind || is_shortage_of_descriptors(error)
}

/// Returns whether the process or the system has too many open files.
fn is_shortage_of_descriptors(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(rustix::io::Errno::NFILE.raw_os_error()) {
        return true;
    }
    is_limit_of_files(error)
}

/// Returns whether the process has as many open files as it may have.
pub(crate) fn is_limit_of_files(error: &io::Error) -> bool {
    #[cfg(unix)]
    let limit = Some(rustix::io::Errno::MFILE.raw_os_error());
    #[cfg(windows)]
    let limit = Some(4);
    #[cfg(not(any(unix, windows)))]
    let limit = None;
    limit.is_some() && error.raw_os_error() == limit
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};

    use super::*;
    use crate::stores::embedded::tests::disk::Disk;

    /// Makes random changes of a file and of a vector, and compares them.
    fn check(file: &dyn Backend) {
        let mut rng = StdRng::seed_from_u64(0);
        let mut expected: Vec<u8> = Vec::new();
        for step in 0..500 {
            let offset = rng.random_range(0..300_000);
            if rng.random_ratio(1, 8) {
                expected.resize(offset, 0);
                file.set_len(offset as u64).unwrap();
            } else {
                let mut bytes = vec![0; rng.random_range(0..100_000)];
                rng.fill_bytes(&mut bytes);
                let end = offset + bytes.len();
                expected.resize(expected.len().max(end), 0);
                expected[offset..end].copy_from_slice(&bytes);
                file.write(offset as u64, &bytes).unwrap();
            }
            file.sync_data().unwrap();
            assert_eq!(file.len().unwrap(), expected.len() as u64, "step {step}");
            let from = rng.random_range(0..=expected.len());
            let mut found = vec![9; rng.random_range(from..=expected.len()) - from];
            file.read(from as u64, &mut found).unwrap();
            assert!(found == expected[from..from + found.len()], "step {step}");
            let past_end = file.read(from as u64, &mut vec![0; expected.len() - from + 1]);
            assert_eq!(past_end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn files_memory_and_the_disk_of_the_tests_keep_bytes_alike() {
        let file = tempfile::tempfile().unwrap();
        check(&FileBackend::new(file));
        check(&MemoryBackend::default());
        check(&Disk::new(Vec::new()));
    }
}
