//! A transaction's view: its own writes over what it knows about the store.
//!
//! The keyspace is divided into *stretches*: a row; an operation of the transaction that left no value;
//! keys whose values are not known before the commit; keys that the store has to be asked for. Everything
//! else is empty. [`Walk`] goes from stretch to stretch in either direction.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::seat::{RowSource, Unfinished};
use super::snapshot_cache::SnapshotCache;
use super::write_map::{Own, Stack, WriteMap};
use crate::contract::error::Code;
use crate::contract::limits::END_OF_KEYSPACE;
use crate::contract::selector::KeyValue;
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};

/// The view of one read.
pub(crate) struct View<'a> {
    pub(crate) source: RowSource<'a>,
    pub(crate) snapshot_cache: &'a mut SnapshotCache,
    /// The transaction's own writes, unless the read bypasses them.
    pub(crate) writes: Option<&'a WriteMap>,
    /// Reads the key of a versionstamped operation as set, without the stamp filled in. Selectors and
    /// ranges still stop there.
    pub(crate) bypass_unreadable: bool,
}

impl View<'_> {
    /// Returns whether the store's result is the result of the read.
    pub(crate) fn is_transparent(&self) -> bool {
        self.writes.is_none_or(WriteMap::is_transparent)
    }

    /// Reads a key.
    pub(crate) fn get(&mut self, key: &Bytes) -> Result<Option<Bytes>, Unfinished> {
        let own = match self.writes {
            Some(writes) => writes.own(key, self.bypass_unreadable),
            None => Own::Unmodified,
        };
        match own {
            Own::Unmodified => self.snapshot_cache.get(self.source, key),
            Own::Unreadable => Err(Code::ACCESSED_UNREADABLE.into()),
            Own::Cleared => Ok(None),
            Own::Written(stack) => self.written(key, stack),
        }
    }

    /// Reads a key that the transaction has written.
    fn written(&mut self, key: &Bytes, stack: &Stack) -> Result<Option<Bytes>, Unfinished> {
        if !stack.is_dependent() {
            return Ok(stack.value(None));
        }
        Ok(stack.value(self.snapshot_cache.get(self.source, key)?.as_deref()))
    }
}

/// A stretch of the keyspace that a walk has reached.
pub(crate) enum Stretch {
    Row(KeyValue),
    /// The transaction's operation left no value under this key.
    Missing(Bytes),
    /// The walk is before keys whose values are not known before the commit.
    Unreadable,
    /// The walk is before keys that the store has to be asked for, up to this one.
    Unknown(Bytes),
    End,
}

impl Stretch {
    /// Returns the key that the walk has passed, with or without a value.
    pub(crate) fn key(&self) -> Option<Bytes> {
        match self {
            Self::Row(row) => Some(row.to_key()),
            Self::Missing(key) => Some(key.clone()),
            Self::Unreadable | Self::Unknown(_) | Self::End => None,
        }
    }
}

/// Walks from stretch to stretch: forward from a key on, or backward from before a key.
pub(crate) struct Walk {
    direction: Direction,
    /// Where the walk continues. Forward: inclusive. Backward: exclusive.
    pub(crate) position: Bytes,
    /// Where the walk ends. Forward: exclusive. Backward: inclusive.
    pub(crate) bound: Bytes,
    /// Known rows of the store next to the position, in the direction of the walk.
    rows: VecDeque<KeyValue>,
}

impl Walk {
    pub(crate) fn new(direction: Direction, position: Bytes) -> Self {
        let bound = match direction {
            Direction::Forward => Bytes::from_static(END_OF_KEYSPACE),
            Direction::Backward => Bytes::new(),
        };
        Self {
            direction,
            position,
            bound,
            rows: VecDeque::new(),
        }
    }

    /// Returns the next stretch. The walk moves past rows and missing values, and stops before the other
    /// stretches.
    pub(crate) fn next(&mut self, view: &mut View<'_>) -> Result<Stretch, Unfinished> {
        while !self.is_at_bound() {
            if let ControlFlow::Break(stretch) = self.advance(view)? {
                return Ok(stretch);
            }
        }
        Ok(Stretch::End)
    }

