//! The records that listings return. A record that does not decode is listed like any other, so one damaged
//! record never makes a listing fail.

use bytes::Bytes;

use crate::contract::error::{Error, printable};
use crate::values::codec::DecodeError;

/// One record of a listing.
///
/// ```
/// use keyspace::codec::{Codec, Json};
/// use keyspace::{Bytes, Listed, Undecodable};
///
/// let listed = [("a", "1"), ("b", "one")].map(|(id, stored)| {
///     let bytes = Bytes::from(stored);
///     let value = Json.decode(bytes.clone());
///     let value = value.map_err(|error| Undecodable::new(id, bytes, error));
///     Listed::<&str, u32> { id, value }
/// });
/// assert_eq!(listed[0].value, Ok(1));
/// assert_eq!(listed[1].value.as_ref().unwrap_err().bytes, "one");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<I, T> {
    /// The id of the record.
    pub id: I,
    /// The decoded value, or why it does not decode.
    pub value: Result<T, Undecodable>,
}

/// A record that does not decode, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "record under key {} does not decode: expected {codec}: {reason}",
    printable(key)
)]
#[non_exhaustive]
pub struct Undecodable {
    /// The key of the record.
    pub key: Bytes,
    /// The codec that refused the bytes.
    pub codec: &'static str,
    /// What the codec reported.
    pub reason: String,
    /// The bytes that the codec refused: the whole value, or the part of it that the application's codec
    /// wrote.
    pub bytes: Bytes,
}

impl Undecodable {
    /// Returns an undecodable record from its key, the bytes that the codec refused, and the codec's error.
    pub fn new(key: impl Into<Bytes>, bytes: Bytes, error: DecodeError) -> Self {
        let DecodeError { codec, reason } = error;
        Self {
            key: key.into(),
            codec,
            reason,
            bytes,
        }
    }
}

impl From<Undecodable> for Error {
    fn from(record: Undecodable) -> Self {
        let Undecodable {
            key, codec, reason, ..
        } = record;
        DecodeError { codec, reason }.at(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undecodable_record_converts_to_a_corrupt_error() {
        let error = DecodeError {
            codec: "Json",
            reason: "no".to_owned(),
        };
        let listed = Undecodable::new(&b"k\xff"[..], Bytes::from("bytes"), error.clone());
        assert_eq!(
            listed.to_string(),
            "record under key k\\xff does not decode: expected Json: no"
        );
        let Error::Corrupt { key, reason } = Error::from(listed) else {
            panic!("expected a corrupt record");
        };
        assert_eq!((&key[..], reason), (&b"k\xff"[..], error.to_string()));
    }
}
