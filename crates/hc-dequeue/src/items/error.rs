//! Errors of queue operations.

use std::sync::Arc;
use std::time::Duration;

use microqueue::keyspace::limits::MAX_TRANSACTION_BYTES;
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::recipe::SettingsDiffer;
use microqueue::keyspace::{self, Bytes, Code, Subspace};

use crate::items::batch::BatchRef;
use crate::items::item_ref::{ItemRef, MalformedRef};
use crate::items::kind::MAX_KIND_BYTES;
use crate::items::priority::MAX_PRIORITY;
use crate::items::refusal::{DeathsRefusal, StepRefusal};
use crate::items::settings::SettingsRecord;
use crate::shutdown::NotEnded;

/// The result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of an application, as its handlers return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of a queue operation.
///
/// Errors of the store, damaged records and values that cannot be encoded are [`keyspace::Error`]s. They are kept as
/// the source, so that retry loops recognize them.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed, or a record in it does not decode.
    #[error("queue operation failed")]
    Keyspace(#[source] keyspace::Error),

    /// The transaction stages more than the store commits at once. Nothing is committed. Stage less in each of several
    /// transactions.
    #[error(
        "the transaction stages more than the limit of {MAX_TRANSACTION_BYTES} bytes: enqueue in several transactions"
    )]
    TransactionTooLarge(#[source] keyspace::Error),

    /// The microqueue that stores a part of the queue returned an error.
    #[error(transparent)]
    Part(microqueue::Error),

    /// The transaction has enqueued, and then reads rows to which its items may belong: they get their places only at
    /// the commit. The transaction can no longer commit.
    #[error(
        "the transaction reads places of items that it may have enqueued itself: read first, or use two transactions"
    )]
    ReadAfterWrite,

    /// The transaction has enqueued the dedupe id before, and [`Debounce`](crate::OnRepeat::Debounce) wants another
    /// time or priority: the item gets its place only at the commit, and cannot move. Or one of the two enqueues is for
    /// a batch, and the second one is no [`Keep`](crate::OnRepeat::Keep). Nothing is staged.
    #[error(
        "the transaction has enqueued this dedupe id with another time or priority, or for a batch: change it in \
         another transaction"
    )]
    EnqueuedWithOtherPlace,

    /// The priority is too high or too low. Nothing was staged.
    #[error("priority {priority} is out of range: set one from -{MAX_PRIORITY} to {MAX_PRIORITY}")]
    Priority {
        /// The given priority.
        priority: i8,
    },

    /// The delivery no longer holds the item: its session ended or its time limit passed and the item went back to
    /// the queue, or the item was already acknowledged. The transaction must not commit. If the item is still in the
    /// queue, another delivery will do its work.
    #[error("delivery of item {item} was lost: the item was acknowledged or given back")]
    DeliveryLost {
        /// The item.
        item: ItemRef,
    },

    /// The queue was created with another codec. Nothing was changed.
    #[error(transparent)]
    SettingsDiffer(#[from] Box<SettingsDiffer<SettingsRecord>>),

    /// The queue of deaths cannot be used. Nothing was changed.
    #[error(
        "`{deaths}` cannot be the queue of deaths of `{queue}`: {reason}",
        deaths = queue_name(deaths),
        queue = queue_name(queue)
    )]
    Deaths {
        /// The queue's subspace.
        queue: Subspace,
        /// That of the queue of deaths.
        deaths: Subspace,
        /// Why it cannot.
        reason: DeathsRefusal,
    },

    /// A setting or an option is too short to work.
    #[error("{option} of {given:?} is too short: set at least {least:?}")]
    TooShort {
        /// The name of the setting or option.
        option: &'static str,
        /// The given duration.
        given: Duration,
        /// The shortest valid duration.
        least: Duration,
    },

    /// The encoded value is too large to be stored in every place of the queue. Nothing was staged.
    #[error(
        "payload of {bytes} bytes is too large for queue `{queue}`: the limit is {limit} bytes",
        queue = queue_name(queue)
    )]
    PayloadTooLarge {
        /// The queue's subspace.
        queue: Subspace,
        /// The size of the encoded value.
        bytes: usize,
        /// The largest size, [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES).
        limit: usize,
    },

    /// The reason of a failure is too long to be stored. The delivery is unchanged.
    #[error("reason of {bytes} bytes is too long: the limit is {limit} bytes")]
    ReasonTooLong {
        /// The length of the reason.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// The result of an item is too long to be stored. The delivery is unchanged.
    #[error("result of {bytes} bytes is too long: the limit is {limit} bytes")]
    ResultTooLong {
        /// The length of the result.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// The checkpoint of an item, with its steps, is too long to be stored. Nothing was staged.
    #[error(
        "checkpoint of {bytes} bytes, with the steps that are done, is too long: the limit is {limit} bytes"
    )]
    CheckpointTooLong {
        /// Its length, with the steps that are done.
        bytes: usize,
        /// The largest length, [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES).
        limit: usize,
    },

    /// The text of an item's progress is too long to be stored. Nothing was staged.
    #[error("text of progress of {bytes} bytes is too long: the limit is {limit} bytes")]
    ProgressTextTooLong {
        /// The length of the text.
        bytes: usize,
        /// The largest length, [`MAX_PROGRESS_TEXT_BYTES`](crate::MAX_PROGRESS_TEXT_BYTES).
        limit: usize,
    },

    /// A step of an item was refused. Nothing of its transaction is committed.
    #[error("step {step:?}: {reason}")]
    Step {
        /// The name of the step.
        step: String,
        /// Why it was refused.
        reason: StepRefusal,
    },

    /// The bytes or the text are not a reference to an item or a batch.
    #[error(transparent)]
    MalformedRef(#[from] MalformedRef),

    /// The text is not a cursor, or the cursor belongs to another queue or another place.
    #[error("malformed cursor of a listing: start again from the first page")]
    MalformedCursor,

    /// The reference belongs to an item or a batch of another queue. Nothing was read or staged.
    #[error(
        "the reference belongs to another queue than `{queue}`",
        queue = queue_name(queue)
    )]
    ForeignRef {
        /// The subspace of the queue that was called.
        queue: Subspace,
    },

    /// The item was cancelled while this delivery held it. The transaction must not commit.
    #[error("item {item} was cancelled")]
    Cancelled {
        /// The item.
        item: ItemRef,
    },

    /// The dedupe id is empty or too long. Nothing was staged.
    #[error("dedupe id of {bytes} bytes: use 1 to {limit} bytes")]
    DedupeId {
        /// The length of the id.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// The key for the reference of an item cannot be used. Nothing was staged.
    #[error("key for the reference of an item: {reason}")]
    RefKey {
        /// What is wrong.
        reason: &'static str,
    },

    /// The name of a group is empty or too long. Nothing was staged.
    #[error("group name of {bytes} bytes: use 1 to {limit} bytes")]
    Group {
        /// The length of the name.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// A kind is empty or too long. Nothing was staged, and no session was opened.
    #[error("kind of {bytes} bytes: use 1 to {MAX_KIND_BYTES} bytes", bytes = kind.len())]
    Kind {
        /// The given kind.
        kind: String,
    },

    /// Two handlers of a worker are for the same kind, which may be an alias of one of them. No session was opened.
    #[error("two handlers are for the kind `{kind}`: register one for each kind")]
    HandledTwice {
        /// The kind; empty for items without one.
        kind: String,
    },

    /// A worker has no handlers. No session was opened.
    #[error("a worker of jobs has no handlers: register one for each type of jobs that it takes")]
    NoHandlers,

    /// The limits of a group contradict each other, or one is out of range. Nothing was staged.
    #[error("limits of a group: {reason}")]
    GroupLimits {
        /// What is wrong.
        reason: &'static str,
    },

    /// The batch is complete or was cancelled, or there was none: it takes no members. Nothing was staged.
    #[error("batch {batch} is over: it takes no members")]
    BatchOver {
        /// The batch.
        batch: BatchRef,
    },

    /// The batch was closed, and something else than one of its members adds a member. Nothing was staged.
    #[error(
        "batch {batch} is closed: only its members add others, by `with_batch_of` or `with_parent_of` their delivery; \
         open another batch"
    )]
    BatchClosed {
        /// The batch.
        batch: BatchRef,
    },

    /// The item that has the dedupe id is a member of another batch than the enqueue names. Nothing was staged.
    #[error(
        "the item with this dedupe id is a member of batch {batch}: enqueue it again when that item has ended"
    )]
    OtherBatch {
        /// The batch of the item.
        batch: BatchRef,
    },

    /// The options of the callback of a batch, or those of a schedule, cannot be kept. Nothing was staged.
    #[error("enqueue options: {reason}")]
    EnqueueOptions {
        /// What is wrong.
        reason: &'static str,
    },

    /// The headers are not a valid trace context.
    #[error("malformed trace context: {reason}")]
    TraceContext {
        /// Why they are not.
        reason: &'static str,
    },

    /// The name of a schedule is empty or too long. Nothing was staged.
    #[error("schedule name of {bytes} bytes: use 1 to {limit} bytes")]
    ScheduleName {
        /// The length of the name.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// The name of an owner of schedules is empty or too long. Nothing was staged.
    #[error("owner of schedules of {bytes} bytes: use 1 to {limit} bytes")]
    ScheduleOwner {
        /// The length of the name.
        bytes: usize,
        /// The largest length.
        limit: usize,
    },

    /// [`set_schedules`](crate::Queue::set_schedules) was given a schedule that does not belong to the owner. Nothing
    /// was staged.
    #[error(
        "schedule `{name}` belongs to {}: use another name, or `set_schedule_owner` to hand it over",
        owner_text(owner.as_deref())
    )]
    OtherOwner {
        /// The name of the schedule.
        name: String,
        /// Its owner. `None` if it was made by [`schedule`](crate::Queue::schedule).
        owner: Option<String>,
    },

    /// [`set_schedules`](crate::Queue::set_schedules) was given a name twice. Nothing was staged.
    #[error("schedule `{name}` is given twice: name each schedule once")]
    ScheduleTwice {
        /// The name.
        name: String,
    },

    /// An owner would have too many schedules to set them in one transaction. Nothing was staged.
    #[error(
        "{given} schedules of one owner: set at most {limit}, and divide others among more owners"
    )]
    TooManySchedules {
        /// How many it would have.
        given: usize,
        /// The largest number.
        limit: usize,
    },

    /// The schedules of an owner, as given or as stored, are too large for one transaction. Nothing was staged.
    #[error(
        "schedules of one owner have {bytes} bytes or more: the limit is {limit} bytes; divide them among more owners, \
         and `unschedule` stored ones that are too large"
    )]
    SchedulesTooLarge {
        /// The size of those of their records that were counted.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// The cron expression of a schedule is not valid. Nothing was staged.
    #[error("`{text}` is not a valid cron expression")]
    CronExpression {
        /// The expression.
        text: String,
        /// The error of the parser.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The cron expression of a schedule has no future time; February 30 is an example. Nothing was staged.
    #[error("cron expression `{text}` never fires")]
    CronNeverFires {
        /// The expression.
        text: String,
    },

    /// The times of a cron expression cannot be determined: the wall clock shows the year 5000 or a later one, or the
    /// search for them has failed. The schedule stays as it is, and sessions try it again.
    #[error(
        "the times of cron expression `{text}` in {time_zone} cannot be determined: check the wall clock"
    )]
    CronTimes {
        /// The expression.
        text: String,
        /// The name of the time zone.
        time_zone: String,
        /// Why they cannot be determined.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The time zone of a schedule is not in the IANA database that this library was built with. Nothing was staged.
    #[error("unknown time zone `{name}`: use a name of the IANA database")]
    TimeZone {
        /// The name of the time zone.
        name: String,
    },

    /// The options of a schedule have the fixed time of [`Enqueue::with_due_time`](crate::Enqueue::with_due_time).
    /// Nothing was staged.
    #[error("a schedule cannot enqueue at a fixed time: use a delay after each scheduled time")]
    FixedTime,

    /// The queue already has as many items as the enqueue allows. Nothing was staged.
    #[error(
        "queue `{queue}` is full: {depth} items are queued, and the enqueue allows {limit}",
        queue = queue_name(queue)
    )]
    Full {
        /// The queue's subspace.
        queue: Subspace,
        /// The number of queued items.
        depth: u64,
        /// The largest number that the enqueue allows.
        limit: u64,
    },

    /// A call requested zero items, or more than one call may request.
    #[error("{wanted} items requested: request 1 to {limit}")]
    Wanted {
        /// The requested number.
        wanted: usize,
        /// The largest number for one call.
        limit: usize,
    },

    /// An option of a worker is too high.
    #[error("{option} of {given} is too high: set at most {limit}")]
    TooHigh {
        /// The name of the option.
        option: &'static str,
        /// The given number.
        given: usize,
        /// The highest number.
        limit: usize,
    },

    /// The consumer was shut down, or its dispatcher has ended.
    #[error(
        "consumer of queue `{queue}` was shut down",
        queue = queue_name(queue)
    )]
    ShutDown {
        /// The queue's subspace.
        queue: Subspace,
    },

    /// The store did not answer in time when a session was to end.
    #[error(transparent)]
    NotEnded(#[from] NotEnded),
}

