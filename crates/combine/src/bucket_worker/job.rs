//! Jobs: the work that a recipe does in its buckets.

use std::time::Duration;

use async_trait::async_trait;
use hc_dequeue::keyspace::store::StoreTransaction;
use hc_dequeue::keyspace::{self, Bytes, Tx};
use hc_dequeue::session::SessionId;

use crate::bucket::Bucket;

/// A transaction of a worker. Workers run on a [`Store`](hc_dequeue::keyspace::Store), so that they are
/// compiled once.
pub type WorkerTransaction = Tx<StoreTransaction>;

/// Work that is done bucket by bucket, by sessions that divide the buckets among themselves.
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// The error of the job.
    type Error: std::error::Error + From<keyspace::Error> + Send + Sync + 'static;

    /// The state of a bucket, kept from one step to the next while the bucket has work.
    type State: Default + Send + 'static;

    /// Returns the buckets that have work.
    ///
    /// # Errors
    /// Those of the store.
    async fn pending(&self, tr: &WorkerTransaction) -> Result<Vec<Bucket>, Self::Error>;

    /// Returns for each of the given buckets a mark that every step changes, so that other sessions can
    /// detect buckets without progress.
    ///
    /// # Errors
    /// Those of the store.
    async fn marks(
        &self,
        tr: &WorkerTransaction,
        buckets: &[Bucket],
    ) -> Result<Vec<Bytes>, Self::Error>;

    /// Does one step in a bucket, and returns when the next one is due.
    ///
    /// # Cancel safety
    /// The future is dropped when the worker is dropped, or when the grace period of a shutdown is over.
    async fn step(&self, assignment: Assignment, state: Self::State) -> (Self::State, Next);

    /// Called when a fault of this library has ended the worker, which then starts again.
    fn restarts(&self) {}

    /// Called at each heartbeat, with the buckets that this session works on.
    ///
    /// # Errors
    /// Those of the store.
    async fn report(&self, buckets: Vec<Bucket>) -> Result<(), Self::Error>;
}

/// A bucket in which a step is due, and the session that does the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assignment {
    /// The session that does the step.
    pub session: SessionId,
    /// The bucket.
    pub bucket: Bucket,
    /// Whether the session holds the bucket, as far as it knows. Otherwise it has taken the bucket over
    /// because there was no progress, or the holder of the bucket has changed since the step became due.
    pub is_holder: bool,
}

impl Assignment {
    /// Returns the assignment of a bucket to a session.
    #[must_use]
    pub fn new(session: SessionId, bucket: Bucket, is_holder: bool) -> Self {
        Self {
            session,
            bucket,
            is_holder,
        }
    }
}

/// When the next step in a bucket is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When there is work again.
    Done,
    /// Immediately, after other buckets have had their turn.
    Again,
    /// After the given time.
    After(Duration),
}
