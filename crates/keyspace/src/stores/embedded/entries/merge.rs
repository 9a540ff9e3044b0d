//! Reads a range of several layers together, in either direction.
//!
//! "Near" is the side from which a range is read, "far" is the other one. Reading backward mirrors all
//! positions and changes nothing else.

use std::cmp::Ordering;
use std::mem;

use super::{Entry, Position, PositionBuf};
use crate::stores::embedded::collections::direction::Direction;

/// How many entries to step over one by one before a seek is cheaper.
const MAX_STEPS: usize = 8;

/// A key and its value.
pub(crate) type Row<'a> = (&'a [u8], &'a [u8]);

/// The entries of one layer, which are read in one direction.
pub(crate) trait Track {
    /// The error of a failed read.
    type Error;

    /// Moves to the first entry whose far edge is beyond `at`.
    fn seek(&mut self, at: Position<'_>, direction: Direction) -> Result<(), Self::Error>;

    /// Moves to the next entry.
    fn step(&mut self, direction: Direction) -> Result<(), Self::Error>;

    /// Returns the current entry, `None` after the last one.
    fn head(&self) -> Option<Entry<'_>>;
}

/// The entries of a range: each key as the newest layer has it.
pub(crate) struct Merge<'a, T> {
    direction: Direction,
    /// Everything nearer is done, except for the entry that was returned last.
    at: PositionBuf,
    /// The end of the range.
    limit: Position<'a>,
    /// Newest first.
    tracks: Vec<LayerReader<T>>,
    /// How many tracks were not read yet.
    unread: usize,
    /// Whether any live row is as good as the nearest.
    takes_any: bool,
    /// The track whose head is the row that was returned last.
    returned: Option<usize>,
    /// The Gap that was returned last.
    gap: (Vec<u8>, Vec<u8>),
}

struct LayerReader<T> {
    track: T,
    reach: Reach,
    /// The track that had the nearest entry when this one's was found to begin at the same place.
    meets: Option<usize>,
}

/// Where the head of a track is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The track is not read before its first entry is needed.
    Unread,
    /// Its far edge may be nearer than the reader.
    Unknown,
    /// Its far edge is beyond the reader.
    Beyond,
}

/// What a merge has come to.
enum MergeStep {
    /// The row at the head of this track.
    Row(usize),
    Gap,
    End,
}

impl<'a, T: Track> Merge<'a, T> {
    /// Begins to read from `begin` to `end`, or, if `reverse`, from `end` to `begin`.
    pub(crate) fn new(
        tracks: impl Iterator<Item = T>,
        begin: Position<'a>,
        end: Position<'a>,
        reverse: bool,
    ) -> Self {
        let direction = if reverse {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let (at, limit) = direction.near_and_far(begin, end);
        let tracks: Vec<_> = tracks
            .map(|track| LayerReader {
                track,
                reach: Reach::Unread,
                meets: None,
            })
            .collect();
        Self {
            direction,
            at: at.into(),
            limit,
            unread: tracks.len(),
            tracks,
            takes_any: false,
            returned: None,
            gap: Default::default(),
        }
    }

    /// Returns whether there is a live row. Reads as few layers as it can, and nothing else can be read then.
    pub(crate) fn has_row(mut self) -> Result<bool, T::Error> {
        self.takes_any = true;
        Ok(self.next_row()?.is_some())
    }

    /// Returns the next live row.
    pub(crate) fn next_row(&mut self) -> Result<Option<Row<'_>>, T::Error> {
        loop {
            match self.advance(false)? {
                MergeStep::Row(track) => return Ok(self.row(track)),
                MergeStep::Gap => {}
                MergeStep::End => return Ok(None),
            }
        }
    }

