//! The bodies of the fuzz targets in `fuzz/`: what must hold of any bytes that are decoded.
//!
//! Each body takes an input and panics if something does not hold. A plain test drives the same
//! bodies with whole inputs and damaged ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use foundationdb_tuple::{Subspace, Versionstamp as TupleVersionstamp};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::trace::Trace;
use crate::codec::{Bincode, Codec, Json, MessagePack, Raw, Tuple};
use crate::error::{Error, Result};
use crate::ledger::{LedgerKeys, SlotRecord};

/// A value with one of each kind of thing that serde knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Everything {
    /// Text.
    pub text: String,
    /// Numbers of all sizes.
    pub numbers: (u8, i16, u32, i64, u128, f32, f64),
    /// A list.
    pub list: Vec<Option<char>>,
    /// A map.
    pub map: BTreeMap<String, Choice>,
}

/// A variant of each kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Choice {
    /// A unit.
    Nothing,
    /// A tuple.
    Pair(bool, Box<Choice>),
    /// A struct.
    Named {
        /// Bytes.
        bytes: Vec<u8>,
    },
}

/// Tuple elements of all the kinds that keys and values of these crates have.
pub type Elements = (
    Vec<u8>,
    String,
    (i64, u64, Option<bool>),
    (f32, f64),
    TupleVersionstamp,
);

/// A line is a trace or an error. A trace that is written is read as the same trace.
///
/// # Panics
/// If that does not hold.
pub fn trace(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(trace) = Trace::parse(text, 1) {
        let again = Trace::parse(&trace.to_line(), 1);
        assert_eq!(again.expect("what was written can be read"), trace);
    }
}

/// Bytes are a value or an error, in every codec. A value that is written is read as one that is
/// written the same.
///
/// # Panics
/// If that does not hold.
pub fn codec(input: &[u8]) {
    settles::<Everything, Bincode>(input);
    settles::<Everything, MessagePack>(input);
    settles::<Everything, Json>(input);
    settles::<Elements, Tuple>(input);
    settles::<Vec<u8>, Raw>(input);
}

fn settles<T, C: Codec<T> + Default>(input: &[u8]) {
    let codec = C::default();
    let Ok(value) = codec.decode(Bytes::copy_from_slice(input)) else {
        return;
    };
    let written = match encode(&codec, &value) {
        Ok(written) => written,
        // A tuple may hold an incomplete versionstamp, which is not written as a value.
        Err(Error::Encode { codec: "Tuple", .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let again = (codec.decode(written.clone().into())).expect("what was written can be read");
    let again = encode(&codec, &again).expect("what was read before can be written");
    assert_eq!(again, written);
}

fn encode<T>(codec: &impl Codec<T>, value: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    codec.encode(value, &mut bytes)?;
    Ok(bytes)
}

/// A row among the ledgers is a slot's or corrupt, and the error names the key. The first byte of
/// the input is the length of the key after the ledgers' prefix.
///
/// # Panics
/// If that does not hold.
pub fn slot(input: &[u8]) {
    let Some((&key_bytes, row)) = input.split_first() else {
        return;
    };
    let (key, value) = row.split_at(row.len().min(key_bytes.into()));
    let ledgers = Subspace::from("ledgers");
    let key = [ledgers.bytes(), key].concat();
    let keys = LedgerKeys::new(ledgers);
    if let Some(id) = sound(&key, keys.ledger_of(&key)) {
        let (begin, end) = keys.slots(id);
        assert!((begin..end).contains(&key));
    }
    if let Some(record) = sound(&key, SlotRecord::decode(&key, value)) {
        let number = &value[1..9];
        assert_eq!(number, record.operation.to_be_bytes());
        assert_eq!(&value[9..13], record.attempt.to_be_bytes());
        assert_eq!(&value[13..], record.versionstamp.as_bytes());
    }
}

/// Returns what was decoded, `None` if the row is corrupt.
fn sound<T>(key: &[u8], decoded: Result<T>) -> Option<T> {
    match decoded {
        Ok(decoded) => Some(decoded),
        Err(Error::Corrupt { key: named, .. }) => {
            assert_eq!(named, key);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Changes, inserts and removes a few bytes of an input, or none.
#[must_use]
pub fn damage(input: &[u8], rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..4) {
            0 => bytes.insert(at, rng.random()),
            1 => bytes.truncate(at),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ if at < bytes.len() => bytes[at] = rng.random(),
            _ => bytes.push(rng.random()),
        }
    }
    bytes
}
