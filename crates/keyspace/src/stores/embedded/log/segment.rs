//! The header of a segment: the first 4,096 bytes of its slot.
//!
//! All its fields lie in the first sector, which a disk writes whole or not at all. The second and the third sector
//! hold a mark each. Each time that the file grows, the older mark is written again, after the longer file was flushed.
//! The length in the header and in the marks distinguishes a file that was cut from one that was not written to the
//! end.
//!
//! # Layout
//!
//! ```text
//!  0  8 bytes   "fdbq.log"
//!  8  u32       format, 1
//! 12  u32       zero
//! 16  16 bytes  store id
//! 32  16 bytes  log id
//! 48  u64       number of the segment, from 1
//! 56  u64       random salt: the seed of the checksums of the segment's frames
//! 64  u64       length of the file when the header was written, in bytes
//! 72  u64       XXH3 (64 bits, seed 0) of the bytes before, in every format
//! 80            not used, except for two marks, up to the first frame at 4,096
//! ```
//!
//! Once the file has grown, it has two marks, at 512 and 1,024:
//!
//! ```text
//!  0  u64       length of the file, in bytes: up to there, the file is on disk, with frames or zeros
//!  8  u64       number of the last frame that had been flushed
//! 16  u64       XXH3 (64 bits, the salt as its seed) of the two
//! 24            not used
//! ```
//!
//! The file must be at least as long as its header and its valid marks say, and have the frames that these marks say
//! were flushed. A file of zeros holds no segment yet.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::frame::BLOCK_BYTES;
use crate::values::record::Fields;

/// The offset of a segment's first frame, in bytes.
pub(super) const FRAMES_START: u64 = BLOCK_BYTES as u64;

/// The room at the end of a segment that is reserved for its Seal, in bytes.
pub(super) const SEAL_BYTES: u64 = BLOCK_BYTES as u64;

/// The newest format that this version reads, and the one it writes.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"fdbq.log";

const CHECKED_BYTES: usize = 72;

/// The offsets of the marks, in bytes.
const MARKS: [usize; 2] = [512, 1024];

const MARK_BYTES: usize = 24;

/// The sizes of the segments of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The largest size of a segment, in bytes.
    pub(crate) segment_bytes: u64,
    /// The size of the steps in which zeros are written ahead of the frames, in bytes. Overwriting zeros
    /// costs half as much as growing the file with each frame.
    pub(crate) grow_bytes: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            grow_bytes: 4 << 20,
        }
    }
}

/// The log that a segment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogId {
    pub(crate) store: [u8; 16],
    /// A different id for each log of the store.
    pub(crate) log: [u8; 16],
}

/// The content of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: LogId,
    pub(super) segment: u64,
    pub(super) salt: u64,
    /// The length of the file when the header was written.
    pub(super) file_bytes: u64,
}

/// What a segment has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The length of the file, in bytes.
    pub(super) file_bytes: u64,
    /// The last frame of the log that had been flushed.
    pub(super) flushed_through: u64,
}

impl Mark {
    pub(super) fn encode(self, salt: u64) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(&self.file_bytes.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.flushed_through.to_be_bytes());
        let checksum = xxh3_64_with_seed(&bytes[..16], salt);
        bytes[16..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Returns where to write the `count`th mark of a segment, counted from 0.
    pub(super) fn offset(count: u64) -> u64 {
        let [even, odd] = MARKS;
        if count.is_multiple_of(2) {
            even as u64
        } else {
            odd as u64
        }
    }

    /// Returns the newest valid mark of a segment from the bytes of its file. `None` if there is none.
    pub(super) fn decode(file: &[u8], salt: u64) -> Option<Self> {
        let marks = MARKS
            .into_iter()
            .filter_map(|at| Self::decode_at(file.get(at..)?, salt));
        marks.max_by_key(|mark| mark.file_bytes)
    }

    fn decode_at(bytes: &[u8], salt: u64) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let mark = Self {
            file_bytes: fields.u64().ok()?,
            flushed_through: fields.u64().ok()?,
        };
        if bytes.starts_with(&mark.encode(salt)) {
            Some(mark)
        } else {
            None
        }
    }
}

/// The reason why bytes are not a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeaderDefect {
    /// The file was not written by this library.
    Foreign,
    /// The file was written by a newer version of this library.
    NewerFormat { found: u32 },
    /// The file was written by this library, but is damaged. The text is the reason.
    Damaged(String),
}

