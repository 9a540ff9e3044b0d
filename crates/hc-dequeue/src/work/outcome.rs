//! The result of handling an item.

use std::time::Duration;

use microqueue::keyspace::error::chain;

use crate::items::error::BoxError;

/// The result of handling an item.
///
/// A handler may also return [something else](IntoOutcome): `()` and `Ok(())` mean [`Done`](Self::Done), and an `Err`
/// means a [`Retry`](Self::Retry) after the worker's backoff. The item keeps the message of the error and those of all
/// its sources as the reason.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Outcome;
///
/// fn charge(card: &str) -> Outcome {
///     match card {
///         "expired" => Outcome::discard("the card has expired"),
///         "locked" => Outcome::snooze(Duration::from_secs(3600)),
///         _ => Outcome::Done,
///     }
/// }
///
/// assert_eq!(charge("valid"), Outcome::Done);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The item is completed.
    Done,

    /// The item is granted again after this time, by the wall clocks. This never counts as an attempt.
    Snooze(Duration),

    /// The item has failed and is retried. This counts as an attempt; after its last attempt, the item becomes a dead
    /// letter.
    Retry {
        /// The wait before the retry, by the wall clocks. `None` stands for the worker's [`Backoff`](crate::Backoff).
        after: Option<Duration>,
        /// Why the item failed. The first 500 bytes are kept with the item.
        reason: String,
    },

    /// The item becomes a dead letter, because retrying it is pointless.
    Discard {
        /// Why the item was discarded. The first 500 bytes are kept with the item.
        reason: String,
    },
}

impl Outcome {
    /// Returns an outcome that delays the item without counting an attempt.
    /// [Many snoozed items](crate::Delivery::snooze) take up to half of the grants from others.
    #[must_use]
    pub const fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Returns an outcome that retries a failed item after the worker's [`Backoff`](crate::Backoff).
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry {
            after: None,
            reason: reason.into(),
        }
    }

    /// Returns an outcome that retries a failed item after a delay.
    #[must_use]
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        Self::Retry {
            after: Some(delay),
            reason: reason.into(),
        }
    }

    /// Returns an outcome that makes the item a dead letter.
    #[must_use]
    pub fn discard(reason: impl Into<String>) -> Self {
        Self::Discard {
            reason: reason.into(),
        }
    }

    /// Returns the outcome of a handler that failed with this error.
    pub(crate) fn failed(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::retry(chain(error).to_string())
    }

    /// Returns the outcome of a handler that has returned.
    pub(crate) fn of(handled: impl IntoOutcome) -> Self {
        let outcome = handled.into_outcome();
        outcome.unwrap_or_else(|error| Self::failed(&*error))
    }
}

/// What a handler returns: `()`, an [`Outcome`], or a `Result` of one of them.
pub trait IntoOutcome {
    /// Returns the outcome, or the error with which the handler failed.
    ///
    /// # Errors
    /// The handler's error.
    fn into_outcome(self) -> Result<Outcome, BoxError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        Ok(Outcome::Done)
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        Ok(self)
    }
}

impl<O: IntoOutcome, E: Into<BoxError>> IntoOutcome for Result<O, E> {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        self.map_err(Into::into)?.into_outcome()
    }
}
