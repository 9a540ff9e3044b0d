//! Tests of runs.

mod blocks;
mod crash;
mod damage;
mod decoders;
mod flawed_file;
mod golden;
mod hidden;
mod manifest;
mod model;
mod plants;
mod policy;
mod program;
mod rules;
mod story;
mod threads;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;

use super::damage::FileError;
use super::manifest::Meta;
use super::policy::RunLimits;
use super::{Layout, RunList, RunStoreOptions};
use crate::contract::env::{Environment, ManualClock};
use crate::stores::embedded::entries::Entry;
use crate::stores::embedded::layers::Layers;

/// The rows of a state.
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// An entry of a run that a test writes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Written {
    Set(Vec<u8>, Vec<u8>),
    Gap(Vec<u8>, Vec<u8>),
}

impl Written {
    fn entry(&self) -> Entry<'_> {
        match self {
            Self::Set(key, value) => Entry::Set { key, value },
            Self::Gap(begin, end) => Entry::Gap { begin, end },
        }
    }
}

/// Does to rows what a run on top of them does.
fn apply(rows: &mut Rows, entries: &[Written]) {
    for entry in entries {
        match entry {
            Written::Set(key, value) => {
                rows.insert(key.clone(), value.clone());
            }
            Written::Gap(begin, end) => {
                let gone = rows.range(begin.clone()..end.clone());
                let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
                for key in &gone {
                    rows.remove(key);
                }
            }
        }
    }
}

/// The record of a store that was closed.
const META: Meta = Meta {
    last_version: 100_000_000,
    id: [7; 16],
    log: None,
};

/// Returns options with the ids of tables that follow from a seed.
fn options(layout: Layout, cache_bytes: usize, seed: u64) -> RunStoreOptions {
    RunStoreOptions {
        layout,
        cache_bytes,
        limits: RunLimits::default(),
        env: Environment::seeded(seed, Arc::new(ManualClock::new())),
    }
}

fn text(error: FileError) -> String {
    error.to_string()
}

/// Compares a row of a list with the model.
fn check_get(list: &RunList, rows: &Rows, key: &[u8]) -> Result<(), String> {
    let found = list.get(key).map_err(text)?;
    let expected = rows.get(key).map(|value| &value[..]);
    if found.as_deref() == expected {
        return Ok(());
    }
    let of = |value: Option<&[u8]>| value.map(<[u8]>::len);
    Err(format!(
        "get of {:?}: wrong value of {:?} bytes, expected {:?}",
        key.escape_ascii().to_string(),
        of(found.as_deref()),
        of(expected)
    ))
}

/// Compares a range of a list with the model.
fn check_scan(
    list: &Arc<RunList>,
    rows: &Rows,
    range: (&[u8], &[u8]),
    reverse: bool,
    max_rows: usize,
) -> Result<(), String> {
    let (begin, end) = range;
    let layers = Layers::new(Vec::new(), list.clone());
    let found = layers.scan(begin, end, reverse, max_rows).map_err(text)?;
    let within = || rows.range(begin.to_vec()..end.to_vec());
    let expected: Vec<_> = if reverse {
        within().rev().take(max_rows).collect()
    } else {
        within().take(max_rows).collect()
    };
    let found = found.iter().map(|row| (row.key(), row.value()));
    if found.eq(expected.iter().map(|(key, value)| (&key[..], &value[..]))) {
        return Ok(());
    }
    Err(format!(
        "scan of {} to {}, reverse {reverse}: wrong rows",
        begin.escape_ascii(),
        end.escape_ascii()
    ))
}

/// Compares all of a list with the model: each row, and scans in both directions.
fn check_all(list: &Arc<RunList>, rows: &Rows) -> Result<(), String> {
    let mut all = rows.keys();
    all.try_for_each(|key| check_get(list, rows, key))?;
    for reverse in [false, true] {
        check_scan(list, rows, (b"", b"\xff"), reverse, usize::MAX)?;
    }
    Ok(())
}

/// Reads everything from the file, and compares the number of rows and their bytes with the model.
fn check_verify(list: &RunList, rows: &Rows) -> Result<(), String> {
    let found = list.verify(|_, _| ()).map_err(text)?;
    let bytes: usize = rows
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if (found.rows, found.bytes) != (rows.len() as u64, bytes as u64) {
        return Err(format!(
            "verify counts {found:?}, expected {} rows, {bytes} bytes",
            rows.len()
        ));
    }
    Ok(())
}

/// How the keys of a test look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Up to 3 bytes: many are begins of others, and many are adjacent.
    Short,
    /// A number after a few equal bytes.
    Numbered,
    /// Up to thousands of bytes, of which the first are equal.
    Long,
}

impl Keys {
    fn random(self, rng: &mut StdRng) -> Vec<u8> {
        match self {
            Self::Short => {
                let len = rng.random_range(0..=3);
                let byte = |_| [0, 1, b'a', b'b', 0xfe][rng.random_range(0..5)];
                (0..len).map(byte).collect()
            }
            Self::Numbered => format!("row/{:04}", rng.random_range(0..400)).into_bytes(),
            Self::Long => {
                let prefix = [3, 300, 2000, 9990][rng.random_range(0..4)];
                let mut key = vec![b'p'; prefix];
                key.extend((0..rng.random_range(0..4)).map(|_| rng.random_range(b'a'..=b'z')));
                key
            }
        }
    }
}

/// Returns a value, of which most are short.
fn random_value(rng: &mut StdRng) -> Vec<u8> {
    let max = [0, 10, 100, 1000, 1000, 20_000][rng.random_range(0..6)];
    let len = rng.random_range(0..=max);
    let mut value = vec![rng.random(); len];
    value
        .iter_mut()
        .take(8)
        .for_each(|byte| *byte = rng.random());
    value
}

/// Returns the entries of a run: in order, and none overlaps with another.
fn random_entries(rng: &mut StdRng, keys: Keys, max: usize) -> Vec<Written> {
    let mut sorted: Vec<_> = (0..rng.random_range(1..=max))
        .map(|_| keys.random(rng))
        .collect();
    sorted.sort();
    sorted.dedup();
    let gaps = rng.random_range(0..3);
    let mut entries = Vec::new();
    let mut at = 0;
    while at < sorted.len() {
        let begin = sorted[at].clone();
        if rng.random_range(0..6) < gaps {
            // Gaps may touch, and a Set may follow where one ends.
            at += rng.random_range(1..5);
            let end = match sorted.get(at) {
                Some(end) => end.clone(),
                None => [&begin[..], b"\0"].concat(),
            };
            entries.push(Written::Gap(begin, end));
        } else {
            at += 1;
            let value = random_value(rng);
            entries.push(Written::Set(begin, value));
        }
    }
    entries
}
