//! The errors of opening a store.

use std::path::PathBuf;
use std::sync::Arc;

use super::Error;

/// The reason why a store could not be opened.
///
/// No file was changed, except that an opening that fails with [`Open`](Self::Open) may have begun a recovery,
/// which the next opening continues.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store.
    #[error("`{url}` names no store: {reason}")]
    Url {
        /// The URL as given.
        url: String,
        /// What was expected.
        reason: String,
    },

    /// Another handle, in this process or another, has the store open, and this one cannot become its client. Share
    /// clones of the handle, close the other one, or open both with
    /// [`Sharing::Share`](crate::embedded::Sharing::Share).
    #[error(
        "store {} is already open, in this process or another{}",
        path.display(),
        reason.as_ref().map_or_else(
            || ": share its handle, or close it first".to_owned(),
            |reason| format!(", and cannot be joined: {reason}")
        )
    )]
    StoreInUse {
        /// The store's file.
        path: PathBuf,
        /// Why this handle did not become a client of the owner, if it may, and what to do.
        reason: Option<String>,
    },

    /// No process owns the store, or its owner does not serve this one, which may only be a client. Start the owner, or
    /// let this process [share](crate::embedded::Sharing::Share) the store.
    #[error("no owner of the store {} serves this process: {reason}", path.display())]
    NoOwner {
        /// The store's file.
        path: PathBuf,
        /// What came of the last attempt to reach an owner.
        reason: String,
    },

    /// There is no file at the path, and the opening was not allowed to create one. Check the path, or
    /// create the store with [`open`](crate::open).
    #[error("there is no store at {}: check the path, or create it with `open`", path.display())]
    NoStore {
        /// The path as given.
        path: PathBuf,
    },

    /// The path holds something that is not a store. It was not changed.
    #[error("{} is not a store: {reason}", path.display())]
    NotAStore {
        /// The path as given.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },

    /// The store's file does not hold what was written to it: it was cut, overwritten or damaged by the disk. It
    /// was not changed. Restore a backup, or let `console check` find out what is damaged.
    #[error("store {} is damaged: {reason}: restore a backup, or run `console check`", path.display())]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },

    /// The store was written by a newer version of this library. It was not changed.
    #[error(
        "store {} has format {found}, this version reads up to {supported}: upgrade the library",
        path.display()
    )]
    NewerFormat {
        /// The store's file.
        path: PathBuf,
        /// The format number found.
        found: u32,
        /// The newest format this version reads.
        supported: u32,
    },

    /// The store was not closed, and its log is missing, incomplete or an older copy. The log may hold
    /// commits that the store's file does not. Put all the files `<path>.log.*` back beside the store's
    /// file, unchanged.
    #[error(
        "store {} was not closed, and files of its log are missing: restore the files {}.log.*",
        path.display(), path.display()
    )]
    LogMissing {
        /// The store's file.
        path: PathBuf,
    },

    /// The store's file is missing, but its log is there. Put the file back, or remove `<path>.log.*` if
    /// the store is no longer needed.
    #[error(
        "there is no store at {}, but a log without its store: restore the file, or remove {}.log.*",
        path.display(), path.display()
    )]
    LogWithoutStore {
        /// The store's file.
        path: PathBuf,
    },

    /// The log beside the store's file has commits that the file lacks, so the file is an older copy. Put
    /// the newer file back, or move `<path>.log.*` away to continue with the copy.
    #[error(
        "store {} is older than its log: restore the newer file, or move {}.log.* away",
        path.display(), path.display()
    )]
    LogNewer {
        /// The store's file.
        path: PathBuf,
    },

    /// A file has the name of a part of the store's log, but belongs to another store or program, or is a link or a
    /// folder. Move it away.
    #[error("{} does not belong to the log of its store: move it away", path.display())]
    LogForeign {
        /// The file.
        path: PathBuf,
    },

    /// A file has the name of the socket or of the lock of a store, but is none. It was not changed. Move it away.
    #[error("{} has the name of a file of the store, and is none: move it away", path.display())]
    NameTaken {
        /// The file.
        path: PathBuf,
    },

    /// The log does not hold the data that was flushed to it: it was cut, overwritten or damaged by the disk.
    /// It was not changed. Restore a backup.
    #[error("log {} is damaged {reason}: restore a backup, or run `console check`", path.display())]
    LogDamaged {
        /// The file of the log.
        path: PathBuf,
        /// What was found.
        reason: String,
    },

    /// The store's file could not be opened or created.
    #[error("store {} cannot be opened", path.display())]
    Open {
        /// The store's file.
        path: PathBuf,
        /// The error of the operating system or the storage engine.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The cluster file cannot be used. The reason says what to do.
    #[error("cluster file {} cannot be used: {reason}", path.display())]
    ClusterFile {
        /// The cluster file.
        path: PathBuf,
        /// What was found, and what to do.
        reason: String,
    },

    /// FoundationDB's client library is older than the API version of this build. Install the library of
    /// that version or a newer one, or build with the feature of an older version.
    #[error(
        "this build needs a FoundationDB client library of API version {wanted}, and the installed \
         one supports versions up to {supported}: install a newer one, or build with the feature of \
         an older version"
    )]
    ClientVersion {
        /// The API version of this build.
        wanted: i32,
        /// The newest API version that the library knows.
        supported: i32,
    },

    /// An operation of an open store failed.
    #[error(transparent)]
    Store(#[from] Error),
}
