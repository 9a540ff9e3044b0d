//! The store's own record: `store` in the table `keyspace.meta`.
//!
//! # Layout
//!
//! ```text
//!  0  u32  format: 1
//!  4  i64  version: every commit up to it is in the tree, and no later one; it is that of a commit or a
//!          claim, or the one at which the clock started; 100,000,000 in a new store
//! 12       id of the store, 16 random bytes
//! 28  u64  how many rows are in the tree
//! 36  u64  how many bytes their keys and values have
//! 44  u64  the sum of the checksums of the rows, modulo 2^64
//! 52  u8   1 if the store has a log, else 0
//! 53       id of the log, 16 random bytes   (only if it has one, as the next two)
//! 69  u64  the log's first segment, which contains the first frame that is not in the tree
//! 77  u64  the number of that segment's first frame
//!     u64  XXH3 (64 bits, seed 0) of all bytes before
//! ```
//!
//! The record has 61 bytes without a log, and 93 with one. The checksum of a row is the XXH3 (64 bits) of its value, with
//! that of its key, for which the seed is 0, as the seed. In every format, the first field is the format and the last one is
//! the checksum, so a damaged record is not taken for one of a newer format, which is refused.
//!
//! A store that was closed has no log, and neither does a backup. A store that is open, or that was not closed, has
//! one. Opening it fails if the log is missing or ends before the version. The first segment may contain batches that
//! are already in the tree.

use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::damage::Damage;
use super::open_errors::damaged;
use crate::embedded::log::recover::Start;
use crate::error::OpenError;
use crate::record::Fields;

/// The key of the record.
pub(crate) const META_KEY: &str = "store";

/// The newest format that this version reads, and the one it writes.
const FORMAT: u32 = 1;

/// The last version from which a store can go on: no clock gets that far.
const MAX_VERSION: i64 = i64::MAX / 2;

/// The last number of a segment or a frame from which a log can go on: no log gets that far.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// The store's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Every commit up to this version is in the tree, and no later one. It is the version of a commit, a
    /// version that was claimed, or the version at which the clock started.
    pub(crate) last_version: i64,
    /// Distinguishes this store from every other.
    pub(crate) id: [u8; 16],
    /// The rows in the tree, for checks.
    pub(crate) totals: Totals,
    /// The log with the commits that are not in the tree, `None` if all are in the tree.
    pub(crate) log: Option<LogStart>,
}

