//! Frames: what a segment holds after its header.
//!
//! # Layout
//!
//! ```text
//!  0  u64  XXH3 (64 bits, the segment's salt as its seed) of the bytes from 8 to `len`
//!  8  u32  len: bytes of the frame, with this header, without padding
//! 12  u8   kind: 1 Begin, 2 Batch, 3 Clock, 4 Seal
//! 13       zero
//! 16  u64  number of the frame, from 1, consecutive over the segments of a log
//! 24  u64  number of the last frame that had been flushed when this one was written, smaller than its own
//! 32  i64  version: of Batch the commit version, of Clock the version that the clock may reach; else 0
//! 40  u32  how many effects a Batch holds; else 0
//! 44       zero
//! 48       body: of Batch its effects; of Begin previous segment, its end offset and its last frame
//!          (three u64, all 0 in the first segment of a log); else empty
//! ```
//!
//! A frame begins at a multiple of 4,096 bytes and is padded to the next one with zeros. After the last frame, the file
//! contains zeros, or frames of an earlier segment, with another salt.
//!
//! Every segment begins with its only Begin. The version of a Batch is larger than those of all earlier ones. After a
//! Clock, every version up to its own may have been assigned. Seal is the last frame of a full segment, flushed before
//! the next segment begins.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::effect::{Effect, Effects};
use crate::values::record::Fields;

/// The alignment of frames, in bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

const HEADER_BYTES: usize = 48;

const BEGIN: u8 = 1;
const BATCH: u8 = 2;
const CLOCK: u8 = 3;
const SEAL: u8 = 4;

/// The end of the log when a segment began, as recorded in the first frame of each segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) previous_segment: u64,
    /// The end of its frames, in bytes.
    pub(crate) end: u64,
    pub(crate) last_frame: u64,
}

/// The place of a frame in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FramePlace {
    pub(super) number: u64,
    /// The last frame that had been flushed when this one was written.
    pub(super) flushed_through: u64,
}

/// A frame to be written, with its buffer.
#[derive(Debug)]
pub(crate) struct Record {
    /// Room for the header, then the body, and the padding once the frame is finished.
    bytes: Vec<u8>,
    /// The length without the padding.
    len: usize,
    kind: u8,
    version: i64,
    effects: u32,
}

impl Record {
    /// Returns a batch without effects.
    pub(crate) fn batch(version: i64) -> Self {
        Self::new(BATCH, version)
    }

    /// Returns a clock frame: the version of the clock, without effects.
    pub(crate) fn clock(version: i64) -> Self {
        Self::new(CLOCK, version)
    }

    /// Returns the last frame of a segment.
    pub(super) fn seal() -> Self {
        Self::new(SEAL, 0)
    }

    /// Returns the first frame of a segment.
    pub(super) fn begin(begin: Begin) -> Self {
        let mut record = Self::new(BEGIN, 0);
        for number in [begin.previous_segment, begin.end, begin.last_frame] {
            record.bytes.extend_from_slice(&number.to_be_bytes());
        }
        record.len = record.bytes.len();
        record
    }

    fn new(kind: u8, version: i64) -> Self {
        // A small frame takes one block.
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        bytes.resize(HEADER_BYTES, 0);
        Self {
            bytes,
            len: HEADER_BYTES,
            kind,
            version,
            effects: 0,
        }
    }

    /// Makes room for this number of effects, with this total length of keys and values.
    pub(crate) fn reserve(&mut self, effects: usize, bytes: usize) {
        self.bytes
            .reserve(bytes + effects * Effect::USUAL_HEADER_BYTES);
    }

    /// Adds an effect to a batch that was not appended yet.
    pub(crate) fn push(&mut self, effect: Effect<'_>) {
        assert!(self.kind == BATCH && self.len == self.bytes.len());
        effect.encode(&mut self.bytes);
        self.len = self.bytes.len();
        self.effects += 1;
    }