impl From<keyspace::Error> for Error {
    fn from(error: keyspace::Error) -> Self {
        match error.code() {
            Some(Code::ACCESSED_UNREADABLE) => Self::ReadAfterWrite,
            Some(Code::TRANSACTION_TOO_LARGE) => Self::TransactionTooLarge(error),
            _ => Self::Keyspace(error),
        }
    }
}

impl From<microqueue::Error> for Error {
    fn from(error: microqueue::Error) -> Self {
        match error {
            microqueue::Error::ReadAfterWrite { .. } => Self::ReadAfterWrite,
            microqueue::Error::Keyspace(error)
                if error.code() == Some(Code::ACCESSED_UNREADABLE) =>
            {
                Self::ReadAfterWrite
            }
            other => Self::Part(other),
        }
    }
}

/// Returns whose a schedule is, in words.
fn owner_text(owner: Option<&str>) -> String {
    owner.map_or_else(|| "no owner".to_owned(), |owner| format!("owner `{owner}`"))
}

impl Error {
    /// Returns the key of the row that does not decode, if that is the error.
    pub(crate) fn corrupt_key(&self) -> Option<&Bytes> {
        match self {
            Self::Keyspace(keyspace::Error::Corrupt { key, .. })
            | Self::Part(microqueue::Error::Keyspace(keyspace::Error::Corrupt { key, .. })) => {
                Some(&**key)
            }
            _ => None,
        }
    }
}

/// Lets a transaction go on after a read of a row that does not decode: there is `None`. Other errors end it, so that
/// the runner retries it.
pub(crate) fn skip_corrupt<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(row) => Ok(Some(row)),
        Err(error) if error.corrupt_key().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_queue_as_the_console_does() {
        let queue = Subspace::from(("orders", "a b", 7));
        let errors = [
            Error::PayloadTooLarge {
                queue: queue.clone(),
                bytes: 2,
                limit: 1,
            },
            Error::ForeignRef {
                queue: queue.clone(),
            },
            Error::Full {
                queue: queue.clone(),
                depth: 2,
                limit: 1,
            },
            Error::ShutDown {
                queue: queue.clone(),
            },
            Error::NotEnded(NotEnded {
                recipe: queue.clone(),
                limit: Duration::ZERO,
            }),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(r#"`orders/"a b"/7`"#), "{text}");
        }
    }
}
