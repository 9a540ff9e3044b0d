//! What can go wrong with a combine queue.

use std::sync::Arc;
use std::time::Duration;

use hc_dequeue::keyspace::recipe::SettingsDiffer;
use hc_dequeue::keyspace::{self, Bytes, Subspace};
use hc_dequeue::microqueue;

use crate::bucket::Bucket;
use crate::settings::{InvalidSettings, SettingsRecord};

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of an operation.
///
/// The store's own failures, a damaged record and a value that has no encoding are
/// [`keyspace::Error`]s, kept as the source, so that retry loops recognize them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a record in it, refused the operation.
    #[error("combine queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The log of updates refused the operation: [`ReadAfterWrite`](microqueue::Error::ReadAfterWrite) or
    /// [`StampAhead`](microqueue::Error::StampAhead).
    #[error(transparent)]
    Updates(#[from] microqueue::Error),

    /// The queue was created with other settings. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// The settings cannot work.
    #[error(transparent)]
    InvalidSettings(#[from] InvalidSettings),

    /// The key, with the prefix of the queue's subspace, is longer than a key of the store can be.
    /// Nothing was staged.
    #[error("key of {bytes} bytes is {excess} bytes too long for queue `{queue}`")]
    KeyTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded key.
        bytes: usize,
        /// By how much it is too long.
        excess: usize,
    },

    /// The update, together with its key, is larger than a block can hold. Nothing was staged.
    #[error("key and update of {bytes} bytes do not fit queue `{queue}`: up to {limit}")]
    UpdateTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded key and update.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The value is larger than a record can hold. Nothing was staged.
    #[error("value of {bytes} bytes does not fit queue `{queue}`: up to {limit}")]
    ValueTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded value.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The key to be initialized has a value. Nothing was staged.
    #[error("queue `{queue}` has a value for key {key:?}: add an update instead")]
    AlreadyPresent {
        /// The queue's subspace.
        queue: Subspace,
        /// The encoded key.
        key: Bytes,
    },

    /// The bucket of the key has more bytes of pending updates than the reader is ready to read.
    #[error(
        "bucket {bucket} of queue `{queue}` has more than {limit} bytes of pending updates: read what \
         is settled, or wait for the workers"
    )]
    TooManyPending {
        /// The queue's subspace.
        queue: Subspace,
        /// The bucket.
        bucket: Bucket,
        /// How many bytes the reader is ready to read.
        limit: usize,
    },

    /// The combiner panicked in a read. In a pass its updates are set aside instead.
    #[error("the combiner panicked for key {key:?}")]
    CombinerPanicked {
        /// The encoded key.
        key: Bytes,
    },

    /// The observer failed. Nothing of the pass was committed.
    #[error("the observer failed")]
    Observer(#[source] Arc<dyn std::error::Error + Send + Sync>),

    /// The observer panicked. Nothing of the pass was committed.
    #[error("the observer panicked: {message}")]
    ObserverPanicked {
        /// What the panic said.
        message: String,
    },

    /// The observer took longer than it may. Nothing of the pass was committed.
    #[error("the observer has not returned within {limit:?}")]
    ObserverTimedOut {
        /// How long it may take.
        limit: Duration,
    },
}

impl Error {
    /// Returns whether a record does not decode.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self, Self::Keyspace(keyspace::Error::Corrupt { .. }))
    }
}
