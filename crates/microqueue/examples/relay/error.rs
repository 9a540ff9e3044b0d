//! The errors that stop a relay.

use std::io;
use std::path::PathBuf;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot walk directory {}", directory.display())]
    Walk {
        directory: PathBuf,
        #[source]
        cause: walkdir::Error,
    },

    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },

    #[error(
        "the store relays {stored}, not {given}: name that directory, or another store with --db"
    )]
    OtherDirectory { stored: String, given: String },

    #[error("{file} has {lines} lines, but {relayed} were relayed: it changed, use a new store")]
    Shortened {
        file: String,
        lines: u64,
        relayed: u64,
    },

    #[error("cannot open the store")]
    Open(#[source] keyspace::OpenError),

    #[error("the store failed")]
    Keyspace(#[from] keyspace::Error),

    #[error("the queue failed")]
    Queue(#[from] microqueue::Error),
}