impl Header {
    /// Returns the first block of the segment.
    pub(super) fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&FORMAT.to_be_bytes());
        block[16..32].copy_from_slice(&self.id.store);
        block[32..48].copy_from_slice(&self.id.log);
        block[48..56].copy_from_slice(&self.segment.to_be_bytes());
        block[56..64].copy_from_slice(&self.salt.to_be_bytes());
        block[64..72].copy_from_slice(&self.file_bytes.to_be_bytes());
        let checksum = xxh3_64(&block[..CHECKED_BYTES]);
        block[72..80].copy_from_slice(&checksum.to_be_bytes());
        block
    }

    /// Decodes the header of a slot from the first bytes of its file, or from all of them. `None` if they
    /// are all zero: no header was written yet.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, HeaderDefect> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let magic = &MAGIC[..MAGIC.len().min(bytes.len())];
        if !bytes.starts_with(magic) {
            return Err(HeaderDefect::Foreign);
        }
        let damaged = |reason: &str| HeaderDefect::Damaged(reason.to_owned());
        let checksum = bytes
            .get(CHECKED_BYTES..)
            .and_then(|rest| rest.first_chunk())
            .ok_or_else(|| damaged("its header ends early"))?;
        if xxh3_64(&bytes[..CHECKED_BYTES]) != u64::from_be_bytes(*checksum) {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let mut fields = Fields::new(&bytes[MAGIC.len()..]);
        match fields.u32() {
            Ok(FORMAT) => {}
            Ok(found) if found > FORMAT => return Err(HeaderDefect::NewerFormat { found }),
            found => return Err(HeaderDefect::Damaged(format!("its format is {found:?}"))),
        }
        let header = Self::decode_fields(&mut fields).map_err(HeaderDefect::Damaged)?;
        Ok(Some(header))
    }

    fn decode_fields(fields: &mut Fields<'_>) -> Result<Self, String> {
        let _zero = fields.u32()?;
        Ok(Self {
            id: LogId {
                store: fields.array()?,
                log: fields.array()?,
            },
            segment: fields.u64()?,
            salt: fields.u64()?,
            file_bytes: fields.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};

    use super::*;

    const HEADER: Header = Header {
        id: LogId {
            store: [0x5a; 16],
            log: *b"log id, 16 bytes",
        },
        segment: 0x0102,
        salt: 0x0304_0506_0708_090a,
        file_bytes: 0x0040_1000,
    };

    const MARK: Mark = Mark {
        file_bytes: 0x0040_1000,
        flushed_through: 0x0102,
    };

    #[test]
    fn a_header_has_the_bytes_that_are_documented() {
        let golden = [
            &b"fdbq.log\0\0\0\x01\0\0\0\0"[..],
            &[0x5a; 16],
            b"log id, 16 bytes\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a",
            b"\0\0\0\0\0\x40\x10\0\x97\x52\x39\xa3\x90\xa0\x02\xc9",
        ]
        .concat();
        let block = HEADER.encode();
        assert_eq!(block[..80], golden);
        assert_eq!(block[80..], [0; BLOCK_BYTES - 80]);
        assert_eq!(Header::decode(&block), Ok(Some(HEADER)));
        assert_eq!(Mark::decode(&block, HEADER.salt), None);
    }

    #[test]
    fn a_mark_has_the_bytes_that_are_documented() {
        let golden = b"\0\0\0\0\0\x40\x10\0\0\0\0\0\0\0\x01\x02\xf8\xcc\xae\x87\x81\x67\x96\x7b";
        assert_eq!(MARK.encode(HEADER.salt), *golden);
    }

    /// Returns a header whose segment has grown once.
    fn marked() -> [u8; BLOCK_BYTES] {
        let mut block = HEADER.encode();
        block[512..536].copy_from_slice(&MARK.encode(HEADER.salt));
        block
    }

    #[test]
    fn a_mark_with_a_flipped_bit_or_of_another_segment_is_not_valid() {
        let block = marked();
        assert_eq!(Mark::decode(&block, HEADER.salt), Some(MARK));
        for bit in 0..8 * MARK_BYTES {
            let mut block = block;
            block[512 + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Mark::decode(&block, HEADER.salt), None);
        }
        assert_eq!(Mark::decode(&block, HEADER.salt + 1), None);
        assert_eq!(Mark::decode(&block[..535], HEADER.salt), None);
    }

    #[test]
    fn a_mark_that_was_torn_leaves_the_one_before() {
        let mut block = marked();
        let grown = Mark {
            file_bytes: 2 * MARK.file_bytes,
            ..MARK
        };
        assert_eq!([0, 1, 2].map(Mark::offset), [512, 1024, 512]);
        block[1024..1048].copy_from_slice(&grown.encode(HEADER.salt));
        assert_eq!(Mark::decode(&block, HEADER.salt), Some(grown));
        block[1040..].fill(0);
        assert_eq!(Mark::decode(&block, HEADER.salt), Some(MARK));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let block = HEADER.encode();
        for at in 0..80 {
            for bit in 0..8 {
                let mut block = block;
                block[at] ^= 1 << bit;
                let defect = Header::decode(&block).unwrap_err();
                let expected = match at {
                    0..8 => matches!(defect, HeaderDefect::Foreign),
                    8..12 => !matches!(defect, HeaderDefect::Foreign),
                    _ => matches!(defect, HeaderDefect::Damaged(_)),
                };
                assert!(expected, "{at}: {defect:?}");
            }
            if at > 0 {
                assert!(Header::decode(&block[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn zeros_are_no_header_yet_and_a_newer_format_is_named() {
        assert_eq!(Header::decode(&[]), Ok(None));
        assert_eq!(Header::decode(&[0; BLOCK_BYTES]), Ok(None));
        assert_eq!(Header::decode(&[0, 1]), Err(HeaderDefect::Foreign));
        let mut block = HEADER.encode();
        block[11] = 2;
        let damaged = Header::decode(&block);
        assert!(
            matches!(damaged, Err(HeaderDefect::Damaged(_))),
            "{damaged:?}"
        );
        let checksum = xxh3_64(&block[..CHECKED_BYTES]);
        block[72..80].copy_from_slice(&checksum.to_be_bytes());
        let newer = HeaderDefect::NewerFormat { found: 2 };
        assert_eq!(Header::decode(&block), Err(newer));
    }

    #[test]
    fn random_bytes_are_refused() {
        let mut rng = StdRng::seed_from_u64(0);
        for _ in 0..10_000 {
            let mut bytes = vec![0; rng.random_range(1..100)];
            rng.fill_bytes(&mut bytes);
            bytes[0] |= 1;
            assert!(Header::decode(&bytes).is_err());
            let known = bytes.len().min(rng.random_range(0..=12));
            bytes[..known].copy_from_slice(&HEADER.encode()[..known]);
            assert!(Header::decode(&bytes).is_err());
        }
    }
}
