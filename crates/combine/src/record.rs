//! The values of a combine queue. The module of the keys has their layout.

use hc_dequeue::keyspace::codec::DecodeError;
use hc_dequeue::keyspace::record::{self, Fields, SHORT_BYTES, push_text};
use hc_dequeue::keyspace::{Bytes, Error, Result, Versionstamp, limits};

/// The largest update, in bytes as encoded: it fits a record with any reason to set it aside.
pub const MAX_UPDATE_BYTES: usize = limits::VALUE_BYTES - 3 - SHORT_BYTES;

/// The largest value, in bytes as encoded.
pub const MAX_VALUE_BYTES: usize = limits::VALUE_BYTES - 2;

const FORMAT: u8 = 1;

/// A value as stored: what was last reported, or what is current.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Value {
    /// The codec's bytes.
    pub(crate) bytes: Option<Bytes>,
    /// Whether there is a current value that is not reported yet.
    pub(crate) is_outdated: bool,
}

impl From<Option<Bytes>> for Value {
    /// A value with nothing newer.
    fn from(bytes: Option<Bytes>) -> Self {
        let is_outdated = false;
        Self { bytes, is_outdated }
    }
}

impl Value {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let bytes = self.bytes.as_deref();
        let mut value = Vec::with_capacity(2 + bytes.map_or(0, <[u8]>::len));
        value.push(FORMAT);
        value.push(u8::from(bytes.is_some()) + 2 * u8::from(self.is_outdated));
        value.extend_from_slice(bytes.unwrap_or_default());
        value
    }

    /// Returns what is stored under a key: no value, if nothing is.
    pub(crate) fn decode(key: &[u8], stored: Option<Bytes>) -> Result<Self> {
        let Some(stored) = stored else {
            return Ok(Self::default());
        };
        record::decode(key, &stored, FORMAT, |fields| {
            let [flags] = fields.array()?;
            let bytes = match flags & 1 {
                0 => {
                    fields.end()?;
                    None
                }
                _ => Some(stored.slice_ref(fields.rest())),
            };
            let is_outdated = match flags & !1 {
                0 => false,
                2 => true,
                _ => return Err(format!("there are no flags {flags:#x}")),
            };
            Ok(Self { bytes, is_outdated })
        })
    }
}

/// How far the work on a bucket is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Sweep {
    /// The read version at which the last complete sweep began; 0 if there was none.
    pub(crate) completed: i64,
    pub(crate) in_progress: Option<InProgress>,
}

/// A sweep that is not complete yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InProgress {
    /// The read version at which it began.
    pub(crate) began: i64,
    /// The notification at that version.
    pub(crate) notification: Versionstamp,
    /// The key at which it goes on.
    pub(crate) next: Vec<u8>,
}

impl InProgress {
    /// Returns the key at which it goes on, unless that is the first one of the bucket.
    pub(crate) fn from(&self) -> Option<&[u8]> {
        (!self.next.is_empty()).then_some(&self.next)
    }
}

impl Sweep {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![FORMAT];
        value.extend_from_slice(&self.completed.to_be_bytes());
        if let Some(sweep) = &self.in_progress {
            value.extend_from_slice(&sweep.began.to_be_bytes());
            value.extend_from_slice(sweep.notification.as_bytes());
            value.extend_from_slice(&sweep.next);
        }
        value
    }

    /// Returns what is stored under a key: a sweep that has not begun, if nothing is.
    pub(crate) fn decode(key: &[u8], stored: Option<Bytes>) -> Result<Self> {
        let Some(stored) = stored else {
            return Ok(Self::default());
        };
        record::decode(key, &stored, FORMAT, |fields| {
            let completed = i64::from_be_bytes(fields.array()?);
            let in_progress = match fields.rest().is_empty() {
                true => None,
                false => Some(InProgress {
                    began: i64::from_be_bytes(fields.array()?),
                    notification: Versionstamp::from_bytes(fields.array()?),
                    next: fields.rest().to_vec(),
                }),
            };
            Ok(Self {
                completed,
                in_progress,
            })
        })
    }
}