    /// Returns the bytes of the effects. It may also be called after the batch was appended.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..self.len]
    }

    /// Returns the effects. It may also be called after the batch was appended.
    pub(crate) fn effects(&self) -> Effects<'_> {
        Effects::pushed(self.body())
    }

    /// Returns the bytes that the frame takes in its segment.
    pub(super) fn frame_bytes(&self) -> usize {
        self.len.next_multiple_of(BLOCK_BYTES)
    }

    /// Fills in the header and the padding, and returns the bytes to write.
    pub(super) fn finish(&mut self, place: FramePlace, salt: u64) -> &[u8] {
        let len = u32::try_from(self.len).expect("a frame fits into a segment");
        let padded = self.frame_bytes();
        self.bytes.resize(padded, 0);
        let header = &mut self.bytes[..HEADER_BYTES];
        header[8..12].copy_from_slice(&len.to_be_bytes());
        header[12] = self.kind;
        header[16..24].copy_from_slice(&place.number.to_be_bytes());
        header[24..32].copy_from_slice(&place.flushed_through.to_be_bytes());
        header[32..40].copy_from_slice(&self.version.to_be_bytes());
        header[40..44].copy_from_slice(&self.effects.to_be_bytes());
        let checksum = xxh3_64_with_seed(&self.bytes[8..self.len], salt);
        self.bytes[..8].copy_from_slice(&checksum.to_be_bytes());
        &self.bytes
    }
}

/// A frame that was read.
#[derive(Debug, Clone)]
pub(super) struct Frame<'a> {
    pub(super) place: FramePlace,
    pub(super) content: Content<'a>,
    /// The bytes that the frame takes in its segment.
    pub(super) bytes: usize,
}

/// The content of a frame.
#[derive(Debug, Clone)]
pub(super) enum Content<'a> {
    Begin(Begin),
    Batch { version: i64, effects: Effects<'a> },
    Clock { version: i64 },
    Seal,
}

/// The reason why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Defect {
    /// The checksum is wrong: no frame with this salt was written there, or it is damaged or incomplete.
    Invalid,
    /// The checksum is right, but the content is not valid. The text is the reason.
    Malformed(String),
}

impl<'a> Frame<'a> {
    /// Reads the frame at the start of `bytes`.
    pub(super) fn parse(bytes: &'a [u8], salt: u64) -> Result<Self, Defect> {
        let len = checked_len(bytes, salt).ok_or(Defect::Invalid)?;
        let malformed = |reason| Defect::Malformed(reason);
        let frame = Self::parse_checked(&bytes[8..len]).map_err(malformed)?;
        Ok(Self {
            bytes: len.next_multiple_of(BLOCK_BYTES),
            ..frame
        })
    }

    /// Returns the place that these bytes would have as a frame. They may be anything.
    pub(super) fn unchecked_place(bytes: &[u8]) -> Option<FramePlace> {
        Some(FramePlace {
            number: u64::from_be_bytes(*bytes.get(16..)?.first_chunk()?),
            flushed_through: u64::from_be_bytes(*bytes.get(24..)?.first_chunk()?),
        })
    }

    /// Parses the frame after its checksum was verified.
    fn parse_checked(bytes: &'a [u8]) -> Result<Self, String> {
        let mut fields = Fields::new(bytes);
        let _len = fields.u32()?;
        let [kind, zeros @ ..]: [u8; 4] = fields.array()?;
        let place = FramePlace {
            number: fields.u64()?,
            flushed_through: fields.u64()?,
        };
        let version = i64::from_be_bytes(fields.array()?);
        let effects = fields.u32()?;
        let more_zeros = fields.u32()?;
        if zeros != [0; 3] || more_zeros != 0 {
            return Err("what must be zero is not".to_owned());
        }
        if place.flushed_through >= place.number {
            return Err(format!("it says that it was flushed before: {place:?}"));
        }
        if version < 0 {
            return Err(format!("its version is {version}"));
        }
        let has_none = matches!(kind, BEGIN | SEAL);
        if has_none && version != 0 || (has_none || kind == CLOCK) && effects != 0 {
            return Err(format!("it is of kind {kind} and has a version or effects"));
        }
        let body = fields.rest();
        let content = match kind {
            BEGIN => Content::Begin(parse_begin(&mut fields)?),
            BATCH => Content::Batch {
                version,
                effects: Effects::parse(body, effects)?,
            },
            CLOCK if body.is_empty() => Content::Clock { version },
            SEAL if body.is_empty() => Content::Seal,
            CLOCK | SEAL => return Err(format!("it is of kind {kind} and has a body")),
            _ => return Err(format!("there is no kind {kind}")),
        };
        Ok(Self {
            place,
            content,
            bytes: 0,
        })
    }
}