    fn is_at_bound(&self) -> bool {
        match self.direction {
            Direction::Forward => self.position >= self.bound,
            Direction::Backward => self.position <= self.bound,
        }
    }

    /// Returns the next stretch, or moves past keys without rows.
    fn advance(&mut self, view: &mut View<'_>) -> Result<ControlFlow<Stretch>, Unfinished> {
        // The keys next to the position that the transaction has not written end here.
        let mut edge = self.bound.clone();
        if let Some(writes) = view.writes {
            if self.neighbor(writes.unreadable(), &mut edge).is_some() {
                return Ok(ControlFlow::Break(Stretch::Unreadable));
            }
            if let Some((key, stack)) = self.neighbor_stack(writes, &mut edge) {
                return self.take_written(view, key, stack).map(ControlFlow::Break);
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

    fn take_written(
        &mut self,
        view: &mut View<'_>,
        key: Bytes,
        stack: &Stack,
    ) -> Result<Stretch, Unfinished> {
        if stack.is_dependent() && !view.snapshot_cache.known().contains(&key) {
            return Ok(Stretch::Unknown(match self.direction {
                Direction::Forward => key_after(&key).into(),
                Direction::Backward => key,
            }));
        }
        let value = view.written(&key, stack)?;
        self.pass(&key);
        Ok(match value {
            Some(value) => Stretch::Row(KeyValue::new(&key, &value)),
            None => Stretch::Missing(key),
        })
    }

    /// Takes the next row of the store before `edge`, or moves to `edge`.
    fn advance_stored(
        &mut self,
        view: &mut View<'_>,
        edge: Bytes,
    ) -> Result<ControlFlow<Stretch>, Unfinished> {
        let mut unknown_edge = edge.clone();
        let Some((begin, end)) = self.neighbor(view.snapshot_cache.known(), &mut unknown_edge)
        else {
            return Ok(ControlFlow::Break(Stretch::Unknown(unknown_edge)));
        };
        let (edge, range) = match self.direction {
            Direction::Forward => {
                let edge = edge.min(end);
                (edge.clone(), (self.position.clone(), edge))
            }
            Direction::Backward => {
                let edge = edge.max(begin);
                (edge.clone(), (edge, self.position.clone()))
            }
        };
        if self.rows.is_empty() {
            let range = (&range.0, &range.1);
            let rows = view
                .snapshot_cache
                .known_rows(view.source, range, self.direction)?;
            self.rows = rows.into();
        }
        Ok(match self.rows.pop_front() {
            Some(row) => {
                self.pass(&row.to_key());
                ControlFlow::Break(Stretch::Row(row))
            }
            None => {
                self.position = edge;
                ControlFlow::Continue(())
            }
        })
    }

    /// Returns the range of `set` that contains the position. If there is none, moves `edge` to the begin
    /// of the next range.
    fn neighbor(&self, set: &RangeSet, edge: &mut Bytes) -> Option<(Bytes, Bytes)> {
        let range = match self.direction {
            Direction::Forward => set.first_from(&self.position)?,
            Direction::Backward => set.last_before(&self.position)?,
        };
        let (begin, end) = range.into_bounds();
        match self.direction {
            Direction::Forward if self.position < begin => *edge = begin.min(edge.clone()),
            Direction::Backward if end < self.position => *edge = end.max(edge.clone()),
            _ => return Some((begin, end)),
        }
        None
    }

    /// Returns the written key at the position. If there is none, moves `edge` to the next written key.
    fn neighbor_stack<'w>(
        &self,
        writes: &'w WriteMap,
        edge: &mut Bytes,
    ) -> Option<(Bytes, &'w Stack)> {
        let (key, stack) = match self.direction {
            Direction::Forward => writes.stack_from(&self.position)?,
            Direction::Backward => writes.stack_before(&self.position)?,
        };
        let (begin, end) = KeyRange::key(key.clone()).into_bounds();
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
