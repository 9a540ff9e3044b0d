//! Codecs: how a value becomes bytes and back.
//!
//! The type of a handle names its codec: `MicroQueue<Job, Json>`. The handle holds a value of that type.
//! The codecs in this module have no fields; a codec of your own may hold a key or a dictionary.
//!
//! Encoded values stay in the store, so the tests of every codec in this module pin its bytes. Decoding is
//! strict: bytes that are left over are an error.
//!
//! | codec | values | bytes |
//! |---|---|---|
//! | [`MessagePack`], the default | serde types | MessagePack, fields by name |
//! | `Bincode`, with the feature `bincode` | serde types | bincode 2, standard configuration: little-endian, variable-length integers |
//! | [`Raw`] | [`Bytes`], `Vec<u8>` | the bytes themselves |
//! | [`Tuple`] | tuples | FoundationDB's tuple layer, which every FoundationDB binding reads |
//! | [`Json`] | serde types | JSON without spaces |

use bytes::Bytes;
use foundationdb_tuple::{self as tuple, TuplePack, TupleUnpack, VersionstampOffset};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Turns values of type `T` into bytes and back.
///
/// ```
/// use keyspace::codec::{Codec, Json};
///
/// let mut bytes = Vec::new();
/// Json.encode(&vec![1, 2, 3], &mut bytes)?;
/// assert_eq!(bytes, b"[1,2,3]");
/// # Ok::<(), keyspace::Error>(())
/// ```
pub trait Codec<T>: Clone + Send + Sync + 'static {
    /// The codec's name, for errors.
    const NAME: &'static str;

    /// Appends the bytes of `value` to `buffer`.
    ///
    /// # Errors
    /// [`Error::Encode`]. The content that was appended to `buffer` is then unspecified.
    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()>;

    /// Decodes a value. The value must use up all of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]. [`DecodeError::at`] turns it into [`Error::Corrupt`].
    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError>;
}

/// A codec could not decode bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {codec}: {reason}")]
pub struct DecodeError {
    /// The codec that refused the bytes.
    pub codec: &'static str,
    /// What the codec reported.
    pub reason: String,
}

impl DecodeError {
    /// Returns the [`Error::Corrupt`] of the record under `key`, which holds the bytes.
    #[must_use]
    pub fn at(&self, key: impl Into<Bytes>) -> Error {
        Error::Corrupt {
            key: key.into(),
            reason: self.to_string(),
        }
    }
}

fn unencodable(codec: &'static str, reason: impl ToString) -> Error {
    Error::Encode {
        codec,
        reason: reason.to_string(),
    }
}

fn undecodable(codec: &'static str, reason: impl ToString) -> DecodeError {
    DecodeError {
        codec,
        reason: reason.to_string(),
    }
}

/// Encodes any serde type as MessagePack, with the names of fields and variants. The default codec.
///
/// The bytes are self-describing: other languages can read them, and tools can show them. While values of
/// several versions of a type are stored, these changes are safe:
///
/// - adding a field, if `#[serde(default)]` fills it in for older bytes
/// - removing a field, unless the type has `#[serde(deny_unknown_fields)]`
/// - reordering fields
///
/// A variant that the reader does not know is an error.
///
/// A `Vec<u8>` is encoded as a sequence of numbers, with one or two bytes for each. The crate `serde_bytes`
/// encodes it as a single byte string.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessagePack;

/// The deepest nesting of a value. Bytes that nest deeper are damaged or hostile, and must not overflow the
/// stack.
const MESSAGE_PACK_DEPTH: usize = 128;

impl<T: Serialize + DeserializeOwned> Codec<T> for MessagePack {
    const NAME: &'static str = "MessagePack";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        rmp_serde::encode::write_named(buffer, value)
            .map_err(|error| unencodable("MessagePack", error))
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let mut rest: &[u8] = &bytes;
        let mut decoder = rmp_serde::Deserializer::new(&mut rest);
        decoder.set_max_depth(MESSAGE_PACK_DEPTH);
        let value =
            T::deserialize(&mut decoder).map_err(|error| undecodable("MessagePack", error))?;
        match rest.len() {
            0 => Ok(value),
            left => Err(undecodable(
                "MessagePack",
                format!("{left} bytes left over"),
            )),
        }
    }
}

/// Stores bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    const NAME: &'static str = "Raw";

    fn encode(&self, value: &Bytes, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Bytes, DecodeError> {
        Ok(bytes)
    }
}

