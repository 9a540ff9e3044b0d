//! Why a queue of deaths or a step was refused.

use std::time::Duration;

use microqueue::keyspace::limits::TRANSACTION_LIFE;

/// Why a queue cannot be the [queue of deaths](crate::Settings::with_deaths) of another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeathsRefusal {
    /// There is no such queue.
    #[error("open it first, as a `Queue<Death>`")]
    Missing,

    /// It has another codec than a `Queue<Death>`.
    #[error("its codec is {codec}, and that of a `Queue<Death>` is MessagePack")]
    Codec {
        /// The name of its codec.
        codec: String,
    },

    /// It is the queue itself, or its deaths lead there.
    #[error("its own deaths would lead back")]
    Ring,

    /// Its deaths lead through too many queues.
    #[error("its own deaths lead through more than {limit} queues")]
    TooLong {
        /// The largest number of queues.
        limit: usize,
    },
}

/// Why a [step](crate::Delivery::step) was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepRefusal {
    /// Its name is empty or too long.
    #[error("name of {bytes} bytes: use 1 to {limit} bytes")]
    Name {
        /// The length of the name.
        bytes: usize,
        /// The largest length, [`MAX_STEP_NAME_BYTES`](crate::MAX_STEP_NAME_BYTES).
        limit: usize,
    },

    /// The delivery has another step of this name.
    #[error(
        "this delivery has another step of this name: give each step its own, and call none within a transaction, \
         which may be repeated"
    )]
    Repeated,

    /// The handler is one of [`process`](crate::Queue::process): a commit of the step lets its transaction fail.
    #[error(
        "the handler runs in the transaction that completes the item: do the step's work there, or handle such items \
         with `work`"
    )]
    InTransaction,

    /// The item has too many steps.
    #[error("{limit} steps of this item are done, and it has no more: use a checkpoint for a loop")]
    TooMany {
        /// The largest number, [`MAX_STEPS`](crate::MAX_STEPS).
        limit: usize,
    },

    /// Its result does not fit beside the other steps and the checkpoint.
    #[error(
        "with its result, checkpoint and steps take {bytes} bytes, and the limit is {limit}: return less, or store it \
         in rows of the application"
    )]
    NoRoom {
        /// How much they would take.
        bytes: usize,
        /// The largest size, [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES).
        limit: usize,
    },

    /// It takes longer than a transaction lives.
    #[error(
        "it took {took:.1?}, longer than the {TRANSACTION_LIFE:?} of its transaction: divide it, or do what is slow \
         before it"
    )]
    TooSlow {
        /// How long it took.
        took: Duration,
    },

    /// It was done by a version of the application whose result was of another type.
    #[error("it is done, and its stored result does not decode: {reason}")]
    OtherResult {
        /// Why it does not.
        reason: String,
    },
}
