//! What can go wrong with an export queue.

use std::sync::Arc;
use std::time::Duration;

use combine::keyspace::recipe::SettingsDiffer;
use combine::keyspace::{self, Subspace};
use combine::{InvalidSettings, microqueue};

use crate::record::SettingsRecord;

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
    #[error("export queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The log of entries refused the operation: [`StampAhead`](microqueue::Error::StampAhead) or
    /// [`PrefixTooLong`](microqueue::Error::PrefixTooLong).
    #[error(transparent)]
    Log(#[from] microqueue::Error),

    /// The settings cannot work.
    #[error(transparent)]
    InvalidSettings(#[from] InvalidSettings),

    /// The queue was created with other settings. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// There is no queue in the subspace any more.
    #[error("there is no queue in `{queue}`: it has no settings")]
    NoQueue {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The queue has no such subscription, or has it no more.
    #[error("queue `{queue}` has no subscription `{subscription}`")]
    NoSubscription {
        /// The queue's subspace.
        queue: Subspace,
        /// Its name.
        subscription: String,
    },

    /// The name of a subscription has from 1 to 255 bytes.
    #[error("name of {bytes} bytes for a subscription: it has from 1 to {limit}")]
    SubscriptionName {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },

    /// The names of the subscriptions do not fit the record of the settings. Nothing was changed.
    #[error("queue `{queue}` has too many subscriptions: remove those that are not needed")]
    TooManySubscriptions {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The entry is larger than a block can hold. Nothing was staged.
    #[error("entry of {bytes} bytes does not fit queue `{queue}`: up to {limit}")]
    EntryTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of encoded key and value.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The exporter failed. What it was given comes again; a dead letter stays where it is.
    #[error("the exporter failed")]
    Exporter(#[source] Arc<dyn std::error::Error + Send + Sync>),

    /// The exporter panicked. What it was given comes again.
    #[error("the exporter panicked: {message}")]
    ExporterPanicked {
        /// What the panic said.
        message: String,
    },

    /// The exporter took longer than it may. What it was given comes again.
    #[error("the exporter has not returned within {limit:?}")]
    ExporterTimedOut {
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
