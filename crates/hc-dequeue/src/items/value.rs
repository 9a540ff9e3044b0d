//! Values of the application, as code carries them that does not know their type.
//!
//! What is generic is compiled again in each program that uses it. So a dispatcher and the protocol handle values of
//! this one type, and only a [`Consumer`](crate::Consumer) and its deliveries know which type a value really has.

use std::any::Any;
use std::sync::Arc;

use microqueue::keyspace::Bytes;
use microqueue::keyspace::codec::{self, Codec, DecodeError};
use microqueue::keyspace::foreign::Guarded;

use crate::items::kind::Kind;

/// A decoded value. A panic in its drop is logged.
#[derive(Debug)]
pub(crate) struct Value(Arc<dyn Any + Send + Sync>);

/// Decodes the payload of an item of a kind.
pub(crate) type Decode = dyn Fn(&Kind, Bytes) -> Result<Value, DecodeError> + Send + Sync;

impl Value {
    pub(crate) fn new<T: Send + Sync + 'static>(value: T) -> Self {
        Self(Arc::new(Guarded::new(value)))
    }

    /// Returns the value, which has the type for which its [decoder] was made.
    pub(crate) fn into_shared<T: Send + Sync + 'static>(self) -> Arc<Guarded<T>> {
        let value = self.0.downcast();
        value.expect("a consumer decodes values of its own type")
    }

    /// Returns the value itself, whose drop is no longer guarded.
    pub(crate) fn into_inner<T: Send + Sync + 'static>(self) -> T {
        let value = Arc::into_inner(self.into_shared::<T>());
        value
            .expect("a value is shared only by deliveries")
            .into_inner()
    }
}

/// Returns the function that decodes payloads as values of `T`, whatever their kind.
pub(crate) fn decoder<T, C>(codec: C) -> Arc<Decode>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    Arc::new(move |_: &Kind, payload| codec::decode(&codec, payload).map(Value::new::<T>))
}
