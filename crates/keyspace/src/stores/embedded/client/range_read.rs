//! Selectors and range reads.
//!
//! If no write of the transaction can affect a read, its result is the store's. All other reads reproduce
//! how FoundationDB's client computes the result, because more than the rows is observable:
//!
//! - the conflict range of a read depends on where its walk ended;
//! - a read fails with `accessed_unreadable` only if its walk reaches an unreadable key;
//! - a read that the transaction's writes answer completely obtains no read version;
//! - an operation of the transaction that leaves no value (`CompareAndClear`) counts as a row to a
//!   selector.
//!
//! The client walks over the keys that it knows, from the *near* selector to the *far* one. When it reaches
//! keys that it does not know, it asks the store for more and resolves both selectors again. While the far
//! selector is *stuck*, because keys on its way are unknown or unreadable, the walk may not stop at its
//! limit. It first has to see enough further rows to be certain that the far end is not among the rows that
//! it returns.

use bytes::Bytes;

use super::read_your_writes::{Stretch, View, Walk};
use super::seat::Unfinished;
use super::write_map::WriteMap;
use crate::contract::error::Code;
use crate::contract::limits::END_OF_KEYSPACE;
use crate::contract::selector::{KeySelector, KeyValue};
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::read_limits::ReadLimits;

/// The rows of a range read, and the data that its conflict range depends on.
#[derive(Debug, Default)]
pub(crate) struct RangeResult {
    pub(crate) rows: Vec<KeyValue>,
    pub(crate) more: bool,
    read_to_begin: bool,
    read_through_end: bool,
}

impl RangeResult {
    /// Returns the conflict range of a serializable read between these selectors.
    pub(crate) fn conflict_range(
        &self,
        begin: &KeySelector,
        end: &KeySelector,
        direction: Direction,
    ) -> (Bytes, Bytes) {
        let inverted = begin.key >= end.key;
        let (mut from, mut to) = match direction {
            _ if inverted => (&end.key, &begin.key),
            // A read that stopped at its limit saw nothing beyond its last row.
            Direction::Forward if end.offset > 0 && self.more => (&begin.key, &begin.key),
            Direction::Backward if begin.offset <= 1 && self.more => (&end.key, &end.key),
            _ => (&begin.key, &end.key),
        };
        let start = Bytes::new();
        let finish = Bytes::from_static(END_OF_KEYSPACE);
        if self.read_to_begin && begin.offset <= 0 {
            from = &start;
        }
        if self.read_through_end && end.offset > 0 {
            to = &finish;
        }
        let mut from = from.clone();
        let mut to = to.clone();
        if let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) {
            let (lowest, highest) = match direction {
                Direction::Forward => (first.to_key(), last.key()),
                Direction::Backward => (last.to_key(), first.key()),
            };
            if direction == Direction::Backward || begin.offset <= 0 {
                from = from.min(lowest);
            }
            if *to <= *highest && (direction == Direction::Forward || end.offset > 0) {
                to = key_after(highest).into();
            }
        }
        (from, to)
    }
}

/// A selector after a walk tried to resolve it.
struct Resolved {
    /// Where the selector points, or where it is stuck.
    selector: KeySelector,
    /// The rest of the offset when the walk ended: 1 if the selector reached its key. With any other value
    /// it is stuck or ran off an end of the keyspace.
    left: i32,
}

impl Resolved {
    fn key(&self) -> &Bytes {
        &self.selector.key
    }

    fn is_stuck(&self) -> bool {
        self.selector.offset != 1
    }
}

