//! Places between keys.

use std::cmp::Ordering;

/// A place between keys: just before `key`, or just after it, which is just before `key\0`.
///
/// Two positions are equal if there is no key between them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position<'a> {
    key: &'a [u8],
    is_after: bool,
}

impl<'a> Position<'a> {
    pub(crate) fn before(key: &'a [u8]) -> Self {
        Self {
            key,
            is_after: false,
        }
    }

    pub(crate) fn after(key: &'a [u8]) -> Self {
        Self {
            key,
            is_after: true,
        }
    }

    /// Writes the first key after this position.
    pub(crate) fn write_key(self, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.key);
        if self.is_after {
            key.push(0);
        }
    }

    pub(crate) fn key(self) -> &'a [u8] {
        self.key
    }

    /// Returns whether `key` is before this position.
    pub(crate) fn follows(self, key: &[u8]) -> bool {
        if self.is_after {
            key <= self.key
        } else {
            key < self.key
        }
    }
}

/// A position that owns its key. It is changed in place.
#[derive(Debug, Clone, Default)]
pub(crate) struct PositionBuf {
    key: Vec<u8>,
    is_after: bool,
}

impl PositionBuf {
    pub(crate) fn get(&self) -> Position<'_> {
        Position {
            key: &self.key,
            is_after: self.is_after,
        }
    }

    pub(crate) fn set(&mut self, position: Position<'_>) {
        self.key.clear();
        self.key.extend_from_slice(position.key);
        self.is_after = position.is_after;
    }
}

impl From<Position<'_>> for PositionBuf {
    fn from(position: Position<'_>) -> Self {
        Self {
            key: position.key.to_vec(),
            is_after: position.is_after,
        }
    }
}

impl Ord for Position<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.is_after, other.is_after) {
            (true, false) => compare_after_with_before(self.key, other.key),
            (false, true) => compare_after_with_before(other.key, self.key).reverse(),
            _ => self.key.cmp(other.key),
        }
    }
}

impl PartialOrd for Position<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Position<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Position<'_> {}

/// Compares the key `after\0` with `before`.
fn compare_after_with_before(after: &[u8], before: &[u8]) -> Ordering {
    let is_next = || before.len() == after.len() + 1 && before.strip_prefix(after) == Some(b"\0");
    match after.cmp(before) {
        Ordering::Less if is_next() => Ordering::Equal,
        Ordering::Equal => Ordering::Greater,
        unequal => unequal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_after_a_key_is_the_one_before_the_next_key() {
        let keys: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"\0a", b"a", b"a\0", b"a\0\0", b"b"];
        for one in keys {
            let next = [one, b"\0"].concat();
            assert_eq!(Position::after(one), Position::before(&next));
            for other in keys {
                let by_key = one.cmp(other);
                let by_next = next[..].cmp(other);
                assert_eq!(Position::before(one).cmp(&Position::before(other)), by_key);
                assert_eq!(Position::after(one).cmp(&Position::after(other)), by_key);
                assert_eq!(Position::after(one).cmp(&Position::before(other)), by_next);
                let reversed = Position::before(other).cmp(&Position::after(one));
                assert_eq!(reversed, by_next.reverse());
                assert_eq!(Position::after(one).follows(other), other < &next[..]);
                assert_eq!(Position::before(one).follows(other), other < one);
            }
        }
    }
}
