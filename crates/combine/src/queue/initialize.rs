//! Loads initial values.

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
    /// Stages the value of a key that has none, as if it had already been reported.
    ///
    /// This loads many values at a lower cost than updates. The observer does not receive them; the first
    /// change of a key has the loaded value as its old value. Pending updates of the key are folded into
    /// the loaded value.
    ///
    /// # Conflicts
    /// Reads the key's value and current value, and writes its value. A pass reads all values of its
    /// bucket, so this conflicts with a pass over the key's bucket, and neither overwrites the other.
    ///
    /// # Errors
    /// [`AlreadyPresent`](Error::AlreadyPresent) if the key has a value, whether reported or not;
    /// [`KeyTooLarge`](Error::KeyTooLarge) and [`ValueTooLarge`](Error::ValueTooLarge). All are returned
    /// before anything is staged.
    ///
    /// # Examples
    /// ```
    /// use combine::keyspace::{self, Isolation, Runner};
    /// use combine::{CombineQueue, Sum};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| words.initialize(&tr, fish, &40).await).await?;
    /// let settled = async |tr| words.settled(&tr, fish, Isolation::Snapshot).await;
    /// assert_eq!(runner.run(settled).await?, Some(40));
    /// # Ok(())
    /// # }
    /// ```
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
        let current_row = self.keys.current(&key);
        let (reported, current) = try_join!(
            tr.get(&row, Isolation::Serializable),
            tr.get(&current_row, Isolation::Serializable),
        )?;
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
