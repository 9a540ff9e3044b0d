//! Memory for many small byte strings.

use bytes::{Bytes, BytesMut};

/// The first chunk's size, in bytes.
const FIRST_CHUNK_BYTES: usize = 512;

/// The size that chunks grow to, in bytes. Longer strings get memory of their own.
const MAX_CHUNK_BYTES: usize = 32 << 10;

/// Copies byte strings into chunks that they share, so that most copies allocate nothing.
///
/// A chunk is freed once the arena has moved on to another one and the last string in it is dropped. So
/// long-lived and short-lived strings should not share an arena.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// The unused rest of the newest chunk.
    free: BytesMut,
    allocated_bytes: usize,
}

impl Arena {
    /// Returns the memory that the arena has allocated, in bytes.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// Copies a byte string.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > self.free.capacity() {
            if bytes.len() > MAX_CHUNK_BYTES / 4 {
                self.allocated_bytes += bytes.len();
                return Bytes::copy_from_slice(bytes);
            }
            self.grow(bytes.len());
        }
        self.free.extend_from_slice(bytes);
        self.free.split().freeze()
    }

    /// Begins a chunk with room for `needed_bytes`. Each chunk doubles the memory that was allocated
    /// before.
    fn grow(&mut self, needed_bytes: usize) {
        let doubled = self.allocated_bytes;
        let chunk_bytes = doubled
            .clamp(FIRST_CHUNK_BYTES, MAX_CHUNK_BYTES)
            .max(needed_bytes);
        self.allocated_bytes += chunk_bytes;
        self.free = BytesMut::with_capacity(chunk_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_keep_their_bytes_whatever_is_copied_later() {
        let text = |number: usize| vec![number.to_le_bytes()[0]; number * 7 % 20_000];
        let mut arena = Arena::default();
        let copies: Vec<_> = (0..3000).map(|number| arena.copy(&text(number))).collect();
        for (number, copy) in copies.iter().enumerate() {
            assert_eq!(copy, &text(number));
        }
    }

    #[test]
    fn short_strings_share_chunks_that_are_filled() {
        let mut arena = Arena::default();
        let first = arena.copy(b"0123456789");
        let second = arena.copy(b"0123456789");
        assert_eq!(first.as_ptr().wrapping_add(10), second.as_ptr());
        let copied_bytes: usize = (0..7000).map(|_| arena.copy(&[1; 100]).len()).sum();
        assert!(arena.allocated_bytes() >= copied_bytes);
        assert!(arena.allocated_bytes() < copied_bytes * 11 / 10);
    }

    #[test]
    fn a_long_string_leaves_the_chunk_to_short_ones() {
        let mut arena = Arena::default();
        arena.copy(b"a");
        let long = arena.copy(&[1; 100_000]);
        assert_eq!(long.len(), 100_000);
        arena.copy(b"b");
        assert_eq!(arena.allocated_bytes(), FIRST_CHUNK_BYTES + 100_000);
    }
}
