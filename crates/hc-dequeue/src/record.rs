//! What the queue stores under its keys. The [schema](crate::keys) has the bytes.

use microqueue::keyspace::codec::{Codec, DecodeError};
use microqueue::keyspace::record::{self, Fields, push_short};
use microqueue::keyspace::{self, Bytes, Result, Versionstamp, limits};
use microqueue::{Item, ItemId};

use crate::session::SessionId;

/// The format number of all records.
const FORMAT: u8 = 1;

/// The bytes of a record without its dedupe id, its extension and its payload.
const ENVELOPE_BYTES: usize = 23;

/// What a grant adds to the record of an item.
const PART_BYTES: usize = 23;

/// The longest dedupe id.
pub const MAX_DEDUPE_BYTES: usize = 255;

/// The longest extension.
const MAX_EXTENSION_BYTES: usize = 255;

/// The largest payload: what a value may have, without what a grant adds to a record and without the
/// largest envelope. An item keeps its envelope's size wherever it goes, so that what fits a grant fits
/// every other place too, also with the fields of versions to come.
pub const MAX_PAYLOAD_BYTES: usize =
    limits::VALUE_BYTES - PART_BYTES - ENVELOPE_BYTES - MAX_DEDUPE_BYTES - MAX_EXTENSION_BYTES;

/// An item wherever it is: queued, delayed, held or dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) attempts: u32,
    pub(crate) grant: u64,
    pub(crate) enqueued_millis: u64,
    /// Empty for none.
    pub(crate) dedupe: Bytes,
    /// Fields of versions to come. No other module can name it, so that a record keeps it wherever
    /// it goes.
    extension: Bytes,
    pub(crate) payload: Bytes,
}

impl Record {
    /// Returns the record of an item that has never been granted.
    pub(crate) fn new(enqueued_millis: u64, dedupe: Bytes, payload: Bytes) -> Self {
        Self {
            attempts: 0,
            grant: 0,
            enqueued_millis,
            dedupe,
            extension: Bytes::new(),
            payload,
        }
    }
}

/// The codec of [`Record`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecordCodec;

impl Codec<Record> for RecordCodec {
    const NAME: &'static str = "a record";

    fn encode(&self, record: &Record, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.push(FORMAT);
        buffer.extend_from_slice(&record.attempts.to_be_bytes());
        buffer.extend_from_slice(&record.grant.to_be_bytes());
        buffer.extend_from_slice(&record.enqueued_millis.to_be_bytes());
        for field in [&record.dedupe, &record.extension] {
            push_short(buffer, field).map_err(|reason| keyspace::Error::Encode {
                codec: Self::NAME,
                reason,
            })?;
        }
        buffer.extend_from_slice(&record.payload);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Record, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let record = (|| {
            fields.format(FORMAT)?;
            let attempts = u32::from_be_bytes(fields.array()?);
            let grant = u64::from_be_bytes(fields.array()?);
            let enqueued_millis = u64::from_be_bytes(fields.array()?);
            let dedupe = fields.short()?;
            let extension = fields.short()?;
            Ok(Record {
                attempts,
                grant,
                enqueued_millis,
                dedupe: bytes.slice_ref(dedupe),
                extension: bytes.slice_ref(extension),
                payload: bytes.slice_ref(fields.rest()),
            })
        })();
        record.map_err(|reason| undecodable(Self::NAME, reason))
    }
}

/// Somebody's wish for items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    pub(crate) wanted: u32,
}

/// The codec of [`Request`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCodec;

impl Codec<Request> for RequestCodec {
    const NAME: &'static str = "a request";

    fn encode(&self, request: &Request, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        buffer.push(FORMAT);
        buffer.extend_from_slice(&request.session.0);
        buffer.extend_from_slice(&request.wanted.to_be_bytes());
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Request, DecodeError> {
        let mut fields = Fields::new(&bytes);
        let request = (|| {
            fields.format(FORMAT)?;
            let session = SessionId(fields.array()?);
            let wanted = u32::from_be_bytes(fields.array()?);
            fields.end()?;
            Ok(Request { session, wanted })
        })();
        request.map_err(|reason| undecodable(Self::NAME, reason))
    }
}

/// What a request is told that has become the first, in the place of an answer.
pub(crate) const TURN: [u8; 1] = [FORMAT];

/// Returns whether the first row of a grant is no answer, but tells its request that it has become the
/// first.
pub(crate) fn is_turn(value: &[u8]) -> bool {
    value == TURN
}

/// A row of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// How many rows the grant has.
    pub(crate) parts: u32,
    pub(crate) item: Item<Record>,
}

impl Part {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.parts.to_be_bytes());
        if let ItemId::Commit { versionstamp, call } = self.item.id {
            value.extend_from_slice(versionstamp.as_bytes());
            value.extend_from_slice(&call.to_be_bytes());
        }
        RecordCodec.encode(&self.item.value, &mut value)?;
        Ok(value)
    }

    pub(crate) fn decode(key: &[u8], value: Bytes) -> Result<Self> {
        record::decode(key, &value, FORMAT, |fields| {
            let parts = fields.u32()?;
            let id = ItemId::Commit {
                versionstamp: Versionstamp::from_bytes(fields.array()?),
                call: fields.u64()?,
            };
            let record = RecordCodec.decode(value.slice_ref(fields.rest()));
            let value = record.map_err(|error| error.reason)?;
            let item = Item { id, value };
            Ok(Self { parts, item })
        })
    }
}

