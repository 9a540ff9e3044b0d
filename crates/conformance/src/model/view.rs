//! The keyspace as a transaction sees it, and walks over it.

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{KeySelector, key_after};

/// The whole keyspace as stretches in key order. There are no keys between two stretches.
pub(super) struct View(pub(super) Vec<Stretch>);

/// A stretch of keys that look alike.
pub(super) struct Stretch {
    pub(super) begin: Bytes,
    pub(super) end: Bytes,
    pub(super) seen: Seen,
    /// Whether only a selector's key separates it from the stretch before.
    pub(super) continues: bool,
}

/// What a transaction sees.
#[derive(PartialEq)]
pub(super) enum Seen {
    /// One key with a value.
    Row(Bytes),
    /// One key that the transaction has written and that has no value as a result. Selectors count it as a
    /// row.
    Ghost,
    /// Keys that cannot be read before the commit.
    Unreadable,
    /// Keys that must be read from the store first.
    Unknown,
}

/// A selector after its walk, as far as that could be done.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub(super) place: WalkEnd,
    /// The key that the selector has reached, its own key if it did not move.
    pub(super) key: Bytes,
    /// The rest of the offset: 1, unless the selector ran off an end or is stuck.
    pub(super) left: i32,
    /// The number of the stretch that stopped the walk.
    stuck: Option<usize>,
}

/// Where the walk of a selector ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WalkEnd {
    /// It ran off the first key.
    Begin,
    /// Before the stretch with this number, or after the last stretch.
    Before(usize),
    /// It ran off the last key.
    End,
}

impl Resolved {
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Returns the rest of the selector, which is still to be resolved.
    pub(super) fn rest(&self) -> KeySelector {
        KeySelector {
            key: self.key.clone(),
            or_equal: false,
            offset: if self.is_stuck() { self.left } else { 1 },
        }
    }
}

impl View {
    /// Walks from a selector's key over the number of keys that its offset says. The walk passes rows and
    /// ghosts, and is stuck at any other stretch.
    pub(super) fn resolve(&self, selector: &KeySelector) -> Resolved {
        let mut key = selector.key.clone();
        let mut left = selector.offset;
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
            1 => (WalkEnd::Before(at), None),
            2.. if at == self.0.len() => (WalkEnd::End, None),
            2.. => (WalkEnd::Before(at), Some(at)),
            ..1 if at == 0 => (WalkEnd::Begin, None),
            ..1 => (WalkEnd::Before(at), Some(at - 1)),
        };
        // The walk also passes the empty keys before the stretch that stopped it.
        let key = match place {
            WalkEnd::Begin => Bytes::new(),
            WalkEnd::End => Bytes::from_static(END_OF_KEYSPACE),
            WalkEnd::Before(at) if left < 1 => key.min(self.0[at - 1].end.clone()),
            WalkEnd::Before(at) if at < self.0.len() => self.0[at].begin.clone(),
            WalkEnd::Before(_) => key,
        };
        Resolved {
            place,
            key,
            left,
            stuck,
        }
    }

    /// Returns the numbers of the stretches that a walk passes. If the far selector is not resolved, these
    /// are all stretches.
    pub(super) fn path(&self, reverse: bool, near: &Resolved, far: &Resolved) -> Vec<usize> {
        if let Some(at) = near.stuck {
            return vec![at];
        }
        let index = |selector: &Resolved| match selector.place {
            WalkEnd::Begin => 0,
            WalkEnd::Before(at) => at,
            WalkEnd::End => self.0.len(),
        };
        match (reverse, far.stuck) {
            (false, None) => (index(near)..index(far)).collect(),
            (false, Some(_)) => (index(near)..self.0.len()).collect(),
            (true, None) => (index(far)..index(near)).rev().collect(),
            (true, Some(_)) => (0..index(near)).rev().collect(),
        }
    }

    /// Returns the client's request to the store when a walk reaches the unknown stretch `at`, and how many
    /// more rows than the walk needs. The request extends to the far selector, or to the first row that
    /// would not be useful.
    ///
    /// A selector that still has to move towards the other one is represented by its key. One that has to
    /// move away is sent as it is.
    pub(super) fn request(
        &self,
        reverse: bool,
        begin: &KeySelector,
        end: &KeySelector,
        at: usize,
    ) -> (KeySelector, KeySelector, usize) {
        let first = |key: &Bytes| KeySelector::first_greater_or_equal(key.clone());
        let mut from = begin.clone();
        let mut to = end.clone();
        let mut extra = 0;
        if from.offset > 1 {
            extra += from.offset.abs_diff(1) as usize;
            from = first(&from.key);
        }
        if to.offset < 1 {
            extra += to.offset.abs_diff(1) as usize;
            to = first(&to.key);
        }
        let (lowest, highest) = self.unknown_around(at);
        if reverse {
            let useful = self.useful_from(at);
            let behind = from.key > highest || from.key == highest && begin.offset > 0;
            if behind {
                from = first(lowest);
            } else if from.key < *useful {
                from = first(useful);
            }
            from.key = from.key.min(to.key.clone());
        } else {
            let useful = self.useful_to(at);
            let behind = to.key < lowest || to.key == lowest && end.offset < 1;
            if behind {
                to = first(highest);
            } else if *useful < to.key {
                to = first(useful);
            }
            to.key = to.key.max(from.key.clone());
        }
        (from, to, extra)
    }

    /// Returns the bounds of the unknown stretch `at`, without the divisions at the selectors' keys. The
    /// far selector may already be beyond the stretch, and then the whole stretch is requested.
    fn unknown_around(&self, at: usize) -> (&Bytes, &Bytes) {
        let continues = |at: usize| self.0.get(at).is_some_and(|stretch| stretch.continues);
        let mut first = at;
        let mut last = at;
        while continues(first) {
            first -= 1;
        }
        while continues(last + 1) {
            last += 1;
        }
        (&self.0[first].begin, &self.0[last].end)
    }

    /// Returns the end of a request that begins at the stretch `at`: after the last unknown stretch before
    /// unreadable keys, or before two or more adjacent keys that do not exist.
    fn useful_to(&self, at: usize) -> &Bytes {
        let mut end = &self.0[at].end;
        for pair in self.0[at..].windows(2) {
            if pair[1].seen == Seen::Unreadable || is_wide(&pair[0], &pair[1]) {
                break;
            }
            if pair[1].seen == Seen::Unknown {
                end = &pair[1].end;
            }
        }
        end
    }

    /// Does the same as [`useful_to`](Self::useful_to), backward.
    fn useful_from(&self, at: usize) -> &Bytes {
        let mut begin = &self.0[at].begin;
        for pair in self.0[..=at].windows(2).rev() {
            if pair[0].seen == Seen::Unreadable || is_wide(&pair[0], &pair[1]) {
                break;
            }
            if pair[0].seen == Seen::Unknown {
                begin = &pair[0].begin;
            }
        }
        begin
    }
}

/// Whether more than one key lies between two stretches.
fn is_wide(one: &Stretch, next: &Stretch) -> bool {
    one.end < next.begin && next.begin != key_after(&one.end)
}
