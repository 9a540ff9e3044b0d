//! The window: recent writes in memory, in parts that lie over the tree.
//!
//! A part holds entries in key order that do not overlap: `Set(key)`, or `Gap[begin, end)`, a range without
//! live keys. For keys outside its entries, the layers below decide. One thread writes to the active part.
//! Any number of threads read a [`PartSnapshot`] without a lock: the active part as one of its batches left
//! it, or a frozen part.
//!
//! - `chunk`: the bytes of the entries, one chunk for each batch, and the 16-byte references to them.
//! - `key_array`: the sorted references of one node.
//! - `node`: the copy-on-write B+tree of references.
//! - `cursor`: walks a tree in both directions.
//! - `part`: how sets and clears change the entries.

mod chunk;
mod cursor;
mod key_array;
mod node;
mod part;
mod position;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use self::chunk::Entry;
pub(crate) use self::cursor::Cursor;
pub(crate) use self::part::{Below, Lookup, Part, PartSnapshot};
pub(crate) use self::position::Position;