/// Converts "at or before" to "before the next key", the first step of every resolution.
pub(crate) fn without_or_equal(selector: &KeySelector) -> KeySelector {
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
    pub(crate) fn get_key(&mut self, selector: &KeySelector) -> Result<Bytes, Unfinished> {
        let mut selector = without_or_equal(selector);
        let begin = Bytes::new();
        let end = Bytes::from_static(END_OF_KEYSPACE);
        if selector.offset > 0 {
            let last = KeySelector::first_greater_or_equal(end.clone());
            let found = self.range(&selector, &last, ReadLimits::ONE_ROW, Direction::Forward)?;
            let key = found.rows.first().map_or(end, KeyValue::to_key);
            return Ok(if found.read_to_begin { begin } else { key });
        }
        selector.offset += 1;
        let first = KeySelector::first_greater_or_equal(begin.clone());
        let found = self.range(&first, &selector, ReadLimits::ONE_ROW, Direction::Backward)?;
        let key = found.rows.first().map_or(begin, KeyValue::to_key);
        Ok(if found.read_through_end { end } else { key })
    }

    /// Reads rows between two selectors without `or_equal`, in the given direction.
    pub(crate) fn range(
        &mut self,
        begin: &KeySelector,
        end: &KeySelector,
        limits: ReadLimits,
        direction: Direction,
    ) -> Result<RangeResult, Unfinished> {
        if self.is_transparent() && begin.offset == 1 && end.offset == 1 {
            let range = (begin, end);
            let (rows, more) = self
                .snapshot_cache
                .load(self.source, range, limits, direction)?;
            return Ok(RangeResult {
                rows,
                more,
                ..RangeResult::default()
            });
        }
        let read = RangeRead {
            direction,
            limits,
            begin: begin.clone(),
            end: end.clone(),
            left: (begin.offset, end.offset),
            result: RangeResult::default(),
            rows_beyond: 0,
        };
        read.run(self)
    }

    /// Walks from a selector's key towards the key that it names, as far as keys are known.
    fn resolve(&mut self, selector: &KeySelector) -> Result<Resolved, Unfinished> {
        let forward = selector.offset >= 1;
        let direction = if forward {
            Direction::Forward
        } else {
            Direction::Backward
        };
        let mut walk = Walk::new(direction, selector.key.clone());
        let mut key = selector.key.clone();
        let mut offset = selector.offset;
        loop {
            let stretch = walk.next(self)?;
            let passed = stretch.key();
            match (stretch, passed) {
                // The selector has arrived. It continues over empty keys to the next stretch.
                (_, Some(next)) if offset == 1 => {
                    key = next;
                    break;
                }
                (_, Some(next)) => {
                    offset += if forward { -1 } else { 1 };
                    key = if forward {
                        key_after(&next).into()
                    } else {
                        next
                    };
                    if offset == 1 && !forward {
                        break;
                    }
                }
                (Stretch::End, None) if offset == 1 => break,
                (Stretch::End, None) => {
                    let selector = KeySelector::first_greater_or_equal(walk.bound);
                    return Ok(Resolved {
                        selector,
                        left: offset,
                    });
                }
                (_, None) => {
                    key = walk.position;
                    break;
                }
            }
        }
        Ok(Resolved {
            selector: KeySelector {
                key,
                or_equal: false,
                offset,
            },
            left: offset,
        })
    }

    /// Returns the bounds of the unknown keys next to `position`, in the direction `ahead`, and also in the
    /// other direction if nothing divides them there. FoundationDB's client divides them where the
    /// transaction's writes and write conflict ranges begin and end.
    fn unknown_around(
        &mut self,
        position: &Bytes,
        ahead: Direction,
    ) -> Result<(Bytes, Bytes), Unfinished> {
        let conflicts = self.writes.map(WriteMap::conflicts);
        let is_parted = conflicts.is_some_and(|conflicts| conflicts.has_bound(position));
        let mut bound = |direction: Direction| -> Result<Bytes, Unfinished> {
            if is_parted && direction != ahead {
                return Ok(position.clone());
            }
            let mut walk = Walk::new(direction, position.clone());
            let edge = match walk.next(self)? {
                Stretch::Unknown(edge) if walk.position == *position => edge,
                _ => return Ok(position.clone()),
            };
            let parted = conflicts.and_then(|conflicts| match direction {
                Direction::Forward => conflicts.bound_after(position),
                Direction::Backward => conflicts.bound_before(position),
            });
            Ok(match (parted, direction) {
                (None, _) => edge,
                (Some(parted), Direction::Forward) => edge.min(parted),
                (Some(parted), Direction::Backward) => edge.max(parted),
            })
        };
        let lowest = bound(Direction::Backward)?;
        Ok((lowest, bound(Direction::Forward)?))
    }

    /// Returns the end of a request to the store for the keys at `position`. The request ends after the
    /// last unknown keys before unreadable ones, or before two or more consecutive keys that are known to
    /// be empty. Looks no further than `far`.
    fn request_end(
        &mut self,
        position: &Bytes,
        far: &Bytes,
        direction: Direction,
    ) -> Result<Bytes, Unfinished> {
        let mut walk = Walk::new(direction, position.clone());
        let mut end = position.clone();
        loop {
            let from = walk.position.clone();
            let stretch = walk.next(self)?;
            let reached = match (stretch.key(), direction) {
                (Some(key), Direction::Forward) => key,
                (Some(key), Direction::Backward) => key_after(&key).into(),
                (None, _) => walk.position.clone(),
            };
            let (low, high) = match direction {
                Direction::Forward => (&from, &reached),
                Direction::Backward => (&reached, &from),
            };
            let is_wide = low < high && *high != key_after(low);
            if is_wide {
                return Ok(end);
            }
            match stretch {
                Stretch::Unreadable | Stretch::End => return Ok(end),
                Stretch::Row(_) | Stretch::Missing(_) => {}
                Stretch::Unknown(edge) => {
                    end = edge.clone();
                    walk.position = edge;
                    if direction.passes(far, &end) {
                        return Ok(end);
                    }
                }
            }
        }
    }
}

