//! Why phrasecount stops.

use std::io;
use std::path::PathBuf;

use export_queue::combine::{self, hc_dequeue};

use crate::keyspace::error::code_of;
use crate::keyspace::{self, Code};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },

    #[error("cannot read directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    #[error("cannot keep the text of {}", path.display())]
    Spool {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    #[error("cannot begin to work")]
    Runtime(#[source] io::Error),

    #[error("cannot open the store")]
    Open(#[source] keyspace::OpenError),

    #[error(
        "there is no store at {}: check --db, or count a directory first with `run`",
        path.display()
    )]
    NoStore { path: PathBuf },

    #[error("nothing was counted in {db}: check --db, or count a directory first with `run`")]
    NothingCounted { db: String },

    #[error("the store failed")]
    Keyspace(#[from] keyspace::Error),

    #[error("the queue of contents failed")]
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
        "another file has taken the place of {}: a store exports to one file; start again to take it \
         back",
        path.display()
    )]
    Displaced { path: PathBuf },

    #[error("{} is locked by another program: end that, or name another file with --out", path.display())]
    Locked { path: PathBuf },

    #[error("cannot write {}", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },

    #[error("cannot print")]
    Print(#[source] io::Error),

    #[error("stopped; the next run goes on here")]
    Interrupted,

    #[error("stopped at once; the next run goes on here")]
    InterruptedAgain,
}

impl Error {
    /// Returns whether the store did not answer in time.
    pub(crate) fn is_no_answer(&self) -> bool {
        let first: Option<&(dyn std::error::Error + 'static)> = Some(self);
        let mut causes = std::iter::successors(first, |error| error.source());
        code_of(self) == Some(Code::TRANSACTION_TIMED_OUT)
            || causes.any(|cause| {
                let cause = cause.downcast_ref::<keyspace::Error>();
                matches!(cause, Some(keyspace::Error::OutcomeUnknown { .. }))
            })
    }

    /// Returns the exit status that tells of it: 2 for what was asked wrongly.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::NotADirectory { .. } | Self::Open(keyspace::OpenError::Url { .. }) => 2,
            Self::Interrupted | Self::InterruptedAgain => 130,
            _ => 1,
        }
    }
}
