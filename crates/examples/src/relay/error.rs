//! The errors that stop a relay.

use std::io;
use std::path::PathBuf;

/// The result of a relay.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a relay stopped.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// A directory cannot be read.
    #[error("cannot walk directory {}", directory.display())]
    Walk {
        directory: PathBuf,
        #[source]
        cause: walkdir::Error,
    },

    /// A file or the directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },

    /// The path is not that of a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },

    /// An earlier run relayed another directory.
    #[error(
        "the store relays {stored}, not {given}: name that directory, or another store with --db"
    )]
    OtherDirectory { stored: String, given: String },

    /// A file has fewer lines than an earlier run has relayed.
    #[error("{file} has {lines} lines, but {relayed} were relayed: it changed, use a new store")]
    Shortened {
        file: String,
        lines: u64,
        relayed: u64,
    },

    /// The store failed.
    #[error("the store failed")]
    Keyspace(#[from] keyspace::Error),

    /// The queue failed.
    #[error("the queue failed")]
    Queue(#[from] microqueue::Error),
}
