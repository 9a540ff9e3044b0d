//! Why a store was not opened.

use std::path::PathBuf;
use std::sync::Arc;

use super::Error;

/// The reason why a store was not opened. Nothing was changed.
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

    /// Another handle, of this process or another, has the store open. One process at a time may
    /// use an embedded store: share clones of the handle, or close the other one.
    #[error("store {} is already open, in this process or another", path.display())]
    StoreInUse {
        /// The store's file.
        path: PathBuf,
    },

    /// There is no file at the path of a store that was to be opened and not created. Check the path, or
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

    /// The store was not closed, and its log, which may hold commits that the store's file does not, is
    /// missing, in whole or in part, or is an older copy. Put the files `<path>.log.*` back beside the
    /// store's file, all of them as they were.
    #[error(
        "store {} was not closed, and files of its log are missing: put {}.log.* back beside it",
        path.display(), path.display()
    )]
    LogMissing {
        /// The store's file.
        path: PathBuf,
    },

    /// The store's file is missing, and its log is there. Put the file back, or remove `<path>.log.*` if
    /// the store is no longer needed.
    #[error(
        "there is no store at {}, but a log of one: put the file back, or remove {}.log.*",
        path.display(), path.display()
    )]
    LogWithoutStore {
        /// The store's file.
        path: PathBuf,
    },

    /// The log beside the store's file has commits that the file has not: the file is an older copy. Put
    /// the newer file back, or move `<path>.log.*` away to go on with the copy.
    #[error(
        "store {} is older than its log: put the newer file back, or move {}.log.* away",
        path.display(), path.display()
    )]
    LogNewer {
        /// The store's file.
        path: PathBuf,
    },

    /// A file has the name of a part of the store's log and is none: it belongs to another store or to
    /// another program. Move it away.
    #[error("{} is not part of the log of its store: move it away", path.display())]
    LogForeign {
        /// The file.
        path: PathBuf,
    },

    /// The log does not hold what was flushed to it. Restore the store from a backup.
    #[error("{} is damaged: {reason}: restore the store from a backup", path.display())]
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
        /// What the operating system or the storage engine reported.
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

    /// FoundationDB's client library is older than the API version of this build: install the
    /// library of that version or a newer one, or build with the feature of an older version.
    #[error(
        "this build needs a FoundationDB client library of API version {wanted}, and the one \
         installed knows no version over {supported}: install a newer one, or build with the \
         feature of an older version"
    )]
    ClientVersion {
        /// The API version of this build.
        wanted: i32,
        /// The newest API version that the library knows.
        supported: i32,
    },

    /// The store's own record of itself does not decode, or an option was refused.
    #[error(transparent)]
    Store(#[from] Error),
}
