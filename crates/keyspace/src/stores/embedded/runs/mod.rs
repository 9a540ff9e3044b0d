//! The rows of a store, in sorted runs in one file.
//!
//! A part of the window becomes a *run*: entries in key order, which never change. Newer runs hide older ones. *Merges*
//! make fewer runs of many. This is a log-structured merge-tree (O'Neil and others, 1996), with Gaps for ranges that
//! were cleared, and merges of runs of similar size.
//!
//! ```text
//! manifest     the list of the runs, twice: the newer valid one counts
//! run          tables in key order, which do not overlap
//! table        up to 64 MiB of entries: leaves, an index, a filter and a root, in chunks of 1 MiB
//! block        about 4 KiB of entries or of a filter, with a checksum
//! ```
//!
//! # Invariants
//!
//! - What a manifest names was flushed before it was written, and is not written again before a manifest without it was
//!   flushed.
//! - A block is checked when it is read from the file: its checksum, which depends on its place, and that its keys are
//!   in
//!   order and in the range that the index gives.
//! - Opening only reads.

mod block;
mod cache;
mod chunks;
pub(super) mod damage;
mod filter;
mod heads;
pub(super) mod manifest;
mod merge;
mod policy;
mod resident;
mod run;
mod shrink;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub(crate) use self::chunks::Layout;
pub(crate) use self::policy::RunLimits;
pub(crate) use self::run::{RunList, RunTrack};
pub(crate) use self::store::{OpenRunsError, RunStoreOptions, Runs};
pub(crate) use self::table::Caching;
#[cfg(test)]
pub(crate) use self::writer::RunWriter;
