//! The files beside a store: the slots of its log.
//!
//! A slot holds one segment of the log at a time and is reused for later ones. All I/O on the log goes through
//! [`Files`], so that tests can simulate a disk that loses power or fails.
//!
//! # Layout
//!
//! A log is a chain of segments, in files `<path>.log.<n>` beside the store's file `<path>`. `<n>` has 16 lower-case
//! hexadecimal digits: the number of the segment for which the file was created. Files are reused: the header has the
//! number of the present segment. A segment has at most 64 MiB, the last 4,096 bytes of it for its Seal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::direct::DirectFile;
#[cfg(unix)]
use crate::stores::embedded::backend::place::adopt;
use crate::stores::embedded::backend::{Access, File, FileBackend};

/// The name of a slot: the number of the segment that the file was created for.
///
/// A file keeps its name when it is reused. The header in it says which segment it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u64);

/// The slots of one store's log.
///
/// After a power loss, a slot that was created may be missing, and one that was removed may be back, unless
/// [`sync_folder`](Self::sync_folder) has returned since. Flushing the file itself does not change that.
pub(crate) trait Files: fmt::Debug + Send + Sync + 'static {
    /// Opens a slot for reading and writing. `None` if there is no such slot.
    fn open(&self, slot: Slot) -> io::Result<Option<File>>;

    /// Creates an empty slot and opens it. Fails with `AlreadyExists` if the slot exists.
    fn create(&self, slot: Slot) -> io::Result<File>;

    /// Removes a slot. Fails with `NotFound` if there is no such slot.
    fn remove(&self, slot: Slot) -> io::Result<()>;

    /// Returns the slots in ascending order, and ignores other files.
    fn list(&self) -> io::Result<Vec<Slot>>;

    /// Makes earlier creations and removals survive a power loss.
    fn sync_folder(&self) -> io::Result<()>;

    /// Returns the path of a slot.
    fn path(&self, slot: Slot) -> PathBuf;
}

/// The slots beside a store's file: `<name of the store's file>.log.<slot, 16 hex digits>`, in the
/// folder of that file.
///
/// A slot that is open for writing is locked, so a process that writes a log is noticed although its store's file is no
/// longer there. A new slot has the owner, the group and the permissions of that file.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The path of the store's file.
    main: PathBuf,
    /// The prefix of the names of slots.
    prefix: OsString,
    /// Whether small writes bypass the page cache.
    is_direct: bool,
    /// Whether slots are opened only for reading.
    is_read_only: bool,
    /// The folder, held open so that it can be flushed when the process has no descriptors left.
    handle: Option<fs::File>,
}

impl Folder {
    /// Finds the folder as [`beside`](Self::beside) does, and holds it open.
    pub(crate) fn open_beside(main: &Path) -> io::Result<Self> {
        let folder = Self::beside(main)?;
        #[cfg(unix)]
        let folder = Self {
            handle: Some(fs::File::open(&folder.path)?),
            ..folder
        };
        Ok(folder)
    }

    /// Finds the folder and the names of the slots of the store at `main`.
    ///
    /// Both come from the canonical path, so a store has the same slots through every symbolic link. The
    /// folder must exist, the store's file need not.
    pub(crate) fn beside(main: &Path) -> io::Result<Self> {
        let main = canonical(main)?;
        let mut prefix = main
            .file_name()
            .ok_or(io::ErrorKind::IsADirectory)?
            .to_owned();
        prefix.push(".log.");
        Ok(Self {
            path: folder_of(&main).to_owned(),
            main,
            prefix,
            is_direct: false,
            is_read_only: false,
            handle: None,
        })
    }

    /// Sets whether small writes bypass the page cache, where the system can do that. They should if each of
    /// them is flushed at once.
    pub(crate) fn direct(mut self, is_direct: bool) -> Self {
        self.is_direct = is_direct;
        self
    }

    /// Opens slots only for reading from now on.
    pub(crate) fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Returns the path of the store's file, without links.
    #[cfg(unix)]
    pub(crate) fn main(&self) -> &Path {
        &self.main
    }

