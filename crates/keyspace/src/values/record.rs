//! Records: the fields that recipes store besides the bytes of a codec.
//!
//! Decoding is strict. It fails if bytes are missing or left over, or if the format is unknown to this version.
//! [`decode`] reports the reason as [`Error::Corrupt`] with the key. A worker that sets damaged records aside calls
//! [`refuse_newer`] first.
//!
//! A record begins with its format number. A version that writes format n also reads format n - 1.

use std::time::Duration;

use crate::contract::error::Error;

/// The longest field whose length fits into one byte, in bytes.
pub const MAX_SHORT_BYTES: usize = u8::MAX as usize;

/// The largest format number of any version. Text and most damaged bytes therefore do not look like a record
/// of a newer version.
const MAX_FORMAT: u8 = 31;

/// The bytes of a record that have not been read yet. Errors are reasons, as text.
///
/// ```
/// use keyspace::record::Fields;
///
/// let mut fields = Fields::new(b"\x01\x00\x07rest");
/// fields.format(1)?;
/// assert_eq!(u16::from_be_bytes(fields.array()?), 7);
/// assert_eq!(fields.rest(), b"rest");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns a reader of a record.
    #[must_use]
    pub fn new(record: &'a [u8]) -> Self {
        Self(record)
    }

    /// Reads the format number, a byte, which must be `newest`: the format that the reader knows.
    ///
    /// # Errors
    /// If the format is another one, or missing.
    pub fn format(&mut self, newest: u8) -> Result<(), String> {
        match self.array()? {
            [format] if format == newest => Ok(()),
            [format] if format > newest => Err(format!(
                "format {format} is newer than this version of the library, which reads up to \
                 {newest}: upgrade the library"
            )),
            [format] => Err(format!("there is no format {format}")),
        }
    }

    /// Reads this number of bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = (self.0.split_at_checked(bytes))
            .ok_or_else(|| format!("it ends {} bytes early", bytes - self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many bytes as were taken"))
    }

    /// Reads a big-endian number of four bytes.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Reads a big-endian number of eight bytes.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads a time in milliseconds, as [`push_millis`] writes it.
    ///
    /// # Errors
    /// If there are fewer than eight bytes.
    pub fn millis(&mut self) -> Result<Duration, String> {
        Ok(Duration::from_millis(self.u64()?))
    }

    /// Reads a field with its length in a byte before it, as [`push_text`] writes it.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn short(&mut self) -> Result<&'a [u8], String> {
        let [length] = self.array()?;
        self.take(usize::from(length))
    }

    /// Reads a text with its length in a byte before it, as [`push_text`] writes it.
    ///
    /// # Errors
    /// If there are fewer bytes, or they are not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, String> {
        std::str::from_utf8(self.short()?).map_err(|error| error.to_string())
    }

    /// Returns the bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn end(&self) -> Result<(), String> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(format!("{left} bytes are left over")),
        }
    }
}

/// Decodes a record of a format: the format number, then the fields that `read` reads.
///
/// ```
/// use keyspace::record::decode;
///
/// let number = decode(b"key", b"\x01\0\0\0\x07", 1, |fields| {
///     let number = fields.u32()?;
///     fields.end()?;
///     Ok(number)
/// });
/// assert_eq!(number?, 7);
/// # Ok::<(), keyspace::Error>(())
/// ```
///
/// # Errors
/// [`Error::Corrupt`] with the key, if the record has another format or `read` fails.
pub fn decode<'a, T>(
    key: &[u8],
    record: &'a [u8],
    format: u8,
    read: impl FnOnce(&mut Fields<'a>) -> Result<T, String>,
) -> Result<T, Error> {
    let mut fields = Fields::new(record);
    let value = fields.format(format).and_then(|()| read(&mut fields));
    value.map_err(|reason| Error::corrupt(key, reason))
}

/// Fails if a newer version of the library has written a record. Such a record is not damaged: it must stay
/// where it is until the library is upgraded.
///
/// ```
/// use keyspace::record::refuse_newer;
///
/// assert!(refuse_newer(b"key", b"\x02value", 1).is_err());
/// // Whether the rest of the record decodes does not matter.
/// assert!(refuse_newer(b"key", b"\x01", 1).is_ok());
/// assert!(refuse_newer(b"key", b"damaged", 1).is_ok());
/// ```
///
/// # Errors
/// [`Error::Corrupt`] with the key, if the format number is larger than `newest`, the format that the caller
/// knows, and no larger than 31, the largest format number of any version.
pub fn refuse_newer(key: &[u8], record: &[u8], newest: u8) -> Result<(), Error> {
    match record.first() {
        Some(format) if newest < *format && *format <= MAX_FORMAT => {
            decode(key, record, newest, |_| Ok(()))
        }
        _ => Ok(()),
    }
}

/// Returns a time in whole milliseconds, capped at `u64::MAX`.
#[must_use]
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Appends a time in milliseconds: eight bytes, big-endian.
pub fn push_millis(record: &mut Vec<u8>, time: Duration) {
    record.extend_from_slice(&millis(time).to_be_bytes());
}

/// Appends the length of a field in a byte, and then the field.
///
/// # Errors
/// If the field is longer than [`MAX_SHORT_BYTES`]. Nothing is appended then.
fn push_short(record: &mut Vec<u8>, field: &[u8]) -> Result<(), String> {
    let bytes = field.len();
    let length = u8::try_from(bytes)
        .map_err(|_| format!("{bytes} bytes in a field of up to {MAX_SHORT_BYTES}"))?;
    record.push(length);
    record.extend_from_slice(field);
    Ok(())
}

/// Appends the length of a text in a byte, and then the text, cut off at a character boundary if it is
/// longer than [`MAX_SHORT_BYTES`].
pub fn push_text(record: &mut Vec<u8>, text: &str) {
    let mut length = text.len().min(MAX_SHORT_BYTES);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    push_short(record, &text.as_bytes()[..length])
        .expect("the text was cut off at the longest field");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_extra_bytes_and_other_formats_are_refused() {
        let reason = |result: Result<(), String>| result.unwrap_err();
        assert_eq!(reason(Fields::new(b"").format(1)), "it ends 1 bytes early");
        assert!(reason(Fields::new(b"\x02").format(1)).contains("newer"));
        for (format, expected) in [(0, false), (1, false), (2, true), (31, true), (32, false)] {
            let refused = refuse_newer(b"key", &[format], 1);
            assert_eq!(refused.is_err(), expected, "{format}");
        }
        assert!(refuse_newer(b"key", b"", 1).is_ok());
        assert_eq!(reason(Fields::new(b"\0").format(1)), "there is no format 0");
        assert_eq!(reason(Fields::new(b"ab").end()), "2 bytes are left over");
        assert!(Fields::new(b"\x02a").short().is_err());
        assert!(Fields::new(b"\x01\xff").text().is_err());
        assert!(push_short(&mut Vec::new(), &[0; 256]).is_err());
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_off_between_characters() {
        for (text, expected) in [("", 0), ("reason", 6), (&"ä".repeat(200), 254)] {
            let mut record = Vec::new();
            push_text(&mut record, text);
            let mut fields = Fields::new(&record);
            assert_eq!(fields.text().unwrap(), &text[..expected]);
            fields.end().unwrap();
        }
    }
}
