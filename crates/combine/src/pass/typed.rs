//! The third step of a pass: folds the updates of a key into a value.
//!
//! It is the only step that knows the types of keys, updates and values. The others see a [`TypedPass`], so that they
//! are compiled once for all queues.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hc_dequeue::keyspace::codec::{self, Codec};
use hc_dequeue::keyspace::foreign::{self, Guarded};
use hc_dequeue::keyspace::store::StoreTransaction;
use hc_dequeue::keyspace::{Bytes, Environment, Transaction, Tx};

use crate::error::{Error, Result};
use crate::pass::decide::KeyValues;
use crate::pass::log::Portion;
use crate::pass::observer::{Change, ChangeObserver};
use crate::pass::values::ReadKey;
use crate::queue::CombineQueue;
use crate::record::MAX_VALUE_BYTES;

/// The part of a pass that decodes: it folds updates, and collects changes for the observer.
pub(crate) trait TypedPass: Send {
    /// Folds the updates of a key. Updates that cannot be folded are set aside, so that the pass can
    /// continue.
    fn fold(&mut self, portion: &Portion, read: ReadKey) -> FoldedKey;

    /// Reports the change of the key that was folded last, from the value last reported.
    ///
    /// # Errors
    /// The reason why the value last reported does not decode.
    fn report(&mut self, reported: &Option<Bytes>) -> Result<(), String>;

    /// Calls the observer with the changes, if there are any, up to a time limit.
    fn observe<'a>(
        &'a mut self,
        tr: &'a Tx<StoreTransaction>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<()>>;
}

/// A key of a pass after its updates.
pub(crate) struct FoldedKey {
    pub(crate) key: Bytes,
    /// The bytes of its values before and after the updates, or the reason why there are none: the stored
    /// value does not decode, and stays unchanged.
    pub(crate) folded: Result<KeyValues, String>,
    /// The indexes of the updates that are set aside, and the reason.
    pub(crate) aside: Vec<(usize, String)>,
    pub(crate) read: ReadKey,
}

/// A key and its value.
type Pair<K, V> = (Guarded<K>, Guarded<Option<V>>);

/// A pass over a queue, with its observer.
pub(crate) struct QueuePass<K, U, V, C, O> {
    queue: CombineQueue<K, U, V, C>,
    observer: Arc<O>,
    /// The key that was folded last.
    folded: Option<Pair<K, V>>,
    pub(crate) changes: Vec<Change<K, V>>,
}

impl<K, U, V, C, O> QueuePass<K, U, V, C, O> {
    pub(crate) fn new(queue: CombineQueue<K, U, V, C>, observer: Arc<O>) -> Self {
        Self {
            queue,
            observer,
            folded: None,
            changes: Vec::new(),
        }
    }
}

impl<K, U, V, C, O> TypedPass for QueuePass<K, U, V, C, O>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
    O: ChangeObserver<K, V>,
{
    fn fold(&mut self, portion: &Portion, read: ReadKey) -> FoldedKey {
        let queue = &self.queue;
        let mut updates = Vec::with_capacity(read.places.len());
        let mut places = Vec::new();
        let mut aside = Vec::new();
        for place in &read.places {
            let update = portion.updates[*place].update.clone();
            match codec::decode::<U, _>(&queue.codec, update) {
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
        let folded = match queue.decode_base(&read) {
            Ok(((key, value), values)) => match queue.combine(&key, value, &values.new, updates) {
                Ok((value, new)) => Ok(((key, value), KeyValues { new, ..values })),
                Err(reason) => {
                    refuse(&reason);
                    // The result of earlier passes is still to be reported.
                    queue.decode_base(&read)
                }
            },
            Err(reason) => {
                refuse(&reason);
                Err(reason)
            }
        };
        let folded = folded.map(|(pair, values)| {
            self.folded = Some(pair);
            values
        });
        FoldedKey {
            key: read.key.clone(),
            folded,
            aside,
            read,
        }
    }

    fn report(&mut self, reported: &Option<Bytes>) -> Result<(), String> {
        let old = Guarded::new(self.queue.decode_stored(reported)?);
        let (key, new) = self.folded.take().expect("a key was folded");
        let change = Change::new(key.into_inner(), old.into_inner(), new.into_inner());
        self.changes.push(change);
        Ok(())
    }

    fn observe<'a>(
        &'a mut self,
        tr: &'a Tx<StoreTransaction>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        let changes = Guarded::new(mem::take(&mut self.changes));
        let env = &self.queue.env;
        let observer = &*self.observer;
        Box::pin(async move { observe(env, tr, observer, &changes, limit).await })
    }
}

/// Calls the observer with the changes of a pass, if there are any, up to its time limit.
async fn observe<K, V, T: Transaction>(
    env: &Environment,
    tr: &T,
    observer: &impl ChangeObserver<K, V>,
    changes: &[Change<K, V>],
    limit: Duration,
) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    // The call itself may panic, as well as its future.
    let observe = async { observer.observe(tr, changes).await };
    match env.timeout(limit, foreign::run(observe)).await {
        Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(Error::Observer(Arc::from(error))),
        Some(Err(panicked)) => Err(Error::ObserverPanicked {
            message: panicked.into_message(),
        }),
        None => Err(Error::ObserverTimedOut { limit }),
    }
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Returns a key, its value before the updates, and the bytes of its values.
    fn decode_base(&self, read: &ReadKey) -> Result<(Pair<K, V>, KeyValues), String> {
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
        Ok(((key, value), values))
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