/// Returns the length of the frame at the start of `bytes` if its checksum is right.
fn checked_len(bytes: &[u8], salt: u64) -> Option<usize> {
    let (checksum, rest) = bytes.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*rest.first_chunk()?)).ok()?;
    if len < HEADER_BYTES {
        return None;
    }
    let checked = bytes.get(8..len)?;
    if xxh3_64_with_seed(checked, salt) == u64::from_be_bytes(*checksum) {
        Some(len)
    } else {
        None
    }
}

fn parse_begin(fields: &mut Fields<'_>) -> Result<Begin, String> {
    let begin = Begin {
        previous_segment: fields.u64()?,
        end: fields.u64()?,
        last_frame: fields.u64()?,
    };
    fields.end()?;
    Ok(begin)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};

    use super::*;

    const SALT: u64 = 0x0123_4567_89ab_cdef;

    const PLACE: FramePlace = FramePlace {
        number: 0x0a0b,
        flushed_through: 0x0a01,
    };

    fn batch() -> Record {
        let mut record = Record::batch(0x0102_0304_0506);
        record.push(Effect::Set {
            key: b"key",
            value: b"value",
        });
        record.push(Effect::ClearRange {
            begin: b"a",
            end: b"b",
        });
        record
    }

    /// Makes the checksum right again.
    fn sign(bytes: &mut [u8]) {
        let len = u32::from_be_bytes(*bytes[8..].first_chunk().unwrap()) as usize;
        let checksum = xxh3_64_with_seed(&bytes[8..len], SALT);
        bytes[..8].copy_from_slice(&checksum.to_be_bytes());
    }

    #[test]
    fn a_batch_has_the_bytes_that_are_documented() {
        let mut record = batch();
        let bytes = record.finish(PLACE, SALT);
        let golden = [
            b"\xca\x75\x53\x0f\xbd\x11\x59\xfe".as_slice(),
            b"\0\0\0\x40\x02\0\0\0",
            b"\0\0\0\0\0\0\x0a\x0b\0\0\0\0\0\0\x0a\x01",
            b"\0\0\x01\x02\x03\x04\x05\x06\0\0\0\x02\0\0\0\0",
            b"\x01\x03\x05keyvalue\x03\x01\x01ab",
        ]
        .concat();
        assert_eq!(bytes[..golden.len()], golden);
        assert_eq!(bytes[golden.len()..], [0; BLOCK_BYTES - 64]);
        assert_eq!(record.body(), &golden[48..]);
    }

    #[test]
    fn the_other_kinds_have_the_bytes_that_are_documented() {
        let begin = Begin {
            previous_segment: 7,
            end: 0x2000,
            last_frame: 0x0a0a,
        };
        let begin_body = b"\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\x0a\x0a";
        for (mut record, kind, version, body) in [
            (Record::begin(begin), 1, 0, &begin_body[..]),
            (Record::clock(5), 3, 5, b""),
            (Record::seal(), 4, 0, b""),
        ] {
            let bytes = record.finish(PLACE, SALT).to_vec();
            assert_eq!(bytes[8..12], [0, 0, 0, 48 + body.len() as u8]);
            assert_eq!(bytes[12..16], [kind, 0, 0, 0]);
            assert_eq!(bytes[32..48], [&[0; 7][..], &[version], &[0; 8]].concat());
            assert_eq!(bytes[48..48 + body.len()], *body);
            let frame = Frame::parse(&bytes, SALT).unwrap();
            assert_eq!((frame.place, frame.bytes), (PLACE, BLOCK_BYTES));
            let is_same = match frame.content {
                Content::Begin(found) => found == begin,
                Content::Clock { version } => version == 5,
                Content::Seal => kind == 4,
                Content::Batch { .. } => false,
            };
            assert!(is_same);
        }
    }

    #[test]
    fn a_frame_takes_as_many_blocks_as_it_needs() {
        for (value_bytes, blocks) in [(0, 1), (4044, 1), (4045, 2), (9000, 3)] {
            let mut record = Record::batch(1);
            let value = vec![7; value_bytes];
            record.push(Effect::Set {
                key: b"",
                value: &value,
            });
            let bytes = record.finish(PLACE, SALT).to_vec();
            assert_eq!(bytes.len(), blocks * BLOCK_BYTES, "{value_bytes}");
            assert_eq!(Frame::parse(&bytes, SALT).unwrap().bytes, bytes.len());
        }
    }

    #[test]
    fn a_flipped_bit_a_cut_and_another_salt_make_a_frame_invalid() {
        let mut record = batch();
        let len = record.len;
        let bytes = record.finish(PLACE, SALT).to_vec();
        let invalid = |bytes: &[u8], salt| Frame::parse(bytes, salt).unwrap_err();
        assert_eq!(invalid(&bytes, SALT + 1), Defect::Invalid);
        for at in 0..len {
            assert_eq!(invalid(&bytes[..at], SALT), Defect::Invalid, "cut at {at}");
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert_eq!(invalid(&bytes, SALT), Defect::Invalid, "{at} {bit}");
            }
        }
        assert!(Frame::parse(&bytes[..len], SALT).is_ok());
    }

    #[test]
    fn a_frame_whose_checksum_is_right_and_that_makes_no_sense_is_malformed() {
        let batch = batch().finish(PLACE, SALT).to_vec();
        for (at, byte, reason) in [
            (12, 0, "there is no kind 0"),
            (12, 5, "there is no kind 5"),
            (12, 3, "has a version or effects"),
            (13, 1, "what must be zero is not"),
            (47, 1, "what must be zero is not"),
            (31, 0x0b, "it was flushed before"),
            (32, 0x80, "its version is -"),
            (43, 3, "3 were announced"),
            (48, 9, "there is no effect 9"),
            (11, 63, "early"),
        ] {
            let mut bytes = batch.clone();
            bytes[at] = byte;
            sign(&mut bytes);
            let found = Frame::parse(&bytes, SALT).unwrap_err();
            assert!(
                matches!(&found, Defect::Malformed(text) if text.contains(reason)),
                "{at}: {found:?}"
            );
        }
    }

    #[test]
    fn random_bytes_under_a_right_checksum_make_no_reader_panic() {
        let mut rng = StdRng::seed_from_u64(0);
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut bytes = batch().finish(PLACE, SALT).to_vec();
            bytes.truncate(200);
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(8..80);
                bytes[at] = rng.random();
            }
            bytes[8..11].fill(0);
            bytes[11] = rng.random_range(48..200);
            if rng.random() {
                rng.fill_bytes(&mut bytes[12..]);
            }
            sign(&mut bytes);
            match Frame::parse(&bytes, SALT) {
                Ok(frame) => {
                    accepted += 1;
                    if let Content::Batch { effects, .. } = frame.content {
                        effects.for_each(drop);
                    }
                }
                Err(defect) => assert!(matches!(defect, Defect::Malformed(_))),
            }
            rng.fill_bytes(&mut bytes);
            assert!(Frame::parse(&bytes, SALT).is_err());
        }
        assert!(accepted > 0);
    }
}
