//! The values of a combine queue. The module `keys` describes their layout.

use hc_dequeue::keyspace::codec::DecodeError;
use hc_dequeue::keyspace::record::{self, Fields, push_text};
use hc_dequeue::keyspace::{Bytes, Result, limits};
use hc_dequeue::microqueue::blocks::{ENTRY_ID_BYTES, EntryId, MAX_ENTRY_BYTES};

/// The largest update, in encoded bytes together with its key. It fits a block, and a record that sets it
/// aside with a reason of any length.
pub const MAX_UPDATE_BYTES: usize = MAX_ENTRY_BYTES;

/// The largest value, in encoded bytes.
pub const MAX_VALUE_BYTES: usize = limits::MAX_VALUE_BYTES - 2;

const FORMAT: u8 = 1;

/// The flags of a current value.
const HAS_VALUE: u8 = 1;
const IS_WITHHELD: u8 = 2;

/// The flags of the state of the passes.
const HAS_CURRENT: u8 = 1;
const HAS_TO_REPORT: u8 = 2;

/// Fails if a newer version of the library has written the record of a value or a current value.
pub(crate) fn refuse_newer(key: &[u8], stored: &[u8]) -> Result<()> {
    record::refuse_newer(key, stored, FORMAT)
}

/// Returns the record of a value as it was reported.
pub(crate) fn encode_value(value: &[u8]) -> Vec<u8> {
    [&[FORMAT], value].concat()
}

/// Returns the value in a stored record.
pub(crate) fn decode_value(key: &[u8], stored: &Bytes) -> Result<Bytes> {
    record::decode(key, stored, FORMAT, |fields| {
        Ok(stored.slice_ref(fields.rest()))
    })
}

/// A value that differs from the one last reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Current {
    /// The codec's bytes, or `None` if the key has no value.
    pub(crate) bytes: Option<Bytes>,
    /// Whether its reports are withheld, because the change alone does not fit a transaction or does not
    /// decode.
    pub(crate) is_withheld: bool,
}

impl Current {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let bytes = self.bytes.as_deref();
        let has_value = HAS_VALUE * u8::from(bytes.is_some());
        let flags = has_value + IS_WITHHELD * u8::from(self.is_withheld);
        [&[FORMAT, flags], bytes.unwrap_or_default()].concat()
    }

    pub(crate) fn decode(key: &[u8], stored: &Bytes) -> Result<Self> {
        record::decode(key, stored, FORMAT, |fields| {
            let [flags] = fields.array()?;
            if flags > HAS_VALUE + IS_WITHHELD {
                return Err(format!("there are no flags {flags:#x}"));
            }
            let bytes = match flags & HAS_VALUE {
                0 => {
                    fields.end()?;
                    None
                }
                _ => Some(stored.slice_ref(fields.rest())),
            };
            let is_withheld = flags & IS_WITHHELD != 0;
            Ok(Self { bytes, is_withheld })
        })
    }
}

/// The state of the passes over a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PassState {
    /// Whether some keys have a current value that is not reported.
    pub(crate) has_current: bool,
    /// Whether some of these can be reported.
    pub(crate) has_to_report: bool,
    /// The read version of the last pass. It makes every pass change the state.
    pub(crate) last: i64,
    /// The read version of the last pass that left nothing to report, or 0 if there was none.
    pub(crate) complete: i64,
    /// The first update that is not folded, if other updates of its block are.
    pub(crate) position: Option<EntryId>,
}

