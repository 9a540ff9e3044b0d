//! Loading values that are there from the beginning.

use futures::try_join;
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{Isolation, Transaction};

use crate::error::{Error, Result};
use crate::queue::CombineQueue;
use crate::record::{MAX_VALUE_BYTES, encode_value};

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Stages the value of a key that has none, as if it had been reported: for loading many values
    /// at once, cheaper than updates. The observer is not told; the next change of the key has it as
    /// its old value. Updates that are pending are folded into it.
    ///
    /// # Conflicts
    /// Reads the key's value and current value, and writes its value. A pass reads all values of its
    /// bucket: of this and a pass over the key's bucket at the same time one fails, so that neither
    /// overwrites the other.
    ///
    /// # Errors
    /// [`AlreadyPresent`](Error::AlreadyPresent) if the key has a value, reported or not;
    /// [`KeyTooLarge`](Error::KeyTooLarge), [`ValueTooLarge`](Error::ValueTooLarge), before anything
    /// is staged.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn initialize(&self, tr: &impl Transaction, key: &K, value: &V) -> Result<()> {
        let key = self.encode_key(key)?;
        let mut bytes = Vec::new();
        <C as Codec<V>>::encode(&self.codec, value, &mut bytes)?;
        if bytes.len() > MAX_VALUE_BYTES {
            return Err(Error::ValueTooLarge {
                queue: self.keys.queue.clone(),
                bytes: bytes.len(),
                limit: MAX_VALUE_BYTES,
            });
        }
        let row = self.keys.value(&key);
        let (reported, current) = (
            tr.get(&row, Isolation::Serializable),
            tr.get(&self.keys.current(&key), Isolation::Serializable),
        );
        let (reported, current) = try_join!(reported, current)?;
        if reported.is_some() || current.is_some() {
            return Err(Error::AlreadyPresent {
                queue: self.keys.queue.clone(),
                key: key.into(),
            });
        }
        tr.set(&row, &encode_value(&bytes));
        Ok(())
    }
}
