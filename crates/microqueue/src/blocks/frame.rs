//! The bytes of a block.

use keyspace::codec::DecodeError;
use keyspace::record::{self, Fields, MAX_SHORT_BYTES};
use keyspace::{Bytes, limits};

use crate::keys::FORMAT as ITEM_FORMAT;

/// The largest stored block, in bytes. It leaves room in a value for the record of a block that is set aside: a
/// reason, and up to eight other bytes.
pub const MAX_BLOCK_BYTES: usize = limits::MAX_VALUE_BYTES - 8 - MAX_SHORT_BYTES;

/// The largest entry, key and value together, in bytes.
pub const MAX_ENTRY_BYTES: usize = MAX_BLOCK_BYTES - HEADER_BYTES - 2 * LENGTH_BYTES;

/// The size at which a block is full, in bytes, unless it has a single larger entry.
pub(super) const USUAL_BLOCK_BYTES: usize = 16 << 10;

/// The bytes that a block has room for at first.
const FIRST_BYTES: usize = 256;

/// The bytes of the shortest entry: its two lengths.
const MIN_ENTRY_BYTES: usize = 2;

/// A full block of the shortest entries has an index for each entry, and one for the whole block.
const _: () = assert!(USUAL_BLOCK_BYTES / MIN_ENTRY_BYTES < u16::MAX as usize);

/// The format number of a block.
const FORMAT: u8 = 1;

const HEADER_BYTES: usize = 4;

/// The number of bytes that the largest length takes.
const LENGTH_BYTES: usize = 3;

/// An entry of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The value, or an update of it.
    pub value: Bytes,
}

/// A block that is being written.
#[derive(Debug)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new() -> Self {
        let mut bytes = Vec::with_capacity(FIRST_BYTES);
        bytes.extend([ITEM_FORMAT, FORMAT, 0, 0]);
        Self(bytes)
    }

    /// Appends an entry that is within the [limit](MAX_ENTRY_BYTES). Returns false if the block is full.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> bool {
        let count = u16::from_be_bytes([self.0[2], self.0[3]]);
        let bytes = self.0.len() + 2 * LENGTH_BYTES + key.len() + value.len();
        if count > 0 && bytes > USUAL_BLOCK_BYTES {
            return false;
        }
        push_length(&mut self.0, key.len());
        push_length(&mut self.0, value.len());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
        self.0[2..4].copy_from_slice(&(count + 1).to_be_bytes());
        debug_assert!(self.0.len() <= MAX_BLOCK_BYTES, "an entry over the limit");
        true
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the entries of a block, in order. A block has at least one.
///
/// # Errors
/// [`DecodeError`] if the bytes are not a block: they have an unknown format, a wrong count or length, or
/// bytes left over, or they are more than [`MAX_BLOCK_BYTES`].
pub fn decode_block(block: &Bytes) -> Result<Vec<Entry>, DecodeError> {
    let mut fields = Fields::new(block);
    let entries = (|| {
        let count = read_header(&mut fields)?;
        // The record that sets such a block aside would not fit a value.
        if block.len() > MAX_BLOCK_BYTES {
            let bytes = block.len();
            return Err(format!("{bytes} bytes are more than {MAX_BLOCK_BYTES}"));
        }
        // A wrong count must not reserve more memory than the entries can take.
        let max_entries = fields.rest().len() / MIN_ENTRY_BYTES;
        let mut entries = Vec::with_capacity(usize::from(count).min(max_entries));
        for _ in 0..count {
            let key = read_length(&mut fields)?;
            let value = read_length(&mut fields)?;
            entries.push(Entry {
                key: block.slice_ref(fields.take(key)?),
                value: block.slice_ref(fields.take(value)?),
            });
        }
        fields.end()?;
        Ok(entries)
    })();
    entries.map_err(error)
}

/// Fails if a newer version of the library has written a block, as an item or as a block of this format.
pub(super) fn refuse_newer(row: &[u8], block: &[u8]) -> keyspace::Result<()> {
    record::refuse_newer(row, block, ITEM_FORMAT)?;
    match block.strip_prefix(&[ITEM_FORMAT]) {
        Some(block) => record::refuse_newer(row, block, FORMAT),
        None => Ok(()),
    }
}

/// Returns the number of entries according to the header of a block.
///
/// # Errors
/// [`DecodeError`] if the bytes do not start with the header of a block.
pub fn entry_count(block: &[u8]) -> Result<u16, DecodeError> {
    read_header(&mut Fields::new(block)).map_err(error)
}

fn error(reason: String) -> DecodeError {
    DecodeError {
        codec: "a block",
        reason,
    }
}

