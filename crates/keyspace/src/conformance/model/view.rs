//! The keyspace as a transaction sees it, and walks over it.

use bytes::Bytes;

use crate::limits::END_OF_KEYSPACE;
use crate::{Code, KeySelector, KeyValue, RangeQuery};

/// The whole keyspace, in the order of the keys. Between two stretches there is nothing.
pub(super) struct View(pub(super) Vec<Stretch>);

/// A stretch of keys that look alike.
pub(super) struct Stretch {
    pub(super) begin: Bytes,
    pub(super) end: Bytes,
    pub(super) seen: Seen,
}

/// What a transaction sees.
#[derive(PartialEq)]
pub(super) enum Seen {
    /// One key with a value.
    Row(Bytes),
    /// One key that the transaction has written and that came out without a value. A selector that
    /// counts keys counts it.
    Ghost,
    /// Keys that nobody may read.
    Unreadable,
    /// Keys that must be read from the store first.
    Unknown,
}

/// A selector after as much of its walk as can be done.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub(super) place: Place,
    /// The key it has come to: its own if it did not move.
    pub(super) key: Bytes,
    /// The offset that is left: 1 unless it ran off an end or is stuck.
    left: i32,
    /// The number of the stretch that stopped the walk.
    stuck: Option<usize>,
}

/// Where a selector's walk has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// It ran off the first key.
    Begin,
    /// Before the stretch with this number, or after the last stretch.
    Before(usize),
    /// It ran off the last key.
    End,
}

/// Why a walk cannot go on.
pub(super) enum Stop {
    /// It failed.
    Failed(Code),
    /// It came to the stretch `at`, which is not known, and still wants so many rows.
    Unknown { at: usize, wanted: Option<usize> },
}

impl Resolved {
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// The selector that is left to resolve.
    pub(super) fn rest(&self) -> KeySelector {
        KeySelector {
            key: self.key.clone(),
            or_equal: false,
            offset: if self.is_stuck() { self.left } else { 1 },
        }
    }

    /// Whether a range that begins here and ends there is empty, as far as both have come.
    pub(super) fn is_inverted(&self, end: &Self) -> bool {
        self.key >= end.key && self.left >= end.left
    }
}

impl View {
    /// Walks from a selector's key over as many keys as its offset says. It goes over rows and
    /// ghosts only, and is stuck at anything else.
    pub(super) fn resolve(&self, selector: &KeySelector) -> Resolved {
        let (mut key, mut left) = (selector.key.clone(), selector.offset);
        let mut at = self.0.partition_point(|stretch| stretch.begin < key);
        let is_key = |at: usize| matches!(self.0[at].seen, Seen::Row(_) | Seen::Ghost);
        while left > 1 && at < self.0.len() && is_key(at) {
            key = self.0[at].end.clone();
            (at, left) = (at + 1, left - 1);
        }
        while left < 1 && at > 0 && is_key(at - 1) {
            (at, left) = (at - 1, left + 1);
            key = self.0[at].begin.clone();
        }
        let (place, stuck) = match left {
            1 => (Place::Before(at), None),
            2.. if at == self.0.len() => (Place::End, None),
            2.. => (Place::Before(at), Some(at)),
            ..1 if at == 0 => (Place::Begin, None),
            ..1 => (Place::Before(at), Some(at - 1)),
        };
        // It also goes over the nothing that lies before what stopped it.
        let key = match place {
            Place::Begin => Bytes::new(),
            Place::End => Bytes::from_static(END_OF_KEYSPACE),
            Place::Before(at) if left < 1 => key.min(self.0[at - 1].end.clone()),
            Place::Before(at) if at < self.0.len() => self.0[at].begin.clone(),
            Place::Before(_) => key,
        };
        Resolved {
            place,
            key,
            left,
            stuck,
        }
    }

