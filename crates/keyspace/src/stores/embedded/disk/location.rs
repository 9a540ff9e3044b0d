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
use super::presence::{self, Presence};
use super::verify::{self, Verified};
use crate::contract::error::OpenError;
use crate::stores::embedded::backend::place::{IN_MEMORY, Place, replaced};
use crate::stores::embedded::backend::{Access, File, FileBackend, MemoryBackend};
use crate::stores::embedded::log::files::{
    Files, Folder, canonical, folder_of, no_new_file, sync_folder,
};
#[cfg(test)]
use crate::stores::embedded::tests::openings::at;

/// How a store is opened: with [`open`] or [`open_existing`].
pub(crate) type Open = fn(&Path, &Setup) -> Result<OpenedStore, OpenError>;

/// A file that may be a store.
struct FoundFile {
    file: fs::File,
    place: Place,
}

/// A moment between two looks of an opening at the files. Other processes may change them then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// There was no file, and the log is listed next.
    NoFile,
    /// A log without its store was found for the first time.
    LoneLog,
    /// There is nothing, and a store is made next.
    Nothing,
    /// A store was made, or found, by a process that was faster.
    Made,
    /// The file is open, and is locked next.
    FileOpen,
    /// The file is locked, and the path is looked at next.
    Locked,
}

/// Lets a test change the files.
#[cfg(not(test))]
fn at(_moment: Moment) {}

/// Opens the store at `path`, and creates it if nothing is there.
pub(crate) fn open(path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    loop {
        let Some(found) = find_to_write(path)? else {
            if path.is_symlink() {
                let nowhere = io::Error::new(io::ErrorKind::NotFound, "it is a link to nothing");
                return Err(open_error(path, nowhere));
            }
            at(Moment::Nothing);
            create(path, setup)?;
            at(Moment::Made);
            continue;
        };
        if let Some(store) = open_found(found, path, setup)? {
            return Ok(store);
        }
    }
}

/// Opens the store at `path`, and never creates one.
pub(crate) fn open_existing(path: &Path, setup: &Setup) -> Result<OpenedStore, OpenError> {
    loop {
        let found = find_to_write(path)?.ok_or_else(|| no_store(path))?;
        if let Some(store) = open_found(found, path, setup)? {
            return Ok(store);
        }
    }
}

fn no_store(path: &Path) -> OpenError {
    OpenError::NoStore {
        path: path.to_owned(),
    }
}

fn find_to_write(path: &Path) -> Result<Option<FoundFile>, OpenError> {
    find(path, fs::File::options().read(true).write(true))
}

/// Opens the file at `path`. `None` if neither a store nor a log is there.
///
/// A log without a store is refused only if a second look finds the same: another process may have made a store after
/// the first look at its file.
fn find(path: &Path, options: &OpenOptions) -> Result<Option<FoundFile>, OpenError> {
    let failed = |error| open_error(path, error);
    let mut seen = Vec::new();
    loop {
        let main = match canonical(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            main => main.map_err(failed)?,
        };
        if let Some(file) = open_regular(&main, path, options)? {
            at(Moment::FileOpen);
            let place = Place::of(&file, main).map_err(failed)?;
            return Ok(Some(FoundFile { file, place }));
        }
        at(Moment::NoFile);
        let folder = Folder::beside(&main).map_err(failed)?;
        let slots = folder.list().map_err(failed)?;
        if slots.is_empty() {
            return Ok(None);
        }
        if seen == slots {
            return Err(lone_log(path, &folder));
        }
        seen = slots;
        at(Moment::LoneLog);
    }
}

