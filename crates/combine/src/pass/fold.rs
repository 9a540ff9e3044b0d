//! The third step of a pass: folds the updates of a key into a value.

use hc_dequeue::keyspace::Bytes;
use hc_dequeue::keyspace::codec::{self, Codec};
use hc_dequeue::keyspace::foreign::{self, Guarded};

use crate::pass::decide::KeyValues;
use crate::pass::log::Portion;
use crate::pass::values::ReadKey;
use crate::queue::CombineQueue;
use crate::record::MAX_VALUE_BYTES;

/// A key, its value, and the bytes of its values.
pub(crate) type Folded<K, V> = (Guarded<K>, Guarded<Option<V>>, KeyValues);

/// A key of a pass after its updates.
pub(crate) struct FoldedKey<K, V> {
    pub(crate) key: Bytes,
    /// The key and its value after the updates, with the bytes before and after them, or the reason why
    /// there is none: the stored value does not decode, and stays unchanged.
    pub(crate) folded: Result<Folded<K, V>, String>,
    /// The indexes of the updates that are set aside, and the reason.
    pub(crate) aside: Vec<(usize, String)>,
    pub(crate) read: ReadKey,
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Folds the updates of a key. Updates that cannot be folded are set aside, so that the pass can
    /// continue.
    pub(crate) fn fold(&self, portion: &Portion, read: ReadKey) -> FoldedKey<K, V> {
        let mut updates = Vec::with_capacity(read.places.len());
        let mut places = Vec::new();
        let mut aside = Vec::new();
        for place in &read.places {
            let update = portion.updates[*place].update.clone();
            match codec::decode::<U, _>(&self.codec, update) {
                Ok(update) => {
                    updates.push(update);
                    places.push(*place);
                }
                Err(error) => aside.push((*place, error.to_string())),
            }
        }
        let updates = Guarded::new(updates);
        let mut refuse = |reason: &String| {
            aside.extend(places.iter().map(|place| (*place, reason.clone())));
        };
        let folded = match self.decode_base(&read) {
            Ok((key, value, values)) => match self.combine(&key, value, &values.new, updates) {
                Ok((value, new)) => Ok((key, value, KeyValues { new, ..values })),
                Err(reason) => {
                    refuse(&reason);
                    // The result of earlier passes is still to be reported.
                    self.decode_base(&read)
                }
            },
            Err(reason) => {
                refuse(&reason);
                Err(reason)
            }
        };
        FoldedKey {
            key: read.key.clone(),
            folded,
            aside,
            read,
        }
    }

    /// Returns a key, its value before the updates, and the bytes of its values.
    fn decode_base(&self, read: &ReadKey) -> Result<Folded<K, V>, String> {
        let key = codec::decode::<K, _>(&self.codec, read.key.clone())
            .map(Guarded::new)
            .map_err(|error| format!("the key: {error}"))?;
        let base = read.base()?;
        let value = Guarded::new(self.decode_stored(&base)?);
        let values = KeyValues {
            reported: read.reported.clone()?,
            current: read.current.clone()?,
            new: base,
        };
        Ok((key, value, values))
    }

    /// Returns a stored value.
    pub(crate) fn decode_stored(&self, bytes: &Option<Bytes>) -> Result<Option<V>, String> {
        let decode = |bytes| codec::decode::<V, _>(&self.codec, bytes);
        let value = bytes.clone().map(decode).transpose();
        value.map_err(|error| format!("the value: {error}"))
    }

    /// Returns the value of a key after some updates, with its bytes, or the reason why there is none.
    fn combine(
        &self,
        key: &K,
        value: Guarded<Option<V>>,
        bytes: &Option<Bytes>,
        updates: Guarded<Vec<U>>,
    ) -> Result<(Guarded<Option<V>>, Option<Bytes>), String> {
        if updates.is_empty() {
            return Ok((value, bytes.clone()));
        }
        let value = value.into_inner();
        let updates = updates.into_inner();
        let fold = || self.combiner.fold(key, value, updates);
        let folded = foreign::call(fold)
            .map(Guarded::new)
            .map_err(|panicked| format!("the combiner panicked: {}", panicked.message()))?;
        let bytes = match folded.as_ref() {
            Some(value) => Some(encode(&self.codec, value)?),
            None => None,
        };
        Ok((folded, bytes))
    }
}

/// Returns the bytes of a value, or the reason why it cannot be stored.
fn encode<V>(codec: &impl Codec<V>, value: &V) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    codec::encode(codec, value, &mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_VALUE_BYTES {
        let bytes = bytes.len();
        return Err(format!(
            "the value of {bytes} bytes is too large: the limit is {MAX_VALUE_BYTES} bytes"
        ));
    }
    Ok(bytes.into())
}
