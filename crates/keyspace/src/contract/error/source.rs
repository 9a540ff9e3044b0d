//! The sources of [`Error`](super::Error): what must be found even if a wrapper hides the error itself.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::printable;

/// The key of a record that does not decode. It is the source of
/// [`Error::Corrupt`](super::Error::Corrupt).
#[derive(Debug, Clone, Eq)]
pub struct RecordKey(Bytes);

impl From<Bytes> for RecordKey {
    fn from(key: Bytes) -> Self {
        Self(key)
    }
}

impl From<RecordKey> for Bytes {
    fn from(key: RecordKey) -> Self {
        key.0
    }
}

impl Deref for RecordKey {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for RecordKey {
    fn eq(&self, other: &T) -> bool {
        *self.0 == *other.as_ref()
    }
}

impl AsRef<[u8]> for RecordKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", printable(&self.0))
    }
}

impl Error for RecordKey {}

/// The failure of the storage that stopped a store. It is the source of
/// [`Error::Poisoned`](super::Error::Poisoned), and has the text and the sources of the failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct StorageFailure(Arc<dyn Error + Send + Sync>);

impl StorageFailure {
    pub(crate) fn new(cause: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(cause))
    }

    /// Returns the failure itself.
    #[must_use]
    pub fn get(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}
