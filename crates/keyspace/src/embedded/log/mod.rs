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
//! The very last frame of a log has no later one: if it was flushed and is damaged afterwards, it is
//! taken for torn.
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
