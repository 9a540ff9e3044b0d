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

    /// The name of an index is empty or too long.
    #[error("name of an index has {bytes} bytes: it has 1 to 100")]
    IndexName {
        /// The length of the name.
        bytes: usize,
    },

    /// Two indexes have the same name.
    #[error("index `{index}` is given twice")]
    IndexTwice {
        /// The name of the index.
        index: String,
    },

    /// The map has an index that the handle does not know. Open the map with it, or remove it.
    #[error("map has the index `{index}`: open it with that index, or remove the index")]
    IndexUnknown {
        /// The name of the index.
        index: String,
    },

    /// The index was removed. Open the map without it, or again with it.
    #[error("index `{index}` was removed: open the map again")]
    IndexRemoved {
        /// The name of the index.
        index: String,
    },

    /// The stored entries are of another version of the index, or of one that is unique if this one is not.
    #[error(
        "index `{index}` is stored as version {stored}, not as {given}, or as unique or not: open the map \
         `with_changed_indexes`, and build it"
    )]
    IndexChanged {
        /// The name of the index.
        index: String,
        /// The version that is stored.
        stored: u32,
        /// The version of the handle.
        given: u32,
    },

    /// The index does not have the entries of all rows yet.
    #[error("index `{index}` is not built: call `build`")]
    IndexNotBuilt {
        /// The name of the index.
        index: String,
    },

    /// Another row has a key in a unique index. Nothing was staged.
    #[error("another row, {row}, has the key {key} in the unique index `{index}`")]
    Taken {
        /// The name of the index.
        index: String,
        /// The key in the index, as text.
        key: String,
        /// The key of the other row, as text.
        row: String,
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