/// A range read under way. Its selectors move with the walk.
struct RangeRead {
    direction: Direction,
    limits: ReadLimits,
    begin: KeySelector,
    end: KeySelector,
    /// The rest of each selector's offset when it was last resolved. For a selector that reached its key or
    /// ran off an end, it does not change any more.
    left: (i32, i32),
    result: RangeResult,
    /// The number of rows seen after the limit was reached.
    rows_beyond: usize,
}

/// The next step after a walk.
enum AfterWalk {
    /// The walk has found all rows before the far selector.
    Done,
    /// The range is empty.
    Nothing,
    /// The walk has reached keys that the store must be asked for.
    Ask(Bytes),
}

impl RangeRead {
    /// Reads the range. If the read stops to ask, it leaves nothing behind: what it has read before counts as known
    /// only when it is read again.
    fn run(self, view: &mut View<'_>) -> Result<RangeResult, Unfinished> {
        let known = view.snapshot_cache.copy_known(view.source);
        let result = self.attempt(view);
        if let (Err(Unfinished::Asks(_)), Some(known)) = (&result, known) {
            view.snapshot_cache.restore_known(known);
        }
        result
    }

    fn attempt(mut self, view: &mut View<'_>) -> Result<RangeResult, Unfinished> {
        let mut is_first = true;
        loop {
            let (begin, end) = self.resolve(view)?;
            let crossed = begin.key() >= end.key();
            if self.result.rows.is_empty() && crossed && self.left.0 >= self.left.1 {
                return Ok(RangeResult::default());
            }
            let begins_at_end = begin.key() == END_OF_KEYSPACE && !begin.is_stuck();
            let ends_at_begin = end.key().is_empty() && !end.is_stuck();
            let (far, beyond_far, beyond_near) = match self.direction {
                Direction::Forward => (&end, ends_at_begin, begins_at_end),
                Direction::Backward => (&begin, begins_at_end, ends_at_begin),
            };
            if beyond_far || is_first && beyond_near {
                return Ok(self.nothing());
            }
            if std::mem::take(&mut is_first) && far.is_stuck() && begin.key() > end.key() {
                match self.find_crossed(view, &begin, &end)? {
                    Some(result) => return Ok(result),
                    None => continue,
                }
            }
            if beyond_near || crossed && begin.selector.offset >= end.selector.offset {
                let far = if !far.is_stuck() {
                    Some(far.key().clone())
                } else if self.result.rows.is_empty() {
                    None
                } else {
                    Some(self.find(view, far)?)
                };
                return Ok(self.done(far.as_ref()));
            }
            match self.walk(view, &begin, &end)? {
                AfterWalk::Done => {
                    let far = if far.is_stuck() {
                        None
                    } else {
                        Some(far.key())
                    };
                    return Ok(self.done(far));
                }
                AfterWalk::Nothing => return Ok(self.nothing()),
                AfterWalk::Ask(position) => self.ask(view, begin, end, &position)?,
            }
        }
    }

