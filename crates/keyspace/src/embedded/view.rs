//! What a transaction sees: the store at the read version under the transaction's own writes.
//!
//! [`Cursor`] walks the rows of the view in either direction and stops at what is unreadable.
//!
//! FoundationDB's client obtains the read version with the first read that has to ask the store
//! (one that own writes answer does not), and remembers which keys it knows from earlier reads of
//! the transaction. Both can be observed, so both are reproduced: a cursor asks the store only for
//! keys that the own writes say nothing about, and can be told to stop at keys not known yet.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::engine::{Engine, Snapshot};
use super::ranges::{RangeSet, key_range};
use super::write_map::{Own, Stack, WriteMap};
use crate::error::{Code, Result};
use crate::limits::END_OF_KEYSPACE;
use crate::selector::KeyValue;
use crate::transaction::key_after;

/// The rows that a cursor takes from the store at once: at first, and at most.
pub(super) const FIRST_CHUNK_ROWS: usize = 32;
const LARGEST_CHUNK_ROWS: usize = 256;

/// What a transaction has read of the store.
#[derive(Default)]
pub(super) struct Stored {
    /// Obtained from the store or set by `set_read_version`.
    pub(super) read_version: Option<i64>,
    /// What the store held at the read version, from the first read on.
    snapshot: Option<Snapshot>,
    /// The keys whose stored values FoundationDB's client would know by now.
    known: RangeSet,
}

impl Stored {
    /// Returns the read version, obtaining it if need be.
    pub(super) fn read_version(&mut self, engine: &Engine) -> Result<i64> {
        if let Some(version) = self.read_version {
            return Ok(version);
        }
        let (version, snapshot) = engine.read_version()?;
        self.snapshot = Some(snapshot);
        Ok(*self.read_version.insert(version))
    }

    fn snapshot(&mut self, engine: &Engine) -> Result<&Snapshot> {
        let version = self.read_version(engine)?;
        match &mut self.snapshot {
            Some(snapshot) => Ok(snapshot),
            none => Ok(none.insert(engine.snapshot_at(version)?)),
        }
    }

    fn get(&mut self, engine: &Engine, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.snapshot(engine)?.get(key)?;
        self.known.insert_key(key);
        Ok(value)
    }

    /// Reads up to `max_rows` rows from one end of `begin <= key < end`.
    fn scan(
        &mut self,
        engine: &Engine,
        (begin, end): (&Bytes, &Bytes),
        direction: Direction,
        max_rows: usize,
    ) -> Result<Vec<KeyValue>> {
        let backward = direction == Direction::Backward;
        let rows = self
            .snapshot(engine)?
            .scan(begin, end, backward, max_rows)?;
        let cut = rows.last().filter(|_| rows.len() == max_rows);
        match (cut, direction) {
            (None, _) => self.known.insert(begin.clone(), end.clone()),
            (Some(last), Direction::Forward) => {
                self.known
                    .insert(begin.clone(), key_after(&last.key).into());
            }
            (Some(last), Direction::Backward) => self.known.insert(last.key.clone(), end.clone()),
        }
        Ok(rows)
    }
}

/// What a read sees.
pub(super) struct View<'a> {
    pub(super) engine: &'a Engine,
    pub(super) stored: &'a mut Stored,
    /// The transaction's own writes, unless the read bypasses them.
    pub(super) writes: Option<&'a WriteMap>,
    /// Reads versionstamped operations as sets whose stamp is not filled in.
    pub(super) bypass_unreadable: bool,
}

