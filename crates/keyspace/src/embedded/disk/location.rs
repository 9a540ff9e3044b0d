//! Finds or creates the store's file.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(unix)]
use super::applications::Hold;
use super::open::{OpenedStore, Setup};
use super::open_errors::{not_a_store, open_error, refusal};
#[cfg(unix)]
use super::presence::Presence;
use super::verify::{self, Verified};
use crate::embedded::backend::{Access, File, FileBackend, MemoryBackend};
use crate::embedded::log::files::{Files, Folder, folder_of, sync_folder};
use crate::error::OpenError;

/// How a store is opened: with [`open`] or [`open_existing`].
pub(crate) type Open = fn(&Path, &Setup) -> Result<OpenedStore, OpenError>;

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
fn find(path: &Path) -> Result<Option<fs::File>, OpenError> {
    find_for(path, fs::File::options().read(true).write(true))
}

fn find_for(path: &Path, options: &OpenOptions) -> Result<Option<fs::File>, OpenError> {
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

fn open_file(file: fs::File, path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    #[cfg(unix)]
    let (file, hold) = lock_with_hold(file, path, setup)?;
    #[cfg(not(unix))]
    let file = lock(file, path, Access::Write)?;
    let failed = |error| open_error(path, error);
    let files = Folder::open_beside(path).map_err(failed)?;
    let files = Arc::new(files.direct(setup.is_log_direct));
    #[cfg(unix)]
    {
        let presence = Presence::join(path).map_err(failed)?;
        // Keeps the lock of the file if the opening fails.
        match OpenedStore::open(file.clone(), files, path, setup) {
            Ok(store) => Ok(OpenedStore {
                presence: Some(presence),
                hold: Some(hold),
                ..store
            }),
            Err(error) => {
                presence.withdraw();
                hold.withdraw();
                Err(error)
            }
        }
    }
    #[cfg(not(unix))]
    OpenedStore::open(file, files, path, setup)
}

/// Locks the file, and keeps viewers from owning the store, or applications if this is a viewer. Fails as if the store
/// were in use if there are any.
#[cfg(unix)]
fn lock_with_hold(file: fs::File, path: &Path, setup: &Setup) -> Result<(File, Hold), OpenError> {
    let checked = |hold: io::Result<Option<Hold>>| {
        let hold = hold.map_err(|error| open_error(path, error))?;
        hold.ok_or_else(|| in_use(path))
    };
    if setup.is_viewer {
        // First: a viewer does not lock the file of a store that an application has open, not even for a moment.
        let hold = checked(Hold::viewer(path))?;
        return Ok((lock(file, path, Access::Write)?, hold));
    }
    let file = lock(file, path, Access::Write)?;
    Ok((file, checked(Hold::application(path))?))
}

/// Locks the file until it is closed.
fn lock(file: fs::File, path: &Path, access: Access) -> Result<File, OpenError> {
    match FileBackend::lock(file, access) {
        Ok(Some(file)) => Ok(Arc::new(file)),
        Ok(None) => Err(in_use(path)),
        Err(error) => Err(open_error(path, error)),
    }
}

fn in_use(path: &Path) -> OpenError {
    OpenError::StoreInUse {
        path: path.to_owned(),
        reason: None,
    }
}

/// Checks the store at `path` without changing it.
pub(crate) fn verify(
    path: &Path,
    setup: &Setup,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    let none = || OpenError::NoStore {
        path: path.to_owned(),
    };
    let file = find_for(path, fs::File::options().read(true))?;
    let file = lock(file.ok_or_else(none)?, path, Access::Read)?;
    let folder = Folder::beside(path).map_err(|error| open_error(path, error))?;
    verify::store(file, &folder.read_only(), path, setup, progress)
}

/// Creates a store in memory.
pub(crate) fn memory(setup: &Setup) -> Result<OpenedStore, OpenError> {
    create_in(
        Arc::new(MemoryBackend::default()),
        Path::new(IN_MEMORY),
        setup,
    )
}

/// Creates a store in an empty file, without a log.
pub(crate) fn create_in(file: File, path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    OpenedStore::create(file, setup).map_err(|error| refusal(path, error))
}

/// Creates the store at `path`. If another opener was faster, its store stays.
fn create(path: &Path, setup: &Setup) -> Result<(), OpenError> {
    const CACHE_BYTES: usize = 1 << 20;
    let setup = Setup {
        cache_bytes: CACHE_BYTES,
        ..setup.clone()
    };
    let created = write_new(path, |file| create_in(file, path, &setup).map(drop));
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
    write: impl FnOnce(File) -> Result<(), OpenError>,
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
    write: impl FnOnce(File) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let open_error = |cause| open_error(path, cause);
    let folder = folder_of(path);
    let new = tempfile::Builder::new()
        .prefix(".keyspace-")
        .tempfile_in(folder)
        .map_err(|error| open_error(no_new_file(folder, &error)))?;
    let file = new.reopen().map_err(open_error)?;
    // Not locked: a process that is started meanwhile would hold the lock for a moment, also after the file was closed.
    write(Arc::new(FileBackend::new(file)))?;
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
