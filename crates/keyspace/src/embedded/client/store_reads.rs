//! What a transaction knows about the store: the read version, the snapshot, and the keys that it knows
//! from its reads.
//!
//! FoundationDB's client obtains the read version with the first read that has to ask the store, and
//! remembers the results of reads. Both are observable: see [`read`](super::read).

use bytes::Bytes;

use crate::embedded::collections::direction::Direction;
use crate::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::embedded::engine::{Engine, Snapshot};
use crate::error::Result;
use crate::limits::END_OF_KEYSPACE;
use crate::selector::{KeySelector, KeyValue};
use crate::transaction::key_after;

/// The bytes that a row counts besides its key and value.
const ROW_OVERHEAD_BYTES: usize = 8;

/// The rows taken from the snapshot at once: at first, and at most.
const FIRST_CHUNK_ROWS: usize = 32;
const MAX_CHUNK_ROWS: usize = 256;

/// The limits of a range read.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    /// `usize::MAX` for no limit.
    pub(crate) bytes: usize,
}

impl Limits {
    pub(crate) const ONE_ROW: Self = Self {
        rows: 1,
        bytes: usize::MAX,
    };

    pub(crate) fn is_reached(self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    pub(crate) fn take(&mut self, row: &KeyValue) {
        self.rows -= 1;
        if self.bytes != usize::MAX {
            let row_bytes = row.key().len() + row.value().len() + ROW_OVERHEAD_BYTES;
            self.bytes = self.bytes.saturating_sub(row_bytes);
        }
    }
}

#[derive(Default)]
pub(crate) struct StoreReads {
    /// Obtained from the store or set by `set_read_version`.
    pub(crate) read_version: Option<i64>,
    /// The state at the read version, from the first read on.
    snapshot: Option<Snapshot>,
    /// `None` before the first read. In a box, because futures hold transactions.
    known: Option<Box<Known>>,
}

/// The keys whose stored values FoundationDB's client would know at this point.
#[derive(Default)]
struct Known {
    ranges: RangeSet,
    /// The keys that were read one by one since `ranges` was last needed: most transactions never need it.
    keys: Vec<Bytes>,
}

/// Where a selector points among the rows of the store.
enum Located {
    Key(Bytes),
    BeforeFirst,
    AfterLast,
}

impl StoreReads {
    /// Returns the read version, and obtains it if there is none yet.
    pub(crate) fn read_version(&mut self, engine: &Engine) -> Result<i64> {
        if let Some(version) = self.read_version {
            return Ok(version);
        }
        let (version, snapshot) = engine.read_version()?;
        self.snapshot = Some(snapshot);
        Ok(*self.read_version.insert(version))
    }

    /// Obtains the read version if there is none yet, without a snapshot.
    pub(crate) fn obtain_version(&mut self, engine: &Engine) -> Result<()> {
        if self.read_version.is_none() {
            self.read_version = Some(engine.read_version()?.0);
        }
        Ok(())
    }

    /// Returns the keys whose stored values FoundationDB's client would know at this point.
    pub(crate) fn known(&mut self) -> &RangeSet {
        let Known { ranges, keys } = &mut **self.known.get_or_insert_default();
        // A set takes ascending keys without a search.
        keys.sort_unstable();
        for key in keys.drain(..) {
            ranges.insert(KeyRange::key(key));
        }
        ranges
    }

    /// Reads a key.
    pub(crate) fn get(&mut self, engine: &Engine, key: &Bytes) -> Result<Option<Bytes>> {
        let value = self.snapshot(engine)?.get(key)?;
        self.known.get_or_insert_default().keys.push(key.clone());
        Ok(value)
    }

    /// Reads some rows from one end of a range that is already known.
    pub(crate) fn known_rows(
        &mut self,
        engine: &Engine,
        (begin, end): (&Bytes, &Bytes),
        direction: Direction,
    ) -> Result<Vec<KeyValue>> {
        let backward = direction == Direction::Backward;
        let snapshot = self.snapshot(engine)?;
        snapshot.scan(begin, end, backward, FIRST_CHUNK_ROWS)
    }

