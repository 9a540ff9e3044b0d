//! What came of handling an item.

use std::time::Duration;

use microqueue::keyspace::error::chain;

use crate::error::BoxError;

/// What came of handling an item. `()` and `Ok(())` are [`Done`](Self::Done), and an `Err` is a
/// [`Retry`](Self::Retry) after the backoff.
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

    /// The item is put off, to be granted again after this time by the wall clocks. This was no attempt,
    /// however often it is repeated.
    Snooze(Duration),

    /// The item has failed, and is tried again. This was one of its attempts: after the last one it is a
    /// dead letter.
    Retry {
        /// After how long, by the wall clocks. `None`: after the worker's [`Backoff`](crate::Backoff).
        after: Option<Duration>,
        /// Why it failed. The first 500 bytes are kept with the item.
        reason: String,
    },

    /// The item becomes a dead letter: trying it again is of no use.
    Discard {
        /// Why. The first 500 bytes are kept with the item.
        reason: String,
    },
}

impl Outcome {
    /// Returns the outcome of an item that is put off.
    #[must_use]
    pub const fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// Returns the outcome of an item that has failed, and is tried again after the worker's
    /// [`Backoff`](crate::Backoff).
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        let (after, reason) = (None, reason.into());
        Self::Retry { after, reason }
    }

    /// Returns the outcome of an item that has failed, and is tried again after a delay.
    #[must_use]
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        let (after, reason) = (Some(delay), reason.into());
        Self::Retry { after, reason }
    }

    /// Returns the outcome of an item that becomes a dead letter.
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

/// An error is kept as the text of the whole chain of its causes.
impl<O: Into<Outcome>, E: Into<BoxError>> From<Result<O, E>> for Outcome {
    fn from(result: Result<O, E>) -> Self {
        match result {
            Ok(outcome) => outcome.into(),
            Err(error) => Self::retry(chain(&*error.into()).to_string()),
        }
    }
}
