//! What every queue with a log for each bucket does with its logs. This layer and the layers above it use it.

use std::ops::ControlFlow;

use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{
    self, Isolation, KeyValue, RangeQuery, StreamingMode, Subspace, Transaction, Versionstamp,
    visit_rows,
};
use hc_dequeue::microqueue;

/// Encodes pairs of a key and an update or a value, and passes them to `push`, up to the first error.
///
/// # Errors
/// The codec's [`Encode`](keyspace::Error::Encode), and those of `push`.
pub fn encode_pairs<'a, K: 'a, V: 'a, C, E>(
    codec: &C,
    pairs: impl IntoIterator<Item = (&'a K, &'a V)>,
    mut push: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E>
where
    C: Codec<K> + Codec<V>,
    E: From<keyspace::Error>,
{
    let mut key_bytes = Vec::new();
    let mut value_bytes = Vec::new();
    for (key, value) in pairs {
        key_bytes.clear();
        value_bytes.clear();
        <C as Codec<K>>::encode(codec, key, &mut key_bytes)?;
        <C as Codec<V>>::encode(codec, value, &mut value_bytes)?;
        push(&key_bytes, &value_bytes)?;
    }
    Ok(())
}

/// Verifies that no row of a range contains a versionstamp that this store has not reached, so that what is added
/// after this transaction sorts after them. `stamp_of` returns the versionstamp of a row, or `None` if the row does not
/// decode: then it stops its own bucket, but not the queue.
///
/// # Conflicts
/// Reads by snapshot. This is safe, because what commits after the read version gets a larger versionstamp.
///
/// # Errors
/// [`StampAhead`](microqueue::Error::StampAhead), and those of the store.
pub async fn verify_stamps<E>(
    tr: &impl Transaction,
    queue: &Subspace,
    (begin, end): (Vec<u8>, Vec<u8>),
    stamp_of: impl Fn(&KeyValue) -> Option<Versionstamp> + Send,
) -> Result<(), E>
where
    E: From<keyspace::Error> + From<microqueue::Error>,
{
    let read_version = tr.read_version().await?;
    let newest = Versionstamp::new(read_version, u16::MAX);
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    visit_rows(tr, query, Isolation::Snapshot, |row| match stamp_of(&row) {
        Some(stamp) if stamp > newest => {
            let ahead = microqueue::Error::StampAhead {
                queue: queue.clone(),
                stamp,
                read_version,
            };
            Err(ahead.into())
        }
        _ => Ok(ControlFlow::Continue(())),
    })
    .await
}
