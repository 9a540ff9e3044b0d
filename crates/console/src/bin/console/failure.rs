//! Why a command was not carried out, and the exit status that says so.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use console::terminal::Stop;
use export_queue::combine::hc_dequeue::Error as DequeueError;
use export_queue::keyspace::error::code_of;
use export_queue::keyspace::{self, Code, OpenError};

pub(crate) type Result<T, E = CommandFailure> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandFailure {
    #[error("cannot start the runtime of the program")]
    Runtime(#[source] io::Error),

    #[error("cannot start a thread: raise the limit of processes and threads (`ulimit -u`)")]
    Threads(#[source] io::Error),

    #[error("cannot receive the signals that stop the program")]
    Signals(#[source] io::Error),

    #[error("cannot open the store")]
    Open(#[source] OpenError),

    /// What a check has found. The text of the error of the store says to run this check.
    #[error("store {} is damaged: {reason}: restore a backup", path.display())]
    Damaged { path: PathBuf, reason: String },

    /// What a check has found in the log.
    #[error("log {} is damaged {reason}: restore a backup", path.display())]
    LogDamaged { path: PathBuf, reason: String },

    #[error(
        "there is no store at {}: check --db; an application makes the store when it opens it",
        path.display()
    )]
    NoStore { path: PathBuf },

    #[error(
        "store {} is open in another process, and cannot be joined: {reason}: look at the page that this process serves \
         if it mounts `console::router`, or end the process first",
        path.display()
    )]
    InUse { path: PathBuf, reason: String },

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

    #[error("{} is a file of the store itself: name another file for the copy", path.display())]
    OfStore { path: PathBuf },

    #[error("only an embedded store is copied to a file: use fdbbackup for a cluster")]
    NoFile,

    #[error("only an embedded store has an owner: a cluster serves all processes")]
    NoFileToOwn,

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
pub(crate) enum Status {
    Done,
    Failed,
    /// The command itself is wrong.
    Misused,
    /// There is no such queue, item or key.
    Missing,
    /// An audit found something, or a store is damaged.
    Found,
    /// The store is open in another process, and cannot be joined.
    InUse,
    Stopped(Stop),
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        let code = match status {
            Status::Done => 0,
            Status::Failed => 1,
            Status::Misused => 2,
            Status::Missing => 3,
            Status::Found => 4,
            Status::InUse => 5,
            Status::Stopped(stop) => stop.exit_status(),
        };
        Self::from(code)
    }
}

impl CommandFailure {
    /// Returns why a store was not opened.
    pub(crate) fn open(error: OpenError) -> Self {
        match error {
            OpenError::StoreInUse { path, reason } => Self::InUse {
                path,
                reason: reason.unwrap_or_else(|| "its files are locked".to_owned()),
            },
            OpenError::NoOwner { path, reason } => Self::InUse { path, reason },
            OpenError::NoStore { path } => Self::NoStore { path },
            error => Self::Open(error),
        }
    }

    /// Returns why a check of a store failed.
    pub(crate) fn check(error: OpenError) -> Self {
        match error {
            OpenError::Damaged { path, reason }
            | OpenError::Store(keyspace::Error::Damaged { path, reason, .. }) => {
                Self::Damaged { path, reason }
            }
            OpenError::LogDamaged { path, reason } => Self::LogDamaged { path, reason },
            error => Self::open(error),
        }
    }

    /// Returns why a wait for the signals that stop the program is over.
    pub(crate) fn stopped(by: io::Result<Stop>) -> Self {
        match by {
            Ok(stop) => Self::Stopped(stop),
            Err(cause) => Self::Signals(cause),
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
                    DequeueError::DedupeId { .. }
                    | DequeueError::ForeignRef { .. }
                    | DequeueError::Group { .. }
                    | DequeueError::GroupLimits { .. }
                    | DequeueError::Kind { .. }
                    | DequeueError::MalformedCursor
                    | DequeueError::Priority { .. }
                    | DequeueError::TooShort { .. },
                ),
            )
            | Self::Open(OpenError::Url { .. })
            | Self::Memory
            | Self::NoStoreNamed
            | Self::OfStore { .. }
            | Self::NoFile
            | Self::NoFileToOwn
            | Self::NoFilesToCheck
            | Self::NoItems
            | Self::OnlyPurge { .. }
            | Self::Unconfirmed { .. } => Status::Misused,
            Self::Damaged { .. }
            | Self::LogDamaged { .. }
            | Self::Open(OpenError::Damaged { .. } | OpenError::LogDamaged { .. })
            | Self::Backup(OpenError::Damaged { .. }) => Status::Found,
            Self::InUse { .. } => Status::InUse,
            Self::Stopped(stop) => Status::Stopped(*stop),
            // A read has found the damage.
            _ if code_of(self) == Some(Code::FILE_CORRUPT) => Status::Found,
            _ => Status::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use export_queue::keyspace::error::chain;

    use super::*;

    #[test]
    fn a_wait_for_signals_ends_with_the_signal_or_with_why_there_are_none() {
        let stopped = CommandFailure::stopped(Ok(Stop::Terminated));
        assert_eq!(stopped.status(), Status::Stopped(Stop::Terminated));
        let failed = CommandFailure::stopped(Err(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(failed.status(), Status::Failed);
        let text = "cannot receive the signals that stop the program";
        assert_eq!(failed.to_string(), text);
    }

    #[test]
    fn damage_has_its_status_wherever_it_is_found() {
        let path = PathBuf::from("store");
        let reason = "a page is damaged".to_owned();
        let read = || keyspace::Error::Damaged {
            path: path.clone(),
            reason: reason.clone(),
            code: Code::FILE_CORRUPT,
        };
        let opening = OpenError::Damaged {
            path: path.clone(),
            reason: reason.clone(),
        };
        for failure in [
            CommandFailure::Store(read()),
            CommandFailure::Console(console::Error::Keyspace(read())),
            CommandFailure::Console(console::Error::Dequeue(read().into())),
            CommandFailure::Backup(OpenError::Store(read())),
            CommandFailure::Backup(opening.clone()),
            CommandFailure::Open(opening.clone()),
            CommandFailure::check(opening),
            CommandFailure::check(OpenError::Store(read())),
        ] {
            assert_eq!(failure.status(), Status::Found, "{failure:?}");
        }
        let checked = CommandFailure::check(OpenError::Store(read()));
        let text = "store store is damaged: a page is damaged: restore a backup";
        assert_eq!(chain(&checked).to_string(), text);
        let full = CommandFailure::Store(Code::IO_ERROR.into());
        assert_eq!(full.status(), Status::Failed);
    }
}