fn read_header(fields: &mut Fields<'_>) -> Result<u16, String> {
    fields.format(ITEM_FORMAT)?;
    fields.format(FORMAT)?;
    match u16::from_be_bytes(fields.array()?) {
        0 => Err("it has no entries".to_owned()),
        count => Ok(count),
    }
}

/// Appends a length, seven bits in each byte, lowest bits first.
fn push_length(bytes: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        bytes.push(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    bytes.push(length as u8);
}

fn read_length(fields: &mut Fields<'_>) -> Result<usize, String> {
    let mut length = 0;
    for place in 0..LENGTH_BYTES {
        let [byte] = fields.array()?;
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return match byte {
                0 if place > 0 => Err("a length is longer than its shortest form".to_owned()),
                _ => Ok(length),
            };
        }
    }
    Err(format!("a length has more than {LENGTH_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<Vec<Entry>, DecodeError> {
        decode_block(&Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_block_has_these_bytes() {
        let mut frame = Frame::new();
        assert!(frame.push(b"key", b"value"));
        assert!(frame.push(b"", &[7; 300]));
        let rest = [&[0, 0xac, 0x02][..], &[7; 300]].concat();
        let bytes = [&b"\x01\x01\0\x02\x03\x05keyvalue"[..], &rest].concat();
        assert_eq!(frame.as_bytes(), bytes);
        assert_eq!(entry_count(&bytes).unwrap(), 2);
        let entries = decode(&bytes).unwrap();
        assert_eq!(
            (&entries[0].key[..], &entries[0].value[..]),
            (&b"key"[..], &b"value"[..])
        );
        assert_eq!((entries[1].key.len(), entries[1].value.len()), (0, 300));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn an_invalid_block_is_refused_with_the_reason() {
        for (bytes, expected) in [
            (&b""[..], "ends 1 bytes early"),
            (b"\x02\x01\0\x01\0\0", "newer"),
            (b"\x01\x02\0\x01\0\0", "newer"),
            (b"\x01\x00\0\x01\0\0", "no format 0"),
            (b"\x01\x01\0\0", "no entries"),
            (b"\x01\x01\0\x02\0\0", "early"),
            (b"\x01\x01\xff\xff\0\0", "early"),
            (b"\x01\x01\0\x01\x01\0", "early"),
            (b"\x01\x01\0\x01\0\0\0", "left over"),
            (b"\x01\x01\0\x01\x80\0\0", "shortest form"),
            (b"\x01\x01\0\x01\x80\x80\x80\x01\0", "more than 3 bytes"),
        ] {
            let reason = decode(bytes).unwrap_err().reason;
            assert!(reason.contains(expected), "{bytes:?}: {reason}");
        }
    }

    #[test]
    fn a_block_of_a_newer_format_differs_from_a_damaged_one() {
        for (block, expected) in [
            (&b"\x01\x01\0\x01\0\0"[..], false),
            (b"\x02\x01\0\x01\0\0", true),
            (b"\x01\x02\0\x01\0\0", true),
            (b"\x02", true),
            (b"\x01\0\0\x01\0\0", false),
            (b"\0\x02\0\x01\0\0", false),
            (b"no block", false),
            (b"", false),
        ] {
            assert_eq!(refuse_newer(b"row", block).is_err(), expected, "{block:?}");
        }
    }

    #[test]
    fn a_block_is_as_large_as_it_may_be_and_no_larger() {
        assert_eq!(MAX_BLOCK_BYTES, 99_737);
        // One entry: lengths of one and of three bytes.
        let largest = MAX_BLOCK_BYTES - HEADER_BYTES - 4;
        for (value, is_block) in [(largest, true), (largest + 1, false)] {
            let mut block = b"\x01\x01\0\x01\0".to_vec();
            push_length(&mut block, value);
            block.resize(block.len() + value, 7);
            let decoded = decode(&block);
            assert_eq!(decoded.is_ok(), is_block, "{} bytes", block.len());
        }
    }

    #[test]
    fn a_block_ends_at_its_usual_size() {
        let mut frame = Frame::new();
        assert!(frame.push(b"", &vec![0; MAX_ENTRY_BYTES]));
        assert!(frame.as_bytes().len() <= MAX_BLOCK_BYTES);
        assert!(!frame.push(b"", b""));

        for key in [&b""[..], b"0123456"] {
            let mut frame = Frame::new();
            let count = (0..).take_while(|_| frame.push(key, b"")).count();
            assert!(frame.as_bytes().len() <= USUAL_BLOCK_BYTES);
            assert!(frame.as_bytes().len() + 16 > USUAL_BLOCK_BYTES);
            assert_eq!(decode(frame.as_bytes()).unwrap().len(), count);
        }
    }
}