impl View<'_> {
    /// Returns the view of the store alone.
    pub(super) fn without_writes(&mut self) -> View<'_> {
        View {
            engine: self.engine,
            stored: self.stored,
            writes: None,
            bypass_unreadable: false,
        }
    }

    fn unreadable(&self) -> Option<&RangeSet> {
        self.writes
            .filter(|_| !self.bypass_unreadable)
            .map(WriteMap::unreadable)
    }

    /// Returns whether a walk could meet an unreadable key.
    pub(super) fn has_unreadable(&self) -> bool {
        self.unreadable().is_some_and(|keys| !keys.is_empty())
    }

    /// Returns whether a walk that stands at `position` stands before an unreadable key.
    pub(super) fn is_unreadable(&self, position: &Bytes, direction: Direction) -> bool {
        let Some(unreadable) = self.unreadable() else {
            return false;
        };
        match direction {
            Direction::Forward => unreadable.contains(position),
            Direction::Backward => unreadable
                .last_before(position)
                .is_some_and(|(_, end)| end >= position),
        }
    }

    /// Returns where, walking from `position`, the first keys lie for which the store's rows are of
    /// no use: unreadable ones, or a cleared range of more than one key.
    pub(super) fn obstacle(&self, position: &Bytes, direction: Direction) -> Option<Bytes> {
        let writes = self.writes?;
        let is_wide = |begin: &Bytes, end: &Bytes| *end != key_range(begin).1;
        match direction {
            Direction::Forward => {
                let unreadable = writes
                    .unreadable()
                    .first_from(position)
                    .map(|(begin, _)| begin);
                let mut cleared = writes.cleared().iter_from(position);
                let cleared = cleared
                    .find(|(begin, end)| is_wide(begin, end))
                    .map(|(begin, _)| begin);
                unreadable.into_iter().chain(cleared).min().cloned()
            }
            Direction::Backward => {
                let unreadable = writes
                    .unreadable()
                    .last_before(position)
                    .map(|(_, end)| end);
                let mut cleared = writes.cleared().iter_before(position);
                let cleared = cleared
                    .find(|(begin, end)| is_wide(begin, end))
                    .map(|(_, end)| end);
                unreadable.into_iter().chain(cleared).max().cloned()
            }
        }
    }

    /// Makes the store's next row from `position` on known, unless the keys there are already.
    pub(super) fn learn(&mut self, position: &Bytes, direction: Direction) -> Result<()> {
        let known = match direction {
            Direction::Forward => self.stored.known.first_from(position),
            Direction::Backward => self.stored.known.last_before(position),
        };
        let is_known = known.is_some_and(|(begin, end)| match direction {
            Direction::Forward => begin <= position,
            Direction::Backward => end >= position,
        });
        if !is_known {
            Cursor::new(direction, position.clone())
                .expecting(1)
                .next(self)?;
        }
        Ok(())
    }

    /// Reads a key.
    pub(super) fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        let own = match self.writes {
            Some(writes) => writes.own(key, self.bypass_unreadable),
            None => Own::Unmodified,
        };
        match own {
            Own::Unmodified => self.stored.get(self.engine, key),
            Own::Unreadable => Err(Code::ACCESSED_UNREADABLE.into()),
            Own::Cleared => Ok(None),
            Own::Written(stack) => self.written(key, stack),
        }
    }

    /// Reads a key that the transaction has written.
    fn written(&mut self, key: &[u8], stack: &Stack) -> Result<Option<Bytes>> {
        if !stack.is_dependent() {
            return Ok(stack.value(None));
        }
        Ok(stack.value(self.stored.get(self.engine, key)?.as_deref()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    pub(super) fn reversed(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }

    /// Returns whether a walk that ends at `far` leaves `key` out.
    pub(super) fn passes(self, far: &Bytes, key: &Bytes) -> bool {
        match self {
            Self::Forward => key >= far,
            Self::Backward => key < far,
        }
    }
}

/// One step of a walk.
pub(super) enum Step {
    Row(KeyValue),
    /// An own operation has left no value under the key.
    Missing(Bytes),
    /// The walk stands before keys whose values are not known before the commit.
    Unreadable,
    /// The walk stands before keys that it would have to ask the store for, and may not.
    Unknown,
    End,
}

/// Walks the rows of a view from a key on, or backward from before a key.
pub(super) struct Cursor {
    direction: Direction,
    /// Forward: where the walk goes on, inclusive. Backward: exclusive.
    pub(super) position: Bytes,
    /// Where the walk ends. Forward: exclusive. Backward: inclusive.
    pub(super) bound: Bytes,
    /// Whether the walk may ask the store for what the transaction does not know.
    pub(super) known_only: bool,
    /// Rows of the store next to the position, in the direction of the walk.
    chunk: VecDeque<KeyValue>,
    chunk_rows: usize,
}

impl Cursor {
    pub(super) fn new(direction: Direction, position: Bytes) -> Self {
        let bound = match direction {
            Direction::Forward => Bytes::from_static(END_OF_KEYSPACE),
            Direction::Backward => Bytes::new(),
        };
        let (chunk, chunk_rows) = (VecDeque::new(), FIRST_CHUNK_ROWS);
        Self {
            direction,
            position,
            bound,
            known_only: false,
            chunk,
            chunk_rows,
        }
    }

    /// Sets how many rows the walk is expected to need.
    pub(super) fn expecting(mut self, rows: usize) -> Self {
        self.chunk_rows = rows.clamp(1, LARGEST_CHUNK_ROWS);
        self
    }

    pub(super) fn next(&mut self, view: &mut View<'_>) -> Result<Step> {
        loop {
            if self.is_at_bound() {
                return Ok(Step::End);
            }
            if let ControlFlow::Break(step) = self.advance(view)? {
                return Ok(step);
            }
        }
    }

    fn is_at_bound(&self) -> bool {
        match self.direction {
            Direction::Forward => self.position >= self.bound,
            Direction::Backward => self.position <= self.bound,
        }
    }

    /// Takes the next step, or goes on past a stretch without rows.
    fn advance(&mut self, view: &mut View<'_>) -> Result<ControlFlow<Step>> {
        // The stretch of keys next to the position that the own writes say nothing about ends here.
        let mut edge = self.bound.clone();
        if let Some(writes) = view.writes.filter(|writes| !writes.is_transparent()) {
            if !view.bypass_unreadable && self.neighbor(writes.unreadable(), &mut edge).is_some() {
                return Ok(ControlFlow::Break(Step::Unreadable));
            }
            if let Some((key, stack)) = self.neighbor_stack(writes, &mut edge) {
                if stack.is_dependent() && self.known_only && !view.stored.known.contains(&key) {
                    return Ok(ControlFlow::Break(Step::Unknown));
                }
                let value = view.written(&key, stack)?;
                self.pass(&key);
                let step = value.map_or(Step::Missing(key.clone()), |value| {
                    Step::Row(KeyValue {
                        key: key.clone(),
                        value,
                    })
                });
                return Ok(ControlFlow::Break(step));
            }
            if let Some((begin, end)) = self.neighbor(writes.cleared(), &mut edge) {
                self.position = match self.direction {
                    Direction::Forward => end.min(edge),
                    Direction::Backward => begin.max(edge),
                };
                return Ok(ControlFlow::Continue(()));
            }
        }
        self.advance_stored(view, edge)
    }

    /// Takes the next row of the store before `edge`, or goes on there.
    fn advance_stored(
        &mut self,
        view: &mut View<'_>,
        mut edge: Bytes,
    ) -> Result<ControlFlow<Step>> {
        if self.known_only {
            let mut unknown_edge = edge.clone();
            let Some((begin, end)) = self.neighbor(&view.stored.known, &mut unknown_edge) else {
                return Ok(ControlFlow::Break(Step::Unknown));
            };
            edge = match self.direction {
                Direction::Forward => edge.min(end),
                Direction::Backward => edge.max(begin),
            };
        }
        if self.chunk.is_empty() {
            let range = match self.direction {
                Direction::Forward => (&self.position, &edge),
                Direction::Backward => (&edge, &self.position),
            };
            self.chunk = view
                .stored
                .scan(view.engine, range, self.direction, self.chunk_rows)?
                .into();
            self.chunk_rows = (self.chunk_rows * 2).min(LARGEST_CHUNK_ROWS);
        }
        match self.chunk.pop_front() {
            Some(row) => {
                self.pass(&row.key);
                Ok(ControlFlow::Break(Step::Row(row)))
            }
            None => {
                self.position = edge;
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// Returns the range of `set` that the position stands in; if it stands in none, moves `edge`
    /// to where the next one begins.
    fn neighbor(&self, set: &RangeSet, edge: &mut Bytes) -> Option<(Bytes, Bytes)> {
        let (begin, end) = match self.direction {
            Direction::Forward => set.first_from(&self.position)?,
            Direction::Backward => set.last_before(&self.position)?,
        };
        match self.direction {
            Direction::Forward if self.position < *begin => *edge = begin.min(&*edge).clone(),
            Direction::Backward if *end < self.position => *edge = end.max(&*edge).clone(),
            _ => return Some((begin.clone(), end.clone())),
        }
        None
    }

    /// Returns the written key that the position stands at; if it stands at none, moves `edge` to
    /// the next one.
    fn neighbor_stack<'w>(
        &self,
        writes: &'w WriteMap,
        edge: &mut Bytes,
    ) -> Option<(Bytes, &'w Stack)> {
        let (key, stack) = match self.direction {
            Direction::Forward => writes.stack_from(&self.position)?,
            Direction::Backward => writes.stack_before(&self.position)?,
        };
        let (begin, end) = key_range(key);
        match self.direction {
            Direction::Forward if self.position < begin => *edge = begin.min(edge.clone()),
            Direction::Backward if end < self.position => *edge = end.max(edge.clone()),
            _ => return Some((begin, stack)),
        }
        None
    }

    fn pass(&mut self, key: &Bytes) {
        self.position = match self.direction {
            Direction::Forward => key_after(key).into(),
            Direction::Backward => key.clone(),
        };
    }
}
