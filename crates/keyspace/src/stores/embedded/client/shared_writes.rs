//! The writes of a transaction, which its reads under way share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::write_map::WriteMap;

/// The writes of a transaction. A read that is suspended keeps them as they were at its call. They are copied if the
/// transaction writes before it ends.
pub(crate) enum SharedWrites {
    Own(WriteMap),
    Shared(Arc<WriteMap>),
}

impl SharedWrites {
    /// Returns the present writes, for a read that is suspended.
    pub(crate) fn share(&mut self) -> Arc<WriteMap> {
        let shared = match std::mem::take(self) {
            Self::Own(writes) => Arc::new(writes),
            Self::Shared(shared) => shared,
        };
        *self = Self::Shared(shared.clone());
        shared
    }

    /// Takes the writes out.
    pub(crate) fn take(&mut self) -> WriteMap {
        match std::mem::take(self) {
            Self::Own(writes) => writes,
            Self::Shared(shared) => Arc::unwrap_or_clone(shared),
        }
    }
}

impl Default for SharedWrites {
    fn default() -> Self {
        Self::Own(WriteMap::default())
    }
}

impl Deref for SharedWrites {
    type Target = WriteMap;

    fn deref(&self) -> &WriteMap {
        match self {
            Self::Own(writes) => writes,
            Self::Shared(shared) => shared,
        }
    }
}

impl DerefMut for SharedWrites {
    fn deref_mut(&mut self) -> &mut WriteMap {
        if let Self::Shared(_) = self {
            *self = Self::Own(self.take());
        }
        match self {
            Self::Own(writes) => writes,
            Self::Shared(shared) => Arc::make_mut(shared),
        }
    }
}