    /// Checks that slots can have names: each is longer than that of the store's file.
    pub(crate) fn check_names(&self) -> io::Result<()> {
        match fs::symlink_metadata(self.path(Slot(0))) {
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                let added = SLOT_BYTES;
                let text = format!("its name is too long: that of its log has {added} bytes more");
                Err(io::Error::new(io::ErrorKind::InvalidFilename, text))
            }
            // Whatever else is wrong is noticed later.
            _ => Ok(()),
        }
    }

    /// Returns whether a process writes to a slot.
    ///
    /// It has at least one slot open at any time. So if all slots are locked here at once, and there is no other, there
    /// is no such process.
    pub(crate) fn is_in_use(&self) -> io::Result<bool> {
        let mut locked = BTreeMap::new();
        loop {
            let slots = self.list()?.into_iter();
            let new: Vec<Slot> = slots.filter(|slot| !locked.contains_key(slot)).collect();
            if new.is_empty() {
                return Ok(false);
            }
            for slot in new {
                let file = match open_regular(&self.path(slot), OpenOptions::new().read(true)) {
                    Ok(file) => FileBackend::lock(file, Access::Read)?,
                    // It was removed, or was never a slot.
                    Err(error) if is_none(&error) => {
                        locked.insert(slot, None);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if file.is_none() {
                    return Ok(true);
                }
                locked.insert(slot, file);
            }
        }
    }

    fn backend(&self, file: fs::File, path: &Path) -> io::Result<File> {
        let file = if self.is_read_only {
            FileBackend::new(file)
        } else {
            let locked = FileBackend::lock(file, Access::Write)?;
            locked.ok_or_else(|| {
                let text = format!("another process has {} open", path.display());
                io::Error::new(io::ErrorKind::ResourceBusy, text)
            })?
        };
        #[cfg(target_os = "linux")]
        if self.is_direct {
            return Ok(Arc::new(DirectFile::new(file, path)?));
        }
        // Other systems do not have such writes.
        let _ = (self.is_direct, path);
        Ok(Arc::new(file))
    }

    /// Gives a new slot to the owner of the store's file.
    #[cfg(unix)]
    fn adopt(&self, file: &fs::File) -> io::Result<()> {
        match fs::metadata(&self.main) {
            Ok(store) => adopt(file, &store),
            // It was removed, which the store notices before it frees a slot.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(unix))]
    fn adopt(&self, _file: &fs::File) -> io::Result<()> {
        Ok(())
    }

    /// Returns the slot with this file name, or `None` for other names.
    fn parse_name(&self, name: &OsString) -> Option<Slot> {
        let digits = name
            .as_encoded_bytes()
            .strip_prefix(self.prefix.as_encoded_bytes())?;
        let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        // The number could also be written in other ways, which this library does not use.
        let slot = Slot(number);
        if self.path(slot).file_name() == Some(name) {
            Some(slot)
        } else {
            None
        }
    }
}

impl Files for Folder {
    fn open(&self, slot: Slot) -> io::Result<Option<File>> {
        let path = self.path(slot);
        let mut options = OpenOptions::new();
        options.read(true).write(!self.is_read_only);
        let file = match open_regular(&path, &options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok(Some(self.backend(file, &path)?))
    }

    fn create(&self, slot: Slot) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let path = self.path(slot);
        let file = options
            .open(&path)
            .map_err(|error| no_new_file(&self.path, error))?;
        let created = self.adopt(&file).and_then(|()| self.backend(file, &path));
        // The call may be repeated.
        created.inspect_err(|_| drop(fs::remove_file(&path)))
    }

    fn remove(&self, slot: Slot) -> io::Result<()> {
        fs::remove_file(self.path(slot))
    }

    fn list(&self) -> io::Result<Vec<Slot>> {
        let mut slots = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            slots.extend(self.parse_name(&entry?.file_name()));
        }
        slots.sort_unstable();
        Ok(slots)
    }

    fn sync_folder(&self) -> io::Result<()> {
        match &self.handle {
            Some(folder) => folder.sync_all(),
            None => sync_folder(&self.path),
        }
    }

    fn path(&self, slot: Slot) -> PathBuf {
        let mut name = self.prefix.clone();
        name.push(format!("{:016x}", slot.0));
        self.path.join(name)
    }
}

/// How many bytes the name of a slot has more than that of its store's file.
const SLOT_BYTES: usize = ".log.".len() + 16;

/// Opens a regular file. Opening another one may block, and a link may lead to a file that is not of the store.
fn open_regular(path: &Path, options: &OpenOptions) -> io::Result<fs::File> {
    if !fs::symlink_metadata(path)?.is_file() {
        let text = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    options.open(path)
}

/// Returns whether there is no regular file.
fn is_none(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData
    )
}

/// Says what a folder needs in which a file cannot be made. Other errors stay as they are.
pub(crate) fn no_new_file(folder: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem => {
            let folder = folder.display();
            let text = format!(
                "no file can be made in {folder}, which must exist and be writable: {error}"
            );
            io::Error::new(error.kind(), text)
        }
        _ => error,
    }
}

/// Returns the path of the store at `main` without links. Its folder must exist, the store's file need not.
pub(crate) fn canonical(main: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(main) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = main.file_name().ok_or(error)?;
            Ok(fs::canonicalize(folder_of(main))?.join(name))
        }
        canonical => canonical,
    }
}

