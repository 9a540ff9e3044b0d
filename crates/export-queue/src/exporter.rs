//! What takes entries out of the store.

use std::sync::Arc;

use async_trait::async_trait;
use combine::BoxError;

use crate::sequence::Sequence;

/// An entry on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencedExport<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Its place in the order of commits: what the receiver compares.
    pub sequence: Sequence,
}

impl<K, V> SequencedExport<K, V> {
    /// Returns an entry, as a test of an exporter needs it.
    pub fn new(key: K, value: V, sequence: Sequence) -> Self {
        Self {
            key,
            value,
            sequence,
        }
    }
}

/// Writes entries to an external system.
///
/// It is called outside of any transaction, so that it may take its time, and at least once for each
/// entry: the crate's documentation says when an entry comes again, and what the receiver does about
/// it.
#[async_trait]
pub trait Exporter<K, V>: Send + Sync + 'static {
    /// Exports a batch. Entries of one key are consecutive, and in the order of their sequences.
    ///
    /// # Errors
    /// Any error makes the batch come again, later and smaller, until the entry that fails stands
    /// alone.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is over. What it has written by then comes again.
    async fn export(&self, batch: &[SequencedExport<K, V>]) -> Result<(), BoxError>;
}

#[async_trait]
impl<K, V, E> Exporter<K, V> for Arc<E>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    E: Exporter<K, V> + ?Sized,
{
    async fn export(&self, batch: &[SequencedExport<K, V>]) -> Result<(), BoxError> {
        (**self).export(batch).await
    }
}