    /// Collects rows from one selector to the other, and says whether the limit was reached.
    ///
    /// A far selector that is stuck may still come to lie among the rows: the walk goes on past the
    /// limit by as many rows as that selector has left to go towards it.
    pub(super) fn walk(
        &self,
        query: &RangeQuery,
        begin: &Resolved,
        end: &Resolved,
    ) -> Result<(Vec<KeyValue>, bool), Stop> {
        let (near, far) = if query.reverse {
            (end, begin)
        } else {
            (begin, end)
        };
        let mut rows = Vec::new();
        if let Some(at) = near.stuck {
            return Err(self.stop(at, query, rows.len()));
        }
        let margin = match far.stuck {
            Some(_) if query.reverse => far.left - 1,
            Some(_) => 1 - far.left,
            None => 0,
        };
        let mut past = 0;
        for at in self.between(query, near, far) {
            let reached = rows.len() == query.limit && query.limit > 0;
            if reached && past >= margin {
                break;
            }
            match &self.0[at].seen {
                Seen::Unknown | Seen::Unreadable => {
                    return Err(self.stop(at, query, rows.len()));
                }
                Seen::Row(_) if reached => past += 1,
                Seen::Row(value) => rows.push(KeyValue {
                    key: self.0[at].begin.clone(),
                    value: value.clone(),
                }),
                Seen::Ghost => {}
            }
        }
        let reached = rows.len() == query.limit && query.limit > 0;
        Ok((rows, reached))
    }

    /// The numbers of the stretches that a walk goes over: all there are, if the far selector has
    /// not come to its place.
    fn between(&self, query: &RangeQuery, near: &Resolved, far: &Resolved) -> Vec<usize> {
        let index = |selector: &Resolved| match selector.place {
            Place::Begin => 0,
            Place::Before(at) => at,
            Place::End => self.0.len(),
        };
        match (query.reverse, far.stuck) {
            (false, None) => (index(near)..index(far)).collect(),
            (false, Some(_)) => (index(near)..self.0.len()).collect(),
            (true, None) => (index(far)..index(near)).rev().collect(),
            (true, Some(_)) => (0..index(near)).rev().collect(),
        }
    }

    fn stop(&self, at: usize, query: &RangeQuery, rows: usize) -> Stop {
        match self.0[at].seen {
            Seen::Unreadable => Stop::Failed(Code::ACCESSED_UNREADABLE),
            _ => Stop::Unknown {
                at,
                wanted: (query.limit > 0).then(|| query.limit - rows),
            },
        }
    }

    /// What the client asks the store for when a walk comes to the unknown stretch `at`: everything
    /// from there to the far selector, or to the keys that nobody may read.
    ///
    /// A selector that still has to move towards the other one is asked for by its key, one that
    /// has to move away by itself.
    pub(super) fn request(
        &self,
        reverse: bool,
        begin: &Resolved,
        end: &Resolved,
        at: usize,
    ) -> (KeySelector, KeySelector) {
        let first = |key: &Bytes| KeySelector::first_greater_or_equal(key.clone());
        let unreadable = |stretch: &&Stretch| stretch.seen == Seen::Unreadable;
        let (mut from, mut to) = (begin.rest(), end.rest());
        if from.offset > 1 {
            from = first(&begin.key);
        }
        if to.offset < 1 {
            to = first(&end.key);
        }
        if reverse {
            if !end.is_stuck() {
                to.key = to.key.min(self.0[at].end.clone());
            }
            if let Some(wall) = self.0[..at].iter().rfind(unreadable)
                && from.key < wall.end
            {
                from = first(&wall.end);
            }
            from.key = from.key.min(to.key.clone());
        } else {
            if !begin.is_stuck() {
                from.key = from.key.max(self.0[at].begin.clone());
            }
            if let Some(wall) = self.0[at..].iter().find(unreadable)
                && wall.begin < to.key
            {
                to = first(&wall.begin);
            }
            to.key = to.key.max(from.key.clone());
        }
        (from, to)
    }
}
