//! The window: recent writes in memory, in parts that lie over the tree.
//!
//! A part holds entries in key order that do not overlap: `Set(key)`, or `Gap[begin, end)`, which
//! says that nothing lives there. Outside of its entries the layers below decide. One thread writes
//! to the active part; a [`PartSnapshot`] of any of its batches, or of the part once it is frozen,
//! is read without a lock by any number of threads.
//!
//! - `chunk`: the bytes of the entries, one chunk for each batch, and the 16-byte references to them.
//! - `key_array`: the sorted references of one node.
//! - `node`: the copy-on-write B+tree of references.
//! - `cursor`: walks a tree in both directions.
//! - `part`: what a set and a clear do to the entries.

mod chunk;
mod cursor;
mod key_array;
mod node;
mod part;
mod position;
#[cfg(test)]
pub(super) mod tests;

pub(super) use self::chunk::Entry;
pub(super) use self::cursor::Cursor;
pub(super) use self::part::{Below, Lookup, Part, PartSnapshot};
pub(super) use self::position::Position;
