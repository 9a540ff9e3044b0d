//! Selectors and range reads, as walks of the [`View`].
//!
//! They reproduce the decisions of FoundationDB's client, not just its rows, because both of these
//! can be observed:
//!
//! - the conflict range of a read depends on where its walk ended;
//! - a read fails with `accessed_unreadable` only if its walk gets as far as an unreadable key. How
//!   far it has to go depends on what is known: the far end of a range is found from what the
//!   transaction has read before. If that does not suffice, the walk goes on beyond its limit until
//!   it has seen enough rows to be sure that the far end lies behind;
//! - an own operation that leaves no value (`CompareAndClear`) counts as a row to a selector.

use bytes::Bytes;

use super::view::{Cursor, Direction, FIRST_CHUNK_ROWS, Step, View};
use crate::error::{Code, Result};
use crate::limits::END_OF_KEYSPACE;
use crate::selector::{KeySelector, KeyValue};
use crate::transaction::key_after;

/// How many bytes a row counts beside its key and value.
const ROW_OVERHEAD_BYTES: usize = 8;

/// The rows of a range read, and what its conflict range depends on.
#[derive(Debug, Default)]
pub(super) struct RangeResult {
    pub(super) rows: Vec<KeyValue>,
    pub(super) more: bool,
    pub(super) read_to_begin: bool,
    pub(super) read_through_end: bool,
}

impl RangeResult {
    /// Returns whether the ends of a range alone tell that it is empty, and notes which of them
    /// ran off the keyspace.
    fn is_settled(&mut self, begin: &Resolved, end: &Resolved) -> bool {
        if begin.key >= end.key && begin.walked_offset >= end.walked_offset {
            *self = Self::default();
            return true;
        }
        self.read_to_begin |= begin.read_to_begin || end.read_to_begin;
        self.read_through_end |= begin.read_through_end || end.read_through_end;
        if begin.key >= end.key && begin.offset >= end.offset {
            return true;
        }
        let begins_at_end = begin.is_resolved() && begin.key == END_OF_KEYSPACE;
        let ends_at_begin = end.is_resolved() && end.key.is_empty();
        begins_at_end || ends_at_begin
    }

    /// [`is_settled`](Self::is_settled) of the ends in the order of the walk.
    fn is_settled_by(&mut self, near: &Resolved, far: &Resolved, direction: Direction) -> bool {
        match direction {
            Direction::Forward => self.is_settled(near, far),
            Direction::Backward => self.is_settled(far, near),
        }
    }

    /// Returns the range that a serializable read between these selectors conflicts with.
    pub(super) fn conflict_range(
        &self,
        begin: &KeySelector,
        end: &KeySelector,
        direction: Direction,
    ) -> (Bytes, Bytes) {
        let inverted = begin.key >= end.key;
        let (mut from, mut to) = match direction {
            _ if inverted => (&end.key, &begin.key),
            // A read that stopped at its limit did not see what lies beyond its last row.
            Direction::Forward if end.offset > 0 && self.more => (&begin.key, &begin.key),
            Direction::Backward if begin.offset <= 1 && self.more => (&end.key, &end.key),
            _ => (&begin.key, &end.key),
        };
        let (start, finish) = (Bytes::new(), Bytes::from_static(END_OF_KEYSPACE));
        if self.read_to_begin && begin.offset <= 0 {
            from = &start;
        }
        if self.read_through_end && end.offset > 0 {
            to = &finish;
        }
        let (mut from, mut to) = (from.clone(), to.clone());
        if let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) {
            let (lowest, highest) = match direction {
                Direction::Forward => (&first.key, &last.key),
                Direction::Backward => (&last.key, &first.key),
            };
            if direction == Direction::Backward || begin.offset <= 0 {
                from = from.min(lowest.clone());
            }
            if to <= *highest && (direction == Direction::Forward || end.offset > 0) {
                to = key_after(highest).into();
            }
        }
        (from, to)
    }
}

/// How much a range read may return.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Limits {
    const ONE_ROW: Self = Self {
        rows: 1,
        bytes: usize::MAX,
    };

    fn is_reached(self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    fn take(&mut self, row: &KeyValue) {
        self.rows -= 1;
        let row_bytes = row.key.len() + row.value.len() + ROW_OVERHEAD_BYTES;
        self.bytes = self.bytes.saturating_sub(row_bytes);
    }
}

/// A selector after the walk that tried to resolve it.
struct Resolved {
    /// The key found, or where the walk stopped.
    key: Bytes,
    /// 1 if the selector is resolved, else how far it still has to go from `key`.
    offset: i32,
    /// What was left of the offset when the walk ended, also if it ran off an end of the keyspace.
    walked_offset: i32,
    read_to_begin: bool,
    read_through_end: bool,
}

impl Resolved {
    fn selector(&self) -> KeySelector {
        KeySelector {
            key: self.key.clone(),
            or_equal: false,
            offset: self.offset,
        }
    }

    /// Returns in which direction the selector has to go on.
    fn direction(&self) -> Direction {
        if self.offset > 1 {
            Direction::Forward
        } else {
            Direction::Backward
        }
    }