impl Codec<Vec<u8>> for Raw {
    const NAME: &'static str = "Raw";

    fn encode(&self, value: &Vec<u8>, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, DecodeError> {
        Ok(bytes.into())
    }
}

/// Encodes tuples as FoundationDB's tuple layer does.
///
/// A value that is not a tuple is encoded as a tuple of one element: `String` and `(String,)` have the same
/// bytes.
///
/// Use typed tuples for bytes that may be damaged. An untyped [`Element`](foundationdb_tuple::Element)
/// nests as deep as the bytes say, and 100,000 bytes can nest deep enough to overflow the stack.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tuple;

impl<T: TuplePack + for<'de> TupleUnpack<'de>> Codec<T> for Tuple {
    const NAME: &'static str = "Tuple";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        match value.pack_into_vec(buffer) {
            VersionstampOffset::None { .. } => Ok(()),
            // The codec's bytes are stored as they are, so the versionstamp would never be filled in.
            VersionstampOffset::OneIncomplete { .. } | VersionstampOffset::MultipleIncomplete => {
                Err(unencodable("Tuple", "a versionstamp is incomplete"))
            }
        }
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        tuple::unpack(&bytes).map_err(|error| undecodable("Tuple", error))
    }
}

/// Encodes any serde type as JSON: self-describing and human-readable, at about twice the size of
/// [`MessagePack`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    const NAME: &'static str = "Json";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(buffer, value).map_err(|error| unencodable("Json", error))
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        serde_json::from_slice(&bytes).map_err(|error| undecodable("Json", error))
    }
}

/// Encodes any serde type as bincode 2 in its standard configuration: compact, but not self-describing.
///
/// Adding, removing or reordering a field changes the meaning of stored bytes. Types with
/// `#[serde(flatten)]`, `untagged`, `tag` or `skip_serializing_if` do not decode. The `bincode` crate is no
/// longer maintained (RUSTSEC-2025-0141). Use [`MessagePack`], unless your stored bytes are already
/// bincode's.
#[cfg(feature = "bincode")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Bincode;

/// Keeps a damaged length from making the decoder allocate more than any record can hold. Bincode counts
/// each number by its size in memory. The largest number, a `u128` of 16 bytes, may take only one byte
/// encoded.
#[cfg(feature = "bincode")]
const BINCODE_LIMIT: usize = crate::limits::VALUE_BYTES * size_of::<u128>();

