//! The processes that share a store.

use std::{env, process};

use serde::{Deserialize, Serialize};

/// What a process is to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// It holds the lock of the store's file, and serves the others.
    Owner,
    /// It reaches the store through the owner.
    Client,
}

/// A process that has a store open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// The name of its program. Empty if the system does not say.
    pub program: String,
    /// Its number, as it sees it. A container may number its processes on its own.
    pub pid: u32,
}

impl Process {
    /// Returns this process.
    pub(crate) fn this() -> Self {
        let program = env::current_exe().ok();
        let name = program.as_deref().and_then(|path| path.file_name());
        Self {
            program: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            pid: process::id(),
        }
    }
}
