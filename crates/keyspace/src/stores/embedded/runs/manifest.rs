//! The manifest: the store's own record, and the runs.
//!
//! Chunks 0 and 1 hold a manifest each. The next one is written in place of the older one, after everything that it
//! names was flushed, and is then flushed itself.
//!
//! # Layout
//!
//! ```text
//!  0  16 bytes "fdbq-keyspace-s\n"
//! 16  u32  format: 1
//! 20  u32  length of the manifest, in bytes
//! 24  u64  sequence: 1 more than in the manifest before
//! 32  i64  version: the runs have every commit up to it, and no later one; it is that of a commit or a clock frame,
//!          or the one at which the clock started; 100,000,000 in a new store
//! 40       id of the store, 16 random bytes
//! 56  u32  length of a chunk, in bytes: 1,048,576
//! 60  u8   1 if the store has a log, else 0
//!          id of the log, 16 random bytes   (only if it has one, as the next two)
//!     u64  the log's first segment, which contains the first frame that is not in the runs
//!     u64  number of that segment's first frame
//!     u32  number of runs, newest first; for each:
//!       u64  its number, at least 1
//!       u64  number of the run into which it is being merged, or 0
//!       u64  about how many bytes of older runs its Gaps hide
//!       u16  length of the key before which that run has taken its entries, then the key
//!       u32  number of its tables, in key order; for each:
//!         u64  id
//!         u64  length, in bytes
//!         u32  length of its root, with which it ends
//!         u32  how many of its first chunks were freed
//!         u32  number of its other chunks, then for each:
//!           u32  its number
//!     u64  XXH3 (64 bits, seed 0) of all bytes before
//! ```
//!
//! A manifest has up to 1 MiB: about 250 GB of rows. Of chunks 0 and 1, the valid one with the larger sequence counts.
//! In a new store, and in one that was closed, they differ only in the sequence.
//!
//! In every format, the first three fields are these, and the last one is the checksum. A newer format is refused.
//!
//! A closed store and a backup have no log; a store that is open, or was not closed, has one. Opening it fails if the
//! log is missing or ends before the version. The first segment may contain batches that are already in the runs.

use xxhash_rust::xxh3::xxh3_64;

use super::table::{push_key, read_key};
use crate::stores::embedded::log::recover::Start;
use crate::values::record::Fields;

/// The first bytes of a manifest. Damaged files are known by them.
pub(super) const MAGIC: &[u8; 16] = b"fdbq-keyspace-s\n";

/// The newest format that this version reads, and the one it writes.
pub(crate) const FORMAT: u32 = 1;

/// The bytes of the fields that tell how long a manifest is.
pub(super) const HEAD_BYTES: usize = 24;

/// The last version from which a store can go on: no clock gets that far.
const MAX_VERSION: i64 = i64::MAX / 2;

/// The last number of a segment or a frame from which a log can go on: no log gets that far.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// The most bytes that a store has: its manifest has no room for more.
pub(super) const MAX_BYTES: u64 = 1 << 40;

/// The store's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Every commit up to this version is in the runs, and no later one. It is the version of a commit or of
    /// a clock frame, or the version at which the clock started.
    pub(crate) last_version: i64,
    /// Distinguishes this store from every other.
    pub(crate) id: [u8; 16],
    /// The log with the commits that are not in the runs, `None` if all are in the runs.
    pub(crate) log: Option<LogStart>,
}

/// The start of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogStart {
    pub(crate) id: [u8; 16],
    pub(crate) start: Start,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) sequence: u64,
    pub(super) meta: Meta,
    pub(super) chunk_bytes: u32,
    /// Newest first.
    pub(super) runs: Vec<RunRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunRecord {
    pub(super) id: u64,
    pub(super) into: u64,
    pub(super) hidden_bytes: u64,
    pub(super) begins: Vec<u8>,
    pub(super) tables: Vec<TableRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableRecord {
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) root_bytes: u32,
    pub(super) first_chunk: u32,
    pub(super) chunks: Vec<u32>,
}

/// Why bytes are no manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ManifestError {
    /// It was damaged, or only a part of it was written.
    Damaged,
    /// It has a format that this version does not read.
    NewerFormat(u32),
}