    fn resolve(&mut self, view: &mut View<'_>) -> Result<(Resolved, Resolved), Unfinished> {
        let begin = view.resolve(&self.begin)?;
        let end = view.resolve(&self.end)?;
        for resolved in [&begin, &end] {
            let ran_off = !resolved.is_stuck() && resolved.left != 1;
            self.result.read_to_begin |= ran_off && resolved.left < 1;
            self.result.read_through_end |= ran_off && resolved.left > 1;
        }
        if self.begin.offset != 1 {
            self.left.0 = begin.left;
        }
        if self.end.offset != 1 {
            self.left.1 = end.left;
        }
        Ok((begin, end))
    }

    /// Finds the far end of a range whose ends have crossed, as far as they are known. Returns the empty
    /// result if they have really crossed.
    fn find_crossed(
        &mut self,
        view: &mut View<'_>,
        begin: &Resolved,
        end: &Resolved,
    ) -> Result<Option<RangeResult>, Unfinished> {
        let (far, have_crossed) = match self.direction {
            Direction::Forward => {
                let far = self.find(view, end)?;
                let have_crossed = *begin.key() >= far && begin.selector.offset >= 1;
                (far, have_crossed)
            }
            Direction::Backward => {
                let far = self.find(view, begin)?;
                let have_crossed = far >= *end.key() && end.selector.offset <= 1;
                (far, have_crossed)
            }
        };
        let is_nothing = match self.direction {
            Direction::Forward => far.is_empty(),
            Direction::Backward => far == END_OF_KEYSPACE,
        };
        Ok(match (have_crossed, is_nothing) {
            (true, _) => Some(RangeResult::default()),
            (false, true) => Some(std::mem::take(&mut self.result)),
            (false, false) => None,
        })
    }

    /// Reads the key of a far selector on its own.
    fn find(&mut self, view: &mut View<'_>, far: &Resolved) -> Result<Bytes, Unfinished> {
        let found = view.get_key(&far.selector)?;
        self.result.read_to_begin |= found.is_empty();
        self.result.read_through_end |= found == END_OF_KEYSPACE;
        Ok(found)
    }

    /// Takes rows until a limit, the far end or an unknown key is reached.
    fn walk(
        &mut self,
        view: &mut View<'_>,
        begin: &Resolved,
        end: &Resolved,
    ) -> Result<AfterWalk, Unfinished> {
        let (near, far) = match self.direction {
            Direction::Forward => (begin, end),
            Direction::Backward => (end, begin),
        };
        // A stuck near selector is just before the obstacle, in its own direction.
        let direction = direction_from(near.selector.offset).unwrap_or(self.direction);
        let mut walk = Walk::new(direction, near.key().clone());
        if !far.is_stuck() && !near.is_stuck() {
            walk.bound = far.key().clone();
        }
        let rows_to_see = rows_toward(self.direction.reversed(), far.selector.offset);
        loop {
            let enough = self.rows_beyond >= rows_to_see;
            if self.limits.is_reached() && enough {
                return Ok(AfterWalk::Done);
            }
            match walk.next(view)? {
                Stretch::Row(_) if self.limits.is_reached() => self.rows_beyond += 1,
                Stretch::Row(row) => {
                    self.limits.take(&row);
                    self.result.rows.push(row);
                }
                Stretch::Missing(_) => {}
                Stretch::Unreadable => return Err(Code::ACCESSED_UNREADABLE.into()),
                Stretch::Unknown(_)
                    if self.limits.bytes != usize::MAX && self.has_rows() && enough =>
                {
                    self.result.more = true;
                    return Ok(AfterWalk::Done);
                }
                Stretch::Unknown(_) => return Ok(AfterWalk::Ask(walk.position)),
                Stretch::End if far.is_stuck() => return Ok(AfterWalk::Nothing),
                Stretch::End => return Ok(AfterWalk::Done),
            }
        }
    }

