//! Codecs: how a value becomes bytes and back.
//!
//! The type of a handle names its codec: `MicroQueue<Job, Json>`. The handle holds a value of that type.
//! The codecs in this module have no fields; a codec of your own may hold a key or a dictionary.
//!
//! Encoded values stay in the store, so the tests of every codec in this module pin its bytes. Decoding is
//! strict: bytes that are left over are an error, and so are values that nest deeper than what is encoded. The
//! latter would overflow the stack.
//!
//! A stored value that does not decode is of no use, so `encode` refuses what `decode` would refuse or would
//! read as another value:
//!
//! | codec | refused by `encode` |
//! |---|---|
//! | [`MessagePack`], [`Json`], `Bincode` | more than 127 arrays, maps, structs, enum variants and `Some` inside each other |
//! | [`MessagePack`], [`Json`] | `Some` of `None`, of `()`, or with [`Json`] of a struct without fields: it would be read as `None` |
//! | [`MessagePack`], [`Json`] | a key that is written twice, as with `#[serde(flatten)]` or `#[serde(tag)]` over a map that has it |
//! | [`Json`] | NaN and infinity; maps whose keys are not strings, numbers, booleans or variants without content |
//! | `Bincode` | values without a known length, as of `#[serde(flatten)]`; fields that `skip_serializing_if` leaves out; values of more than 100,000 bytes |
//! | [`Tuple`] | incomplete versionstamps; `Some` of a tuple of several elements that begins with `None` |
//!
//! No codec can find that a type does not read what it writes itself. With `#[serde(flatten)]`,
//! `#[serde(tag)]` and `#[serde(untagged)]`, serde cannot read `u128` and `i128`, nor with [`Json`] maps whose
//! keys are not strings. Write a test for such a type that encodes and decodes its values.
//!
//! | codec | values | bytes |
//! |---|---|---|
//! | [`MessagePack`], the default | serde types | MessagePack, fields by name |
//! | `Bincode`, with the feature `bincode` | serde types | bincode 2, standard configuration: little-endian, variable-length integers |
//! | [`Raw`] | [`Bytes`], `Vec<u8>` | the bytes themselves |
//! | [`Tuple`] | tuples | FoundationDB's tuple layer, which every FoundationDB binding reads |
//! | [`Json`] | serde types | JSON without spaces |

mod bounded;
mod checked;
mod repeats;
#[cfg(test)]
mod tests;

#[cfg(feature = "bincode")]
use bincode::error::EncodeError;
use bytes::Bytes;
use foundationdb_tuple::{self as tuple, TuplePack, TupleUnpack, VersionstampOffset};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::bounded::Bounded;
use self::checked::{Rules, checked};
use crate::contract::error::{Error, Result};
use crate::contract::foreign::{self, Panicked};

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
    /// [`Error::Encode`] if the value cannot be encoded, or if [`decode`](Self::decode) would refuse the bytes
    /// or would return another value. The content that was appended to `buffer` is then unspecified.
    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()>;

    /// Decodes a value. The value must use up all of `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`]. [`DecodeError::at`] turns it into [`Error::Corrupt`].
    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError>;
}

/// Decodes a value. The panic of a codec is an error, since it would occur in every process that reads the
/// bytes.
///
/// # Errors
/// Those of the codec.
pub fn decode<T, C: Codec<T>>(codec: &C, bytes: Bytes) -> Result<T, DecodeError> {
    let decoded = foreign::call(|| codec.decode(bytes));
    decoded.unwrap_or_else(|panicked| Err(undecodable(C::NAME, of_panic(&panicked))))
}

/// Encodes a value, as [`Codec::encode`] does. The panic of a codec is an error.
///
/// # Errors
/// Those of the codec.
pub fn encode<T, C: Codec<T>>(codec: &C, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
    let encoded = foreign::call(|| codec.encode(value, buffer));
    encoded.unwrap_or_else(|panicked| Err(unencodable(C::NAME, of_panic(&panicked))))
}

