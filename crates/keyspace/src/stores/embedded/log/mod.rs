//! The log, which makes commits durable.
//!
//! A log is a chain of segments, each in a [`Slot`](files::Slot). A segment is a header and frames.
//! A frame holds the effects of one batch of commits. The [`Writer`](writer::Writer) appends and flushes,
//! [`Slots`](slots::Slots) prepares the files of further segments, and [`recover`](recover::recover) reads
//! a chain after a crash.
//!
//! # Guarantees
//!
//! - Frames that were flushed are recovered, or the log is refused. Each frame records which frames had
//!   been flushed before it, so a damaged frame is not mistaken for one that a crash has torn.
//! - Frames that were appended but not flushed may be lost in a crash. The recovered batches are always all
//!   batches up to some point, in the order in which they were appended.
//! - Bytes that were flushed are not written again before their segment is free.
//!
//! The first guarantee has one exception. No later frame covers the frames of the last flush: with
//! immediate durability those of one batch, with relaxed durability all since the flush before. If one of
//! them is damaged after its flush, it is taken for torn, and is lost together with the frames after it. Zeros from a
//! frame up to the end of the log look as if nothing had been written there since the last [`Mark`](segment::Mark), so
//! they may hide frames of `grow_bytes` bytes.
//!
//! All numbers are big-endian.

pub(super) mod append_error;
#[cfg(target_os = "linux")]
mod direct;
pub(super) mod effect;
pub(super) mod files;
pub(super) mod frame;
pub(super) mod recover;
pub(super) mod segment;
pub(super) mod slots;
#[cfg(test)]
mod tests;
pub(super) mod writer;
