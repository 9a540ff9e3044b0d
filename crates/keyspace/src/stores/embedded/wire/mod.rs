//! The messages between a client and the owner of a store, and their bytes.
//!
//! A frame is the length of the rest, a little-endian `u32`, and then a MessagePack array of two: the number of a
//! request, and the message. A reply has the number of its request. Structures are arrays, variants are named.

pub(super) mod frames;
pub(super) mod greeting;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::contract::error::{Code, Error, StorageFailure, chain};
use crate::contract::selector::KeyValue;
use crate::stores::embedded::backend::place::FileId;
#[cfg(unix)]
use crate::stores::embedded::backend::place::Identity;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::disk::verify::Verified;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::options::Durability;
use crate::stores::embedded::processes::Process;

/// The largest frame, in bytes. A transaction of 10,000,000 bytes counts more per operation than its frame has
/// besides the keys and values.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 20;

/// The bytes of a frame's length.
const LENGTH_BYTES: usize = size_of::<u32>();

/// The largest frame before the two ends have agreed, in bytes.
pub(super) const MAX_GREETING_BYTES: usize = 4 << 10;

/// The protocol that this version of the library speaks.
pub(super) const PROTOCOL: u16 = 1;

/// The name of the protocol, with which each connection begins.
pub(super) const NAME: &str = "keyspace";

/// The first message of a connection, from the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(super) protocol: String,
    /// The oldest and the newest version of the protocol that the client speaks.
    pub(super) versions: (u16, u16),
    /// Names the handle. A second connection of a handle ends the first one.
    pub(super) client: [u8; 16],
    /// The durability that the client was given, if it was.
    pub(super) durability: Option<Durability>,
    /// Whether the client gives way to applications.
    pub(super) is_viewer: bool,
    pub(super) process: Process,
}

impl Hello {
    /// Returns the greeting of a handle.
    pub(super) fn new(client: [u8; 16], durability: Option<Durability>, is_viewer: bool) -> Self {
        Self {
            is_viewer,
            protocol: NAME.to_owned(),
            versions: (PROTOCOL, PROTOCOL),
            client,
            durability,
            process: Process::this(),
        }
    }
}

/// The owner's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Greeting {
    Welcome(Welcome),
    Refused(Refusal),
}

/// What a client must know of the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(super) version: u16,
    /// Names the store.
    pub(crate) store: [u8; 16],
    /// Names the store's file, which a copy of the store does not share. `None` over a pipe.
    pub(crate) file: Option<FileId>,
    pub(crate) alone_since: Option<i64>,
    pub(crate) durability: Durability,
}

impl Welcome {
    /// Returns the store that this is said of.
    #[cfg(unix)]
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            store: self.store,
            file: self.file,
        }
    }
}

/// Why a client is not served.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    /// The oldest and the newest version that the owner speaks.
    #[error("its owner speaks the versions {} to {} of the protocol: update the older program", .0.0, .0.1)]
    Protocol((u16, u16)),
    #[error("its owner has the durability {0:?}: open it with the same")]
    Durability(Durability),
    #[error("its owner has {0} clients, and takes no more")]
    Full(usize),
    #[error("its owner is closing it")]
    Leaving,
    /// To an application, from a viewer.
    #[error("a viewer owns it, and is handing it over")]
    Yields,
    #[error(
        "its owner has no thread or file descriptor left for this client: end others, or raise its limits"
    )]
    Short,
}

impl Refusal {
    /// Returns whether the next attempt may succeed: an owner with another durability may be a program that ends soon.
    /// A client of the last owner waits until the next one has room.
    pub(super) fn may_pass(&self, has_seen_store: bool) -> bool {
        match self {
            Self::Leaving | Self::Yields | Self::Short | Self::Durability(_) => true,
            Self::Full(_) => has_seen_store,
            Self::Protocol(_) => false,
        }
    }
}

/// What a client asks of the owner. Transactions and requests have numbers that the client chooses.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Reads at the read version of a transaction. The first request of a transaction obtains that version, unless
    /// it was set to `at`.
    Read {
        transaction: u64,
        at: Option<i64>,
        ask: Ask,
    },
    /// Commits a transaction, and ends it.
    Commit {
        transaction: u64,
        request: CommitRequest,
    },
    /// Waits until the value of a key differs from the baseline.
    Watch { key: Bytes, baseline: Option<Bytes> },
    /// Ends the wait of the request `watch`. Has no reply.
    Unwatch { watch: u64 },
    /// Ends a transaction that was not committed, or a copy. Has no reply.
    End { transaction: u64 },
    /// Reads rows of a copy from a key on. The first one fixes the state that is copied: the newest one. It can then be
    /// read for any time.
    Copy { copy: u64, begin: Bytes },
    /// Checks all blocks of the store's file.
    Verify,
    /// Asks which processes have the store open.
    Processes,
}

