//! The bodies of the fuzz targets in keyspace's folder `fuzz`: properties of decoders that must hold for
//! any bytes.
//!
//! Each body takes an input and panics if a property does not hold. Ordinary tests [`drive`] the same
//! bodies with valid and damaged inputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use keyspace::codec::{Codec, Json, MessagePack, Raw, Tuple};
use keyspace::env::ManualClock;
use keyspace::ledger::MIN_SWEEP_AGE;
use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{
    Database, Environment, Error, OwnedTransaction, Result, RunOptions, Runner, Store, Subspace,
    Transaction, VersionClock,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::trace::Trace;
use crate::scale;

/// The length of the record of a ledger's slot, from `docs/schema.md` in the repository.
const SLOT_RECORD_BYTES: usize = 23;
const SLOT_RECORD_FORMAT: u8 = 1;

/// A value with every kind of content that serde knows.
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

/// Tuple elements of all kinds that keys and values of these crates have.
pub type Elements = (
    Vec<u8>,
    String,
    (i64, u64, Option<bool>),
    (f32, f64),
    TupleVersionstamp,
);

/// Checks that a line is a trace or an error, and that a trace that is written is read as the same trace.
///
/// # Panics
/// If the property does not hold.
pub fn trace(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(trace) = Trace::parse(text, 1) {
        let again = Trace::parse(&trace.to_line(), 1);
        assert_eq!(again.expect("what was written can be read"), trace);
    }
}

/// Checks for every codec without a feature that it [reads what it writes](reads_what_it_writes).
///
/// # Panics
/// If the property does not hold.
pub fn codec(input: &[u8]) {
    reads_what_it_writes::<Everything, MessagePack>(input);
    reads_what_it_writes::<Everything, Json>(input);
    reads_what_it_writes::<Elements, Tuple>(input);
    reads_what_it_writes::<Vec<u8>, Raw>(input);
}

/// Checks that bytes are a value or an error, and that a value is the same after it is written and read.
///
/// # Panics
/// If the property does not hold.
pub fn reads_what_it_writes<T, C: Codec<T> + Default>(input: &[u8]) {
    let codec = C::default();
    let Ok(value) = codec.decode(Bytes::copy_from_slice(input)) else {
        return;
    };
    let written = match encode(&codec, &value) {
        Ok(written) => written,
        // A tuple may contain an incomplete versionstamp, which cannot be written as a value.
        Err(Error::Encode { codec: "Tuple", .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let read = (codec.decode(written.clone().into())).expect("what was written can be read");
    let again = encode(&codec, &read).expect("what was read before can be written");
    assert_eq!(again, written);
}

fn encode<T>(codec: &impl Codec<T>, value: &T) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    codec.encode(value, &mut bytes)?;
    Ok(bytes)
}

thread_local! {
    static STORE: Store = keyspace::open("memory:").expect("a store in memory opens");
    static CLOCK: Arc<VersionClock> = Arc::new(warm_clock());
}

/// Checks that any row among the ledgers is either a slot, which a sweep can read, or corrupt, with an
/// error that names the key. The first byte of the input is the length of the key after the ledgers'
/// prefix.
///
/// Blocks on a store, so it must be called outside of an asynchronous runtime.
///
/// # Panics
/// If the property does not hold.
pub fn slot(input: &[u8]) {
    let Some((&key_bytes, row)) = input.split_first() else {
        return;
    };
    let (key, value) = row.split_at(row.len().min(key_bytes.into()));
    let ledgers = Subspace::from("ledgers");
    let key = [ledgers.bytes(), key].concat();
    let (begin, end) = ledgers.range();
    if !(begin..end).contains(&key) {
        return;
    }
    let unpacked = ledgers.unpack::<(Vec<u8>, u64)>(&key);
    let is_slot = unpacked.is_ok_and(|(id, _slot)| id.len() == 16)
        && value.len() == SLOT_RECORD_BYTES
        && value[0] == SLOT_RECORD_FORMAT;
    match block_on(sweep(ledgers, &key, value)) {
        Ok(_) => assert!(is_slot),
        Err(Error::Corrupt { key: named, .. }) => {
            assert_eq!(named, key);
            assert!(!is_slot);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sweeps a store that holds a single row.
async fn sweep(ledgers: Subspace, key: &[u8], value: &[u8]) -> Result<usize> {
    let db = STORE.with(Store::clone);
    let clock = CLOCK.with(Arc::clone);
    let mut tr = db.begin()?;
    tr.set(key, value);
    tr.commit().await?;
    let options = RunOptions::default().with_ledger_subspace(ledgers);
    let swept = Runner::with_options(db.clone(), options)
        .sweep(&clock)
        .await;
    let mut tr = db.begin()?;
    tr.clear(key);
    tr.commit().await?;
    swept
}

/// Returns a clock that has observed for longer than its age, so that a sweep reads records.
fn warm_clock() -> VersionClock {
    const STEPS: u32 = 16;
    let watch = ManualClock::new();
    let environment = Environment::seeded(0, Arc::new(watch.clone()));
    let clock = VersionClock::new(environment, MIN_SWEEP_AGE);
    for version in 0..=i64::from(STEPS) {
        clock.observe(version);
        watch.advance(MIN_SWEEP_AGE / STEPS);
    }
    assert!(clock.version_ago().is_some());
    clock
}

/// Drives a body with valid inputs, damaged ones and noise, from a seed.
///
/// # Panics
/// If there is no input, or if the body panics.
pub fn drive(body: fn(&[u8]), whole: &[Vec<u8>]) {
    let mut rng = StdRng::seed_from_u64(0x5eed);
    for input in whole {
        body(input);
    }
    for _ in 0..scale(2_000, 20_000) {
        let input = &whole[rng.random_range(0..whole.len())];
        body(&damage(input, &mut rng));
        let mut noise = vec![0; rng.random_range(0..64)];
        rng.fill(noise.as_mut_slice());
        body(&noise);
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
            2 if at < bytes.len() => {
                bytes.remove(at);
            }
            _ if at < bytes.len() => bytes[at] = rng.random(),
            _ => bytes.push(rng.random()),
        }
    }
    bytes
}
