//! Where a store lies: whether its file is still there, and to whom the files beside it belong.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[cfg(unix)]
use crate::contract::error::OpenError;

/// The name of a store in memory, for errors.
pub(crate) const IN_MEMORY: &str = ":memory:";

/// Names a file of this machine, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    /// Returns the id of the file at a path.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|file| Self::of(&file))
    }

    #[cfg(unix)]
    pub(crate) fn of(file: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;

        Self {
            device: file.dev(),
            inode: file.ino(),
        }
    }

    /// All files have one id.
    #[cfg(not(unix))]
    pub(crate) fn of(_file: &Metadata) -> Self {
        Self {
            device: 0,
            inode: 0,
        }
    }
}

/// Names a store, in the file that it was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store: [u8; 16],
    /// `None` if it is not a file.
    pub(crate) file: Option<FileId>,
}

/// The path of a store without links, and the file that was opened there.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
}

impl Place {
    pub(crate) fn of(file: &File, path: PathBuf) -> io::Result<Self> {
        let id = FileId::of(&file.metadata()?);
        Ok(Self { path, id })
    }

    /// Returns whether the path still names the file.
    pub(crate) fn is_current(&self) -> io::Result<bool> {
        match FileId::at(&self.path) {
            Ok(found) => Ok(found == self.id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fails if the path no longer names the file: then the log beside the path has commits that no file there has.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.is_current()? {
            Ok(())
        } else {
            Err(replaced(&self.path))
        }
    }
}

/// The path of a store names another file, or none.
#[derive(Debug, thiserror::Error)]
#[error(
    "the file {} was moved, removed or replaced while the store was open: put it back beside {}.log.*",
    .0.display(), .0.display()
)]
struct Replaced(PathBuf);

/// Returns the error for a store whose path names another file, or none.
pub(crate) fn replaced(path: &Path) -> io::Error {
    io::Error::other(Replaced(path.to_owned()))
}

/// Returns whether an opening found [another store](replaced) than the one that it was to go on with.
#[cfg(unix)]
pub(crate) fn is_replaced(error: &OpenError) -> bool {
    let OpenError::Open { cause, .. } = error else {
        return false;
    };
    let cause = cause.downcast_ref::<io::Error>();
    let cause = cause.and_then(io::Error::get_ref);
    cause.is_some_and(|cause| cause.is::<Replaced>())
}

/// Gives a new file beside a store the owner, the group and the permissions of the store's file.
#[cfg(unix)]
pub(crate) fn adopt(new: &File, store: &Metadata) -> io::Result<()> {
    let permissions = take_over(store, |user, group| {
        std::os::unix::fs::fchown(new, user, group)
    });
    new.set_permissions(permissions)
}

/// Changes the owner and the group of a new file with `chown`, and returns its permissions.
#[cfg(unix)]
pub(crate) fn take_over(
    store: &Metadata,
    chown: impl Fn(Option<u32>, Option<u32>) -> io::Result<()>,
) -> fs::Permissions {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    // Only root can give a file to another user. Any other user who can open the store is its owner or in its group.
    let has_group = chown(None, Some(store.gid())).is_ok();
    let _ = chown(Some(store.uid()), None);
    // The group of this process may have members that the group of the store has not.
    let mask = if has_group { 0o777 } else { 0o707 };
    fs::Permissions::from_mode(store.mode() & mask)
}
