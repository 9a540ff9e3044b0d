//! Observers of changes.

use std::future::Future;

use hc_dequeue::keyspace::Transaction;

use hc_dequeue::BoxError;

/// The change of a key's value from one report to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change<K, V> {
    /// The key.
    pub key: K,
    /// The new value of the previous report, or `None` if the key had no value.
    pub old: Option<V>,
    /// The value that covers every update committed before the reporting pass began, or `None` if the key
    /// no longer has a value.
    pub new: Option<V>,
}

impl<K, V> Change<K, V> {
    /// Returns a change, for tests of observers.
    pub fn new(key: K, old: Option<V>, new: Option<V>) -> Self {
        Self { key, old, new }
    }
}

/// Receives the changes of each pass, in the transaction of the pass.
///
/// The writes that an observer stages commit if and only if the changes do. An observer may add to
/// combine queues, including the one that it observes, and use any other recipe.
///
/// ```
/// use combine::{BoxError, Change, ChangeObserver};
/// use combine::keyspace::{Subspace, Transaction};
///
/// /// Keeps the keys that have a value under that value.
/// struct Index(Subspace);
///
/// impl ChangeObserver<String, i64> for Index {
///     async fn observe<T: Transaction>(
///         &self,
///         tr: &T,
///         changes: &[Change<String, i64>],
///     ) -> Result<(), BoxError> {
///         for Change { key, old, new, .. } in changes {
///             if let Some(old) = old {
///                 tr.clear(&self.0.pack(&(old, key)));
///             }
///             if let Some(new) = new {
///                 tr.set(&self.0.pack(&(new, key)), b"");
///             }
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait ChangeObserver<K, V>: Send + Sync + 'static {
    /// Called once per pass with all its changes, unless there are none. Each key occurs at most once.
    ///
    /// # Retries
    /// An observer may run several times for one commit, so all its effects must go through `tr`.
    ///
    /// # Errors
    /// If the error or one of its sources has a code that FoundationDB considers retryable, the pass is
    /// repeated immediately. After any other error, after a panic, and after [the worker's time
    /// limit](crate::WorkerOptions::with_time_limit), the bucket is retried later. In each case nothing of the
    /// pass is committed, and nothing is lost.
    ///
    /// # Cancel safety
    /// The worker drops the future when the time limit is over.
    fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<K, V>],
    ) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl<K: Sync, V: Sync> ChangeObserver<K, V> for Unobserved {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<K, V>],
    ) -> Result<(), BoxError> {
        Ok(())
    }
}
