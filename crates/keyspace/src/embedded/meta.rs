//! The store's own record: `store` in the table `keyspace.meta`.
//!
//! ```text
//!  0  u32  format: 2
//!  4  i64  version: every commit up to it is in the tree, and no later one
//! 12       id of the store, 16 bytes
//! 28  u64  how many bytes the keys and values in the tree have
//! 36  u8   1 if the store has a log, else 0
//! 37       id of the log, 16 bytes          (only if it has one, as all that follows)
//! 53  u64  the log's first segment
//! 61  u64  the number of that segment's first frame
//! ```
//!
//! Numbers are big-endian. Format 1 ended after the id and had no log. The version is that of a commit, one
//! that was claimed for the clock, or one that the clock began at.

use std::path::Path;

use super::log::recover::Start;
use crate::error::{Error, OpenError};
use crate::record::Fields;

/// The key of the record.
pub(super) const META_KEY: &str = "store";

/// The newest format that this version reads, and the one it writes.
const FORMAT: u32 = 2;

/// The last version from which a store can go on: no clock gets that far.
const MAX_VERSION: i64 = i64::MAX / 2;

/// The store's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    /// Every commit up to this version is in the tree, and no later one. It is the version of a commit, a
    /// version that was claimed, or the version at which the clock started.
    pub(super) last_version: i64,
    /// Distinguishes this store from every other.
    pub(super) id: [u8; 16],
    /// The total bytes of the keys and values in the tree, `None` for a store of format 1, which does not
    /// record it.
    pub(super) live_bytes: Option<u64>,
    /// The log with the commits that are not in the tree, `None` if all are in the tree.
    pub(super) log: Option<LogStart>,
}

/// The start of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogStart {
    pub(super) id: [u8; 16],
    pub(super) start: Start,
}

impl Meta {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.last_version.to_be_bytes());
        bytes.extend_from_slice(&self.id);
        let live_bytes = self
            .live_bytes
            .expect("the rows were counted when the store was opened");
        bytes.extend_from_slice(&live_bytes.to_be_bytes());
        bytes.push(u8::from(self.log.is_some()));
        if let Some(log) = &self.log {
            bytes.extend_from_slice(&log.id);
            bytes.extend_from_slice(&log.start.segment.to_be_bytes());
            bytes.extend_from_slice(&log.start.frame.to_be_bytes());
        }
        bytes
    }

    /// Decodes the record of the store at `path`.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Self, OpenError> {
        let mut fields = Fields::new(bytes);
        let decoded = match fields.u32() {
            Ok(format @ 1..=FORMAT) => decode(&mut fields, format),
            Ok(0) => Err("its format is 0".to_owned()),
            Ok(found) => {
                return Err(OpenError::NewerFormat {
                    path: path.to_owned(),
                    found,
                    supported: FORMAT,
                });
            }
            Err(reason) => Err(reason),
        };
        decoded.map_err(|reason| {
            let reason = format!("expected the store's own record: {reason}");
            OpenError::Store(Error::corrupt(META_KEY.as_bytes(), reason))
        })
    }
}

fn decode(fields: &mut Fields<'_>, format: u32) -> Result<Meta, String> {
    let last_version = i64::from_be_bytes(fields.array()?);
    if !(0..=MAX_VERSION).contains(&last_version) {
        return Err(format!("its version is {last_version}"));
    }
    let id = fields.array()?;
    let live_bytes = match format {
        1 => None,
        _ => Some(fields.u64()?),
    };
    let has_log = match format {
        1 => 0,
        _ => fields.array::<1>()?[0],
    };
    let log = match has_log {
        0 => None,
        1 => Some(LogStart {
            id: fields.array()?,
            start: Start {
                segment: fields.u64()?,
                frame: fields.u64()?,
            },
        }),
        found => return Err(format!("it has {found} logs")),
    };
    fields.end()?;
    Ok(Meta {
        last_version,
        id,
        live_bytes,
        log,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Meta = Meta {
        last_version: 0x0102,
        id: [0xee; 16],
        live_bytes: Some(0x060708),
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

    fn golden() -> Vec<u8> {
        let first = [&[0, 0, 0, 2][..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0xee; 16]].concat();
        let closed = [&first[..], &[0, 0, 0, 0, 0, 6, 7, 8]].concat();
        let log = [
            [0xdd; 16].as_slice(),
            b"\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x04\x05",
        ]
        .concat();
        [closed, vec![1], log].concat()
    }

    #[test]
    fn the_record_of_a_store_has_these_bytes() {
        assert_eq!(META.encode(), golden());
        assert_eq!(decode(&golden()).unwrap(), META);
        let closed = [&golden()[..36], &[0]].concat();
        assert_eq!(CLOSED.encode(), closed);
        assert_eq!(decode(&closed).unwrap(), CLOSED);
    }

    #[test]
    fn a_record_of_format_1_has_no_log() {
        let mut first = golden();
        first.truncate(28);
        first[3] = 1;
        let expected = Meta {
            live_bytes: None,
            ..CLOSED
        };
        assert_eq!(decode(&first).unwrap(), expected);
    }

    #[test]
    fn a_record_of_any_other_shape_is_corrupt() {
        let good = golden();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let mut bad = vec![with(4, 0x80), with(4, 0x7f), with(3, 0), with(36, 2)];
        bad.push([&good[..], &[0]].concat());
        bad.extend((0..good.len()).map(|len| good[..len].to_vec()));
        for bytes in bad {
            let error = decode(&bytes).unwrap_err();
            assert!(
                matches!(&error, OpenError::Store(Error::Corrupt { reason, .. }) if reason.starts_with("expected")),
                "{bytes:02x?}: {error}"
            );
        }
    }

    #[test]
    fn a_newer_format_is_named_whatever_follows_it() {
        let error = decode(&[0, 0, 0, 3, 99]).unwrap_err();
        let text = "store queue.redb has format 3, this version reads up to 2: upgrade the library";
        assert_eq!(error.to_string(), text);
    }
}