/// What a read needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The read version alone.
    Version,
    /// The value of a key.
    Key(Bytes),
    /// Rows from one end of a range.
    Rows {
        begin: Bytes,
        end: Bytes,
        limits: ReadLimits,
        direction: Direction,
    },
}

/// What the owner answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// To [`Request::Read`] and [`Request::Copy`].
    Found { version: i64, found: Found },
    /// To [`Request::Commit`]: the read version that it used, and the versionstamp.
    Committed {
        read_version: i64,
        versionstamp: [u8; 10],
    },
    /// To [`Request::Watch`]: the value differs.
    Changed,
    /// To [`Request::Verify`], from time to time: the number of entries that were read, and their number in total.
    Progress { read: u64, of: u64 },
    /// To [`Request::Verify`], at the end.
    Verified(Verified),
    /// To [`Request::Processes`].
    Processes(Vec<Process>),
    /// To no request: the owner closes the store, and transactions that have no read version yet should wait for the
    /// next one.
    Leaving,
    /// To no request, as the last reply: the owner has answered all requests that it will ever carry out.
    Left,
    /// To no request: the store has failed, and refuses all further work.
    Ended(RequestError),
    /// To any request that has a reply.
    Failed(RequestError),
}

/// What a read found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Found {
    Version,
    Value(Option<Bytes>),
    Rows {
        rows: Vec<WireRow>,
        /// Whether the range may have more rows than these.
        more: bool,
    },
}

/// A row: its key and its value, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireRow {
    key_bytes: u32,
    row: Bytes,
}

/// Why the owner refused a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RequestError {
    Code(i32),
    Poisoned { cause: String },
    Damaged { path: String, reason: String },
}

/// Bytes that are no frame of this protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a frame of {0} bytes, over the limit")]
    Long(usize),
    #[error("a frame is not a message: {0}")]
    Message(#[from] rmp_serde::decode::Error),
    #[error("a transaction breaks a limit: {0}")]
    Limit(Code),
}

/// Appends a frame.
pub(super) fn put(buffer: &mut BytesMut, number: u64, message: &impl Serialize) {
    let begin = buffer.len();
    buffer.put_u32_le(0);
    let mut frame = (&mut *buffer).writer();
    rmp_serde::encode::write(&mut frame, &(number, message))
        .expect("a message has only types that MessagePack has");
    let length = u32::try_from(buffer.len() - begin - LENGTH_BYTES).expect("a frame is limited");
    buffer[begin..begin + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// Takes the next frame, if all of it is there.
pub(super) fn take<M: DeserializeOwned>(
    buffer: &mut BytesMut,
    max_bytes: usize,
) -> Result<Option<(u64, M)>, Malformed> {
    let Some(length) = buffer.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > max_bytes {
        return Err(Malformed::Long(length));
    }
    if buffer.len() - LENGTH_BYTES < length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    let frame = buffer.split_to(length);
    Ok(Some(rmp_serde::from_slice(&frame)?))
}

impl From<KeyValue> for WireRow {
    fn from(row: KeyValue) -> Self {
        Self {
            key_bytes: u32::try_from(row.key().len()).expect("a key is limited"),
            row: row.into_row(),
        }
    }
}

impl TryFrom<WireRow> for KeyValue {
    type Error = Code;

    fn try_from(row: WireRow) -> Result<Self, Code> {
        let WireRow { key_bytes, row } = row;
        let key_bytes = key_bytes as usize;
        if key_bytes > row.len() {
            return Err(Code::PLATFORM_ERROR);
        }
        Ok(Self::from_row(row, key_bytes))
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        match error {
            Error::Poisoned { cause } => Self::Poisoned {
                cause: chain(&cause).to_string(),
            },
            Error::Damaged { path, reason, .. } => Self::Damaged {
                path: path.display().to_string(),
                reason,
            },
            other => Self::Code(other.code().unwrap_or(Code::IO_ERROR).number()),
        }
    }
}

impl From<RequestError> for Error {
    fn from(failure: RequestError) -> Self {
        match failure {
            RequestError::Code(number) => Code::from_number(number).into(),
            RequestError::Poisoned { cause } => Self::Poisoned {
                cause: StorageFailure::new(std::io::Error::other(cause)),
            },
            RequestError::Damaged { path, reason } => Self::Damaged {
                path: path.into(),
                reason,
                code: Code::FILE_CORRUPT,
            },
        }
    }
}
