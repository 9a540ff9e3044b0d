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
/// A receiver that keeps the sequence of each row, also of a deleted one, and ignores entries that arrive again
/// or late:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Mutex, PoisonError};
///
/// use export_queue::{BoxError, Exporter, Sequence, SequencedExport, async_trait};
///
/// /// Values by their keys. A deleted key stays, with a sequence but without a value.
/// #[derive(Default)]
/// struct Table(Mutex<BTreeMap<String, (Sequence, Option<u64>)>>);
///
/// #[async_trait]
/// impl Exporter<String, Option<u64>> for Table {
///     async fn export(&self, batch: &[SequencedExport<String, Option<u64>>]) -> Result<(), BoxError> {
///         let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         for entry in batch {
///             let is_older = |row: &(Sequence, _)| row.0 < entry.sequence;
///             if rows.get(&entry.key).is_none_or(is_older) {
///                 rows.insert(entry.key.clone(), (entry.sequence, entry.value));
///             }
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let old = Sequence::after_version(7);
/// let new = Sequence::after_version(8);
/// let entry = |value, sequence| SequencedExport::new("fish".to_owned(), value, sequence);
/// let table = Table::default();
/// table.export(&[entry(None, new)]).await?;
/// table.export(&[entry(Some(3), old)]).await?;
/// assert_eq!(table.0.lock().unwrap()["fish"], (new, None));
/// # Ok(())
/// # }
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
