//! The values of an export queue. The module `keys` describes their layout.

use std::fmt;

use combine::Settings;
use combine::hc_dequeue::session::SessionId;
use combine::keyspace::codec::DecodeError;
use combine::keyspace::recipe::StoredSettings;
use combine::keyspace::record::{self, Fields, push_text};
use combine::keyspace::{Bytes, Result, limits};
use combine::microqueue::blocks::{self, Entry};

use crate::sequence::{SEQUENCE_BYTES, Sequence};

/// The largest entry, in encoded bytes of key and value together. It fits a block, and a dead letter with
/// a reason of any length.
pub const MAX_ENTRY_BYTES: usize = blocks::MAX_ENTRY_BYTES;

const FORMAT: u8 = 1;

/// The settings and codecs that a queue was created or opened with, and the names of its subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsRecord {
    /// The settings.
    pub settings: Settings,
    /// The names of the codecs of keys and values.
    pub codecs: [String; 2],
    /// The names of the subscriptions, sorted. Handles may differ in them.
    pub subscriptions: Vec<String>,
}

impl fmt::Display for SettingsRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, value] = &self.codecs;
        write!(
            f,
            "{}, and the codecs {key} for keys and {value} for values",
            self.settings
        )
    }
}

impl StoredSettings for SettingsRecord {
    const RECIPE: &'static str = "export-queue";

    fn codecs(&self) -> Vec<&str> {
        self.codecs.iter().map(String::as_str).collect()
    }

    fn write(&self, record: &mut Vec<u8>) {
        self.settings.write(record);
        for text in self.codecs.iter().chain(&self.subscriptions) {
            push_text(record, text);
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        let settings = Settings::read(fields)?;
        let codecs = [fields.text()?, fields.text()?].map(str::to_owned);
        let mut subscriptions = Vec::new();
        while !fields.rest().is_empty() {
            subscriptions.push(fields.text()?.to_owned());
        }
        Ok(Self {
            settings,
            codecs,
            subscriptions,
        })
    }

    /// A handle uses the stored settings and subscriptions, but its codec must be the one that wrote the rows.
    fn agrees_with(&self, stored: &Self) -> bool {
        self.codecs == stored.codecs
    }
}

/// Returns the record of a position.
pub(crate) fn encode_position(position: &Sequence) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend_from_slice(&position.to_bytes());
    value
}

/// The offset of the versionstamp in the record of a position.
pub(crate) const POSITION_STAMP: u32 = 1;

/// Returns the position in a stored record, or `None` if nothing is exported yet.
pub(crate) fn decode_position(key: &[u8], stored: Option<&[u8]>) -> Result<Option<Sequence>> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    let position = record::decode(key, stored, FORMAT, |fields| {
        let bytes: [u8; SEQUENCE_BYTES] = fields.array()?;
        fields.end()?;
        Sequence::try_from(&bytes[..]).map_err(|error| error.to_string())
    });
    position.map(Some)
}

/// Returns the record of a claim.
pub(crate) fn encode_claim(session: SessionId) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend_from_slice(&session.0);
    value
}

/// Returns the session that has the claim, or `None` if no session has it.
pub(crate) fn decode_claim(key: &[u8], stored: Option<&[u8]>) -> Result<Option<SessionId>> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    let claim = record::decode(key, stored, FORMAT, |fields| {
        let session = SessionId(fields.array()?);
        fields.end()?;
        Ok(session)
    });
    claim.map(Some)
}

/// The contents of a dead letter, apart from its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadLetterRecord {
    pub(crate) failures: u32,
    pub(crate) reason: String,
    pub(crate) kept: Kept,
}

/// The entry or block that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    Entry(Entry),
    /// A block that did not decode.
    Block {
        /// How many of its first entries were exported before.
        exported: u16,
        bytes: Bytes,
    },
}

