//! The log of the store: what is durable first.
//!
//! A log is a chain of segments, each in a [`Slot`](super::files::Slot). A segment is a header and
//! frames; a frame holds the effects of one batch of commits. The [`Writer`](writer::Writer) appends
//! and flushes, [`Slots`](slots::Slots) prepares the files that it goes on to, and
//! [`recover`](recover::recover) reads a chain after a crash.
//!
//! # Guarantees
//!
//! - What was flushed is recovered, or the log is refused: later frames say what had been flushed
//!   before them, so a damaged frame is not taken for one that a crash has torn.
//! - What was appended and not flushed may be lost in a crash. What is recovered is always the
//!   batches up to some point, in the order in which they were appended.
//! - No byte that was flushed is written again before its segment is free.
//!
//! No later frame says so of the frames of the last flush: with immediate durability those of one batch, with
//! relaxed durability all since the flush before it. If one of them is damaged after the flush, it is taken
//! for torn, and it is lost with the frames after it.
//!
//! All numbers are big-endian.

pub(super) mod effect;
pub(super) mod frame;
pub(super) mod recover;
pub(super) mod segment;
pub(super) mod slots;
#[cfg(test)]
mod tests;
pub(super) mod writer;
