//! What can go wrong with a queue.

use std::sync::Arc;
use std::time::Duration;

use microqueue::ItemId;
use microqueue::keyspace::recipe::SettingsDiffer;
use microqueue::keyspace::{self, Subspace};

use crate::settings::SettingsRecord;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of an application's own, as a handler returns it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of a queue operation.
///
/// The store's own failures, a damaged record and a value that has no encoding are
/// [`keyspace::Error`]s, kept as the source, so that retry loops recognize them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a record in it, refused the operation.
    #[error("queue operation failed")]
    Keyspace(#[from] keyspace::Error),

    /// The microqueue that a part of the queue is refused the operation.
    #[error(transparent)]
    Part(#[from] microqueue::Error),

    /// The item is no longer this delivery's: the session or the delivery's time was over and the
    /// item went back to the queue, or it was acknowledged before. The transaction must not commit
    /// what was done for the delivery: whoever holds the item now will do it.
    #[error("delivery of item {id:?} was lost: it has been acknowledged or given back")]
    DeliveryLost {
        /// The item.
        id: ItemId,
    },

    /// The queue was created with another codec. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// The settings or options cannot work.
    #[error("{option} of {given:?} is too short: at least {least:?}")]
    TooShort {
        /// Which one.
        option: &'static str,
        /// What was given.
        given: Duration,
        /// The shortest.
        least: Duration,
    },

    /// The item is larger than the queue can hold in every place that it may come to. Nothing was
    /// staged.
    #[error("payload of {bytes} bytes does not fit queue `{queue}`: up to {limit}")]
    PayloadTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded value.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The reason for which an item failed is too long to be kept. The delivery is as it was.
    #[error("reason of {bytes} bytes: up to {limit} are kept")]
    ReasonTooLong {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },

    /// The result of an item is too long to be kept. The delivery is as it was.
    #[error("result of {bytes} bytes: up to {limit} are kept")]
    ResultTooLong {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },

    /// The bytes or the text of a reference to an item are none.
    #[error("malformed reference to an item: {reason}")]
    MalformedRef {
        /// What is wrong with them.
        reason: String,
    },

    /// The reference is to an item of another queue. Nothing was read or staged.
    #[error("the reference is to an item of another queue than `{queue}`")]
    ForeignRef {
        /// The subspace of the queue that was asked.
        queue: Subspace,
    },

    /// The item was cancelled while this delivery held it. The transaction must not commit what was done for
    /// the delivery.
    #[error("item {id:?} was cancelled")]
    Cancelled {
        /// The item.
        id: ItemId,
    },

    /// The dedupe id is empty or too long. Nothing was staged.
    #[error("dedupe id of {bytes} bytes: it has from 1 to {limit}")]
    DedupeId {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },

    /// The headers are no trace context.
    #[error("malformed trace context: {reason}")]
    TraceContext {
        /// What is wrong with them.
        reason: &'static str,
    },

    /// The name of a schedule is empty or too long. Nothing was staged.
    #[error("schedule name of {bytes} bytes: it has from 1 to {limit}")]
    ScheduleName {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },

    /// The cron text of a schedule does not parse. Nothing was staged.
    #[error("`{text}` is no cron text")]
    CronText {
        /// The text.
        text: String,
        /// What the parser reported.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The cron text of a schedule names no time from now on, as that of 30 February. Nothing was staged.
    #[error("cron text `{text}` never fires")]
    CronNeverFires {
        /// The text.
        text: String,
    },

    /// The time zone of a schedule is not in the IANA database that this library was built with. Nothing
    /// was staged.
    #[error("there is no time zone `{name}`")]
    TimeZone {
        /// Its name.
        name: String,
    },

    /// The queue holds as many items as the enqueue allows. Nothing was staged.
    #[error("queue `{queue}` holds {depth} items, and the enqueue allows up to {limit}")]
    Full {
        /// The queue's subspace.
        queue: Subspace,
        /// How many items are queued.
        depth: u64,
        /// How many the enqueue allows.
        limit: u64,
    },

    /// No items, or more than one call may ask for.
    #[error("{wanted} items wanted: from 1 to {limit}")]
    Wanted {
        /// How many were wanted.
        wanted: usize,
        /// The most that a call may ask for.
        limit: usize,
    },

    /// The consumer was shut down, or what drives it has ended.
    #[error("consumer of queue `{queue}` was shut down")]
    ShutDown {
        /// The queue's subspace.
        queue: Subspace,
    },
}