    /// Returns the next entry. Reads forward only.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry<'_>>, T::Error> {
        Ok(match self.advance(true)? {
            MergeStep::Row(track) => self
                .row(track)
                .map(|(key, value)| Entry::Set { key, value }),
            MergeStep::Gap => Some(Entry::Gap {
                begin: &self.gap.0,
                end: &self.gap.1,
            }),
            MergeStep::End => None,
        })
    }

    fn row(&self, track: usize) -> Option<Row<'_>> {
        let head = self.tracks[track].track.head()?;
        Some((head.key(), head.tail()))
    }

    fn advance(&mut self, keeps_gaps: bool) -> Result<MergeStep, T::Error> {
        if let Some(row) = self.returned.take() {
            self.leave_row(row);
        }
        let direction = self.direction;
        let Some(nearest) = self.find_nearest()? else {
            return Ok(MergeStep::End);
        };
        let (newer, rest) = self.tracks.split_at(nearest);
        let Some(entry) = rest[0].track.head() else {
            return Ok(MergeStep::End);
        };
        let (near, far) = direction.edges(entry);
        let near = match entry {
            Entry::Set { .. } => near,
            // The reader may be in the Gap.
            Entry::Gap { .. } => direction.farther(near, self.at.get()),
        };
        if !direction.is_before(near, self.limit) {
            return Ok(MergeStep::End);
        }
        if matches!(entry, Entry::Set { .. }) {
            self.returned = Some(nearest);
            return Ok(MergeStep::Row(nearest));
        }
        // The Gap ends early where a newer layer has an entry.
        let heads = newer.iter().filter_map(|newer| newer.track.head());
        let end = heads.fold(far, |end, head| {
            direction.nearer(end, direction.edges(head).0)
        });
        let end = direction.nearer(end, self.limit);
        if keeps_gaps {
            near.write_key(&mut self.gap.0);
            end.write_key(&mut self.gap.1);
        }
        self.at.set(end);
        for reader in &mut self.tracks[nearest..] {
            reader.leave();
        }
        Ok(MergeStep::Gap)
    }

    /// Moves to the far edge of the row at the head of a track.
    fn leave_row(&mut self, row: usize) {
        if let Some(entry) = self.tracks[row].track.head() {
            self.at.set(self.direction.edges(entry).1);
        }
        for (index, reader) in self.tracks.iter_mut().enumerate() {
            if index == row || reader.meets == Some(row) {
                reader.leave();
            }
        }
    }

    /// Returns the newest track of those whose next entry is nearest.
    fn find_nearest(&mut self) -> Result<Option<usize>, T::Error> {
        let direction = self.direction;
        let mut nearest: Option<usize> = None;
        for index in 0..self.tracks.len() {
            if self.unread > 0 && nearest.is_some_and(|nearest| self.is_here(nearest)) {
                // No other entry is nearer, so the older layers need not be read.
                for track in &mut self.tracks[index..] {
                    track.leave();
                }
                break;
            }
            if self.takes_any && nearest.is_some_and(|nearest| self.is_row_within(nearest)) {
                // No newer layer hides it.
                break;
            }
            let reader = &mut self.tracks[index];
            if reader.reach == Reach::Unread {
                self.unread -= 1;
            }
            reader.move_to(self.at.get(), direction)?;
            reader.meets = None;
            let Some(near) = self.near_edge(index) else {
                continue;
            };
            let order = match nearest.and_then(|other| self.near_edge(other)) {
                Some(other) => direction.order(near, other),
                None => Ordering::Less,
            };
            match order {
                Ordering::Less => nearest = Some(index),
                Ordering::Equal => self.tracks[index].meets = nearest,
                Ordering::Greater => {}
            }
        }
        Ok(nearest)
    }

    /// Returns where the rest of the head of a track begins.
    fn near_edge(&self, track: usize) -> Option<Position<'_>> {
        let head = self.tracks[track].track.head()?;
        let near = self.direction.edges(head).0;
        Some(match head {
            Entry::Set { .. } => near,
            // The reader may be in the Gap.
            Entry::Gap { .. } => self.direction.farther(near, self.at.get()),
        })
    }

    /// Returns whether the head of a track is a Set before the limit.
    fn is_row_within(&self, track: usize) -> bool {
        let head = self.tracks[track].track.head();
        head.is_some_and(|head| {
            let near = self.direction.edges(head).0;
            matches!(head, Entry::Set { .. }) && self.direction.is_before(near, self.limit)
        })
    }

    /// Returns whether the rest of the head of a track begins where the reader is.
    fn is_here(&self, track: usize) -> bool {
        let near = self.near_edge(track);
        near.is_some_and(|near| !self.direction.is_before(self.at.get(), near))
    }
}

impl<T: Track> LayerReader<T> {
    /// Notes that the reader may have left the head.
    fn leave(&mut self) {
        if self.reach == Reach::Beyond {
            self.reach = Reach::Unknown;
        }
    }

    /// Moves to the first entry whose far edge is beyond `at`.
    fn move_to(&mut self, at: Position<'_>, direction: Direction) -> Result<(), T::Error> {
        match mem::replace(&mut self.reach, Reach::Beyond) {
            Reach::Beyond => return Ok(()),
            Reach::Unknown => {
                for _ in 0..MAX_STEPS {
                    match self.track.head() {
                        Some(head) if !direction.is_before(at, direction.edges(head).1) => {
                            self.track.step(direction)?;
                        }
                        _ => return Ok(()),
                    }
                }
            }
            Reach::Unread => {}
        }
        self.track.seek(at, direction)
    }
}

impl Direction {
    /// Compares which of two places a reader reaches first.
    fn order(self, one: Position<'_>, other: Position<'_>) -> Ordering {
        match self {
            Direction::Forward => one.cmp(&other),
            Direction::Backward => other.cmp(&one),
        }
    }

    /// Returns whether a reader reaches `one` before it reaches `other`.
    fn is_before(self, one: Position<'_>, other: Position<'_>) -> bool {
        self.order(one, other).is_lt()
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
        self.near_and_far(Position::before(entry.key()), entry.end())
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
