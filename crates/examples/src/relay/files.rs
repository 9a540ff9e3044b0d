//! The text files of a directory.

use std::fs;
use std::path::{Path, PathBuf};

use keyspace::limits;
use walkdir::WalkDir;

use super::error::{Error, Result};

/// A file found in the directory.
pub(crate) struct Source {
    /// Its path below the directory: the name under which its lines are relayed.
    pub(crate) name: String,
    path: PathBuf,
}

/// The contents of a file.
pub(crate) enum Content {
    /// Lines to relay.
    Text(String),
    /// A reason why the file is not relayed.
    Skipped(String),
}

/// The bytes that an item needs besides the text of a line and the name of its file: a format byte, two
/// lengths and a number.
const ITEM_FRAMING_BYTES: usize = 32;

/// Finds the files under a directory, sorted. Symbolic links are not followed.
pub(crate) fn find(directory: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.map_err(|cause| Error::Walk {
            directory: directory.to_owned(),
            cause,
        })?;
        if !entry.file_type().is_file() {
            continue;
        }
        let below = entry
            .path()
            .strip_prefix(directory)
            .expect("a walk stays below its directory");
        sources.push(Source {
            // Two names can map to the same name here only if neither is Unicode, and such files are
            // skipped.
            name: below.to_string_lossy().into_owned(),
            path: entry.into_path(),
        });
    }
    Ok(sources)
}

impl Source {
    /// Reads the whole file.
    pub(crate) fn read(&self) -> Result<Content> {
        if self.path.to_str().is_none() {
            return Ok(Content::Skipped("its name is not UTF-8".to_owned()));
        }
        let bytes = fs::read(&self.path).map_err(|cause| Error::Read {
            path: self.path.clone(),
            cause,
        })?;
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(Content::Skipped("it is not UTF-8 text".to_owned()));
        };
        let room = limits::MAX_VALUE_BYTES - ITEM_FRAMING_BYTES - self.name.len();
        match text.lines().position(|line| line.len() > room) {
            Some(index) => Ok(Content::Skipped(format!(
                "its line {} is over {room} bytes, the most that fits an item",
                index + 1
            ))),
            None => Ok(Content::Text(text)),
        }
    }
}