impl PassState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let has_current = HAS_CURRENT * u8::from(self.has_current);
        let flags = has_current + HAS_TO_REPORT * u8::from(self.has_to_report);
        let mut value = vec![FORMAT, flags];
        value.extend_from_slice(&self.last.to_be_bytes());
        value.extend_from_slice(&self.complete.to_be_bytes());
        if let Some(position) = &self.position {
            value.extend_from_slice(&position.to_bytes());
        }
        value
    }

    /// Returns the state in a stored record. Without a record, there was no pass.
    pub(crate) fn decode(key: &[u8], stored: Option<&[u8]>) -> Result<Self> {
        let Some(stored) = stored else {
            return Ok(Self::default());
        };
        record::decode(key, stored, FORMAT, |fields| {
            let [flags] = fields.array()?;
            if flags > HAS_CURRENT + HAS_TO_REPORT {
                return Err(format!("there are no flags {flags:#x}"));
            }
            let last = fields.array()?;
            let complete = fields.array()?;
            let position = match fields.rest() {
                [] => None,
                _ => {
                    let id: [u8; ENTRY_ID_BYTES] = fields.array()?;
                    fields.end()?;
                    Some(EntryId::try_from(&id[..]).map_err(|error| error.to_string())?)
                }
            };
            Ok(Self {
                has_current: flags & HAS_CURRENT != 0,
                has_to_report: flags & HAS_TO_REPORT != 0,
                last: i64::from_be_bytes(last),
                complete: i64::from_be_bytes(complete),
                position,
            })
        })
    }
}

/// A record of what was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AsideRecord {
    pub(crate) reason: String,
    /// The bytes after the reason.
    pub(crate) rest: Bytes,
}

impl AsideRecord {
    pub(crate) fn decode(stored: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(stored);
        let aside = (|| {
            fields.format(FORMAT)?;
            Ok::<_, String>(Self {
                reason: fields.text()?.to_owned(),
                rest: stored.slice_ref(fields.rest()),
            })
        })();
        aside.map_err(decode_error)
    }

    /// Returns the key and the update of an update that was set aside.
    pub(crate) fn update(&self) -> Result<(Bytes, Bytes), DecodeError> {
        let mut fields = Fields::new(&self.rest);
        let update = (|| {
            let length = usize::try_from(fields.u32()?).map_err(|error| error.to_string())?;
            let key = self.rest.slice_ref(fields.take(length)?);
            Ok::<_, String>((key, self.rest.slice_ref(fields.rest())))
        })();
        update.map_err(decode_error)
    }

    /// Returns how many of the first updates of a block that was set aside are folded, and the block.
    pub(crate) fn block(&self) -> Result<(u16, Bytes), DecodeError> {
        let mut fields = Fields::new(&self.rest);
        let block = (|| {
            let folded = u16::from_be_bytes(fields.array()?);
            Ok::<_, String>((folded, self.rest.slice_ref(fields.rest())))
        })();
        block.map_err(decode_error)
    }
}

fn decode_error(reason: String) -> DecodeError {
    DecodeError {
        codec: "a record set aside",
        reason,
    }
}

/// Returns the record of an update that is set aside.
pub(crate) fn encode_update_aside(reason: &str, key: &[u8], update: &[u8]) -> Vec<u8> {
    let mut value = encode_withheld(reason);
    let length = u32::try_from(key.len()).expect("a key is shorter than a value of the store");
    value.extend_from_slice(&length.to_be_bytes());
    value.extend_from_slice(key);
    value.extend_from_slice(update);
    value
}

/// Returns the record of a key whose reports are withheld.
pub(crate) fn encode_withheld(reason: &str) -> Vec<u8> {
    let mut value = vec![FORMAT];
    push_text(&mut value, reason);
    value
}