    /// Reads rows between two selectors without `or_equal`. Returns whether a limit was reached.
    ///
    /// Reads at least the number of rows between a selector's key and the key that it names.
    pub(crate) fn load(
        &mut self,
        engine: &Engine,
        (begin, end): (&KeySelector, &KeySelector),
        mut limits: Limits,
        direction: Direction,
    ) -> Result<(Vec<KeyValue>, bool)> {
        let from = self.locate(engine, begin)?;
        let to = self.locate(engine, end)?;
        let back = match direction {
            Direction::Forward => 2i32.saturating_sub(begin.offset),
            Direction::Backward => end.offset,
        };
        limits.rows = limits.rows.max(usize::try_from(back).unwrap_or(1));
        let rows = self.rows(engine, (from.key(), to.key()), &mut limits, direction)?;
        let more = limits.is_reached();

        let mut low = match from {
            Located::BeforeFirst => Bytes::new(),
            _ => begin.key.clone(),
        };
        let mut high = match to {
            Located::AfterLast => Bytes::from_static(END_OF_KEYSPACE),
            _ => end.key.clone(),
        };
        if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
            let (lowest, highest) = match direction {
                Direction::Forward => (first.to_key(), last.key()),
                Direction::Backward => (last.to_key(), first.key()),
            };
            let after = Bytes::from(key_after(highest));
            low = match direction {
                Direction::Backward if more => lowest,
                _ => low.min(lowest),
            };
            high = match direction {
                Direction::Forward if more => after,
                _ => high.max(after),
            };
        }
        let known = self.known.get_or_insert_default();
        known.ranges.insert(KeyRange::new(low, high));
        Ok((rows, more))
    }

    fn snapshot(&mut self, engine: &Engine) -> Result<&Snapshot> {
        let version = self.read_version(engine)?;
        match &mut self.snapshot {
            Some(snapshot) => Ok(snapshot),
            none => Ok(none.insert(engine.snapshot_at(version)?)),
        }
    }

    /// Finds the place of a selector: all keys from there on are at or after the key that it names.
    fn locate(&mut self, engine: &Engine, selector: &KeySelector) -> Result<Located> {
        let rows = selector.offset.abs_diff(1) as usize;
        if rows == 0 {
            return Ok(Located::Key(selector.key.clone()));
        }
        let start = Bytes::new();
        let finish = Bytes::from_static(END_OF_KEYSPACE);
        let forward = selector.offset > 1;
        let (range, direction) = if forward {
            ((&selector.key, &finish), Direction::Forward)
        } else {
            ((&start, &selector.key), Direction::Backward)
        };
        let mut limits = Limits {
            rows,
            bytes: usize::MAX,
        };
        let passed = self.rows(engine, range, &mut limits, direction)?;
        Ok(match passed.last() {
            Some(last) if limits.is_reached() && forward => {
                Located::Key(key_after(last.key()).into())
            }
            Some(last) if limits.is_reached() => Located::Key(last.to_key()),
            _ if forward => Located::AfterLast,
            _ => Located::BeforeFirst,
        })
    }

    /// Takes rows from one end of a range, up to the limits.
    fn rows(
        &mut self,
        engine: &Engine,
        (begin, end): (&Bytes, &Bytes),
        limits: &mut Limits,
        direction: Direction,
    ) -> Result<Vec<KeyValue>> {
        let snapshot = self.snapshot(engine)?;
        let mut begin = begin.clone();
        let mut end = end.clone();
        let mut rows: Vec<KeyValue> = Vec::new();
        let mut chunk_rows = FIRST_CHUNK_ROWS;
        while !limits.is_reached() {
            let wanted = chunk_rows.min(limits.rows);
            let backward = direction == Direction::Backward;
            let chunk = snapshot.scan(&begin, &end, backward, wanted)?;
            let is_last = chunk.len() < wanted;
            for row in chunk {
                if limits.is_reached() {
                    break;
                }
                limits.take(&row);
                rows.push(row);
            }
            match (rows.last(), direction) {
                _ if is_last => break,
                (Some(last), Direction::Forward) => begin = key_after(last.key()).into(),
                (Some(last), Direction::Backward) => end = last.to_key(),
                (None, _) => break,
            }
            chunk_rows = (chunk_rows * 2).min(MAX_CHUNK_ROWS);
        }
        Ok(rows)
    }
}

impl Located {
    fn key(&self) -> &Bytes {
        static START: Bytes = Bytes::new();
        static FINISH: Bytes = Bytes::from_static(END_OF_KEYSPACE);
        match self {
            Self::Key(key) => key,
            Self::BeforeFirst => &START,
            Self::AfterLast => &FINISH,
        }
    }
}