/// What a check compares the rows of a tree with. It does not depend on the order in which rows were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
    /// The bytes of the keys and values.
    pub(crate) bytes: u64,
    /// The sum of the checksums of the rows, modulo 2^64.
    checksums: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        // A damaged record may hold any numbers. A check then finds that they differ.
        self.rows = self.rows.saturating_add(1);
        self.bytes = self.bytes.saturating_add(row_bytes(key, value));
        self.checksums = self.checksums.wrapping_add(checksum(key, value));
    }

    /// Removes a row.
    ///
    /// # Errors
    /// If there are fewer rows or bytes than that.
    pub(crate) fn remove(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damage> {
        let rows = self
            .rows
            .checked_sub(1)
            .ok_or_else(|| Damage::new("it holds more rows than its record says"))?;
        let bytes = self.bytes.checked_sub(row_bytes(key, value));
        let bytes =
            bytes.ok_or_else(|| Damage::new("its rows have more bytes than its record says"))?;
        self.rows = rows;
        self.bytes = bytes;
        self.checksums = self.checksums.wrapping_sub(checksum(key, value));
        Ok(())
    }

    /// Checks the totals of the rows that were read against those that the store's record has.
    ///
    /// # Errors
    /// How they differ.
    pub(crate) fn check(&self, recorded: &Self) -> Result<(), Damage> {
        if self.rows != recorded.rows || self.bytes != recorded.bytes {
            return Err(Damage::new(format!(
                "it holds {} rows with {} bytes, and its record says {} rows with {} bytes",
                self.rows, self.bytes, recorded.rows, recorded.bytes
            )));
        }
        if self.checksums != recorded.checksums {
            return Err(Damage::new(
                "the keys or values of its rows are not those that were written",
            ));
        }
        Ok(())
    }
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

fn checksum(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

/// The start of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogStart {
    pub(crate) id: [u8; 16],
    pub(crate) start: Start,
}

impl Meta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.last_version.to_be_bytes());
        bytes.extend_from_slice(&self.id);
        let Totals {
            rows,
            bytes: row_bytes,
            checksums,
        } = self.totals;
        for number in [rows, row_bytes, checksums] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.push(u8::from(self.log.is_some()));
        if let Some(log) = &self.log {
            bytes.extend_from_slice(&log.id);
            bytes.extend_from_slice(&log.start.segment.to_be_bytes());
            bytes.extend_from_slice(&log.start.frame.to_be_bytes());
        }
        bytes.extend_from_slice(&xxh3_64(&bytes).to_be_bytes());
        bytes
    }

    /// Decodes the record of the store at `path`.
    pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<Self, OpenError> {
        let is_damaged =
            |reason: String| damaged(path, format!("its record is not valid: {reason}"));
        let checked = bytes
            .split_last_chunk()
            .ok_or_else(|| is_damaged("it is too short".to_owned()))?;
        let (fields, checksum) = checked;
        if xxh3_64(fields) != u64::from_be_bytes(*checksum) {
            return Err(is_damaged("its checksum is wrong".to_owned()));
        }
        let mut fields = Fields::new(fields);
        let decoded = match fields.u32() {
            Ok(FORMAT) => decode(&mut fields),
            Ok(found) if found > FORMAT => {
                return Err(OpenError::NewerFormat {
                    path: path.to_owned(),
                    found,
                    supported: FORMAT,
                });
            }
            Ok(found) => Err(format!("its format is {found}")),
            Err(reason) => Err(reason),
        };
        decoded.map_err(is_damaged)
    }
}

