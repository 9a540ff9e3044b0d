//! The rows that a transaction has fetched from the owner of the store, all at its read version.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::contract::error::{Code, Result};
use crate::contract::selector::KeyValue;
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::wire::{Ask, Found};

/// The fetched rows, and the keys that were fetched, with or without a row.
#[derive(Debug, Default)]
pub(crate) struct FetchedRows {
    keys: RangeSet,
    rows: BTreeMap<Bytes, KeyValue>,
}

impl FetchedRows {
    /// Reads a key. Returns what to ask for if it was not fetched.
    pub(crate) fn get(&self, key: &Bytes) -> Result<Option<Bytes>, Ask> {
        if self.keys.contains(key) {
            Ok(self.rows.get(key).map(KeyValue::to_value))
        } else {
            Err(Ask::Key(key.clone()))
        }
    }

    /// Takes rows from one end of a range, up to the limits. Returns what to ask for if keys on the way were not
    /// fetched.
    pub(crate) fn take_rows(
        &self,
        (begin, end): (&Bytes, &Bytes),
        limits: &mut ReadLimits,
        direction: Direction,
    ) -> Result<Vec<KeyValue>, Ask> {
        let mut begin = begin.clone();
        let mut end = end.clone();
        let mut taken = Vec::new();
        while begin < end && !limits.is_reached() {
            let fetched = match direction {
                Direction::Forward => self.keys.first_from(&begin),
                Direction::Backward => self.keys.last_before(&end),
            };
            let (low, high) = match fetched.map(KeyRange::into_bounds) {
                Some((low, high)) if direction == Direction::Forward && low <= begin => {
                    (begin.clone(), high.min(end.clone()))
                }
                Some((low, high)) if direction == Direction::Backward && end <= high => {
                    (low.max(begin.clone()), end.clone())
                }
                _ => {
                    return Err(Ask::Rows {
                        begin,
                        end,
                        limits: *limits,
                        direction,
                    });
                }
            };
            let rows = self.rows.range(low.clone()..high.clone());
            let rows = rows.map(|(_, row)| row);
            match direction {
                Direction::Forward => take(rows, limits, &mut taken),
                Direction::Backward => take(rows.rev(), limits, &mut taken),
            }
            match direction {
                Direction::Forward => begin = high,
                Direction::Backward => end = low,
            }
        }
        Ok(taken)
    }

    /// Keeps what the owner has answered.
    pub(crate) fn add(&mut self, ask: Ask, found: Found) -> Result<()> {
        match (ask, found) {
            (Ask::Key(key), Found::Value(value)) => {
                if let Some(value) = value {
                    self.rows.insert(key.clone(), KeyValue::new(&key, &value));
                }
                self.keys.insert(KeyRange::key(key));
            }
            (
                Ask::Rows {
                    begin,
                    end,
                    direction,
                    ..
                },
                Found::Rows { rows, more },
            ) if !(more && rows.is_empty()) => {
                let rows = rows.into_iter().map(KeyValue::try_from);
                let rows = rows.collect::<Result<Vec<_>, _>>()?;
                let fetched = match (rows.last(), direction) {
                    (Some(last), Direction::Forward) if more => {
                        KeyRange::new(begin, key_after(last.key()).into())
                    }
                    (Some(last), Direction::Backward) if more => KeyRange::new(last.to_key(), end),
                    _ => KeyRange::new(begin, end),
                };
                self.keys.insert(fetched);
                self.rows
                    .extend(rows.into_iter().map(|row| (row.to_key(), row)));
            }
            (Ask::Version, Found::Version) => {}
            _ => return Err(Code::PLATFORM_ERROR.into()),
        }
        Ok(())
    }
}

fn take<'a>(
    rows: impl Iterator<Item = &'a KeyValue>,
    limits: &mut ReadLimits,
    taken: &mut Vec<KeyValue>,
) {
    for row in rows {
        if limits.is_reached() {
            return;
        }
        limits.take(row);
        taken.push(row.clone());
    }
}
