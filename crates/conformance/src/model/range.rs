//! One batch of a range read, as FoundationDB's client reads it.
//!
//! The client walks from the near selector to the far one, over the keys of the store that it knows and
//! over the transaction's own writes. When it reaches unknown keys, it loads more and resolves both
//! selectors again. The walk may then already be past the far selector, or the far selector may be stuck at
//! unreadable keys.

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{Code, KeySelector, KeyValue, RangeQuery, key_after};

use super::read::Reader;
use super::view::{Resolved, Seen, View, WalkEnd};

/// The result of a range read.
#[derive(Debug, Default)]
pub(super) struct FoundRows {
    pub(super) rows: Vec<KeyValue>,
    pub(super) more: bool,
    pub(super) ran_to_begin: bool,
    pub(super) ran_to_end: bool,
}

/// A range read during its walk.
pub(super) struct RangeRead {
    reverse: bool,
    limit: Option<usize>,
    begin: KeySelector,
    end: KeySelector,
    /// The rest of the offsets of begin and end when they were last resolved.
    left: (i32, i32),
    found: FoundRows,
    /// The number of rows by which the walk has passed its limit.
    past: i32,
}

/// The next step after a walk.
enum Next {
    /// The walk is done: the rows before the far selector are the answer.
    Done,
    /// The range is empty.
    Nothing,
    /// The walk needs the stretch with this number to be loaded.
    Load(usize),
}

impl RangeRead {
    pub(super) fn new(query: &RangeQuery) -> Self {
        Self {
            reverse: query.reverse,
            limit: match query.limit {
                0 => None,
                limit => Some(limit),
            },
            begin: query.begin.clone(),
            end: query.end.clone(),
            left: (query.begin.offset, query.end.offset),
            found: FoundRows::default(),
            past: 0,
        }
    }

    pub(super) fn run(mut self, reader: &mut Reader<'_>) -> Result<FoundRows, Code> {
        let mut first = true;
        loop {
            let view = reader.view([&self.begin.key, &self.end.key]);
            let (begin, end) = self.resolve(&view);
            if self.found.rows.is_empty() && begin.key >= end.key && self.left.0 >= self.left.1 {
                return Ok(FoundRows::default());
            }
            let begins_at_end = begin.key == END_OF_KEYSPACE;
            let ends_at_begin = end.key.is_empty();
            match self.reverse {
                false if ends_at_begin || first && begins_at_end => return Ok(self.nothing()),
                true if begins_at_end || first && ends_at_begin => return Ok(self.nothing()),
                _ => {}
            }
            let far = if self.reverse { &begin } else { &end };
            if std::mem::take(&mut first) && far.is_stuck() && begin.key > end.key {
                let found = self.find(reader, far)?;
                match self.crossed(&begin, &end, &found) {
                    Some(empty) => return Ok(empty),
                    None => continue,
                }
            }
            let behind = begin.key >= end.key && begin.rest().offset >= end.rest().offset;
            if behind || begins_at_end || ends_at_begin {
                if far.is_stuck() && !self.found.rows.is_empty() {
                    let found = self.find(reader, far)?;
                    return Ok(self.done(Some(&found)));
                }
                return Ok(self.done_at(far));
            }
            match self.walk(&view, &begin, &end)? {
                Next::Nothing => return Ok(self.nothing()),
                Next::Done => return Ok(self.done_at(far)),
                Next::Load(at) => self.load(reader, &view, (&begin, &end), at),
            }
        }
    }

    /// Decides on a range whose selectors seemed crossed, after the far one was found. Returns the answer
    /// if the range is empty.
    fn crossed(&mut self, begin: &Resolved, end: &Resolved, found: &Bytes) -> Option<FoundRows> {
        let (inverted, outside) = if self.reverse {
            (
                *found >= end.key && end.rest().offset <= 1,
                found == END_OF_KEYSPACE,
            )
        } else {
            (
                begin.key >= *found && begin.rest().offset >= 1,
                found.is_empty(),
            )
        };
        match (inverted, outside) {
            (true, _) => Some(FoundRows::default()),
            (false, true) => Some(self.nothing()),
            (false, false) => None,
        }
    }

    fn resolve(&mut self, view: &View) -> (Resolved, Resolved) {
        let begin = view.resolve(&self.begin);
        let end = view.resolve(&self.end);
        for selector in [&begin, &end] {
            self.found.ran_to_begin |= selector.place == WalkEnd::Begin;
            self.found.ran_to_end |= selector.place == WalkEnd::End;
        }
        // A selector without a rest keeps the rest that it had when it ran off an end.
        if self.begin.offset != 1 {
            self.left.0 = begin.left;
        }
        if self.end.offset != 1 {
            self.left.1 = end.left;
        }
        (begin, end)
    }

    /// Reads the key of the far selector on its own.
    fn find(&mut self, reader: &mut Reader<'_>, far: &Resolved) -> Result<Bytes, Code> {
        let found = reader.key(&far.rest())?;
        self.found.ran_to_begin |= found.is_empty();
        self.found.ran_to_end |= found == END_OF_KEYSPACE;
        Ok(found)
    }