/// Returns the folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Makes created and removed file names survive a power loss.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::embedded::backend::is_shortage;
    use crate::stores::embedded::tests::disk::Disk;

    /// Creates, writes, lists, opens and removes slots.
    fn check(files: &dyn Files) {
        assert_eq!(files.list().unwrap(), []);
        assert!(files.open(Slot(1)).unwrap().is_none());
        let missing = files.remove(Slot(1)).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);

        let created = files.create(Slot(0xfedc_ba98_7654_3210)).unwrap();
        assert_eq!(created.len().unwrap(), 0);
        created.set_len(10).unwrap();
        created.write(4, b"log").unwrap();
        created.sync_data().unwrap();
        drop(created);
        drop(files.create(Slot(1)).unwrap());
        files.sync_folder().unwrap();
        let again = files.create(Slot(1)).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let listed = [Slot(1), Slot(0xfedc_ba98_7654_3210)];
        assert_eq!(files.list().unwrap(), listed);

        let opened = files.open(listed[1]).unwrap().unwrap();
        let mut bytes = [9; 10];
        opened.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0log\0\0\0");
        assert!(opened.read(1, &mut bytes).is_err());

        files.remove(Slot(1)).unwrap();
        assert_eq!(files.list().unwrap(), listed[1..]);
        assert!(files.open(Slot(1)).unwrap().is_none());
    }

    #[test]
    fn a_folder_and_the_disk_of_the_tests_keep_slots_alike() {
        let folder = tempfile::tempdir().unwrap();
        check(&Folder::beside(&folder.path().join("store")).unwrap());
        check(&Disk::new(Vec::new()));
    }

    #[test]
    fn only_names_of_slots_of_the_store_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::beside(&folder.path().join("store")).unwrap();
        for name in [
            "store",
            "store.log.",
            "store.log.1",
            "store.log.000000000000000A",
            "store.log.+00000000000000a",
            "store.log.00000000000000001",
            "store.log.000000000000000g",
            "store2.log.0000000000000001",
            "tore.log.0000000000000001",
            "store.log.0000000000000001.old",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(files.list().unwrap(), []);
        fs::write(folder.path().join("store.log.000000000000000a"), "").unwrap();
        assert_eq!(files.list().unwrap(), [Slot(10)]);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::beside(&folder.path().join("store")).unwrap();
        fs::create_dir(files.path(Slot(1))).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("elsewhere", files.path(Slot(2))).unwrap();
        for slot in files.list().unwrap() {
            let error = files.open(slot).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert!(!files.is_in_use().unwrap());
    }

    #[test]
    fn a_slot_that_is_open_is_noticed_until_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::beside(&folder.path().join("store")).unwrap();
        assert!(!files.is_in_use().unwrap());
        drop(files.create(Slot(1)).unwrap());
        let second = files.create(Slot(2)).unwrap();
        assert!(files.is_in_use().unwrap());
        assert!(files.open(Slot(2)).is_err());
        drop(second);
        assert!(!files.is_in_use().unwrap());
        let first = files.open(Slot(1)).unwrap();
        assert!(files.is_in_use().unwrap());
        drop(first);
        assert!(!files.is_in_use().unwrap());
    }

    #[test]
    fn a_slot_that_another_process_looks_at_is_a_shortage() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::beside(&folder.path().join("store")).unwrap();
        drop(files.create(Slot(1)).unwrap());
        let looking = fs::File::open(files.path(Slot(1))).unwrap();
        looking.lock_shared().unwrap();
        let error = files.open(Slot(1)).unwrap_err();
        assert!(is_shortage(&error), "{error:?}");
        drop(looking);
        assert!(files.open(Slot(1)).unwrap().is_some());
    }

    #[test]
    fn slots_can_be_opened_only_for_reading() {
        let folder = tempfile::tempdir().unwrap();
        let files = Folder::beside(&folder.path().join("store")).unwrap();
        files.create(Slot(1)).unwrap().set_len(9).unwrap();
        let slot = files.read_only().open(Slot(1)).unwrap().unwrap();
        slot.read(0, &mut [0; 9]).unwrap();
        assert!(slot.write(0, &[1]).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn slots_are_named_by_the_canonical_path_and_have_the_permissions_of_the_store() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("store");
        fs::write(&main, "").unwrap();
        fs::set_permissions(&main, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link");
        symlink(&main, &link).unwrap();
        let files = Folder::beside(&link).unwrap();
        drop(files.create(Slot(7)).unwrap());
        let path = folder.path().join("store.log.0000000000000007");
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let same = Folder::beside(&main).unwrap();
        assert_eq!(same.list().unwrap(), [Slot(7)]);
    }
}