/// Returns the record of an update that is set aside.
pub(crate) fn encode_aside(reason: &str, update: &[u8]) -> Vec<u8> {
    let mut value = vec![FORMAT];
    push_text(&mut value, reason);
    value.extend_from_slice(update);
    value
}

/// Returns why an update was set aside, and the update.
pub(crate) fn decode_aside(value: &Bytes) -> Result<(String, Bytes), DecodeError> {
    let mut fields = Fields::new(value);
    let aside = (|| {
        fields.format(FORMAT)?;
        Ok::<_, String>((fields.text()?.to_owned(), value.slice_ref(fields.rest())))
    })();
    aside.map_err(|reason| DecodeError {
        codec: "an update set aside",
        reason,
    })
}

/// Returns the versionstamp that a key's value is.
pub(crate) fn decode_stamp(key: &[u8], value: &[u8]) -> Result<Versionstamp> {
    Versionstamp::try_from(value)
        .map_err(|_| Error::corrupt(key, "expected the ten bytes of a versionstamp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_these_bytes() {
        let value = |bytes: Option<&'static [u8]>, is_outdated| Value {
            bytes: bytes.map(Bytes::from_static),
            is_outdated,
        };
        for (value, bytes) in [
            (value(None, true), &b"\x01\x02"[..]),
            (value(Some(b""), false), b"\x01\x01"),
            (value(Some(b"v"), false), b"\x01\x01v"),
            (value(Some(b"v"), true), b"\x01\x03v"),
        ] {
            assert_eq!(value.encode(), bytes);
            let stored = Some(Bytes::copy_from_slice(bytes));
            assert_eq!(Value::decode(b"key", stored).unwrap(), value);
        }
        assert_eq!(Value::decode(b"key", None).unwrap(), Value::default());
        for damaged in [&b""[..], b"\x01", b"\x02\x01v", b"\x01\x04", b"\x01\x02v"] {
            let stored = Some(Bytes::copy_from_slice(damaged));
            assert!(Value::decode(b"key", stored).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn sweeps_have_these_bytes() {
        let idle = Sweep {
            completed: 0x0102,
            in_progress: None,
        };
        let busy = Sweep {
            in_progress: Some(InProgress {
                began: 3,
                notification: Versionstamp::from_bytes([9; 10]),
                next: b"key".to_vec(),
            }),
            ..idle.clone()
        };
        let idle_bytes = b"\x01\0\0\0\0\0\0\x01\x02".to_vec();
        let rest = [b"\0\0\0\0\0\0\0\x03".as_slice(), &[9; 10], b"key"].concat();
        let busy_bytes = [idle_bytes.clone(), rest].concat();
        for (sweep, bytes) in [(idle, &idle_bytes), (busy, &busy_bytes)] {
            assert_eq!(sweep.encode(), *bytes);
            let stored = Some(Bytes::copy_from_slice(bytes));
            assert_eq!(Sweep::decode(b"key", stored).unwrap(), sweep);
        }
        assert_eq!(Sweep::decode(b"key", None).unwrap(), Sweep::default());
        for length in (0..9).chain(10..27) {
            let stored = Some(Bytes::copy_from_slice(&busy_bytes[..length]));
            assert!(Sweep::decode(b"key", stored).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn updates_set_aside_have_these_bytes() {
        let aside = encode_aside("why", b"\x01u");
        assert_eq!(aside, b"\x01\x03why\x01u");
        let decoded = decode_aside(&aside.into()).unwrap();
        assert_eq!(decoded, ("why".to_owned(), Bytes::from_static(b"\x01u")));
    }

    #[test]
    fn the_largest_update_can_be_set_aside_for_any_reason() {
        let update = [&[1][..], &[7; MAX_UPDATE_BYTES]].concat();
        let aside = encode_aside(&"x".repeat(1000), &update);
        assert_eq!(aside.len(), limits::VALUE_BYTES);
        let largest = vec![7; MAX_VALUE_BYTES].into();
        assert_eq!(
            Value::from(Some(largest)).encode().len(),
            limits::VALUE_BYTES
        );
    }
}
