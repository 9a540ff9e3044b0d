//! The errors of export queues.

use std::sync::Arc;
use std::time::Duration;

use combine::keyspace::error::corrupt_key;
use combine::keyspace::names::queue_name;
use combine::keyspace::recipe::SettingsDiffer;
use combine::keyspace::{self, Subspace};
use combine::{InvalidSettings, NotEnded, microqueue};

use crate::record::SettingsRecord;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an export queue.
///
/// A failure of the store, a damaged record and a value that cannot be encoded are [`keyspace::Error`]s,
/// available as the source of this error, so that retry loops recognize them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a record in it, refused the operation.
    #[error("export queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The log of entries refused the operation: [`StampAhead`](microqueue::Error::StampAhead) or
    /// [`PrefixTooLong`](microqueue::Error::PrefixTooLong).
    #[error(transparent)]
    Log(#[from] microqueue::Error),

    /// The store did not answer in time when the session of a worker was to end.
    #[error(transparent)]
    NotEnded(#[from] NotEnded),

    /// The settings are out of range.
    #[error(transparent)]
    InvalidSettings(#[from] InvalidSettings),

    /// The queue was created with other codecs. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// The subspace contains no queue, for example because it has been cleared.
    #[error(
        "subspace `{queue}` contains no export queue: open the queue to create it",
        queue = queue_name(queue)
    )]
    NoQueue {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The queue has no subscription of this name. It may have been removed.
    #[error(
        "queue `{queue}` has no subscription `{subscription}`",
        queue = queue_name(queue)
    )]
    NoSubscription {
        /// The queue's subspace.
        queue: Subspace,
        /// The name of the subscription.
        subscription: String,
    },

    /// The name of the subscription is empty or longer than 255 bytes.
    #[error(
        "subscription name of {bytes} bytes is out of range: choose a name of 1 to {limit} bytes"
    )]
    SubscriptionName {
        /// The length of the name.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// The names of the subscriptions do not fit the record of the settings. Nothing was changed.
    #[error(
        "queue `{queue}` has too many subscriptions: remove the ones that are not needed",
        queue = queue_name(queue)
    )]
    TooManySubscriptions {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The encoded entry is larger than a block can hold. Nothing was staged.
    #[error(
        "entry of {bytes} bytes is too large for queue `{queue}`: the limit is {limit} bytes",
        queue = queue_name(queue)
    )]
    EntryTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded key and value together.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The session of a [drain](crate::testing::drain) was declared dead: the exporter took longer than its lease.
    /// What it was given last is exported again, by a worker or a later call.
    #[error(
        "the session of the drain is dead: the exporter took longer than the lease of {lease:?}; set a longer one in \
         the settings of the queue, or drain without workers"
    )]
    SessionLost {
        /// The lease of the session.
        lease: Duration,
    },

    /// The exporter returned an error. Its batch is exported again; a dead letter stays.
    #[error("the exporter failed")]
    Exporter(#[source] Arc<dyn std::error::Error + Send + Sync>),

    /// The exporter panicked. Its batch is exported again.
    #[error("the exporter panicked: {message}")]
    ExporterPanicked {
        /// The message of the panic.
        message: String,
    },

    /// The exporter exceeded its time limit. Its batch is exported again.
    #[error("the exporter did not return within {limit:?}")]
    ExporterTimedOut {
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
            Error::NoQueue {
                queue: queue.clone(),
            },
            Error::NoSubscription {
                queue: queue.clone(),
                subscription: "a".to_owned(),
            },
            Error::TooManySubscriptions {
                queue: queue.clone(),
            },
            Error::EntryTooLarge {
                queue: queue.clone(),
                bytes: 2,
                limit: 1,
            },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(r#"`orders/"a b"/7`"#), "{text}");
        }
    }
}
