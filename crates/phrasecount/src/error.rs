//! The errors that end phrasecount.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use console::terminal::Stop;
use export_queue::combine::{self, hc_dequeue};

use crate::keyspace::error::code_of;
use crate::keyspace::{self, Code};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{} is not a directory: name the directory whose files are to be counted", path.display())]
    NotADirectory { path: PathBuf },

    #[error("cannot read directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    #[error("cannot write the text of {} to a temporary file", path.display())]
    Spool {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    #[error("cannot start the runtime of the program")]
    Runtime(#[source] io::Error),

    #[error(
        "cannot start the threads of the program: raise the limit of processes and threads (`ulimit -u`)"
    )]
    Threads(#[source] io::Error),

    #[error("cannot open the store")]
    Open(#[source] keyspace::OpenError),

    #[error(
        "there is no store at {}: check --db, or count a directory first with `run`",
        path.display()
    )]
    NoStore { path: PathBuf },

    #[error("memory: is empty in each program that opens it: name an embedded store or a cluster")]
    Memory,

    #[error("nothing was counted in {db}: check --db, or count a directory first with `run`")]
    NothingCounted { db: String },

    #[error("the store failed")]
    Keyspace(#[from] keyspace::Error),

    #[error("the queue of documents failed")]
    Queue(#[from] hc_dequeue::Error),

    #[error("the counts failed")]
    Counts(#[from] combine::Error),

    #[error("the exports failed")]
    Exports(#[from] export_queue::Error),

    #[error("the text of content {content} has {found} of {expected} bytes")]
    IncompleteText {
        content: String,
        found: u64,
        expected: u64,
    },

    #[error(
        "{} is not a file of phrasecount: {reason}; name another one with --out",
        path.display()
    )]
    NotOurs { path: PathBuf, reason: String },

    #[error(
        "{} has the counts of another store: remove it, or name another file with --out",
        path.display()
    )]
    OtherStore { path: PathBuf },

    #[error(
        "another file has taken the place of {}: a store exports to one file; start again to export to \
         this one",
        path.display()
    )]
    Displaced { path: PathBuf },

    #[error("{} is locked by another program: stop that program, or name another file with --out", path.display())]
    Locked { path: PathBuf },

    #[error(
        "{} is a file of the store itself: name another file with --out",
        path.display()
    )]
    OutIsStore { path: PathBuf },

    #[error("{} is no regular file: name a file with --out", path.display())]
    OutIsNoFile { path: PathBuf },

    #[error("there is no folder {}: make it, or name another file with --out", path.display())]
    NoFolder { path: PathBuf },

    #[error(
        "cannot write {}: the file and its folder {} must be writable; or name another file with --out",
        path.display(),
        folder_of(path).display()
    )]
    Unwritable {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },

    #[error("cannot write {}: its disk is full: free some space, and start again", path.display())]
    DiskFull {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },

    #[error("cannot write {}: SQLite failed", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },

    #[error("cannot serve the console at {address}: name another address with --console")]
    Listen {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },

    #[error("cannot print")]
    Print(#[source] io::Error),

    #[error("stopped; the next run continues from here")]
    Stopped(Stop),

    /// The store gave no answer while the program ended.
    #[error("stopped; the next run continues from here")]
    StoppedInSilence(Stop),

    #[error("stopped at once; the next run continues from here")]
    StoppedAgain(Stop),
}

fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    code_of(error) == Some(Code::TRANSACTION_TIMED_OUT)
}

/// Returns the folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

impl Error {
    /// Returns whether the store did not answer in time. The outcome of a commit is also unknown if the store has
    /// failed.
    pub(crate) fn is_no_answer(&self) -> bool {
        let first: Option<&(dyn std::error::Error + 'static)> = Some(self);
        let mut causes = std::iter::successors(first, |error| error.source());
        self.is_not_ended()
            || is_timeout(self)
            || causes.any(|cause| match cause.downcast_ref::<keyspace::Error>() {
                Some(keyspace::Error::OutcomeUnknown { cause, .. }) => {
                    cause.as_deref().is_none_or(|cause| is_timeout(cause))
                }
                _ => false,
            })
    }

    fn is_not_ended(&self) -> bool {
        matches!(
            self,
            Self::Queue(hc_dequeue::Error::NotEnded(_))
                | Self::Counts(combine::Error::NotEnded(_))
                | Self::Exports(export_queue::Error::NotEnded(_))
                | Self::StoppedInSilence(_)
        )
    }

    /// Returns the exit status: 2 for wrong arguments, that of a signal, 1 for other failures.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::NotADirectory { .. }
            | Self::OutIsStore { .. }
            | Self::OutIsNoFile { .. }
            | Self::NoFolder { .. }
            | Self::Memory
            | Self::Open(keyspace::OpenError::Url { .. }) => 2,
            Self::Stopped(stop) | Self::StoppedInSilence(stop) | Self::StoppedAgain(stop) => {
                stop.exit_status()
            }
            _ => 1,
        }
    }
}
