//! The result of handling an item.

use std::time::Duration;

use microqueue::keyspace::error::chain;

use crate::items::error::BoxError;

/// The result of handling an item. `()` and `Ok(())` become [`Done`](Self::Done), and an `Err` becomes a
/// [`Retry`](Self::Retry) after the worker's backoff.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Outcome;
///
/// fn charge(card: &str) -> Result<Outcome, std::io::Error> {
///     Ok(match card {
///         "expired" => Outcome::discard("the card has expired"),
///         "locked" => Outcome::snooze(Duration::from_secs(3600)),
///         _ => Outcome::Done,
///     })
/// }
///
/// assert_eq!(Outcome::from(charge("valid")), Outcome::Done);
/// let failed: Outcome = Err::<(), _>("no such host").into();
/// assert_eq!(failed, Outcome::retry("no such host"));
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
    /// Returns an outcome that delays the item without counting an attempt. It then comes back to its old place, before
    /// newer items: [many snoozed items](crate::Delivery::snooze) keep newer ones waiting.
    #[must_use]
    pub const fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Returns an outcome that retries a failed item after the worker's [`Backoff`](crate::Backoff).
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        let (after, reason) = (None, reason.into());
        Self::Retry { after, reason }
    }

    /// Returns an outcome that retries a failed item after a delay.
    #[must_use]
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        let (after, reason) = (Some(delay), reason.into());
        Self::Retry { after, reason }
    }

    /// Returns an outcome that makes the item a dead letter.
    #[must_use]
    pub fn discard(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Discard { reason }
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// An error is kept as text: its message and those of all its sources.
impl<O: Into<Outcome>, E: Into<BoxError>> From<Result<O, E>> for Outcome {
    fn from(result: Result<O, E>) -> Self {
        match result {
            Ok(outcome) => outcome.into(),
            Err(error) => Self::retry(chain(&*error.into()).to_string()),
        }
    }
}
