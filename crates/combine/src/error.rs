//! The errors of combine queues.

use std::sync::Arc;
use std::time::Duration;

use hc_dequeue::keyspace::error::corrupt_key;
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::recipe::SettingsDiffer;
use hc_dequeue::keyspace::{self, Bytes, Subspace};
use hc_dequeue::{NotEnded, microqueue};

use crate::bucket::Bucket;
use crate::settings::{InvalidSettings, SettingsRecord};

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a combine queue.
///
/// A failure of the store, a damaged record and a value that cannot be encoded are [`keyspace::Error`]s,
/// available as the source of this error, so that retry loops recognize them.
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

    /// The queue was created with other codecs. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// The store did not answer in time when the session of a worker was to end.
    #[error(transparent)]
    NotEnded(#[from] NotEnded),

    /// The settings are out of range.
    #[error(transparent)]
    InvalidSettings(#[from] InvalidSettings),

    /// The encoded key, with the prefix of the queue's subspace, is longer than a key of the store can
    /// be. Nothing was staged.
    #[error(
        "key of {bytes} bytes is {excess} bytes too long for queue `{queue}`",
        queue = queue_name(queue)
    )]
    KeyTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded key.
        bytes: usize,
        /// The number of bytes by which it is too long.
        excess: usize,
    },

    /// The encoded update, together with its key, is larger than a block can hold. Nothing was staged.
    #[error(
        "key and update of {bytes} bytes are too large for queue `{queue}`: the limit is {limit} bytes",
        queue = queue_name(queue)
    )]
    UpdateTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded key and update together.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The encoded value is larger than a record can hold. Nothing was staged.
    #[error(
        "value of {bytes} bytes is too large for queue `{queue}`: the limit is {limit} bytes",
        queue = queue_name(queue)
    )]
    ValueTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded value.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The key to initialize already has a value. Nothing was staged.
    #[error(
        "queue `{queue}` already has a value for key {key:?}: add an update instead",
        queue = queue_name(queue)
    )]
    AlreadyPresent {
        /// The queue's subspace.
        queue: Subspace,
        /// The encoded key.
        key: Bytes,
    },

    /// The bucket of the key has more bytes of pending updates than the read allows.
    #[error(
        "bucket {bucket} of queue `{queue}` has more than {limit} bytes of pending updates: read the \
         settled value, or wait for the workers",
        queue = queue_name(queue)
    )]
    TooManyPending {
        /// The queue's subspace.
        queue: Subspace,
        /// The bucket.
        bucket: Bucket,
        /// The number of bytes that the read allows.
        limit: usize,
    },

    /// The combiner panicked during a read. In a pass, its updates are set aside instead.
    #[error("the combiner panicked for key {key:?}")]
    CombinerPanicked {
        /// The encoded key.
        key: Bytes,
    },

    /// The observer returned an error. Nothing of the pass was committed.
    #[error("the observer failed")]
    Observer(#[source] Arc<dyn std::error::Error + Send + Sync>),

    /// The observer panicked. Nothing of the pass was committed.
    #[error("the observer panicked: {message}")]
    ObserverPanicked {
        /// The message of the panic.
        message: String,
    },

    /// The observer exceeded its time limit. Nothing of the pass was committed.
    #[error("the observer did not return within {limit:?}")]
    ObserverTimedOut {
        /// The time limit.
        limit: Duration,
    },
}

impl Error {
    /// Returns whether the error is about a record that does not decode.
    pub(crate) fn is_corrupt(&self) -> bool {
        corrupt_key(self).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_queue_as_the_console_does() {
        let queue = Subspace::from(("orders", "a b", 7));
        let errors = [
            Error::KeyTooLarge {
                queue: queue.clone(),
                bytes: 2,
                excess: 1,
            },
            Error::UpdateTooLarge {
                queue: queue.clone(),
                bytes: 2,
                limit: 1,
            },
            Error::ValueTooLarge {
                queue: queue.clone(),
                bytes: 2,
                limit: 1,
            },
            Error::AlreadyPresent {
                queue: queue.clone(),
                key: Bytes::new(),
            },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(r#"`orders/"a b"/7`"#), "{text}");
        }
    }
}
