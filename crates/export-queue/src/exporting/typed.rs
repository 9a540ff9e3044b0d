//! The only step of a batch that knows the types of keys and values, so that the others are compiled once for all
//! queues.

use combine::keyspace::codec::{Codec, DecodeError};
use combine::keyspace::foreign::Guarded;
use combine::microqueue::blocks::Entry;
use futures::future::BoxFuture;

use crate::error::Result;
use crate::exporter::{Exporter, SequencedExport, call};
use crate::queue::ExportQueue;
use crate::sequence::Sequence;

/// An exporter of encoded entries.
pub(crate) trait TypedExporter: Send + Sync {
    /// Decodes entries. Returns the call of the exporter with those that decode, if there are any, and the errors of
    /// the others, with their indexes.
    fn call<'a>(
        &'a self,
        entries: &[&(Sequence, Entry)],
    ) -> (BoxFuture<'a, Result<()>>, Vec<(usize, DecodeError)>);
}

/// The exporter of a worker, with the queue that decodes for it.
pub(crate) struct QueueExporter<K, V, C, E> {
    pub(crate) queue: ExportQueue<K, V, C>,
    pub(crate) exporter: E,
}

impl<K, V, C, E> TypedExporter for QueueExporter<K, V, C, E>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
    E: Exporter<K, V>,
{
    fn call<'a>(
        &'a self,
        entries: &[&(Sequence, Entry)],
    ) -> (BoxFuture<'a, Result<()>>, Vec<(usize, DecodeError)>) {
        let mut batch = Vec::with_capacity(entries.len());
        let mut undecodable = Vec::new();
        for (index, (sequence, entry)) in entries.iter().enumerate() {
            match self.queue.decode(entry) {
                Ok((key, value)) => batch.push(SequencedExport::new(key, value, *sequence)),
                Err(error) => undecodable.push((index, error)),
            }
        }
        let batch = Guarded::new(batch);
        let called = Box::pin(async move {
            if batch.is_empty() {
                return Ok(());
            }
            call(&self.exporter, &batch).await
        });
        (called, undecodable)
    }
}