/// Returns the record of a block that is set aside after some of its first updates were folded.
///
/// The record fits a value of the store, since no block is longer than the space left for it. A longer
/// block, written by other software, is truncated.
pub(crate) fn encode_block_aside(reason: &str, folded: u16, block: &[u8]) -> Vec<u8> {
    let mut value = encode_withheld(reason);
    value.extend_from_slice(&folded.to_be_bytes());
    let room = limits::MAX_VALUE_BYTES - value.len();
    value.extend_from_slice(&block[..block.len().min(room)]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use hc_dequeue::keyspace::Versionstamp;
    use hc_dequeue::keyspace::record::MAX_SHORT_BYTES;
    use hc_dequeue::microqueue::blocks::MAX_BLOCK_BYTES;

    #[test]
    fn values_have_these_bytes() {
        assert_eq!(encode_value(b"value"), b"\x01value");
        let stored = Bytes::from_static(b"\x01value");
        assert_eq!(decode_value(b"key", &stored).unwrap(), &b"value"[..]);
        for damaged in [&b""[..], b"\0value", b"\x02value"] {
            assert!(decode_value(b"key", &Bytes::from_static(damaged)).is_err());
        }
        let current = |bytes: Option<&'static [u8]>, is_withheld| Current {
            bytes: bytes.map(Bytes::from_static),
            is_withheld,
        };
        for (current, bytes) in [
            (current(None, false), &b"\x01\0"[..]),
            (current(Some(b""), false), b"\x01\x01"),
            (current(Some(b"value"), false), b"\x01\x01value"),
            (current(None, true), b"\x01\x02"),
            (current(Some(b"value"), true), b"\x01\x03value"),
        ] {
            assert_eq!(current.encode(), bytes);
            let decoded = Current::decode(b"key", &Bytes::copy_from_slice(bytes));
            assert_eq!(decoded.unwrap(), current);
        }
        for damaged in [&b""[..], b"\x01", b"\x01\x04", b"\x01\0value", b"\x02\x01"] {
            assert!(Current::decode(b"key", &Bytes::from_static(damaged)).is_err());
        }
    }

    #[test]
    fn states_of_passes_have_these_bytes() {
        let position = EntryId {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
            index: 3,
        };
        let state = PassState {
            has_current: true,
            has_to_report: false,
            last: 0x0102,
            complete: 0x0304,
            position: Some(position),
        };
        let versions = b"\x01\x01\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04";
        let bytes = [&versions[..], &[8; 10], b"\0\0\0\0\0\0\0\x09\0\x03"].concat();
        assert_eq!(state.encode(), bytes);
        assert_eq!(PassState::decode(b"key", Some(&bytes)).unwrap(), state);
        let without = PassState {
            position: None,
            ..state
        };
        assert_eq!(without.encode(), versions);
        assert_eq!(PassState::decode(b"key", Some(versions)).unwrap(), without);
        assert_eq!(
            PassState::decode(b"key", None).unwrap(),
            PassState::default()
        );
        for length in (0..bytes.len()).filter(|length| *length != versions.len()) {
            assert!(PassState::decode(b"key", Some(&bytes[..length])).is_err());
        }
        let flags = [&b"\x01\x04"[..], &versions[2..]].concat();
        assert!(PassState::decode(b"key", Some(&flags)).is_err());
    }

    #[test]
    fn records_set_aside_have_these_bytes() {
        let update = encode_update_aside("why", b"key", b"update");
        assert_eq!(update, b"\x01\x03why\0\0\0\x03keyupdate");
        let decoded = AsideRecord::decode(&update.into()).unwrap();
        assert_eq!(decoded.reason, "why");
        assert_eq!(decoded.update().unwrap(), ("key".into(), "update".into()));
        let block = encode_block_aside("why", 0x0102, b"\x09block");
        assert_eq!(block, b"\x01\x03why\x01\x02\x09block");
        let decoded = AsideRecord::decode(&block.into()).unwrap();
        assert_eq!(decoded.block().unwrap(), (0x0102, "\x09block".into()));
        assert!(decoded.update().is_err());
        let withheld = encode_withheld("why");
        assert_eq!(withheld, b"\x01\x03why");
        let decoded = AsideRecord::decode(&withheld.into()).unwrap();
        assert!(decoded.rest.is_empty() && decoded.block().is_err());
        for damaged in [&b""[..], b"\x01", b"\x01\x03wh", b"\x02\0"] {
            assert!(AsideRecord::decode(&Bytes::from_static(damaged)).is_err());
        }
    }

    #[test]
    fn the_largest_update_and_block_can_be_set_aside_with_any_reason() {
        let reason = "r".repeat(2 * MAX_SHORT_BYTES);
        let update = encode_update_aside(&reason, b"", &vec![0; MAX_UPDATE_BYTES]);
        let block = encode_block_aside(&reason, 1, &vec![0; MAX_BLOCK_BYTES]);
        assert!(update.len() <= limits::MAX_VALUE_BYTES);
        assert!(block.len() <= limits::MAX_VALUE_BYTES);
        assert!(block.ends_with(&[0; MAX_BLOCK_BYTES]));
        let foreign = encode_block_aside(&reason, 1, &vec![0; limits::MAX_VALUE_BYTES]);
        assert_eq!(foreign.len(), limits::MAX_VALUE_BYTES);
    }
}
