//! Reads the live rows of a range of all layers, in either direction.
//!
//! "Near" is the side from which a range is read, "far" is the other one. Reading backward mirrors all
//! positions and changes nothing else.

use std::ops::Range;

use super::{Base, BaseRow};
use crate::embedded::collections::direction::Direction;
use crate::embedded::tree::damage::Damage;
use crate::embedded::window::{Cursor, Entry, PartSnapshot, Position};

/// How many rows or entries to step over one by one before a seek is cheaper.
const MAX_STEPS: usize = 8;

/// The live rows of a range: each key as the newest layer has it.
pub(super) struct Merge<'a, B: Base> {
    direction: Direction,
    /// Everything nearer is done, except for rows of the base that came after it.
    at: Position<'a>,
    /// The end of the range.
    limit: Position<'a>,
    /// The entries of the parts, newest first.
    tracks: Vec<Track<'a>>,
    /// The nearest entry, and the newest of several at the same place.
    nearest: Option<Nearest<'a>>,
    base: BaseTrack<'a, B>,
}

/// A row of a merge.
pub(super) enum Row<'a, R> {
    Part { key: &'a [u8], value: &'a [u8] },
    Base(R),
}

impl<R: BaseRow> Row<'_, R> {
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Row::Part { key, .. } => key,
            Row::Base(row) => row.key(),
        }
    }

    pub(super) fn value(&self) -> &[u8] {
        match self {
            Row::Part { value, .. } => value,
            Row::Base(row) => row.value(),
        }
    }
}

#[derive(Clone, Copy)]
struct Nearest<'a> {
    track: usize,
    entry: Entry<'a>,
    /// The near edge of the rest of the entry, after `at`.
    near: Position<'a>,
}

impl<'a, B: Base> Merge<'a, B> {
    /// Begins to read a range, from its end backward if `reverse`.
    pub(super) fn new(
        parts: &'a [PartSnapshot],
        base: &'a B,
        range: Range<Position<'a>>,
        reverse: bool,
    ) -> Self {
        let (direction, at, limit) = if reverse {
            (Direction::Backward, range.end, range.start)
        } else {
            (Direction::Forward, range.start, range.end)
        };
        let tracks = parts
            .iter()
            .map(|part| Track::new(part.cursor(), at, direction));
        let mut merge = Self {
            direction,
            at,
            limit,
            tracks: tracks.collect(),
            nearest: None,
            base: BaseTrack::new(base, direction, limit),
        };
        merge.find_nearest();
        merge
    }

    /// Returns the next live row.
    pub(super) fn next(&mut self) -> Result<Option<Row<'a, B::Row>>, B::Error> {
        while self.direction.is_before(self.at, self.limit) {
            // Leave a Gap before asking the base for a row, which might be in the Gap.
            if self.leave_gap() {
                continue;
            }
            let bound = self.nearest.map_or(self.limit, |nearest| nearest.near);
            if let Some(row) = self.base.next_before(bound, self.at)? {
                return Ok(Some(Row::Base(row)));
            }
            match self.nearest {
                Some(Nearest { entry, near, .. }) if self.direction.is_before(near, self.limit) => {
                    if let Entry::Set { key, value } = entry {
                        self.move_to(self.direction.edges(entry).1);
                        return Ok(Some(Row::Part { key, value }));
                    }
                    self.move_to(near);
                }
                _ => self.at = self.limit,
            }
        }
        Ok(None)
    }

    /// Moves to the far edge of the Gap that begins at the reader's position, or to the first entry of a
    /// newer part inside it. Returns whether there is such a Gap.
    fn leave_gap(&mut self) -> bool {
        let Some(Nearest { track, entry, near }) = self.nearest else {
            return false;
        };
        if near != self.at || matches!(entry, Entry::Set { .. }) {
            return false;
        }
        let far = self.direction.edges(entry).1;
        let newer = self.tracks[..track]
            .iter()
            .filter_map(|track| Some(self.direction.edges(track.head?).0));
        let next = newer.fold(far, |next, near| self.direction.nearer(next, near));
        self.move_to(next);
        true
    }

    fn move_to(&mut self, at: Position<'a>) {
        self.at = at;
        for track in &mut self.tracks {
            track.move_to(at, self.direction);
        }
        self.find_nearest();
    }

    fn find_nearest(&mut self) {
        self.nearest = None;
        for (track, entry) in self.tracks.iter().enumerate() {
            let Some(entry) = entry.head else { continue };
            let near = self
                .direction
                .farther(self.direction.edges(entry).0, self.at);
            let is_nearer = |nearest: Nearest<'a>| self.direction.is_before(near, nearest.near);
            if self.nearest.is_none_or(is_nearer) {
                self.nearest = Some(Nearest { track, entry, near });
            }
        }
    }
}

impl Direction {
    /// Returns whether a reader reaches `one` before it reaches `other`.
    fn is_before(self, one: Position<'_>, other: Position<'_>) -> bool {
        match self {
            Direction::Forward => one < other,
            Direction::Backward => one > other,
        }
    }

    fn nearer<'a>(self, one: Position<'a>, other: Position<'a>) -> Position<'a> {
        if self.is_before(other, one) {
            other
        } else {
            one
        }
    }

