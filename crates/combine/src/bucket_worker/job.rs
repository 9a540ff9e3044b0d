//! What there is to do: the side of a recipe.

use std::future::Future;
use std::time::Duration;

use hc_dequeue::keyspace::{self, Bytes, Transaction};
use hc_dequeue::session::SessionId;

use crate::bucket::Bucket;

/// Something to be done bucket by bucket, by sessions that divide the buckets between them.
pub trait Job: Send + Sync + 'static {
    /// What can go wrong.
    type Error: std::error::Error + From<keyspace::Error> + Send + Sync + 'static;

    /// What is to be remembered of a bucket from one step to the next, while there is something to do.
    type State: Default + Send + 'static;

    /// Returns the buckets in which there is something to do.
    ///
    /// # Errors
    /// Those of the store.
    fn pending(
        &self,
        tr: &impl Transaction,
    ) -> impl Future<Output = Result<Vec<Bucket>, Self::Error>> + Send;

    /// Returns for each of some buckets what every step changes, so that others see which buckets
    /// stand still.
    ///
    /// # Errors
    /// Those of the store.
    fn marks(
        &self,
        tr: &impl Transaction,
        buckets: &[Bucket],
    ) -> impl Future<Output = Result<Vec<Bytes>, Self::Error>> + Send;

    /// Does a step in a bucket, and says when the next one is due.
    ///
    /// # Cancel safety
    /// The future is dropped when the worker is, or when the grace of a shut-down is over.
    fn step(
        &self,
        assignment: Assignment,
        state: Self::State,
    ) -> impl Future<Output = (Self::State, Next)> + Send;

    /// Is called at each heartbeat, with the buckets that this session works on and for how long the
    /// oldest of them has waited.
    ///
    /// # Errors
    /// Those of the store.
    fn report(
        &self,
        buckets: Vec<Bucket>,
        oldest: Duration,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A bucket to do a step in, and the session that does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assignment {
    /// The session that does the step.
    pub session: SessionId,
    /// The bucket.
    pub bucket: Bucket,
    /// Whether the session owns the bucket, as far as it knows. If not, it has taken the bucket over
    /// from a session that stands still, or the bucket has got another owner since the step was due.
    pub is_owner: bool,
}

impl Assignment {
    pub(super) fn new(session: SessionId, bucket: Bucket, is_owner: bool) -> Self {
        Self {
            session,
            bucket,
            is_owner,
        }
    }
}

/// When the next step in a bucket is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When there is something to do again.
    Done,
    /// At once, as soon as others had their turn.
    Again,
    /// After a while.
    After(Duration),
}
