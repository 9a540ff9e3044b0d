//! What a transaction knows about the store: the read version, the snapshot, and the keys that it knows
//! from its reads.
//!
//! FoundationDB's client obtains the read version with the first read that has to ask the store, and
//! remembers the results of reads. Both are observable: see [`range_read`](super::range_read).

use bytes::Bytes;

use super::fetched_rows::FetchedRows;
use super::seat::{RowSource, Unfinished};
use crate::contract::error::Result;
use crate::contract::limits::END_OF_KEYSPACE;
use crate::contract::selector::{KeySelector, KeyValue};
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::engine::Snapshot;
use crate::stores::embedded::wire::{Ask, Found};

/// The rows that are taken from a range that is known, at once.
const KNOWN_ROWS: usize = 32;

#[derive(Default)]
pub(crate) struct SnapshotCache {
    /// Obtained from the store or set by `set_read_version`.
    pub(crate) read_version: Option<i64>,
    /// The rows at the read version, from the first read on.
    rows: Option<Rows>,
    /// `None` before the first read. In a box, because futures hold transactions.
    known: Option<Box<Known>>,
}

/// The rows of the store at one version.
enum Rows {
    State(Snapshot),
    Fetched(Box<FetchedRows>),
}

/// The keys whose stored values FoundationDB's client would know at this point.
#[derive(Clone, Default)]
pub(crate) struct Known {
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

impl SnapshotCache {
    /// Returns the read version, and obtains it if there is none yet.
    pub(crate) fn read_version(&mut self, source: RowSource<'_>) -> Result<i64, Unfinished> {
        if let Some(version) = self.read_version {
            return Ok(version);
        }
        let RowSource::Engine(engine) = source else {
            return Err(Ask::Version.into());
        };
        let (version, snapshot) = engine.read_version()?;
        self.rows = Some(Rows::State(snapshot));
        Ok(*self.read_version.insert(version))
    }

    /// Obtains the read version if there is none yet, without a snapshot. A client's commit obtains it in the owner.
    pub(crate) fn obtain_version(&mut self, source: RowSource<'_>) -> Result<()> {
        if let (None, RowSource::Engine(engine)) = (self.read_version, source) {
            self.read_version = Some(engine.read_version()?.0);
        }
        Ok(())
    }

    /// Takes what the owner has answered, and its read version.
    pub(crate) fn receive(&mut self, version: i64, ask: Ask, found: Found) -> Result<()> {
        self.read_version = Some(version);
        let rows = self
            .rows
            .get_or_insert_with(|| Rows::Fetched(Box::default()));
        match rows {
            Rows::Fetched(fetched) => fetched.add(ask, found),
            Rows::State(_) => Ok(()),
        }
    }

    /// Returns a copy of what is known, if a read may have to start again.
    pub(crate) fn copy_known(&self, source: RowSource<'_>) -> Option<Known> {
        match source {
            RowSource::Engine(_) => None,
            RowSource::Fetched => Some(self.known.as_deref().cloned().unwrap_or_default()),
        }
    }

    pub(crate) fn restore_known(&mut self, known: Known) {
        self.known = Some(Box::new(known));
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
    pub(crate) fn get(
        &mut self,
        source: RowSource<'_>,
        key: &Bytes,
    ) -> Result<Option<Bytes>, Unfinished> {
        let value = match self.rows(source, || Ask::Key(key.clone()))? {
            Rows::State(snapshot) => snapshot.get(key)?,
            Rows::Fetched(fetched) => fetched.get(key)?,
        };
        self.known.get_or_insert_default().keys.push(key.clone());
        Ok(value)
    }

    /// Reads some rows from one end of a range that is already known.
    pub(crate) fn known_rows(
        &mut self,
        source: RowSource<'_>,
        range: (&Bytes, &Bytes),
        direction: Direction,
    ) -> Result<Vec<KeyValue>, Unfinished> {
        let backward = direction == Direction::Backward;
        let mut limits = ReadLimits::rows(KNOWN_ROWS);
        Ok(match self.rows(source, || ask(range, limits, direction))? {
            Rows::State(snapshot) => snapshot.scan(range.0, range.1, backward, KNOWN_ROWS)?,
            Rows::Fetched(fetched) => fetched.take_rows(range, &mut limits, direction)?,
        })
    }

    /// Reads rows between two selectors without `or_equal`. Returns whether a limit was reached.
    ///
    /// Reads at least the number of rows between a selector's key and the key that it names.
    pub(crate) fn load(
        &mut self,
        source: RowSource<'_>,
        (begin, end): (&KeySelector, &KeySelector),
        mut limits: ReadLimits,
        direction: Direction,
    ) -> Result<(Vec<KeyValue>, bool), Unfinished> {
        let from = self.locate(source, begin)?;
        let to = self.locate(source, end)?;
        let back = match direction {
            Direction::Forward => 2i32.saturating_sub(begin.offset),
            Direction::Backward => end.offset,
        };
        limits.rows = limits.rows.max(usize::try_from(back).unwrap_or(1));
        let rows = self.take_rows(source, (from.key(), to.key()), &mut limits, direction)?;
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

    /// Returns the rows at the read version. `ask` is the first thing that a client asks for.
    fn rows(
        &mut self,
        source: RowSource<'_>,
        ask: impl FnOnce() -> Ask,
    ) -> Result<&Rows, Unfinished> {
        if let (None, RowSource::Engine(engine)) = (&self.rows, source) {
            let version = self.read_version(source)?;
            if self.rows.is_none() {
                self.rows = Some(Rows::State(engine.snapshot_at(version)?));
            }
        }
        self.rows.as_ref().ok_or_else(|| ask().into())
    }

    /// Finds the place of a selector: all keys from there on are at or after the key that it names.
    fn locate(
        &mut self,
        source: RowSource<'_>,
        selector: &KeySelector,
    ) -> Result<Located, Unfinished> {
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
        let mut limits = ReadLimits::rows(rows);
        let passed = self.take_rows(source, range, &mut limits, direction)?;
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
    fn take_rows(
        &mut self,
        source: RowSource<'_>,
        range: (&Bytes, &Bytes),
        limits: &mut ReadLimits,
        direction: Direction,
    ) -> Result<Vec<KeyValue>, Unfinished> {
        Ok(
            match self.rows(source, || ask(range, *limits, direction))? {
                Rows::State(snapshot) => snapshot.take_rows(range, limits, direction)?,
                Rows::Fetched(fetched) => fetched.take_rows(range, limits, direction)?,
            },
        )
    }
}

fn ask((begin, end): (&Bytes, &Bytes), limits: ReadLimits, direction: Direction) -> Ask {
    Ask::Rows {
        begin: begin.clone(),
        end: end.clone(),
        limits,
        direction,
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