/// Returns the length of the manifest that begins with `head`. `None` if no manifest does.
pub(super) fn length(head: &[u8; HEAD_BYTES]) -> Option<u32> {
    let (magic, rest) = head.split_first_chunk()?;
    let mut fields = Fields::new(rest);
    let _format = fields.u32().ok()?;
    let length = fields.u32().ok()?;
    if magic == MAGIC && length as usize > HEAD_BYTES {
        Some(length)
    } else {
        None
    }
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        push_u32(&mut bytes, FORMAT);
        // The length is filled in at the end.
        push_u32(&mut bytes, 0);
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&self.meta.last_version.to_be_bytes());
        bytes.extend_from_slice(&self.meta.id);
        push_u32(&mut bytes, self.chunk_bytes);
        bytes.push(u8::from(self.meta.log.is_some()));
        if let Some(log) = &self.meta.log {
            bytes.extend_from_slice(&log.id);
            bytes.extend_from_slice(&log.start.segment.to_be_bytes());
            bytes.extend_from_slice(&log.start.frame.to_be_bytes());
        }
        push_len(&mut bytes, self.runs.len());
        for run in &self.runs {
            run.push_to(&mut bytes);
        }
        let length = u32::try_from(bytes.len() + 8).expect("a manifest is small");
        bytes[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let (content, checksum) = bytes.split_last_chunk().ok_or(ManifestError::Damaged)?;
        if xxh3_64(content) != u64::from_be_bytes(*checksum) {
            return Err(ManifestError::Damaged);
        }
        let mut fields = Fields::new(content);
        let is_manifest = fields.array().is_ok_and(|magic| magic == *MAGIC);
        match fields.u32() {
            Ok(FORMAT) if is_manifest => {}
            Ok(found) if is_manifest && found > FORMAT => {
                return Err(ManifestError::NewerFormat(found));
            }
            _ => return Err(ManifestError::Damaged),
        }
        Self::read(&mut fields, bytes.len()).map_err(|_| ManifestError::Damaged)
    }

    fn read(fields: &mut Fields<'_>, bytes: usize) -> Result<Self, String> {
        if fields.u32()? as usize != bytes {
            return Err("it has another length".to_owned());
        }
        let sequence = fields.u64()?;
        let last_version = i64::from_be_bytes(fields.array()?);
        if !(0..=MAX_VERSION).contains(&last_version) {
            return Err(format!("its version is {last_version}"));
        }
        let id = fields.array()?;
        let chunk_bytes = fields.u32()?;
        let log = match fields.array()? {
            [0] => None,
            [1] => Some(LogStart {
                id: fields.array()?,
                start: Start {
                    segment: fields.u64()?,
                    frame: fields.u64()?,
                },
            }),
            [found] => return Err(format!("it has {found} logs")),
        };
        let is_number = |number| (1..=MAX_NUMBER).contains(&number);
        if log.is_some_and(|log| !is_number(log.start.segment) || !is_number(log.start.frame)) {
            return Err("its log begins nowhere".to_owned());
        }
        let count = fields.u32()?;
        let runs = (0..count)
            .map(|_| RunRecord::read(fields))
            .collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(Self {
            sequence,
            meta: Meta {
                last_version,
                id,
                log,
            },
            chunk_bytes,
            runs,
        })
    }
}

impl RunRecord {
    fn push_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.into.to_be_bytes());
        bytes.extend_from_slice(&self.hidden_bytes.to_be_bytes());
        push_key(bytes, &self.begins);
        push_len(bytes, self.tables.len());
        for table in &self.tables {
            bytes.extend_from_slice(&table.id.to_be_bytes());
            bytes.extend_from_slice(&table.bytes.to_be_bytes());
            push_u32(bytes, table.root_bytes);
            push_u32(bytes, table.first_chunk);
            push_len(bytes, table.chunks.len());
            for &chunk in &table.chunks {
                push_u32(bytes, chunk);
            }
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let id = fields.u64()?;
        let into = fields.u64()?;
        let hidden_bytes = fields.u64()?;
        if !(1..=MAX_NUMBER).contains(&id) || hidden_bytes > MAX_BYTES {
            return Err(format!("its run {id} hides {hidden_bytes} bytes"));
        }
        let begins = read_key(fields)?;
        let mut tables = Vec::new();
        for _ in 0..fields.u32()? {
            let id = fields.u64()?;
            let bytes = fields.u64()?;
            let root_bytes = fields.u32()?;
            let first_chunk = fields.u32()?;
            let count = fields.u32()?;
            let chunks = (0..count).map(|_| fields.u32()).collect::<Result<_, _>>()?;
            tables.push(TableRecord {
                id,
                bytes,
                root_bytes,
                first_chunk,
                chunks,
            });
        }
        Ok(Self {
            id,
            into,
            hidden_bytes,
            begins,
            tables,
        })
    }
}

fn push_u32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

fn push_len(bytes: &mut Vec<u8>, len: usize) {
    push_u32(bytes, u32::try_from(len).expect("a manifest is small"));
}
