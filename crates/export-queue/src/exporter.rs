//! Exporters, which write entries to external systems.

use std::sync::Arc;

use async_trait::async_trait;
use combine::BoxError;
use combine::keyspace::foreign;

use crate::error::{Error, Result};
use crate::sequence::Sequence;

/// An entry as an exporter receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencedExport<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Its place in the order of commits, which the receiver compares.
    pub sequence: Sequence,
}

impl<K, V> SequencedExport<K, V> {
    /// Returns an entry, for tests of exporters.
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
/// A worker calls the exporter outside of any transaction, so a call may be slow. It passes each entry at
/// least once. The crate documentation says when an entry is exported again, and what the receiver must
/// do about it.
///
/// # Examples
/// ```
/// use export_queue::{BoxError, Exporter, SequencedExport, async_trait};
///
/// /// Prints every change.
/// struct Printer;
///
/// #[async_trait]
/// impl Exporter<String, u64> for Printer {
///     async fn export(&self, batch: &[SequencedExport<String, u64>]) -> Result<(), BoxError> {
///         for entry in batch {
///             println!("{} = {} ({})", entry.key, entry.value, entry.sequence);
///         }
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Exporter<K, V>: Send + Sync + 'static {
    /// Exports a batch. The entries of a key are consecutive, in the order of their sequences.
    ///
    /// # Errors
    /// After any error, the batch is exported again later. After several errors the batches become
    /// smaller, until the entry that fails is the only one in its batch.
    ///
    /// # Cancel safety
    /// The worker drops the future when its time limit is over. Entries that it has written by then are
    /// exported again.
    async fn export(&self, batch: &[SequencedExport<K, V>]) -> Result<(), BoxError>;
}

/// Calls an exporter. A panic of it is an error.
pub(crate) async fn call<K, V>(
    exporter: &impl Exporter<K, V>,
    batch: &[SequencedExport<K, V>],
) -> Result<()> {
    // The call itself may panic, as well as its future.
    let export = async { exporter.export(batch).await };
    match foreign::run(export).await {
        Ok(exported) => exported.map_err(|error| Error::Exporter(error.into())),
        Err(panicked) => Err(Error::ExporterPanicked {
            message: panicked.into_message(),
        }),
    }
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