    /// Asks the store for the rows from a position to the far selector, or to the first row that would not
    /// be useful. The walk continues at the position.
    ///
    /// A selector that still has to move towards the other one is represented by its key in the request.
    /// One that has to move away is sent as it is.
    fn ask(
        &mut self,
        view: &mut View<'_>,
        begin: Resolved,
        end: Resolved,
        position: &Bytes,
    ) -> Result<(), Unfinished> {
        (self.begin, self.end) = (begin.selector, end.selector);
        match self.direction {
            Direction::Forward if self.begin.offset == 1 => self.begin.key = position.clone(),
            Direction::Backward if self.end.offset == 1 => self.end.key = position.clone(),
            _ => {}
        }
        let near = match self.direction {
            Direction::Forward => self.begin.offset,
            Direction::Backward => self.end.offset,
        };
        let stuck = direction_from(near);
        let mut from = self.begin.clone();
        let mut to = self.end.clone();
        let extra = rows_toward(Direction::Forward, from.offset)
            + rows_toward(Direction::Backward, to.offset);
        from.offset = from.offset.min(1);
        to.offset = to.offset.max(1);
        // The far selector may now be beyond the unknown keys at the position. In that case, ask for all of
        // these keys.
        let ahead = stuck.unwrap_or(self.direction);
        let (lowest, highest) = view.unknown_around(position, ahead)?;
        match self.direction {
            Direction::Forward => {
                if to.key < lowest || to.key == lowest && self.end.offset < 1 {
                    to = KeySelector::first_greater_or_equal(highest);
                } else {
                    let useful = view.request_end(position, &to.key, self.direction)?;
                    if useful < to.key {
                        to = KeySelector::first_greater_or_equal(useful);
                    }
                }
                to.key = to.key.max(from.key.clone());
            }
            Direction::Backward => {
                if from.key > highest || from.key == highest && self.begin.offset > 0 {
                    from = KeySelector::first_greater_or_equal(lowest);
                } else {
                    let useful = view.request_end(position, &from.key, self.direction)?;
                    if from.key < useful {
                        from = KeySelector::first_greater_or_equal(useful);
                    }
                }
                from.key = from.key.min(to.key.clone());
            }
        }
        let limits = ReadLimits {
            rows: self.limits.rows.max(1).saturating_add(extra),
            bytes: self.limits.bytes.max(1),
        };
        let range = (&from, &to);
        let (_, more) = (view.snapshot_cache).load(view.source, range, limits, self.direction)?;
        if more && stuck.is_some() {
            // The byte limit may have been reached on the way back to the near selector's start. The same
            // request would then return nothing new.
            let way_back = ReadLimits::ONE_ROW;
            (view.snapshot_cache).load(view.source, range, way_back, self.direction)?;
        }
        Ok(())
    }

    fn has_rows(&self) -> bool {
        !self.result.rows.is_empty()
    }

    fn nothing(self) -> RangeResult {
        RangeResult {
            rows: Vec::new(),
            more: false,
            ..self.result
        }
    }

    /// Returns the result, without rows beyond the far end if it is known.
    fn done(mut self, far: Option<&Bytes>) -> RangeResult {
        let mut result = std::mem::take(&mut self.result);
        result.more |= self.limits.is_reached();
        if let Some(far) = far {
            let taken = result.rows.len();
            result
                .rows
                .retain(|row| !self.direction.passes(far, row.key()));
            result.more &= result.rows.len() == taken;
        }
        match self.direction {
            Direction::Forward => result.read_through_end &= !result.more,
            Direction::Backward => result.read_to_begin &= !result.more,
        }
        result
    }
}

/// Returns the direction in which a selector with this offset still has to move, `None` if it has arrived.
fn direction_from(offset: i32) -> Option<Direction> {
    match offset {
        1 => None,
        2.. => Some(Direction::Forward),
        _ => Some(Direction::Backward),
    }
}

/// Returns the number of rows by which a selector with this offset points ahead in the given direction.
fn rows_toward(direction: Direction, offset: i32) -> usize {
    let ahead = match direction {
        Direction::Forward => offset.saturating_sub(1),
        Direction::Backward => 1i32.saturating_sub(offset),
    };
    usize::try_from(ahead).unwrap_or(0)
}