/// Opens a regular file. `None` if nothing is there.
fn open_regular(
    main: &Path,
    path: &Path,
    options: &OpenOptions,
) -> Result<Option<fs::File>, OpenError> {
    // Check the type first: opening a path that is not a regular file may block.
    let found = fs::metadata(main).and_then(|metadata| {
        if metadata.is_file() {
            Ok((metadata, Some(options.open(main)?)))
        } else {
            Ok((metadata, None))
        }
    });
    match found {
        Ok((_, Some(file))) => Ok(Some(file)),
        Ok((metadata, None)) if metadata.is_dir() => Err(not_a_store(path, "a directory")),
        Ok((_, None)) => Err(not_a_store(path, "no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(open_error(path, error)),
    }
}

/// Refuses a path that has a log but no store.
fn lone_log(path: &Path, folder: &Folder) -> OpenError {
    match folder.is_in_use() {
        Ok(false) => OpenError::LogWithoutStore {
            path: path.to_owned(),
        },
        Ok(true) => without_its_file(path),
        Err(error) => open_error(path, error),
    }
}

/// Returns the error for a path whose log belongs to a store that is open, but is not at the path any more.
fn without_its_file(path: &Path) -> OpenError {
    let reason = "the file that it was opened with was moved, removed or replaced";
    OpenError::StoreInUse {
        path: path.to_owned(),
        reason: Some(reason.to_owned()),
    }
}

/// Opens the store in a file. `None` if the path names another one by now.
fn open_found(
    found: FoundFile,
    path: &Path,
    setup: &Setup,
) -> Result<Option<OpenedStore>, OpenError> {
    let failed = |error| open_error(path, error);
    let file = Some(found.place.id);
    if setup.expected.is_some_and(|expected| expected.file != file) {
        return Err(failed(replaced(path)));
    }
    let files = Folder::open_beside(&found.place.path).map_err(failed)?;
    // Before a file is made beside the store.
    check_names(&files, path)?;
    #[cfg(unix)]
    let Some((file, place, hold)) = lock_with_hold(found, path, setup)? else {
        return Ok(None);
    };
    #[cfg(not(unix))]
    let Some((file, place)) = lock(found, path, Access::Write)? else {
        return Ok(None);
    };
    check_log_is_free(&files, path)?;
    let files = Arc::new(files.direct(setup.is_log_direct));
    #[cfg(unix)]
    let presence = Presence::join(&place.path).map_err(failed)?;
    // Keeps the lock of the file if the opening fails.
    match OpenedStore::open(file.clone(), files, path, setup) {
        Ok(mut store) => {
            store.files.place = Some(place);
            #[cfg(unix)]
            {
                store.presence = Some(presence);
                store.hold = Some(hold);
            }
            Ok(Some(store))
        }
        Err(error) => {
            #[cfg(unix)]
            {
                presence.withdraw();
                hold.withdraw();
            }
            Err(error)
        }
    }
}

/// A file that is locked, where it lies, and what keeps viewers or applications from owning the store.
#[cfg(unix)]
type LockedWithHold = (File, Place, Hold);

/// Locks the file, and keeps viewers from owning the store, or applications if this is a viewer. Fails as if the store
/// were in use if there are any. `None` if the path names another file by now.
#[cfg(unix)]
fn lock_with_hold(
    found: FoundFile,
    path: &Path,
    setup: &Setup,
) -> Result<Option<LockedWithHold>, OpenError> {
    let checked = |hold: io::Result<Option<Hold>>| {
        let hold = hold.map_err(|error| open_error(path, error))?;
        hold.ok_or_else(|| in_use(path))
    };
    if setup.is_viewer {
        // First: a viewer does not lock the file of a store that an application has open, not even for a moment.
        let hold = checked(Hold::viewer(&found.place.path))?;
        let locked = lock(found, path, Access::Write)?;
        return Ok(locked.map(|(file, place)| (file, place, hold)));
    }
    let Some((file, place)) = lock(found, path, Access::Write)? else {
        return Ok(None);
    };
    let hold = checked(Hold::application(&place.path))?;
    Ok(Some((file, place, hold)))
}

/// Locks the file until it is closed. `None` if the path names another one by now.
fn lock(found: FoundFile, path: &Path, access: Access) -> Result<Option<(File, Place)>, OpenError> {
    let FoundFile { file, place } = found;
    let failed = |error| open_error(path, error);
    let locked = FileBackend::lock(file, access).map_err(failed)?;
    at(Moment::Locked);
    if !place.is_current().map_err(failed)? {
        return Ok(None);
    }
    let file = locked.ok_or_else(|| in_use(path))?;
    Ok(Some((Arc::new(file), place)))
}

fn in_use(path: &Path) -> OpenError {
    OpenError::StoreInUse {
        path: path.to_owned(),
        reason: None,
    }
}

/// Refuses a log that a process writes although the store's file is not locked.
fn check_log_is_free(files: &Folder, path: &Path) -> Result<(), OpenError> {
    match files.is_in_use() {
        Ok(false) => Ok(()),
        Ok(true) => Err(without_its_file(path)),
        Err(error) => Err(open_error(path, error)),
    }
}

/// Refuses a store whose other files cannot have their names.
fn check_names(files: &Folder, path: &Path) -> Result<(), OpenError> {
    let failed = |error| open_error(path, error);
    files.check_names().map_err(failed)?;
    #[cfg(unix)]
    if let Some(path) = presence::foreign(files.main()).map_err(failed)? {
        return Err(OpenError::NameTaken { path });
    }
    Ok(())
}

/// Checks the store at `path` without changing it.
pub(crate) fn verify(
    path: &Path,
    setup: &Setup,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    loop {
        let found = find(path, fs::File::options().read(true))?;
        let found = found.ok_or_else(|| no_store(path))?;
        if let Some((file, place)) = lock(found, path, Access::Read)? {
            let folder = Folder::beside(&place.path).map_err(|error| open_error(path, error))?;
            check_log_is_free(&folder, path)?;
            return verify::store(file, &folder.read_only(), path, setup, progress);
        }
    }
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
    // A missing folder is reported when the file is made.
    if let Ok(folder) = Folder::beside(path) {
        check_names(&folder, path)?;
    }
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
    // A log with this name would be taken for the copy's.
    let is_taken =
        path.symlink_metadata().is_ok() || find(path, fs::File::options().read(true))?.is_some();
    if is_taken {
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(open_error(path, taken));
    }
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
        .map_err(|error| open_error(no_new_file(folder, without_name(error))))?;
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

/// Returns the error of the system for a temporary file, whose name says nothing.
fn without_name(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(Error::source);
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    let code = cause.unwrap_or(&error).raw_os_error();
    code.map_or(error, io::Error::from_raw_os_error)
}