#[cfg(feature = "bincode")]
impl<T: Serialize + DeserializeOwned> Codec<T> for Bincode {
    const NAME: &'static str = "Bincode";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        bincode::serde::encode_into_std_write(value, buffer, bincode::config::standard())
            .map_err(|error| unencodable("Bincode", error))?;
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let config = bincode::config::standard().with_limit::<BINCODE_LIMIT>();
        let (value, read) = bincode::serde::decode_from_slice(&bytes, config)
            .map_err(|error| undecodable("Bincode", error))?;
        if read < bytes.len() {
            let left = bytes.len() - read;
            return Err(undecodable("Bincode", format!("{left} bytes left over")));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Debug;

    use foundationdb_tuple::Versionstamp;
    use serde::Deserialize;

    use super::*;
    use crate::limits;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Job {
        name: String,
        size: u64,
        tags: Vec<Option<i32>>,
    }

    fn job() -> Job {
        Job {
            name: "a\0b".to_owned(),
            size: 300,
            tags: vec![None, Some(-1)],
        }
    }

    #[track_caller]
    fn golden<T: PartialEq + Debug, C: Codec<T> + Default>(value: &T, expected: &[u8]) {
        let mut bytes = b"before".to_vec();
        C::default().encode(value, &mut bytes).unwrap();
        let written = bytes.strip_prefix(b"before").unwrap();
        assert_eq!(
            written.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        let decoded = C::default()
            .decode(Bytes::copy_from_slice(written))
            .unwrap();
        assert_eq!(&decoded, value);
    }

    #[track_caller]
    fn refused<T: Debug, C: Codec<T> + Default>(bytes: &'static [u8], reason: &str) {
        let error = C::default().decode(Bytes::from_static(bytes)).unwrap_err();
        assert_eq!(error.codec, C::NAME);
        assert!(error.reason.contains(reason), "{error}");
    }

    #[test]
    fn bincode_writes_these_bytes() {
        golden::<_, Bincode>(&job(), b"\x03a\0b\xfb\x2c\x01\x02\x00\x01\x01");
        golden::<_, Bincode>(&0_u64, b"\x00");
        golden::<_, Bincode>(&250_u64, b"\xfa");
        golden::<_, Bincode>(&-1_i64, b"\x01");
        golden::<_, Bincode>(&1.5_f64, b"\0\0\0\0\0\0\xf8\x3f");
        golden::<_, Bincode>(&(), b"");
    }

    #[test]
    fn message_pack_writes_these_bytes() {
        golden::<_, MessagePack>(
            &job(),
            b"\x83\xa4name\xa3a\0b\xa4size\xcd\x01\x2c\xa4tags\x92\xc0\xff",
        );
        golden::<_, MessagePack>(&0_u64, b"\x00");
        golden::<_, MessagePack>(&250_u64, b"\xcc\xfa");
        golden::<_, MessagePack>(&-1_i64, b"\xff");
        golden::<_, MessagePack>(&1.5_f64, b"\xcb\x3f\xf8\0\0\0\0\0\0");
        golden::<_, MessagePack>(&(), b"\xc0");
        golden::<_, MessagePack>(&Change::Resize { to: 7 }, b"\x81\xa6Resize\x81\xa2to\x07");
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Change {
        Resize { to: u8 },
    }

    /// A later version of [`Job`]: without `size`, with `owner`.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct NewerJob {
        tags: Vec<Option<i32>>,
        #[serde(default)]
        owner: Option<String>,
        name: String,
    }

    #[test]
    fn message_pack_reads_a_type_that_gained_lost_and_moved_fields() {
        let newer = NewerJob {
            name: job().name,
            tags: job().tags,
            owner: Some("ada".to_owned()),
        };
        let mut bytes = Vec::new();
        MessagePack.encode(&job(), &mut bytes).unwrap();
        let read: NewerJob = MessagePack.decode(bytes.into()).unwrap();
        assert_eq!(
            read,
            NewerJob {
                owner: None,
                ..newer
            }
        );
        // In the other direction, the error names the field that is missing and has no default.
        let newer = NewerJob {
            owner: None,
            ..read
        };
        let mut bytes = Vec::new();
        MessagePack.encode(&newer, &mut bytes).unwrap();
        let missing = <MessagePack as Codec<Job>>::decode(&MessagePack, bytes.into()).unwrap_err();
        assert!(missing.reason.contains("missing field `size`"), "{missing}");
    }

    #[test]
    fn a_codec_may_hold_a_value() {
        /// Encrypts bytes with a key.
        #[derive(Clone)]
        struct Sealed {
            key: u8,
        }
        impl Codec<Bytes> for Sealed {
            const NAME: &'static str = "Sealed";

            fn encode(&self, value: &Bytes, buffer: &mut Vec<u8>) -> Result<()> {
                buffer.extend(value.iter().map(|byte| byte ^ self.key));
                Ok(())
            }

            fn decode(&self, bytes: Bytes) -> Result<Bytes, DecodeError> {
                Ok(bytes.iter().map(|byte| byte ^ self.key).collect())
            }
        }
        let codec = Sealed { key: 1 };
        let mut bytes = Vec::new();
        codec
            .encode(&Bytes::from_static(b"abc"), &mut bytes)
            .unwrap();
        assert_eq!(bytes, b"`cb");
        assert_eq!(codec.decode(bytes.into()).unwrap(), &b"abc"[..]);
    }

    #[test]
    fn raw_writes_the_bytes_themselves() {
        golden::<_, Raw>(&Bytes::from_static(b"a\0\xff"), b"a\0\xff");
        golden::<_, Raw>(&b"a\0\xff".to_vec(), b"a\0\xff");
        golden::<_, Raw>(&Bytes::new(), b"");
    }

    #[test]
    fn tuple_writes_these_bytes() {
        golden::<_, Tuple>(
            &(1_i64, "a\0".to_owned(), b"b".to_vec()),
            b"\x15\x01\x02a\0\xff\0\x01b\0",
        );
        golden::<_, Tuple>(&((-300_i64,), true), b"\x05\x12\xfe\xd3\0\x27");
        golden::<_, Tuple>(&"job".to_owned(), b"\x02job\0");
        golden::<_, Tuple>(&("job".to_owned(),), b"\x02job\0");
        golden::<_, Tuple>(
            &(Versionstamp::complete(*b"0123456789", 7),),
            b"\x330123456789\0\x07",
        );
    }

    #[test]
    fn json_writes_these_bytes() {
        golden::<_, Json>(
            &job(),
            br#"{"name":"a\u0000b","size":300,"tags":[null,-1]}"#,
        );
    }

    #[test]
    fn json_reads_the_number_that_was_written_to_its_last_bit() {
        golden::<_, Json>(&-2.100_000_000_000_000_2e301, b"-2.1000000000000002e+301");
    }

    #[test]
    fn bytes_left_over_are_an_error() {
        refused::<u64, Bincode>(b"\x01\x02", "1 bytes left over");
        refused::<(), Bincode>(b"\x00", "1 bytes left over");
        refused::<u64, MessagePack>(b"\x01\x02", "1 bytes left over");
        refused::<i64, Tuple>(b"\x15\x01\x15\x02", "trailing bytes");
        refused::<(i64,), Tuple>(b"\x15\x01\x00", "trailing bytes");
        refused::<u64, Json>(b"1 2", "trailing characters");
    }

    #[test]
    fn missing_and_foreign_bytes_are_an_error() {
        refused::<Job, Bincode>(b"\x03a", "");
        refused::<String, Bincode>(b"\x02\xff\xff", "");
        refused::<Job, MessagePack>(b"\x81\xa4name\xa1a", "missing field");
        refused::<Change, MessagePack>(b"\x81\xa3Lie\x07", "");
        refused::<String, MessagePack>(b"\xa2\xff\xff", "");
        refused::<u64, MessagePack>(b"", "");
        refused::<(i64, i64), Tuple>(b"\x15\x01", "missing bytes");
        refused::<i64, Tuple>(b"\x02job\0", "bad code");
        refused::<Job, Json>(b"{\"name\":\"a\"}", "size");
        refused::<u64, Json>(b"", "EOF");
    }

    #[test]
    fn a_damaged_length_allocates_nothing_that_no_record_can_hold() {
        refused::<String, Bincode>(b"\xfd\xff\xff\xff\xff\xff\xff\xff\x7f", "LimitExceeded");
        refused::<Vec<u64>, Bincode>(b"\xfc\xff\xff\xff\x7f", "");
        refused::<String, MessagePack>(b"\xdb\xff\xff\xff\xff", "");
        refused::<Vec<u64>, MessagePack>(b"\xdd\xff\xff\xff\xff", "");
    }

    #[test]
    fn bytes_that_nest_too_deep_are_refused_before_the_stack_is_full() {
        #[derive(Debug, Deserialize, Serialize)]
        struct Nested(Vec<Nested>);
        let mut deep = vec![0x91; limits::VALUE_BYTES - 1];
        deep.push(0x90);
        let error = <MessagePack as Codec<Nested>>::decode(&MessagePack, deep.into()).unwrap_err();
        assert!(error.reason.contains("depth"), "{error}");
    }

    #[test]
    fn the_largest_record_decodes_whatever_its_numbers() {
        let numbers = vec![1_u128; limits::VALUE_BYTES - 5];
        let mut bytes = Vec::new();
        Bincode.encode(&numbers, &mut bytes).unwrap();
        assert_eq!(bytes.len(), limits::VALUE_BYTES);
        let decoded: Vec<u128> = Bincode.decode(bytes.into()).unwrap();
        assert_eq!(decoded, numbers);
    }

    #[test]
    fn a_value_that_a_codec_cannot_hold_is_refused_by_name() {
        let mut buffer = Vec::new();
        let error = Json
            .encode(&BTreeMap::from([((1, 2), 3)]), &mut buffer)
            .unwrap_err();
        assert!(matches!(error, Error::Encode { codec: "Json", .. }));

        let incomplete = (Versionstamp::incomplete(0),);
        let error = Tuple.encode(&incomplete, &mut buffer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "value cannot be encoded as Tuple: a versionstamp is incomplete"
        );
    }

    #[test]
    fn a_decode_error_becomes_the_corrupt_record_under_its_key() {
        let error = <Bincode as Codec<u64>>::decode(&Bincode, Bytes::new())
            .unwrap_err()
            .at(&b"q\x15"[..]);
        let Error::Corrupt { key, reason } = error else {
            panic!("expected a corrupt record, got {error}");
        };
        assert_eq!(key, &b"q\x15"[..]);
        assert!(reason.starts_with("expected Bincode: "), "{reason}");
    }
}
