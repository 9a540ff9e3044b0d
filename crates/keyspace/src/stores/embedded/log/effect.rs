//! Effects: the changes of rows in a batch, and their encoding.
//!
//! Effects are the results of mutations: atomic operations are computed, and versionstamps filled in. Applying the
//! effects again, in order and from any earlier point, gives the same rows.
//!
//! # Layout
//!
//! ```text
//! 1, key length, value length, key, value      sets a key
//! 2, key length, key                           clears a key
//! 3, begin length, end length, begin, end      clears the keys begin <= key < end; begin <= end
//! ```
//!
//! The first field is a byte. Lengths are unsigned LEB128 in the shortest form, at most five bytes.

use crate::values::record::Fields;

const SET: u8 = 1;
const CLEAR: u8 = 2;
const CLEAR_RANGE: u8 = 3;

/// A change of rows that does not depend on their earlier values. Applying the effects of a log in order
/// from any earlier state therefore always gives the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    Set { key: &'a [u8], value: &'a [u8] },
    Clear { key: &'a [u8] },
    ClearRange { begin: &'a [u8], end: &'a [u8] },
}

impl Effect<'_> {
    /// The bytes of an effect besides its keys and value, if these are not long.
    pub(super) const USUAL_HEADER_BYTES: usize = 4;

    /// Appends the effect.
    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Set { key, value } => encode_fields(bytes, SET, &[key, value]),
            Self::Clear { key } => encode_fields(bytes, CLEAR, &[key]),
            Self::ClearRange { begin, end } => encode_fields(bytes, CLEAR_RANGE, &[begin, end]),
        }
    }
}

fn encode_fields(bytes: &mut Vec<u8>, tag: u8, fields: &[&[u8]]) {
    bytes.push(tag);
    for field in fields {
        encode_length(bytes, field.len());
    }
    for field in fields {
        bytes.extend_from_slice(field);
    }
}

fn encode_length(bytes: &mut Vec<u8>, length: usize) {
    let mut rest = u32::try_from(length).expect("keys and values are far below 4 GiB");
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// The effects of a batch, in order. They were all checked, so reading them cannot fail.
#[derive(Debug, Clone)]
pub(crate) struct Effects<'a>(Fields<'a>);

impl<'a> Effects<'a> {
    /// Returns the effects that were encoded to `body`.
    pub(super) fn pushed(body: &'a [u8]) -> Self {
        Self(Fields::new(body))
    }

    /// Checks the body of a batch with `count` effects.
    ///
    /// # Errors
    /// The reason why the body is not valid.
    pub(super) fn parse(body: &'a [u8], count: u32) -> Result<Self, String> {
        let mut fields = Fields::new(body);
        let mut found: u32 = 0;
        while !fields.rest().is_empty() {
            decode(&mut fields)?;
            found = found.saturating_add(1);
        }
        if found != count {
            return Err(format!("it holds {found} effects, {count} were announced"));
        }
        Ok(Self(Fields::new(body)))
    }
}

impl<'a> Iterator for Effects<'a> {
    type Item = Effect<'a>;

    fn next(&mut self) -> Option<Effect<'a>> {
        if self.0.rest().is_empty() {
            return None;
        }
        Some(decode(&mut self.0).expect("all effects were checked"))
    }
}

fn decode<'a>(fields: &mut Fields<'a>) -> Result<Effect<'a>, String> {
    match fields.array()? {
        [SET] => {
            let [key, value] = decode_fields(fields)?;
            Ok(Effect::Set { key, value })
        }
        [CLEAR] => {
            let [key] = decode_fields(fields)?;
            Ok(Effect::Clear { key })
        }
        [CLEAR_RANGE] => {
            let [begin, end] = decode_fields(fields)?;
            if begin > end {
                return Err("a range that is cleared ends before it begins".to_owned());
            }
            Ok(Effect::ClearRange { begin, end })
        }
        [tag] => Err(format!("there is no effect {tag}")),
    }
}

fn decode_fields<'a, const N: usize>(fields: &mut Fields<'a>) -> Result<[&'a [u8]; N], String> {
    let mut lengths = [0; N];
    for length in &mut lengths {
        *length = decode_length(fields)?;
    }
    let mut taken: [&[u8]; N] = [&[]; N];
    for (field, length) in taken.iter_mut().zip(lengths) {
        *field = fields.take(length)?;
    }
    Ok(taken)
}

fn decode_length(fields: &mut Fields<'_>) -> Result<usize, String> {
    let mut length: u64 = 0;
    for shift in (0..35).step_by(7) {
        let [byte] = fields.array()?;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err("a length is written in more bytes than it takes".to_owned());
            }
            let length = u32::try_from(length).map_err(|_| format!("a length is {length}"))?;
            return usize::try_from(length).map_err(|error| error.to_string());
        }
    }
    Err("a length has more than five bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, RngCore, SeedableRng};

    use super::*;

    #[test]
    fn effects_have_the_bytes_that_are_documented() {
        let long = [b'v'; 300];
        let effects = [
            Effect::Set {
                key: b"key",
                value: b"",
            },
            Effect::Clear { key: b"k" },
            Effect::ClearRange {
                begin: b"a",
                end: b"bc",
            },
            Effect::Set {
                key: b"",
                value: &long,
            },
        ];
        let mut bytes = Vec::new();
        for effect in effects {
            effect.encode(&mut bytes);
        }
        let golden = b"\x01\x03\x00key\x02\x01k\x03\x01\x02abc\x01\x00\xac\x02";
        assert_eq!(bytes, [&golden[..], &long].concat());
        let found: Vec<_> = Effects::parse(&bytes, 4).unwrap().collect();
        assert_eq!(found, effects);
    }

    #[test]
    fn a_body_that_lies_is_refused() {
        for (body, count, reason) in [
            (&b"\x02\x01k"[..], 2, "it holds 1 effects, 2 were announced"),
            (b"\x02\x01k\x02\x01k", 1, "it holds 2 effects"),
            (b"", 1, "it holds 0 effects"),
            (b"\x00", 1, "there is no effect 0"),
            (b"\x04\x01k", 1, "there is no effect 4"),
            (b"\x02", 1, "early"),
            (b"\x02\x02k", 1, "early"),
            (b"\x01\x01\x01k", 1, "early"),
            (b"\x02\x81\x00k", 1, "more bytes than it takes"),
            (b"\x02\xff\xff\xff\xff\x1f", 1, "a length is"),
            (b"\x02\xff\xff\xff\xff\x0f", 1, "early"),
            (b"\x02\xff\xff\xff\xff\xff\x01", 1, "more than five bytes"),
            (b"\x03\x01\x01ba", 1, "ends before it begins"),
        ] {
            let found = Effects::parse(body, count).unwrap_err();
            assert!(found.contains(reason), "{body:02x?}: {found}");
        }
    }

    #[test]
    fn random_bytes_are_refused_or_are_what_their_effects_encode_to() {
        let mut rng = StdRng::seed_from_u64(0);
        let mut accepted = 0;
        for _ in 0..100_000 {
            let mut body = vec![0; rng.random_range(0..12)];
            rng.fill_bytes(&mut body);
            // Small bytes are lengths and tags more often.
            body.iter_mut()
                .for_each(|byte| *byte %= if rng.random() { 4 } else { 255 });
            for count in 0..4 {
                if let Ok(effects) = Effects::parse(&body, count) {
                    accepted += 1;
                    let mut again = Vec::new();
                    effects.for_each(|effect| effect.encode(&mut again));
                    assert_eq!(again, body);
                }
            }
        }
        assert!(accepted > 1_000, "{accepted}");
    }
}
