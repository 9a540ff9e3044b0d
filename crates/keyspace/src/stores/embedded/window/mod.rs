//! The window: recent writes in memory, in parts that lie over the runs.
//!
//! A part holds [entries](super::entries). One thread writes to the active part. Any number of threads read a
//! [`PartSnapshot`] without a lock: the active part as one of its batches left it, or a frozen part.
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
#[cfg(test)]
pub(super) mod tests;

pub(crate) use self::part::{Below, PartSnapshot, PartTrack, WindowPart};