    /// Collects rows until the far selector, the limit, or an unknown stretch.
    ///
    /// A far selector that is stuck may still be among the rows. The walk therefore continues past the
    /// limit by the number of rows that this selector still has to move towards it.
    fn walk(&mut self, view: &View, begin: &Resolved, end: &Resolved) -> Result<Next, Code> {
        let (near, far) = if self.reverse {
            (end, begin)
        } else {
            (begin, end)
        };
        let margin = if self.reverse {
            far.rest().offset - 1
        } else {
            1 - far.rest().offset
        };
        let path = view.path(self.reverse, near, far);
        for at in path {
            let reached = self.is_reached();
            let enough = self.past >= margin;
            if reached && enough {
                return Ok(Next::Done);
            }
            let stretch = &view.0[at];
            match &stretch.seen {
                Seen::Unreadable => return Err(Code::ACCESSED_UNREADABLE),
                Seen::Unknown if !self.found.rows.is_empty() && enough => {
                    self.found.more = true;
                    return Ok(Next::Done);
                }
                Seen::Unknown => return Ok(Next::Load(at)),
                Seen::Row(_) if reached => self.past += 1,
                Seen::Row(value) => self.found.rows.push(KeyValue::new(&stretch.begin, value)),
                Seen::Ghost => {}
            }
        }
        Ok(if far.is_stuck() {
            Next::Nothing
        } else {
            Next::Done
        })
    }

    fn is_reached(&self) -> bool {
        self.limit == Some(self.found.rows.len())
    }

    /// Loads the keys that the walk needs at a stretch. The walk continues there.
    fn load(
        &mut self,
        reader: &mut Reader<'_>,
        view: &View,
        (begin, end): (&Resolved, &Resolved),
        at: usize,
    ) {
        (self.begin, self.end) = (begin.rest(), end.rest());
        let stretch = &view.0[at];
        if !self.reverse && !begin.is_stuck() {
            self.begin.key = begin.key.clone().max(stretch.begin.clone());
        }
        if self.reverse && !end.is_stuck() {
            self.end.key = end.key.clone().min(stretch.end.clone());
        }
        let (from, to, extra) = view.request(self.reverse, &self.begin, &self.end, at);
        let limit = self
            .limit
            .map(|limit| (limit - self.found.rows.len()).max(1) + extra);
        reader
            .known
            .load(reader.stored, &from, &to, limit, self.reverse);
    }

    /// Returns an empty answer, and records which ends the selectors ran off.
    fn nothing(&mut self) -> FoundRows {
        FoundRows {
            rows: Vec::new(),
            more: false,
            ..std::mem::take(&mut self.found)
        }
    }

    /// Returns the answer, without the rows beyond the far selector unless that is stuck.
    fn done_at(self, far: &Resolved) -> FoundRows {
        let found = if far.is_stuck() { None } else { Some(&far.key) };
        self.done(found)
    }

    /// Returns the answer, without the rows beyond the far selector if that was found.
    fn done(mut self, far: Option<&Bytes>) -> FoundRows {
        self.found.more |= self.is_reached();
        let mut found = self.found;
        let collected = found.rows.len();
        match (far, self.reverse) {
            (Some(far), false) => found.rows.retain(|row| row.key() < far),
            (Some(far), true) => found.rows.retain(|row| row.key() >= far),
            (None, _) => {}
        }
        found.more &= found.rows.len() == collected;
        if self.reverse {
            found.ran_to_begin &= !found.more;
        } else {
            found.ran_to_end &= !found.more;
        }
        found
    }
}

impl FoundRows {
    /// Returns the conflict range of a serializable read, without regard to the transaction's own writes.
    pub(super) fn conflict(&self, query: &RangeQuery) -> (Bytes, Bytes) {
        let begin = &query.begin;
        let end = &query.end;
        let (lowest, highest) = if query.reverse {
            (self.rows.last(), self.rows.first())
        } else {
            (self.rows.first(), self.rows.last())
        };
        let mut low = begin.key.clone();
        let mut high = end.key.clone();
        if low >= high {
            (low, high) = (high, low);
        } else if self.more && !query.reverse && end.offset > 0 {
            high = low.clone();
        } else if self.more && query.reverse && begin.offset <= 1 {
            low = high.clone();
        }
        if self.ran_to_begin && begin.offset <= 0 {
            low = Bytes::new();
        }
        if self.ran_to_end && end.offset > 0 {
            high = Bytes::from_static(END_OF_KEYSPACE);
        }
        if let Some(row) = lowest
            && (query.reverse || begin.offset <= 0)
        {
            low = low.min(row.to_key());
        }
        if let Some(row) = highest
            && (!query.reverse || end.offset > 0)
        {
            high = high.max(key_after(row.key()).into());
        }
        (low, high)
    }
}