impl DeadLetterRecord {
    /// Returns the record. It fits a value of the store, since no block of a queue is longer than the
    /// space left for it. A longer block, written by other software, is truncated.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.failures.to_be_bytes());
        push_text(&mut value, &self.reason);
        match &self.kept {
            Kept::Entry(Entry {
                key, value: bytes, ..
            }) => {
                let length = u32::try_from(key.len()).expect("a key is shorter than a block");
                value.extend_from_slice(&length.to_be_bytes());
                value.extend_from_slice(key);
                value.extend_from_slice(bytes);
            }
            Kept::Block { exported, bytes } => {
                value.extend_from_slice(&exported.to_be_bytes());
                let room = limits::MAX_VALUE_BYTES - value.len();
                value.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
        value
    }

    /// Returns the dead letter with this sequence.
    pub(crate) fn decode(sequence: &Sequence, stored: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(stored);
        let letter = (|| {
            fields.format(FORMAT)?;
            let failures = fields.u32()?;
            let reason = fields.text()?.to_owned();
            let kept = if sequence.is_of_block() {
                Kept::Block {
                    exported: u16::from_be_bytes(fields.array()?),
                    bytes: stored.slice_ref(fields.rest()),
                }
            } else {
                let length = usize::try_from(fields.u32()?).map_err(|error| error.to_string())?;
                let key = stored.slice_ref(fields.take(length)?);
                let value = stored.slice_ref(fields.rest());
                Kept::Entry(Entry { key, value })
            };
            Ok::<_, String>(Self {
                failures,
                reason,
                kept,
            })
        })();
        letter.map_err(|reason| DecodeError {
            codec: "a dead letter",
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use combine::keyspace::Versionstamp;
    use combine::keyspace::record::MAX_SHORT_BYTES;
    use combine::microqueue::blocks::{EntryId, MAX_BLOCK_BYTES, WHOLE_BLOCK};

    use super::*;

    fn sequence(index: u16) -> Sequence {
        Sequence::of(EntryId {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
            index,
        })
    }

    #[test]
    fn dead_letters_have_these_bytes() {
        let entry = Entry {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
        };
        let letter = |kept| DeadLetterRecord {
            failures: 7,
            reason: "why".to_owned(),
            kept,
        };
        let of_entry = sequence(2);
        let of_block = sequence(WHOLE_BLOCK);
        let entry = letter(Kept::Entry(entry));
        let bytes = entry.encode();
        assert_eq!(bytes, b"\x01\0\0\0\x07\x03why\0\0\0\x03keyvalue");
        let decoded = DeadLetterRecord::decode(&of_entry, &bytes.clone().into());
        assert_eq!(decoded.unwrap(), entry);
        for length in 0..15 {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(
                DeadLetterRecord::decode(&of_entry, &cut).is_err(),
                "{length} bytes"
            );
        }

        let block = letter(Kept::Block {
            exported: 0x0102,
            bytes: Bytes::from_static(b"no block"),
        });
        let bytes = block.encode();
        assert_eq!(bytes, b"\x01\0\0\0\x07\x03why\x01\x02no block");
        let decoded = DeadLetterRecord::decode(&of_block, &bytes.clone().into());
        assert_eq!(decoded.unwrap(), block);
        for length in 0..11 {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(
                DeadLetterRecord::decode(&of_block, &cut).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn positions_and_claims_have_these_bytes() {
        let position = sequence(0x0102);
        let bytes = [&[1][..], &[8; 10], b"\0\0\0\0\0\0\0\x09\x01\x02"].concat();
        assert_eq!(encode_position(&position), bytes);
        assert_eq!(
            decode_position(b"key", Some(&bytes)).unwrap(),
            Some(position)
        );
        assert_eq!(decode_position(b"key", None).unwrap(), None);
        let claim = [&[1][..], &[7; 16]].concat();
        assert_eq!(encode_claim(SessionId([7; 16])), claim);
        let decoded = decode_claim(b"key", Some(&claim)).unwrap();
        assert_eq!(decoded, Some(SessionId([7; 16])));
        assert_eq!(decode_claim(b"key", None).unwrap(), None);
        for damaged in [
            &b""[..],
            &b"\x01"[..],
            &[2; 21],
            &[2; 17],
            &[1; 19],
            &[1; 20],
            &[1; 22],
            &[1; 18],
        ] {
            assert!(decode_position(b"key", Some(damaged)).is_err());
            assert!(decode_claim(b"key", Some(damaged)).is_err());
        }
    }

    #[test]
    fn settings_have_these_bytes() {
        let stored = SettingsRecord {
            settings: Settings::new()
                .with_bucket_count(7)
                .with_lease(Duration::from_millis(0x0102)),
            codecs: ["K", "Val"].map(str::to_owned),
            subscriptions: vec!["a".to_owned(), "bc".to_owned()],
        };
        let bytes = b"\x01\0\0\0\x07\0\0\0\0\0\0\x01\x02\x01K\x03Val\x01a\x02bc";
        assert_eq!(stored.encode(), bytes);
        assert_eq!(SettingsRecord::decode(b"key", bytes).unwrap(), stored);
        for length in (0..19).chain([20, 22, 23]) {
            assert!(
                SettingsRecord::decode(b"key", &bytes[..length]).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn the_largest_entry_and_the_largest_block_fit_a_dead_letter() {
        let letter = |reason_bytes: usize, kept| DeadLetterRecord {
            failures: u32::MAX,
            reason: "x".repeat(reason_bytes),
            kept,
        };
        let entry = Entry {
            key: vec![1; 1000].into(),
            value: vec![2; MAX_ENTRY_BYTES - 1000].into(),
        };
        let of_entry = letter(1000, Kept::Entry(entry)).encode();
        assert!(of_entry.len() <= limits::MAX_VALUE_BYTES);
        assert_eq!(of_entry.len(), 10 + MAX_SHORT_BYTES + MAX_ENTRY_BYTES);

        let block = |bytes| Kept::Block {
            exported: 1,
            bytes: vec![1; bytes].into(),
        };
        let largest = letter(1000, block(MAX_BLOCK_BYTES)).encode();
        assert_eq!(largest.len(), limits::MAX_VALUE_BYTES);
        assert!(largest.ends_with(&[1; MAX_BLOCK_BYTES]));
        let foreign = letter(1000, block(limits::MAX_VALUE_BYTES)).encode();
        assert_eq!(foreign.len(), limits::MAX_VALUE_BYTES);
    }
}
