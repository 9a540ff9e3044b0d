//! Finds or creates the store's file.
//!
//! Nothing is written to a file before it is known to be a store. redb opens it on a `DeferredBackend`, which
//! holds back redb's writes until the store's own record was read.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{BackendError, StorageBackend};

use super::open::{OpenedStore, Setup};
use super::verify::{self, Verified};
use crate::embedded::log::files::{Files, Folder, folder_of, sync_folder};
use crate::embedded::tree::guard::silence_panics;
use crate::embedded::tree::open_errors::{not_a_store, open_error, refusal};
use crate::error::OpenError;

/// The name of a store in memory, for errors.
pub(crate) const IN_MEMORY: &str = ":memory:";

/// Opens the store at `path`, and creates it if nothing is there.
pub(crate) fn open(path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    let file = match find(path)? {
        Some(file) => file,
        None => {
            create(path, setup)?;
            // The file has just been removed, or the path is a link to nothing.
            let gone = || open_error(path, io::Error::from(io::ErrorKind::NotFound));
            find(path)?.ok_or_else(gone)?
        }
    };
    open_file(file, path, setup)
}

/// Opens the store at `path`, and never creates one.
pub(crate) fn open_existing(path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    let none = || OpenError::NoStore {
        path: path.to_owned(),
    };
    open_file(find(path)?.ok_or_else(none)?, path, setup)
}

/// Opens the file at `path`. `None` if nothing is there.
fn find(path: &Path) -> Result<Option<File>, OpenError> {
    find_for(path, File::options().read(true).write(true))
}

fn find_for(path: &Path, options: &OpenOptions) -> Result<Option<File>, OpenError> {
    // Check the type first: opening a path that is not a regular file may block.
    let found = fs::metadata(path).and_then(|metadata| {
        let open = || options.open(path);
        let file = metadata.is_file().then(open).transpose()?;
        Ok((metadata, file))
    });
    match found {
        Ok((_, Some(file))) => Ok(Some(file)),
        Ok((metadata, None)) if metadata.is_dir() => Err(not_a_store(path, "a directory")),
        Ok((_, None)) => Err(not_a_store(path, "no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_lone_log(path).map(|()| None)
        }
        Err(error) => Err(open_error(path, error)),
    }
}

/// Refuses a path that has the log of a store but no store.
fn refuse_lone_log(path: &Path) -> Result<(), OpenError> {
    // Without a folder there is no log.
    let slots = Folder::beside(path).and_then(|folder| folder.list());
    if slots.is_ok_and(|slots| !slots.is_empty()) {
        Err(OpenError::LogWithoutStore {
            path: path.to_owned(),
        })
    } else {
        Ok(())
    }
}

fn open_file(file: File, path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    silence_panics();
    let backend = backend(file, path)?;
    let files = Folder::open_beside(path)
        .map_err(|error| open_error(path, error))?
        .direct(setup.is_log_direct);
    OpenedStore::open(backend, Arc::new(files), path, setup)
}

fn backend(file: File, path: &Path) -> Result<FileBackend, OpenError> {
    FileBackend::new(file).map_err(|error| refusal(path, error.into()))
}

/// Checks the store at `path` without changing it.
pub(crate) fn verify(
    path: &Path,
    setup: &Setup,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    silence_panics();
    let none = || OpenError::NoStore {
        path: path.to_owned(),
    };
    let open = || {
        let file = find_for(path, File::options().read(true))?;
        Ok(ReadOnly(backend(file.ok_or_else(none)?, path)?))
    };
    let folder = Folder::beside(path).map_err(|error| open_error(path, error))?;
    let files: Arc<dyn Files> = Arc::new(folder.read_only());
    verify::store(open, &files, path, setup, progress)
}

/// A file that is only read. The system gives no exclusive lock on it, so it is locked against writers.
#[derive(Debug)]
struct ReadOnly(FileBackend);

impl StorageBackend for ReadOnly {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}

/// Creates a store in memory.
pub(crate) fn memory(setup: &Setup) -> Result<OpenedStore, OpenError> {
    create_in(InMemoryBackend::new(), Path::new(IN_MEMORY), setup)
}

/// Creates a store in an empty backend, without a log.
pub(crate) fn create_in(
    backend: impl StorageBackend,
    path: &Path,
    setup: &Setup,
) -> Result<OpenedStore, OpenError> {
    OpenedStore::create(backend, setup).map_err(|error| refusal(path, error))
}

/// Creates the store at `path`. If another opener was faster, its store stays.
fn create(path: &Path, setup: &Setup) -> Result<(), OpenError> {
    const CACHE_BYTES: usize = 1 << 20;
    let setup = Setup {
        cache_bytes: CACHE_BYTES,
        ..setup.clone()
    };
    // The store is dropped again, so that the file that is moved is a properly closed store.
    let created = write_new(path, |backend| create_in(backend, path, &setup).map(drop));
    created.or_else(|error| match error {
        OpenError::Open { cause, .. } if is_taken(&*cause) => Ok(()),
        error => Err(error),
    })
}

/// Copies the rows of an open store to a new store at `path`.
///
/// # Errors
/// Those of [`write_new`], and the error that `write` returns.
pub(crate) fn write_copy(
    path: &Path,
    write: impl FnOnce(FileBackend) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    // First, so that the log of a store at `path` is not called a log without a store.
    if path.symlink_metadata().is_ok() {
        return Err(open_error(
            path,
            io::Error::from(io::ErrorKind::AlreadyExists),
        ));
    }
    // A log with this name would be taken for the copy's.
    refuse_lone_log(path)?;
    write_new(path, write)
}

/// Writes a file under a temporary name and then moves it to `path`. A crash in between leaves nothing at
/// `path`.
///
/// # Errors
/// [`OpenError::Open`] with `AlreadyExists` if there is something at `path`, which is not changed.
fn write_new(
    path: &Path,
    write: impl FnOnce(FileBackend) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let open_error = |cause| open_error(path, cause);
    let folder = folder_of(path);
    let new = tempfile::Builder::new()
        .prefix(".keyspace-")
        .tempfile_in(folder)
        .map_err(|error| open_error(no_new_file(folder, &error)))?;
    let file = new.reopen().map_err(open_error)?;
    write(backend(file, path)?)?;
    let moved = new.persist_noclobber(path);
    moved.map_err(|refused| open_error(refused.error))?;
    sync_folder(folder).map_err(open_error)
}

fn is_taken(cause: &(dyn Error + Send + Sync + 'static)) -> bool {
    let cause = cause.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::AlreadyExists)
}

/// Returns an error that names the folder of the new store, and not the temporary file.
fn no_new_file(folder: &Path, error: &io::Error) -> io::Error {
    // The error names the temporary file, and its source does not.
    let cause = error
        .get_ref()
        .and_then(Error::source)
        .map_or_else(|| error.kind().to_string(), ToString::to_string);
    let folder = folder.display();
    let text =
        format!("no file can be made in {folder}, which must exist and be writable: {cause}");
    io::Error::new(error.kind(), text)
}