fn decode(fields: &mut Fields<'_>) -> Result<Meta, String> {
    let last_version = i64::from_be_bytes(fields.array()?);
    if !(0..=MAX_VERSION).contains(&last_version) {
        return Err(format!("its version is {last_version}"));
    }
    let id = fields.array()?;
    let totals = Totals {
        rows: fields.u64()?,
        bytes: fields.u64()?,
        checksums: fields.u64()?,
    };
    let log = match fields.array()? {
        [0] => None,
        [1] => Some(LogStart {
            id: fields.array()?,
            start: Start {
                segment: fields.u64()?,
                frame: fields.u64()?,
            },
        }),
        [found] => return Err(format!("it has {found} logs")),
    };
    let is_number = |number| (1..=MAX_NUMBER).contains(&number);
    if log.is_some_and(|log| !is_number(log.start.segment) || !is_number(log.start.frame)) {
        return Err("its log begins nowhere".to_owned());
    }
    fields.end()?;
    Ok(Meta {
        last_version,
        id,
        totals,
        log,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Meta = Meta {
        last_version: 0x0102,
        id: [0xee; 16],
        totals: Totals {
            rows: 0x0506,
            bytes: 0x060708,
            checksums: 0x1122_3344_5566_7788,
        },
        log: Some(LogStart {
            id: [0xdd; 16],
            start: Start {
                segment: 0x03,
                frame: 0x0405,
            },
        }),
    };

    const CLOSED: Meta = Meta { log: None, ..META };

    fn decode(bytes: &[u8]) -> Result<Meta, OpenError> {
        Meta::decode(bytes, Path::new("queue.redb"))
    }

    /// Returns the record without its checksum.
    fn golden() -> Vec<u8> {
        let first = [&[0, 0, 0, 1][..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0xee; 16]].concat();
        let totals = b"\0\0\0\0\0\0\x05\x06\0\0\0\0\0\x06\x07\x08\x11\x22\x33\x44\x55\x66\x77\x88";
        let log = [
            [0xdd; 16].as_slice(),
            b"\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x04\x05",
        ]
        .concat();
        [first, totals.to_vec(), vec![1], log].concat()
    }

    fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.extend_from_slice(&xxh3_64(&bytes).to_be_bytes());
        bytes
    }

    #[test]
    fn the_record_of_a_store_has_these_bytes() {
        let with_log = signed(golden());
        assert_eq!(META.encode(), with_log);
        assert_eq!(with_log[85..], *b"\x78\xf8\x78\x63\xbf\x8d\x92\x9e");
        assert_eq!(decode(&with_log).unwrap(), META);
        let closed = signed([&golden()[..52], &[0]].concat());
        assert_eq!(CLOSED.encode(), closed);
        assert_eq!(closed[53..], *b"\x5e\xb4\x51\x9d\xd4\x63\xd8\xce");
        assert_eq!(decode(&closed).unwrap(), CLOSED);
    }

    #[test]
    fn a_record_of_any_other_shape_is_damage() {
        let good = golden();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            signed(bytes)
        };
        let mut bad = vec![with(4, 0x80), with(4, 0x7f), with(3, 0), with(52, 2)];
        // The numbers of the log's first segment and frame.
        bad.extend([with(69, 0x80), with(77, 0xff)]);
        bad.push(signed([&good[..], &[0]].concat()));
        bad.extend((0..good.len()).map(|len| signed(good[..len].to_vec())));
        bad.extend((0..good.len()).map(|len| good[..len].to_vec()));
        for at in 0..8 * (good.len() + 8) {
            let mut flipped = signed(good.clone());
            flipped[at / 8] ^= 1 << (at % 8);
            bad.push(flipped);
        }
        for bytes in bad {
            let error = decode(&bytes).unwrap_err();
            assert!(
                matches!(&error, OpenError::Damaged { reason, .. } if reason.starts_with("its record")),
                "{bytes:02x?}: {error}"
            );
        }
    }

    #[test]
    fn a_newer_format_is_named_whatever_follows_it() {
        let error = decode(&signed(vec![0, 0, 0, 2, 99])).unwrap_err();
        let text = "store queue.redb has format 2, this version reads up to 1: upgrade the library";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn totals_do_not_depend_on_order_and_notice_every_difference() {
        let rows: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"b", b"22"), (b"", b"")];
        let of = |rows: &[(&[u8], &[u8])]| {
            let mut totals = Totals::default();
            rows.iter().for_each(|(key, value)| totals.add(key, value));
            totals
        };
        let all = of(&rows);
        let mut other = rows;
        other.reverse();
        assert_eq!(of(&other), all);
        let mut removed = all;
        removed.remove(b"b", b"22").unwrap();
        assert_eq!(removed, of(&[rows[0], rows[2]]));
        let too_long = removed.remove(b"", &[0; 100]).unwrap_err();
        assert!(too_long.to_string().contains("more bytes"), "{too_long}");
        let too_many = Totals::default().remove(b"", b"").unwrap_err();
        assert!(too_many.to_string().contains("more rows"), "{too_many}");
        let mut full = Totals {
            rows: u64::MAX,
            bytes: u64::MAX,
            checksums: u64::MAX,
        };
        full.add(b"a", b"1");
        for different in [
            [rows[0], rows[1], rows[0]],
            [rows[0], (b"b", b"23"), rows[2]],
            [rows[0], (b"c", b"22"), rows[2]],
            [rows[0], (b"b2", b"2"), rows[2]],
            [(b"a", b"2"), (b"b", b"12"), rows[2]],
        ] {
            assert!(of(&different).check(&all).is_err(), "{different:?}");
        }
        assert_eq!(all.check(&all), Ok(()));
    }
}