fn of_panic(panicked: &Panicked) -> String {
    format!("the codec panicked: {}", panicked.message())
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
        let key: Bytes = key.into();
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

impl Rules for MessagePack {
    const HAS_ALL_FLOATS: bool = true;
    const HAS_BYTES: bool = true;
    const HAS_NULL: bool = true;
    const UNIT_STRUCT_IS_NULL: bool = false;
    const IS_SELF_DESCRIBING: bool = true;
    const KEYS_ARE_TEXT: bool = false;
}

impl<T: Serialize + DeserializeOwned> Codec<T> for MessagePack {
    const NAME: &'static str = "MessagePack";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        rmp_serde::encode::write_named(buffer, &checked::<Self, T>(value))
            .map_err(|error| unencodable("MessagePack", error))
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let mut rest: &[u8] = &bytes;
        let decoded = rmp_serde::from_read(&mut rest);
        let Bounded(value) = decoded.map_err(|error| undecodable("MessagePack", error))?;
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
///
/// The tuple layer has one null. Do not use an `Option` of an `Option`, nor an `Option` around the whole tuple:
/// `encode` refuses `Some((None, 1))`, and `Some((None,))` is read as `None`. An `Option` of any other type is safe
/// as an element.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tuple;

impl<T: TuplePack + for<'de> TupleUnpack<'de>> Codec<T> for Tuple {
    const NAME: &'static str = "Tuple";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        let start = buffer.len();
        match value.pack_into_vec(buffer) {
            VersionstampOffset::None { .. } => refuse_null::<T>(&buffer[start..]),
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

/// Refuses a value that begins with a null if the null would be read as that of an `Option` around the value.
fn refuse_null<T: for<'de> TupleUnpack<'de>>(bytes: &[u8]) -> Result<()> {
    const NULL: u8 = 0;
    if bytes.first() == Some(&NULL) && tuple::unpack::<T>(bytes).is_err() {
        let reason =
            "`Some` of a tuple that begins with `None` is not read again: use an enum of your own";
        return Err(unencodable("Tuple", reason));
    }
    Ok(())
}

/// Encodes any serde type as JSON: self-describing and human-readable, at about twice the size of
/// [`MessagePack`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Rules for Json {
    const HAS_ALL_FLOATS: bool = false;
    const HAS_BYTES: bool = false;
    const HAS_NULL: bool = true;
    const UNIT_STRUCT_IS_NULL: bool = true;
    const IS_SELF_DESCRIBING: bool = true;
    const KEYS_ARE_TEXT: bool = true;
}

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    const NAME: &'static str = "Json";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(buffer, &checked::<Self, T>(value))
            .map_err(|error| unencodable("Json", error))
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let decoded = serde_json::from_slice(&bytes);
        let Bounded(value) = decoded.map_err(|error| undecodable("Json", error))?;
        Ok(value)
    }
}

/// Encodes any serde type as bincode 2 in its standard configuration: compact, but not self-describing.
///
/// Adding, removing or reordering a field changes the meaning of stored bytes. Types with
/// `#[serde(untagged)]` or `#[serde(tag)]` do not decode, nor do those with fields that only
/// `skip_serializing` leaves out; `encode` cannot find this. Use [`MessagePack`], unless your stored bytes are
/// already bincode's.
#[cfg(feature = "bincode")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Bincode;

/// Keeps a damaged length from making the decoder allocate more than any record can hold. Bincode counts
/// each number by its size in memory. The largest number, a `u128` of 16 bytes, may take only one byte
/// encoded.
#[cfg(feature = "bincode")]
const MAX_BINCODE_BYTES: usize = crate::contract::limits::MAX_VALUE_BYTES * size_of::<u128>();

#[cfg(feature = "bincode")]
impl Rules for Bincode {
    const HAS_ALL_FLOATS: bool = true;
    const HAS_BYTES: bool = true;
    const HAS_NULL: bool = false;
    const UNIT_STRUCT_IS_NULL: bool = false;
    const IS_SELF_DESCRIBING: bool = false;
    const KEYS_ARE_TEXT: bool = false;
}

#[cfg(feature = "bincode")]
impl<T: Serialize + DeserializeOwned> Codec<T> for Bincode {
    const NAME: &'static str = "Bincode";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> Result<()> {
        let value = checked::<Self, T>(value);
        let config = bincode::config::standard();
        let limit = crate::contract::limits::MAX_VALUE_BYTES;
        match bincode::serde::encode_into_std_write(value, buffer, config) {
            Ok(bytes) if bytes <= limit => Ok(()),
            Ok(bytes) => {
                let reason = format!("{bytes} bytes are too many: the limit is {limit} bytes");
                Err(unencodable("Bincode", reason))
            }
            Err(EncodeError::OtherString(reason)) => Err(unencodable("Bincode", reason)),
            Err(error) => Err(unencodable("Bincode", error)),
        }
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let config = bincode::config::standard().with_limit::<MAX_BINCODE_BYTES>();
        let decoded = bincode::serde::decode_from_slice(&bytes, config);
        let (Bounded(value), read) = decoded.map_err(|error| undecodable("Bincode", error))?;
        if read < bytes.len() {
            let left = bytes.len() - read;
            return Err(undecodable("Bincode", format!("{left} bytes left over")));
        }
        Ok(value)
    }
}
