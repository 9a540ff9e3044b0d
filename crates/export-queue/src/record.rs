//! The values of an export queue. The module of the keys has their layout.

use std::fmt;

use combine::Settings;
use combine::hc_dequeue::session::SessionId;
use combine::keyspace::codec::{Codec, DecodeError};
use combine::keyspace::recipe::StoredSettings;
use combine::keyspace::record::{self, Fields, SHORT_BYTES, push_text};
use combine::keyspace::{self, Bytes, Result, limits};

use crate::sequence::{SEQUENCE_BYTES, Sequence};

/// The largest entry, key and value together, in bytes as encoded: it fits a dead letter with any
/// reason.
pub const MAX_ENTRY_BYTES: usize = limits::VALUE_BYTES - 10 - SHORT_BYTES;

const FORMAT: u8 = 1;

/// A key and a value, as their codecs wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
}

/// The codec of [`Entry`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EntryCodec;

impl Codec<Entry> for EntryCodec {
    const NAME: &'static str = "an entry";

    fn encode(&self, entry: &Entry, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        let length = u32::try_from(entry.key.len()).map_err(|_| keyspace::Error::Encode {
            codec: Self::NAME,
            reason: "the length of its key does not fit 32 bits".to_owned(),
        })?;
        buffer.extend_from_slice(&length.to_be_bytes());
        buffer.extend_from_slice(&entry.key);
        buffer.extend_from_slice(&entry.value);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Entry, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let entry = (|| {
            let length = usize::try_from(fields.u32()?).map_err(|error| error.to_string())?;
            let key = fields.take(length)?;
            Ok(Entry {
                key: bytes.slice_ref(key),
                value: bytes.slice_ref(fields.rest()),
            })
        })();
        entry.map_err(|reason| DecodeError {
            codec: Self::NAME,
            reason,
        })
    }
}

/// What a queue was created with, or opened with, and the names of its subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsRecord {
    /// The settings.
    pub settings: Settings,
    /// The names of the codecs of key and value.
    pub codecs: [String; 2],
    /// The names of the subscriptions, in order. Handles need not agree on them.
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

    fn agrees_with(&self, stored: &Self) -> bool {
        self.settings == stored.settings && self.codecs == stored.codecs
    }
}

/// Returns the record of a position.
pub(crate) fn encode_position(position: &Sequence) -> Vec<u8> {
    let mut value = vec![FORMAT];
    value.extend_from_slice(&position.to_bytes());
    value
}

/// Returns where, in the record of a position, its versionstamp lies.
pub(crate) const POSITION_STAMP: u32 = 1;

/// Returns the position that is stored under a key. `None`: nothing is exported yet.
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

/// Returns the session that has the claim under a key. `None`: none has.
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

/// What a dead letter holds beside its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) failures: u32,
    pub(crate) reason: String,
    pub(crate) entry: Entry,
}

impl Letter {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.failures.to_be_bytes());
        push_text(&mut value, &self.reason);
        EntryCodec.encode(&self.entry, &mut value)?;
        Ok(value)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(value);
        let letter = (|| {
            fields.format(FORMAT)?;
            let failures = fields.u32()?;
            let reason = fields.text()?.to_owned();
            let entry = EntryCodec.decode(value.slice_ref(fields.rest()));
            Ok::<_, String>(Self {
                failures,
                reason,
                entry: entry.map_err(|error| error.to_string())?,
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

    use super::*;

    fn entry() -> Entry {
        Entry {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
        }
    }

    #[test]
    fn entries_and_dead_letters_have_these_bytes() {
        let mut bytes = Vec::new();
        EntryCodec.encode(&entry(), &mut bytes).unwrap();
        assert_eq!(bytes, b"\0\0\0\x03keyvalue");
        let decoded = EntryCodec.decode(bytes.into()).unwrap();
        assert_eq!(decoded, entry());
        for damaged in [&b"\0\0\0"[..], b"\0\0\0\x04key"] {
            assert!(EntryCodec.decode(Bytes::copy_from_slice(damaged)).is_err());
        }

        let letter = Letter {
            failures: 7,
            reason: "why".to_owned(),
            entry: entry(),
        };
        let bytes = letter.encode().unwrap();
        assert_eq!(bytes, b"\x01\0\0\0\x07\x03why\0\0\0\x03keyvalue");
        assert_eq!(Letter::decode(&bytes.clone().into()).unwrap(), letter);
        for length in 0..15 {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(Letter::decode(&cut).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn positions_and_claims_have_these_bytes() {
        let position = Sequence::new(Versionstamp::from_bytes([8; 10]), 9);
        let bytes = [&[1][..], &[8; 10], b"\0\0\0\0\0\0\0\x09"].concat();
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
            &[2; 19],
            &[2; 17],
            &[1; 20],
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
                .bucket_count(7)
                .lease(Duration::from_millis(2)),
            codecs: ["K", "Val"].map(str::to_owned),
            subscriptions: vec!["a".to_owned(), "bc".to_owned()],
        };
        let bytes = b"\x01\0\0\0\x07\0\0\0\0\0\0\0\x02\x01K\x03Val\x01a\x02bc";
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
    fn the_largest_entry_fits_a_dead_letter_with_any_reason() {
        let letter = Letter {
            failures: u32::MAX,
            reason: "x".repeat(1000),
            entry: Entry {
                key: vec![1; 1000].into(),
                value: vec![2; MAX_ENTRY_BYTES - 1000].into(),
            },
        };
        assert_eq!(letter.encode().unwrap().len(), limits::VALUE_BYTES);
        let mut bytes = vec![1];
        EntryCodec.encode(&letter.entry, &mut bytes).unwrap();
        assert!(bytes.len() <= limits::VALUE_BYTES);
    }
}