    /// As the far end of a walk: returns how many rows before `key` the end lies.
    fn rows_before(&self, walk: Direction) -> usize {
        rows_toward(walk.reversed(), self.offset)
    }

    fn is_resolved(&self) -> bool {
        self.offset == 1
    }
}

/// Turns "at or before" into "before the next key", as the first step of every resolution.
pub(super) fn without_or_equal(selector: &KeySelector) -> KeySelector {
    if !selector.or_equal {
        return selector.clone();
    }
    let key = key_after(&selector.key).into();
    KeySelector {
        key,
        or_equal: false,
        offset: selector.offset,
    }
}

impl View<'_> {
    /// Resolves a selector to its key.
    pub(super) fn get_key(&mut self, selector: &KeySelector) -> Result<Bytes> {
        let mut selector = without_or_equal(selector);
        let (begin, end) = (Bytes::new(), Bytes::from_static(END_OF_KEYSPACE));
        if selector.offset > 0 {
            let last = KeySelector::first_greater_or_equal(end.clone());
            let found = self.range(&selector, &last, Limits::ONE_ROW, Direction::Forward)?;
            let key = found.rows.into_iter().next().map_or(end, |row| row.key);
            return Ok(if found.read_to_begin { begin } else { key });
        }
        selector.offset += 1;
        let first = KeySelector::first_greater_or_equal(begin.clone());
        let found = self.range(&first, &selector, Limits::ONE_ROW, Direction::Backward)?;
        let key = found.rows.into_iter().next().map_or(begin, |row| row.key);
        Ok(if found.read_through_end { end } else { key })
    }

    /// Walks from a selector's key to the key it names, as far as the walk can go.
    fn resolve(&mut self, selector: &KeySelector, known_only: bool) -> Result<Resolved> {
        let mut resolved = Resolved {
            key: selector.key.clone(),
            offset: selector.offset,
            walked_offset: selector.offset,
            read_to_begin: false,
            read_through_end: false,
        };
        let forward = selector.offset > 1;
        let direction = if forward {
            Direction::Forward
        } else {
            Direction::Backward
        };
        let rows = selector.offset.abs_diff(1) as usize;
        let mut cursor = Cursor::new(direction, selector.key.clone()).expecting(rows);
        cursor.known_only = known_only;
        while resolved.offset != 1 {
            match cursor.next(self)? {
                Step::Row(KeyValue { key, .. }) | Step::Missing(key) => {
                    resolved.offset += if forward { -1 } else { 1 };
                    resolved.key = if forward { key_after(&key).into() } else { key };
                }
                Step::Unreadable | Step::Unknown => {
                    resolved.key = cursor.position;
                    break;
                }
                Step::End => {
                    resolved.walked_offset = resolved.offset;
                    resolved.offset = 1;
                    resolved.read_through_end = forward;
                    resolved.read_to_begin = !forward;
                    resolved.key = cursor.bound;
                    return Ok(resolved);
                }
            }
        }
        resolved.walked_offset = resolved.offset;
        Ok(resolved)
    }

    /// Reads rows between two selectors without `or_equal`, in the given direction.
    pub(super) fn range(
        &mut self,
        begin: &KeySelector,
        end: &KeySelector,
        limits: Limits,
        direction: Direction,
    ) -> Result<RangeResult> {
        let mut result = RangeResult::default();
        let known = (self.resolve(begin, true)?, self.resolve(end, true)?);
        if result.is_settled(&known.0, &known.1)
            || self.is_inverted(&mut result, (begin, end), (&known.0, &known.1), direction)?
        {
            return Ok(result);
        }
        let selectors = match direction {
            Direction::Forward => (begin, end),
            Direction::Backward => (end, begin),
        };
        let walk = Walk {
            direction,
            // Where no key is unreadable, how far the walk goes makes no difference.
            careful: self.has_unreadable(),
            limits,
            rows: Vec::new(),
            rows_beyond: 0,
        };
        walk.run(self, selectors, result)
    }

    /// Finds the far end of a range first where its ends, as far as they are known, may be
    /// inverted. Returns whether the range is empty for that.
    fn is_inverted(
        &mut self,
        result: &mut RangeResult,
        (begin, end): (&KeySelector, &KeySelector),
        (known_begin, known_end): (&Resolved, &Resolved),
        direction: Direction,
    ) -> Result<bool> {
        let (selector, known_far) = match direction {
            Direction::Forward => (end, known_end),
            Direction::Backward => (begin, known_begin),
        };
        if known_far.is_resolved() || known_begin.key <= known_end.key {
            return Ok(false);
        }
        let far = self.get_key(selector)?;
        let ends_cross = match direction {
            Direction::Forward => known_begin.key >= far && known_begin.offset > 0,
            Direction::Backward => far >= known_end.key && known_end.offset <= 1,
        };
        if ends_cross {
            *result = RangeResult::default();
            return Ok(true);
        }
        result.read_to_begin |= far.is_empty();
        result.read_through_end |= far == END_OF_KEYSPACE;
        Ok(match direction {
            Direction::Forward => far.is_empty(),
            Direction::Backward => far == END_OF_KEYSPACE,
        })
    }
}

