//! Why a command was not carried out, and the exit status that says so.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use console::terminal::Stop;
use export_queue::combine::hc_dequeue::Error as DequeueError;
use export_queue::keyspace::{self, OpenError};

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot start the threads of the program")]
    Runtime(#[source] io::Error),

    #[error("cannot open the store")]
    Open(#[source] OpenError),

    #[error(
        "there is no store at {}: check --db; an application makes the store when it opens it",
        path.display()
    )]
    NoStore { path: PathBuf },

    #[error(
        "store {} is open in another process, and an embedded store is open in one at a time: look at the page that \
         this process serves if it mounts `console::router`, or end the process first",
        path.display()
    )]
    InUse { path: PathBuf },

    #[error("memory: is empty in each program that opens it: name an embedded store or a cluster")]
    Memory,

    #[error(
        "which store? Name it with --db or in CONSOLE_DB: embedded:<path>, fdb: or fdb:<cluster file>"
    )]
    NoStoreNamed,

    #[error(transparent)]
    Console(#[from] console::Error),

    #[error("the store failed")]
    Store(#[from] keyspace::Error),

    #[error("cannot copy the store")]
    Backup(#[source] OpenError),

    #[error("there is something at {}: name a new file for the copy", path.display())]
    Exists { path: PathBuf },

    #[error("only an embedded store is copied to a file: use fdbbackup for a cluster")]
    NoFile,

    #[error("only the files of an embedded store are checked: a cluster checks its own")]
    NoFilesToCheck,

    #[error("{count} items match, and nothing was changed: add --yes to {action} them")]
    Unconfirmed { count: u64, action: &'static str },

    #[error("nothing was changed")]
    Declined,

    #[error("name items, or give a filter, or say --all")]
    NoItems,

    #[error(
        "cannot {action} a dead letter of a subscription from here: the application does, which has the exporter"
    )]
    OnlyPurge { action: &'static str },

    #[error("cannot listen on {address}: name another address with --listen")]
    Listen {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },

    #[error("cannot print")]
    Print(#[source] io::Error),

    #[error("cannot read the answer")]
    Answer(#[source] io::Error),

    #[error("stopped; what was changed so far stays changed")]
    Stopped(Stop),
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Done = 0,
    Failed = 1,
    /// The command itself is wrong.
    Misused = 2,
    /// There is no such queue, item or key.
    Missing = 3,
    /// An audit found something, or a store is damaged.
    Found = 4,
    /// The store is open in another process.
    InUse = 5,
    /// Ctrl-C was pressed.
    Interrupted = 130,
    /// `SIGTERM` came.
    Terminated = 143,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

impl Failure {
    /// Returns why a store was not opened.
    pub(crate) fn open(error: OpenError) -> Self {
        match error {
            OpenError::StoreInUse { path } => Self::InUse { path },
            OpenError::NoStore { path } => Self::NoStore { path },
            error => Self::Open(error),
        }
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Console(console::Error::NoQueue { .. } | console::Error::Missing { .. }) => {
                Status::Missing
            }
            Self::Console(
                console::Error::WrongRecipe { .. }
                | console::Error::WrongPlace { .. }
                | console::Error::Malformed { .. }
                | console::Error::Dequeue(
                    DequeueError::ForeignRef { .. }
                    | DequeueError::MalformedCursor
                    | DequeueError::TooShort { .. },
                ),
            )
            | Self::Open(OpenError::Url { .. })
            | Self::Memory
            | Self::NoStoreNamed
            | Self::NoFile
            | Self::NoFilesToCheck
            | Self::NoItems
            | Self::OnlyPurge { .. }
            | Self::Unconfirmed { .. } => Status::Misused,
            Self::Open(OpenError::Damaged { .. } | OpenError::LogDamaged { .. }) => Status::Found,
            Self::InUse { .. } => Status::InUse,
            Self::Stopped(Stop::Terminated) => Status::Terminated,
            Self::Stopped(_) => Status::Interrupted,
            _ => Status::Failed,
        }
    }
}
