//! What a map refuses.

use foundationdb_tuple::Subspace;

use super::{Code, Error};
use crate::contract::limits::MAX_KEY_BYTES;
use crate::text::names::queue_name;

/// A [map](crate::Map) has refused a call. Nothing was staged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The map was created with another codec.
    #[error(
        "map `{}` was created with the codec {stored}, not with {given}: open it with that one",
        queue_name(subspace)
    )]
    Codec {
        /// The subspace of the map.
        subspace: Subspace,
        /// The codec that the map was created with.
        stored: String,
        /// The codec that the map was opened with.
        given: String,
    },

    /// The key of a row is longer than a key of the store can be, with the prefix of the map. The code is
    /// `key_too_large` (2102).
    #[error(
        "key of {bytes} bytes, with the prefix of the map, is too large: the limit is {MAX_KEY_BYTES} bytes ({code})"
    )]
    KeyTooLarge {
        /// The length of the key with the prefix of the map.
        bytes: usize,
        /// `key_too_large`.
        #[source]
        code: Code,
    },

    /// A text is no [cursor](crate::map::Cursor).
    #[error("`{text}` is no cursor: use the one that the page before has returned")]
    MalformedCursor {
        /// The text, or its begin.
        text: String,
    },

    /// A cursor belongs to another map, or to a page of other rows or in the other direction.
    #[error("the cursor is of other rows, or of the other direction: begin with the first page")]
    OtherCursor,

    /// A page of no rows was asked for.
    #[error("a page has at least one row")]
    EmptyPage,
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        Self::Map(Box::new(error))
    }
}
