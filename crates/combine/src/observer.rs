//! Who is told what has changed.

use std::future::Future;

use hc_dequeue::keyspace::Transaction;

use hc_dequeue::BoxError;

/// The change of a key's value from one report to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change<K, V> {
    /// The key.
    pub key: K,
    /// The new value of the report before; `None`: the key had no value.
    pub old: Option<V>,
    /// The value that covers every update committed before the reporting transaction began; `None`:
    /// the key has no value any more.
    pub new: Option<V>,
}

impl<K, V> Change<K, V> {
    /// Returns a change, as a test of an observer needs it.
    pub fn new(key: K, old: Option<V>, new: Option<V>) -> Self {
        Self { key, old, new }
    }
}

/// Is told of the changes that a pass has made, in the transaction that makes them.
///
/// What it stages happens if, and only if, the changes do. It may add to combine queues, the one that
/// it observes included, and use any other recipe.
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
    /// Is called once per pass, with all changes of the pass, unless there are none. No key is in it
    /// twice.
    ///
    /// # Retries
    /// It may run several times for one commit: all that it does must go through `tr`.
    ///
    /// # Errors
    /// An error with a code that FoundationDB calls retryable among its sources makes the pass run
    /// again at once. After any other one, a panic, or more time than
    /// [the worker grants](crate::WorkerOptions::time_limit), the bucket is tried again
    /// later. Nothing of the pass is committed, and nothing is lost.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is over.
    fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<K, V>],
    ) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// Nobody is told.
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
