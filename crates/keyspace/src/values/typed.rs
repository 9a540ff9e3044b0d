//! Reads and writes an application's own values through a codec.
//!
//! A recipe encodes and decodes its records itself. For its other keys, an application can use these
//! functions, with the codec of its queues or another one.

use bytes::Bytes;

use crate::contract::error::{Code, Error, Result};
use crate::contract::limits::MAX_VALUE_BYTES;
use crate::contract::transaction::{Isolation, Transaction};
use crate::values::codec::{self, Codec};

/// Reads the value under a key.
///
/// # Conflicts
/// As [`Transaction::get`].
///
/// # Errors
/// Those of the read, and [`Error::Corrupt`] with the key if the codec cannot decode
/// the value.
///
/// # Cancel safety
/// Dropping the future leaves at most a conflict range.
///
/// # Examples
/// ```
/// use keyspace::codec::MessagePack;
/// use keyspace::{Error, Isolation, Runner, typed};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let count = runner
///     .run(async |tr| {
///         let old: Option<u64> =
///             typed::get(&tr, &MessagePack, b"count", Isolation::Serializable).await?;
///         let count = old.unwrap_or(0) + 1;
///         typed::set(&tr, &MessagePack, b"count", &count)?;
///         Ok::<_, Error>(count)
///     })
///     .await?;
/// assert_eq!(count, 1);
/// # Ok(())
/// # }
/// ```
pub async fn get<T>(
    tr: &impl Transaction,
    codec: &impl Codec<T>,
    key: &[u8],
    isolation: Isolation,
) -> Result<Option<T>> {
    let Some(bytes) = tr.get(key, isolation).await? else {
        return Ok(None);
    };
    let value = codec::decode(codec, bytes);
    Ok(Some(value.map_err(|error| error.at(key.to_vec()))?))
}

/// Encodes a value and stages it under a key.
///
/// # Conflicts
/// As for [`Transaction::set`].
///
/// # Errors
/// [`Error::Encode`] and [`Error::ValueTooLarge`], before anything is staged.
pub fn set<T>(tr: &impl Transaction, codec: &impl Codec<T>, key: &[u8], value: &T) -> Result<()> {
    let mut bytes = Vec::new();
    codec::encode(codec, value, &mut bytes)?;
    if bytes.len() > MAX_VALUE_BYTES {
        return Err(Error::ValueTooLarge {
            key: Bytes::copy_from_slice(key),
            bytes: bytes.len(),
            code: Code::VALUE_TOO_LARGE,
        });
    }
    tr.set(key, &bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::contract::error::code_of;
    use crate::stores::embedded::Options;
    use crate::values::codec::{DecodeError, Raw};

    #[derive(Clone)]
    struct Panicking;

    impl Codec<u64> for Panicking {
        const NAME: &'static str = "Panicking";

        fn encode(&self, _value: &u64, _buffer: &mut Vec<u8>) -> Result<()> {
            panic!("it is planned")
        }

        fn decode(&self, _bytes: Bytes) -> Result<u64, DecodeError> {
            panic!("it is planned")
        }
    }

    #[tokio::test]
    async fn a_value_that_is_too_large_is_refused_with_its_key_before_it_is_staged() {
        let db = Options::new().memory().unwrap();
        let tr = db.begin().unwrap();
        let set = |bytes| set(&tr, &Raw, b"key", &Bytes::from(vec![7; bytes]));
        let refused = set(MAX_VALUE_BYTES + 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "value of 100001 bytes under key key is too large: the limit is 100000 bytes (value_too_large 2103)"
        );
        assert_eq!(code_of(&refused), Some(Code::VALUE_TOO_LARGE));
        assert_eq!(refused.code(), Some(Code::VALUE_TOO_LARGE));
        let staged = tr.get(b"key", Isolation::Serializable).await.unwrap();
        assert_eq!(staged, None);
        set(MAX_VALUE_BYTES).unwrap();
    }

    #[tokio::test]
    async fn a_codec_that_panics_is_an_error() {
        let db = Options::new().memory().unwrap();
        let tr = db.begin().unwrap();
        let error = set(&tr, &Panicking, b"key", &1).unwrap_err();
        assert!(matches!(error, Error::Encode { .. }), "{error:?}");
        tr.set(b"key", b"bytes");
        let read = get(&tr, &Panicking, b"key", Isolation::Serializable).await;
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    }
}