fn undecodable(codec: &'static str, reason: String) -> DecodeError {
    DecodeError { codec, reason }
}

#[cfg(test)]
mod tests {
    use conformance::scale;
    use microqueue::keyspace::recipe::StoredSettings;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::settings::SettingsRecord;

    fn record() -> Record {
        Record {
            attempts: 2,
            grant: 3,
            enqueued_millis: 4,
            dedupe: Bytes::from_static(b"id"),
            extension: Bytes::from_static(b"new"),
            payload: Bytes::from_static(b"payload"),
        }
    }

    fn encoded(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        RecordCodec.encode(record, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_record_has_the_bytes_of_the_schema() {
        let mut expected = vec![1, 0, 0, 0, 2];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 4]);
        expected.extend(b"\x02id\x03newpayload");
        assert_eq!(encoded(&record()), expected);
        assert_eq!(RecordCodec.decode(expected.into()).unwrap(), record());

        let new = Record::new(4, Bytes::new(), Bytes::from_static(b"payload"));
        let mut expected = vec![1];
        expected.extend([0; 4 + 8 + 7]);
        expected.extend(b"\x04\0\0payload");
        assert_eq!(encoded(&new), expected);
    }

    #[test]
    fn a_request_a_grant_and_a_state_have_the_bytes_of_the_schema() {
        let request = Request {
            session: SessionId([7; 16]),
            wanted: 5,
        };
        let mut bytes = Vec::new();
        RequestCodec.encode(&request, &mut bytes).unwrap();
        assert_eq!(bytes, [&[1][..], &[7; 16], &[0, 0, 0, 5]].concat());
        assert_eq!(RequestCodec.decode(bytes.into()).unwrap(), request);

        let item = ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
        };
        let part = Part {
            parts: 2,
            item: Item {
                id: item,
                value: record(),
            },
        };
        let bytes = part.encode().unwrap();
        let expected = [&[1, 0, 0, 0, 2][..], &[8; 10], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
        assert_eq!(bytes, [expected, encoded(&record())].concat());
        assert!(is_turn(&[1]) && !is_turn(&bytes));
        assert_eq!(Part::decode(b"key", bytes.into()).unwrap(), part);
    }

    #[test]
    fn what_is_cut_off_or_of_another_format_is_refused() {
        let whole = encoded(&record());
        for length in 0..whole.len() - record().payload.len() {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            assert!(RecordCodec.decode(cut).is_err(), "{length} bytes");
        }
        for format in [0, 2, 255] {
            let mut other = whole.clone();
            other[0] = format;
            let error = RecordCodec.decode(other.into()).unwrap_err();
            let says_newer = error.reason.contains("newer");
            assert_eq!(says_newer, format > FORMAT, "{error}");
        }
        for part in [&b""[..], &[2; 60], &[1; 22], &[1; 23]] {
            assert!(Part::decode(b"key", Bytes::copy_from_slice(part)).is_err());
        }
        for request in [&b""[..], &[1; 20], &[1; 22]] {
            assert!(
                RequestCodec
                    .decode(Bytes::copy_from_slice(request))
                    .is_err()
            );
        }
    }

    /// Random bytes, every other one small, so that formats and lengths are right now and then.
    fn noise(seed: u64) -> Bytes {
        let mut rng = StdRng::seed_from_u64(seed);
        let length = rng.random_range(0..80);
        let byte = |_| match rng.random() {
            true => rng.random_range(0..4),
            false => rng.random(),
        };
        (0..length).map(byte).collect()
    }

    /// Decodes, and encodes what came of it. `None`: nothing did.
    fn encoded_again<T, C: Codec<T> + Default>(bytes: &Bytes) -> Option<Vec<u8>> {
        let value = C::default().decode(bytes.clone()).ok()?;
        let mut again = Vec::new();
        C::default().encode(&value, &mut again).unwrap();
        Some(again)
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes() {
        let mut decoded = [0; 4];
        for seed in 0..scale(20_000, 2_000_000) as u64 {
            let bytes = noise(seed);
            let encodings = [
                encoded_again::<Record, RecordCodec>(&bytes),
                encoded_again::<Request, RequestCodec>(&bytes),
                Part::decode(b"key", bytes.clone())
                    .ok()
                    .map(|part| part.encode().unwrap()),
                SettingsRecord::decode(b"key", &bytes)
                    .ok()
                    .map(|stored| stored.encode()),
            ];
            for (encoding, decoded) in encodings.into_iter().zip(&mut decoded) {
                if let Some(encoding) = encoding {
                    assert_eq!(encoding, bytes, "seed {seed}");
                    *decoded += 1;
                }
            }
        }
        // Else there was nothing to compare.
        assert!(decoded.iter().all(|count| *count > 10), "{decoded:?}");
    }

    #[test]
    fn the_largest_item_fills_a_value() {
        let record = Record {
            dedupe: vec![0; MAX_DEDUPE_BYTES].into(),
            extension: vec![0; MAX_EXTENSION_BYTES].into(),
            payload: vec![0; MAX_PAYLOAD_BYTES].into(),
            ..record()
        };
        let id = ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call: 0,
        };
        let item = Item { id, value: record };
        let part = Part { parts: 1, item };
        assert_eq!(part.encode().unwrap().len(), limits::VALUE_BYTES);
    }
}
