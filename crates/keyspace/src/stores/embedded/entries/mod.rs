//! Entries of layers, and how layers are read together.
//!
//! A layer holds entries in key order that do not overlap: `Set(key)`, or `Gap[begin, end)`, a range without live keys.
//! For keys outside its entries, the layers below decide. Parts of the window and runs of the store's file are layers.

mod merge;
mod position;

pub(crate) use self::merge::{Merge, Track};
pub(crate) use self::position::{Position, PositionBuf};

/// An entry, which hides the layers below: a row, or a range without live keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// `key` has `value`.
    Set { key: &'a [u8], value: &'a [u8] },
    /// No key lives in `begin <= key < end`.
    Gap { begin: &'a [u8], end: &'a [u8] },
}

impl<'a> Entry<'a> {
    /// Returns the key of a Set, or the begin of a Gap.
    pub(crate) fn key(self) -> &'a [u8] {
        match self {
            Entry::Set { key, .. } => key,
            Entry::Gap { begin, .. } => begin,
        }
    }

    /// Returns the value of a Set, or the end of a Gap.
    pub(crate) fn tail(self) -> &'a [u8] {
        match self {
            Entry::Set { value, .. } => value,
            Entry::Gap { end, .. } => end,
        }
    }

    /// Returns the place at which the entry ends.
    pub(crate) fn end(self) -> Position<'a> {
        match self {
            Entry::Set { key, .. } => Position::after(key),
            Entry::Gap { end, .. } => Position::before(end),
        }
    }
}

/// What a layer knows about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup<V> {
    /// The key has this value.
    Value(V),
    /// The key has no value.
    Cleared,
    /// The layers below decide.
    Unknown,
}