/// The walk of a range read, from its near end to its far end.
struct Walk {
    direction: Direction,
    /// Whether to ask the store only for what FoundationDB's client would, and to know no more.
    careful: bool,
    limits: Limits,
    rows: Vec<KeyValue>,
    /// The rows seen after the limit was reached.
    rows_beyond: usize,
}

impl Walk {
    fn run(
        mut self,
        view: &mut View<'_>,
        (near, far): (&KeySelector, &KeySelector),
        mut result: RangeResult,
    ) -> Result<RangeResult> {
        let start = loop {
            let start = view.resolve(near, self.careful)?;
            let end = view.resolve(far, self.careful)?;
            if result.is_settled_by(&start, &end, self.direction) {
                return Ok(result);
            }
            if start.is_resolved() {
                break start;
            }
            if view.is_unreadable(&start.key, start.direction()) {
                return Err(Code::ACCESSED_UNREADABLE.into());
            }
            self.ask(view, (&start.key, start.offset), &end)?;
        };
        let far = self.walk(view, &start, far, &mut result)?;
        result.more = self.limits.is_reached();
        if far.is_resolved() {
            // What was taken beyond the far end, before that was known, does not belong.
            let taken = self.rows.len();
            self.rows
                .retain(|row| !self.direction.passes(&far.key, &row.key));
            result.more &= self.rows.len() == taken;
        }
        result.rows = self.rows;
        match self.direction {
            Direction::Forward => result.read_through_end &= !result.more,
            Direction::Backward => result.read_to_begin &= !result.more,
        }
        Ok(result)
    }

    /// Takes rows until a limit or the far end is reached; returns the far end as known by then.
    fn walk(
        &mut self,
        view: &mut View<'_>,
        start: &Resolved,
        far_selector: &KeySelector,
        result: &mut RangeResult,
    ) -> Result<Resolved> {
        let rows = self.limits.rows.min(FIRST_CHUNK_ROWS);
        let mut cursor = Cursor::new(self.direction, start.key.clone()).expecting(rows);
        cursor.known_only = self.careful;
        let mut far = view.resolve(far_selector, self.careful)?;
        loop {
            if far.is_resolved() {
                cursor.bound = far.key.clone();
            }
            if self.limits.is_reached() && self.rows_beyond >= far.rows_before(self.direction) {
                return Ok(far);
            }
            match cursor.next(view)? {
                Step::Row(_) if self.limits.is_reached() => self.rows_beyond += 1,
                Step::Row(row) => {
                    self.limits.take(&row);
                    self.rows.push(row);
                }
                Step::Missing(_) => {}
                Step::Unreadable => return Err(Code::ACCESSED_UNREADABLE.into()),
                Step::Unknown => {
                    self.ask(view, (&cursor.position, 1), &far)?;
                    far = view.resolve(far_selector, true)?;
                    if result.is_settled_by(start, &far, self.direction) {
                        return view.resolve(far_selector, self.rows.is_empty());
                    }
                }
                Step::End => return Ok(far),
            }
        }
    }

    /// Asks the store for what FoundationDB's client would ask next: the rows from a position on,
    /// up to the far end or to own writes that make the store's rows useless.
    fn ask(
        &self,
        view: &mut View<'_>,
        (position, offset): (&Bytes, i32),
        far: &Resolved,
    ) -> Result<()> {
        let near_extra = rows_toward(self.direction, offset);
        let mut extra = near_extra + far.rows_before(self.direction);
        let near_offset = if near_extra > 0 { 1 } else { offset };
        let mut far_selector = far.selector();
        if far.rows_before(self.direction) > 0 {
            far_selector.offset = 1;
        }
        if let Some(obstacle) = view.obstacle(position, self.direction)
            && self.direction.passes(&obstacle, &far.key)
        {
            far_selector = KeySelector::first_greater_or_equal(obstacle);
        }
        extra += rows_toward(self.direction.reversed(), near_offset);
        let near_selector = KeySelector {
            key: position.clone(),
            or_equal: false,
            offset: near_offset,
        };
        let (begin, end) = match self.direction {
            Direction::Forward => (near_selector, far_selector),
            Direction::Backward => (far_selector, near_selector),
        };
        let limits = Limits {
            rows: self.limits.rows.max(1).saturating_add(extra),
            bytes: self.limits.bytes.max(1),
        };
        let mut stored = view.without_writes();
        stored.range(&begin, &end, limits, self.direction)?;
        // An answer that says nothing of the next key must not be asked for again.
        stored.learn(position, self.direction)
    }
}

/// Returns how many rows a selector with this offset lies ahead, in the given direction.
fn rows_toward(direction: Direction, offset: i32) -> usize {
    let ahead = match direction {
        Direction::Forward => offset.saturating_sub(1),
        Direction::Backward => 1i32.saturating_sub(offset),
    };
    usize::try_from(ahead).unwrap_or(0)
}