    fn farther<'a>(self, one: Position<'a>, other: Position<'a>) -> Position<'a> {
        if self.is_before(one, other) {
            other
        } else {
            one
        }
    }

    /// Returns the near and the far edge of an entry.
    fn edges<'a>(self, entry: Entry<'a>) -> (Position<'a>, Position<'a>) {
        let (begin, end) = match entry {
            Entry::Set { key, .. } => (Position::before(key), Position::after(key)),
            Entry::Gap { begin, end } => (Position::before(begin), Position::before(end)),
        };
        self.near_and_far(begin, end)
    }

    fn near_edge_of_key(self, key: &[u8]) -> Position<'_> {
        self.near_and_far(Position::before(key), Position::after(key))
            .0
    }

    fn near_and_far<'a>(
        self,
        begin: Position<'a>,
        end: Position<'a>,
    ) -> (Position<'a>, Position<'a>) {
        match self {
            Direction::Forward => (begin, end),
            Direction::Backward => (end, begin),
        }
    }
}

/// The entries of one part.
struct Track<'a> {
    cursor: Cursor<'a>,
    /// The first entry whose far edge the reader has not reached. The cursor is on its far side.
    head: Option<Entry<'a>>,
}

impl<'a> Track<'a> {
    fn new(cursor: Cursor<'a>, at: Position<'a>, direction: Direction) -> Self {
        let mut track = Self { cursor, head: None };
        track.seek(at, direction);
        track
    }

    fn move_to(&mut self, at: Position<'a>, direction: Direction) {
        for _ in 0..MAX_STEPS {
            match self.head {
                Some(entry) if !direction.is_before(at, direction.edges(entry).1) => {
                    self.step(direction);
                }
                _ => return,
            }
        }
        self.seek(at, direction);
    }

    fn seek(&mut self, at: Position<'a>, direction: Direction) {
        self.cursor.seek(at);
        if direction == Direction::Forward {
            // A Gap that begins before the position may extend beyond it.
            match self.cursor.prev() {
                Some(entry) if at < direction.edges(entry).1 => {}
                Some(_) => {
                    self.cursor.next();
                }
                None => {}
            }
        }
        self.step(direction);
    }

    fn step(&mut self, direction: Direction) {
        self.head = match direction {
            Direction::Forward => self.cursor.next(),
            Direction::Backward => self.cursor.prev(),
        };
    }
}

/// The rows of the base, which are read only when one is needed.
struct BaseTrack<'a, B: Base> {
    base: &'a B,
    direction: Direction,
    limit: Position<'a>,
    /// The rows after `head`, `None` before the first one is needed.
    rows: Option<B::Range<'a>>,
    /// The first row that was not returned, once it was read.
    head: Option<B::Row>,
    /// Whether there are no more rows before the limit.
    is_ended: bool,
}

impl<'a, B: Base> BaseTrack<'a, B> {
    fn new(base: &'a B, direction: Direction, limit: Position<'a>) -> Self {
        Self {
            base,
            direction,
            limit,
            rows: None,
            head: None,
            is_ended: false,
        }
    }

    /// Returns the next row, if it is at or after `at` and before `bound`.
    fn next_before(
        &mut self,
        bound: Position<'_>,
        at: Position<'_>,
    ) -> Result<Option<B::Row>, B::Error> {
        if !self.direction.is_before(at, bound) {
            return Ok(None);
        }
        self.move_to(at)?;
        let direction = self.direction;
        let is_within =
            |head: &mut B::Row| direction.is_before(direction.near_edge_of_key(head.key()), bound);
        let row = self.head.take_if(is_within);
        if let Some(head) = &self.head
            && !direction.is_before(direction.near_edge_of_key(head.key()), self.limit)
        {
            return Err(Damage::of_order().into());
        }
        Ok(row)
    }

    /// Makes `head` the first row at or after `at`.
    ///
    /// # Errors
    /// Those of the base. Damage, if a range begins with a row that is not in it: to seek again would find
    /// the same row, without end.
    fn move_to(&mut self, at: Position<'_>) -> Result<(), B::Error> {
        let mut steps = 0;
        while !self.is_ended && !self.is_head_from(at) {
            let is_seek = self.rows.is_none() || steps == MAX_STEPS;
            let rows = match &mut self.rows {
                Some(rows) if !is_seek => rows,
                rows => {
                    let (begin, end) = self.direction.near_and_far(at, self.limit);
                    rows.insert(self.base.range(begin.as_begin(), end.as_end())?)
                }
            };
            let row = match self.direction {
                Direction::Forward => rows.next(),
                Direction::Backward => rows.next_back(),
            };
            self.head = row.transpose()?;
            self.is_ended = self.head.is_none();
            if is_seek && !self.is_ended && !self.is_head_from(at) {
                return Err(Damage::of_order().into());
            }
            steps += 1;
        }
        Ok(())
    }

    /// Returns whether there is a head, at or after `at`.
    fn is_head_from(&self, at: Position<'_>) -> bool {
        self.head.as_ref().is_some_and(|head| {
            let near = self.direction.near_edge_of_key(head.key());
            !self.direction.is_before(near, at)
        })
    }
}
