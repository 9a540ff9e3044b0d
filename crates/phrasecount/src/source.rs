//! The files of a directory and their texts.

use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::{SpooledData, SpooledTempFile};
use walkdir::WalkDir;

use crate::choice::{Choice, Utf8Check, Verdict};
use crate::error::{Error, Result};
use crate::markdown::{ProseFilter, is_markdown};
use crate::text::{ContentHasher, ContentId, Phrases, Tokenizer};

/// A file is binary if there is a zero byte among this number of first bytes.
const HEAD_BYTES: u64 = 8 * 1024;

/// A file is read in parts of this size.
const PART_BYTES: usize = 64 * 1024;

/// A longer text is kept in a temporary file until it is stored.
const MAX_TEXT_BYTES_IN_MEMORY: usize = 512 * 1024;

/// A text is stored in chunks of this size.
pub(crate) const CHUNK_BYTES: usize = 89_000;

/// How many bytes of a transaction the updates of a partition take. A transaction has room for ten megabytes.
const PARTITION_BYTES: u64 = 2_000_000;

/// How many bytes of a transaction an update takes beside its phrase. Its key counts three times: once on its own, and
/// twice in the range that it writes.
fn update_bytes(phrase: &str) -> u64 {
    3 * phrase.len() as u64 + 180
}

/// A file found in the directory.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its path below the directory: the name of the document.
    pub(crate) uri: String,
    path: PathBuf,
    /// Whether the file is counted only if it is UTF-8.
    only_utf8: bool,
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) sources: Vec<Source>,
    pub(crate) skipped: Vec<Skipped>,
    /// How many files were left out because of their names.
    pub(crate) left_out: u64,
}

/// A file or directory that is skipped, and why.
#[derive(Debug, Clone)]
pub(crate) struct Skipped {
    pub(crate) uri: String,
    pub(crate) reason: String,
    /// Whether it may hold text that could not be read. The store keeps the documents from there.
    pub(crate) is_unknown: bool,
}

/// The content of a file.
pub(crate) enum Reading {
    Text(Text),
    /// The file has no token.
    Empty,
    Skipped(Skipped),
}

/// The text of a file, and its properties.
pub(crate) struct Text {
    pub(crate) id: ContentId,
    /// The size of the file.
    pub(crate) file_bytes: u64,
    pub(crate) text_bytes: u64,
    /// The number of partitions of its phrases, one for each transaction.
    pub(crate) partitions: u32,
    /// The number of phrases that are too long to be counted.
    pub(crate) overlong: u64,
    body: SpooledData,
}

/// Checks that the directory exists.
pub(crate) fn check(directory: &Path) -> Result<()> {
    let path = directory.to_owned();
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::NotADirectory { path }),
        Err(cause) => Err(Error::Directory { path, cause }),
    }
}

/// Finds the files under a directory, in the order of their paths. Symbolic links are not followed.
pub(crate) fn find(directory: &Path, choice: Choice) -> Result<Found> {
    let below = |path: &Path| path.strip_prefix(directory).unwrap_or(path).to_owned();
    let mut found = Found::default();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.depth() == 0 => {
                return Err(Error::Directory {
                    path: directory.to_owned(),
                    cause: error.into(),
                });
            }
            Err(error) => {
                let uri = error.path().map(&below).unwrap_or_default();
                let skipped = Skipped::unreadable(&uri.to_string_lossy(), &error.into());
                found.skipped.push(skipped);
                continue;
            }
        };
        if !entry.file_type().is_file() {
            continue;
        }
        let verdict = choice.judge(entry.path());
        if verdict == Verdict::LeaveOut {
            found.left_out += 1;
            continue;
        }
        match below(entry.path()).to_str() {
            Some(uri) => found.sources.push(Source {
                uri: uri.to_owned(),
                path: entry.into_path(),
                only_utf8: verdict == Verdict::TakeIfUtf8,
            }),
            None => found.skipped.push(Skipped {
                uri: below(entry.path()).to_string_lossy().into_owned(),
                reason: "its name is not UTF-8".to_owned(),
                is_unknown: false,
            }),
        }
    }
    Ok(found)
}

impl Skipped {
    fn unreadable(uri: &str, error: &io::Error) -> Self {
        Self {
            uri: uri.to_owned(),
            reason: format!("it cannot be read: {error}"),
            is_unknown: true,
        }
    }

