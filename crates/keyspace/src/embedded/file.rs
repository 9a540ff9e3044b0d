//! Finding or making the store's file.
//!
//! Nothing is written to a file before it is known to be a store: redb opens it on a
//! [`HeldBackend`], which keeps redb's writes to itself until the store's own record was read.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;
use redb::backends::{FileBackend, InMemoryBackend};

use super::files::{Files, Folder, folder_of, sync_folder};
use super::refusal::{not_a_store, open_error, refusal};
use super::store::{Setup, Store};
use crate::error::OpenError;

/// What errors call a store in memory.
pub(super) const IN_MEMORY: &str = ":memory:";

/// Opens the store at `path`, which is made if nothing is there.
pub(super) fn open(path: &Path, setup: &Setup) -> Result<Store, OpenError> {
    let file = match find(path)? {
        Some(file) => file,
        None => {
            create(path, setup)?;
            // Gone again, or the path is a link that leads nowhere.
            let gone = || open_error(path, io::Error::from(io::ErrorKind::NotFound));
            find(path)?.ok_or_else(gone)?
        }
    };
    open_file(file, path, setup)
}

/// Opens the store at `path`, and makes none.
pub(super) fn open_existing(path: &Path, setup: &Setup) -> Result<Store, OpenError> {
    let none = || OpenError::NoStore {
        path: path.to_owned(),
    };
    open_file(find(path)?.ok_or_else(none)?, path, setup)
}

/// Opens the file at `path`. `None`: nothing is there.
fn find(path: &Path) -> Result<Option<File>, OpenError> {
    // Asked first, for what is no regular file may block its opener.
    let found = fs::metadata(path).and_then(|metadata| {
        let open = || File::options().read(true).write(true).open(path);
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

/// Refuses a path that holds no store but the log of one.
fn refuse_lone_log(path: &Path) -> Result<(), OpenError> {
    // Where there is no folder there is no log.
    let slots = Folder::beside(path).and_then(|folder| folder.list());
    match slots.is_ok_and(|slots| !slots.is_empty()) {
        true => Err(OpenError::LogWithoutStore {
            path: path.to_owned(),
        }),
        false => Ok(()),
    }
}

fn open_file(file: File, path: &Path, setup: &Setup) -> Result<Store, OpenError> {
    let backend = FileBackend::new(file).map_err(|error| refusal(path, error.into()))?;
    let files = Folder::beside(path).map_err(|error| open_error(path, error))?;
    Store::open(backend, Arc::new(files), path, setup)
}

/// Makes a store in memory.
pub(super) fn memory(setup: &Setup) -> Result<Store, OpenError> {
    create_in(InMemoryBackend::new(), Path::new(IN_MEMORY), setup)
}

/// Makes a store in an empty backend, without a log.
pub(super) fn create_in(
    backend: impl StorageBackend,
    path: &Path,
    setup: &Setup,
) -> Result<Store, OpenError> {
    Store::create(backend, setup).map_err(|error| refusal(path, error))
}

/// Makes the store at `path`. If another opener was first, its store stays.
fn create(path: &Path, setup: &Setup) -> Result<(), OpenError> {
    const CACHE_BYTES: usize = 1 << 20;
    let setup = Setup {
        cache_bytes: CACHE_BYTES,
        ..setup.clone()
    };
    // Dropped again, so that what is moved is a store closed in good order.
    let created = write_new(path, |backend| create_in(backend, path, &setup).map(drop));
    created.or_else(|error| match error {
        OpenError::Open { cause, .. } if is_taken(&*cause) => Ok(()),
        error => Err(error),
    })
}

/// Copies the rows of an open store to a new store at `path`.
///
/// # Errors
/// Those of [`write_new`], or what `write` returns.
pub(super) fn write_copy(
    path: &Path,
    write: impl FnOnce(FileBackend) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    // A log at this name would be taken for that of the copy.
    refuse_lone_log(path)?;
    write_new(path, write)
}

/// Writes a file under a name of its own and then moves it to `path`, so that a crash on the way leaves
/// nothing there.
///
/// # Errors
/// [`OpenError::Open`] with `AlreadyExists`, if there is something at `path`: it stays as it is.
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
    let backend = FileBackend::new(file).map_err(|error| refusal(path, error.into()))?;
    write(backend)?;
    let moved = new.persist_noclobber(path);
    moved.map_err(|refused| open_error(refused.error))?;
    sync_folder(folder).map_err(open_error)
}

fn is_taken(cause: &(dyn Error + Send + Sync + 'static)) -> bool {
    let cause = cause.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::AlreadyExists)
}

/// Says what the folder of a new store must be, in place of the name of the file that was tried.
fn no_new_file(folder: &Path, error: &io::Error) -> io::Error {
    let (folder, kind) = (folder.display(), error.kind());
    let text = format!("no file can be made in {folder}, which must exist and be writable: {kind}");
    io::Error::new(kind, text)
}