    /// Returns whether a document may be in this place, which cannot be read.
    pub(crate) fn hides(&self, uri: &str) -> bool {
        let below = uri.strip_prefix(&self.uri);
        self.is_unknown && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl Source {
    /// Reads the whole file once.
    ///
    /// # Errors
    /// [`Error::Spool`]. A file that cannot be read is a [`Reading`], not an error.
    pub(crate) fn read(&self) -> Result<Reading> {
        let unreadable = |error| Reading::Skipped(Skipped::unreadable(&self.uri, &error));
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) => return Ok(unreadable(error)),
        };
        let mut part = Vec::with_capacity(PART_BYTES);
        if let Err(error) = (&mut file).take(HEAD_BYTES).read_to_end(&mut part) {
            return Ok(unreadable(error));
        }
        if part.contains(&0) {
            return Ok(self.no_text("it is binary"));
        }
        let mut utf8 = self.only_utf8.then(Utf8Check::default);
        let not_utf8 = "it is not UTF-8, and has no extension";
        let mut draft = Draft::new(is_markdown(&self.path));
        while !part.is_empty() {
            if utf8.as_mut().is_some_and(|check| !check.feed(&part)) {
                return Ok(self.no_text(not_utf8));
            }
            draft.feed(&part).map_err(|cause| self.spool(cause))?;
            part.clear();
            let read = (&mut file).take(PART_BYTES as u64).read_to_end(&mut part);
            if let Err(error) = read {
                return Ok(unreadable(error));
            }
        }
        if utf8.is_some_and(|check| !check.is_whole()) {
            return Ok(self.no_text(not_utf8));
        }
        Ok(match draft.finish().map_err(|cause| self.spool(cause))? {
            Some(text) => Reading::Text(text),
            None => Reading::Empty,
        })
    }

    fn no_text(&self, reason: &str) -> Reading {
        Reading::Skipped(Skipped {
            uri: self.uri.clone(),
            reason: reason.to_owned(),
            is_unknown: false,
        })
    }

    fn spool(&self, cause: io::Error) -> Error {
        let path = self.path.clone();
        Error::Spool { path, cause }
    }
}

/// A text that is being read.
struct Draft {
    /// Of Markdown, only the prose counts.
    filter: Option<ProseFilter>,
    tokenizer: Tokenizer,
    phrases: Phrases,
    hasher: ContentHasher,
    body: SpooledTempFile,
    file_bytes: u64,
    text_bytes: u64,
    update_bytes: u64,
    prose: Vec<u8>,
    part: Vec<u8>,
}

impl Draft {
    fn new(is_markdown: bool) -> Self {
        Self {
            filter: is_markdown.then(ProseFilter::default),
            tokenizer: Tokenizer::default(),
            phrases: Phrases::new(),
            hasher: ContentHasher::default(),
            body: SpooledTempFile::new(MAX_TEXT_BYTES_IN_MEMORY),
            file_bytes: 0,
            text_bytes: 0,
            update_bytes: 0,
            prose: Vec::new(),
            part: Vec::new(),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.part.clear();
        match &mut self.filter {
            Some(filter) => {
                self.prose.clear();
                filter.feed(bytes, &mut self.prose);
                self.tokenizer.feed(&self.prose, &mut self.part);
            }
            None => self.tokenizer.feed(bytes, &mut self.part),
        }
        self.file_bytes += bytes.len() as u64;
        self.text_bytes += self.part.len() as u64;
        self.hasher.feed(&self.part);
        let total = &mut self.update_bytes;
        let mut each = |phrase: &str| *total += update_bytes(phrase);
        self.phrases.feed(&self.part, &mut each);
        self.body.write_all(&self.part)
    }

    /// `None` if there is no token.
    fn finish(mut self) -> io::Result<Option<Text>> {
        if self.text_bytes == 0 {
            return Ok(None);
        }
        let total = &mut self.update_bytes;
        let mut each = |phrase: &str| *total += update_bytes(phrase);
        let overlong = self.phrases.finish(&mut each);
        let partitions = self.update_bytes.div_ceil(PARTITION_BYTES);
        Ok(Some(Text {
            id: self.hasher.finish(),
            file_bytes: self.file_bytes,
            text_bytes: self.text_bytes,
            partitions: u32::try_from(partitions).map_err(io::Error::other)?,
            overlong,
            body: self.body.into_inner(),
        }))
    }
}

impl Text {
    pub(crate) fn chunks(&self) -> u64 {
        self.text_bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// Returns the text if it is short enough for one transaction.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        match &self.body {
            SpooledData::InMemory(text) => Some(text.get_ref()),
            SpooledData::OnDisk(_) => None,
        }
    }

    /// Reads up to `most` chunks from the chunk `first` on.
    pub(crate) fn read_chunks(&self, first: u64, most: usize) -> io::Result<Vec<u8>> {
        let begin = first * CHUNK_BYTES as u64;
        let bytes = (most * CHUNK_BYTES) as u64;
        let mut chunks = Vec::new();
        match &self.body {
            SpooledData::InMemory(text) => {
                let mut text = Cursor::new(text.get_ref());
                text.set_position(begin);
                text.take(bytes).read_to_end(&mut chunks)?;
            }
            SpooledData::OnDisk(file) => {
                let mut file: &File = file;
                file.seek(SeekFrom::Start(begin))?;
                file.take(bytes).read_to_end(&mut chunks)?;
            }
        }
        Ok(chunks)
    }
}
