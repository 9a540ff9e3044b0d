//! A copy-on-write B+tree of references to entries.
//!
//! All leaves have the same depth. A node that becomes empty is unlinked immediately. Other nodes are never
//! merged (Johnson and Shasha, "B-trees with inserts and deletes: why free-at-empty is better than
//! merge-at-half"). Finding the first entry therefore takes O(log n) after any number of erasures.

use std::sync::Arc;

use super::chunk::{EntryRef, Source};
use super::key_array::KeyArray;
use crate::stores::embedded::entries::Position;

/// A tree of entries in key order. A clone is O(1) and shares nodes. A change copies the shared nodes on
/// its path.
#[derive(Clone)]
pub(super) struct EntryTree {
    root: Node,
}

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Arc<Leaf>),
    Inner(Arc<Inner>),
}

#[derive(Clone)]
pub(super) struct Leaf {
    /// The total content of the entries, in bytes.
    pub(super) bytes: usize,
    pub(super) entries: KeyArray,
}

#[derive(Clone)]
pub(super) struct Inner {
    /// The total content of all entries below, in bytes.
    pub(super) bytes: usize,
    /// Between every two neighboring children, an entry whose key is greater than every key of the left one
    /// and at most every key of the right one. The tree may not contain that entry any more.
    pub(super) lows: KeyArray,
    pub(super) children: Vec<Node>,
}

/// The result of an insertion.
struct Insertion {
    /// The entry in the same leaf that had the key, or otherwise the entry before.
    floor: Option<EntryRef>,
    split: Option<Split>,
}

/// The right half of a node that was split, and the entry whose key separates the halves.
struct Split {
    low: EntryRef,
    right: Node,
}

impl EntryTree {
    pub(super) fn new() -> Self {
        Self {
            root: Node::leaf(KeyArray::new()),
        }
    }

    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the total content of all entries, in bytes.
    pub(super) fn content_bytes(&self) -> usize {
        self.root.bytes()
    }

    /// Inserts an entry, and replaces one with the same key. Returns the replaced entry, or otherwise the
    /// last entry before.
    pub(super) fn insert(&mut self, source: Source<'_>, entry: EntryRef) -> Option<EntryRef> {
        let key = source.key(entry);
        let Insertion { floor, split } = self.root.insert(source, key, entry);
        if let Some(Split { low, right }) = split {
            let mut lows = KeyArray::new();
            lows.insert(source, 0, low);
            self.root = Node::inner(lows, vec![self.root.clone(), right]);
        }
        floor.or_else(|| self.last_before(source, Position::before(key)))
    }

    /// Erases the entries with `begin <= key < end`, whole subtrees at once.
    pub(super) fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) {
        let last = self.last_before(source, Position::before(end));
        if last.is_none_or(|last| source.key(last) < begin) {
            return;
        }
        self.root.erase(source, begin, end);
        self.lower();
    }

    /// Removes the entry with this key, which exists.
    pub(super) fn remove(&mut self, source: Source<'_>, key: &[u8]) {
        self.root.remove(source, key);
        self.lower();
    }

    /// Lowers the tree after an erasure.
    fn lower(&mut self) {
        if self.root.is_empty() {
            *self = Self::new();
        }
        while let Node::Inner(inner) = &self.root
            && let [only] = &inner.children[..]
        {
            self.root = only.clone();
        }
    }

    /// Returns the last entry whose key is before `position`.
    pub(super) fn last_before(
        &self,
        source: Source<'_>,
        position: Position<'_>,
    ) -> Option<EntryRef> {
        // The nearest subtree to the left of the path.
        let mut left = None;
        let mut node = &self.root;
        loop {
            match node {
                Node::Inner(inner) => {
                    let index = inner.lows.count_before(source, position);
                    if index > 0 {
                        left = Some(&inner.children[index - 1]);
                    }
                    node = &inner.children[index];
                }
                Node::Leaf(leaf) => {
                    let count = leaf.entries.count_before(source, position);
                    return match count.checked_sub(1) {
                        Some(last) => Some(leaf.entries.entries()[last]),
                        None => left?.last(),
                    };
                }
            }
        }
    }

    /// Returns the entry with this key, and the last entry before it.
    pub(super) fn find(
        &self,
        source: Source<'_>,
        key: &[u8],
    ) -> (Option<EntryRef>, Option<EntryRef>) {
        // The nearest subtree to the left of the path.
        let mut left: Option<&Node> = None;
        let mut node = &self.root;
        loop {
            match node {
                Node::Inner(inner) => {
                    let index = inner.lows.count_before(source, Position::after(key));
                    if index > 0 {
                        left = Some(&inner.children[index - 1]);
                    }
                    node = &inner.children[index];
                }
                Node::Leaf(leaf) => {
                    let index = leaf.entries.count_before(source, Position::before(key));
                    let entries = leaf.entries.entries();
                    let entry = entries.get(index).copied();
                    let before = match index.checked_sub(1) {
                        Some(before) => Some(entries[before]),
                        None => left.and_then(Node::last),
                    };
                    return (entry.filter(|entry| source.key(*entry) == key), before);
                }
            }
        }
    }
}

impl Node {
    fn leaf(entries: KeyArray) -> Self {
        let bytes = content_bytes(entries.entries());
        Node::Leaf(Arc::new(Leaf { bytes, entries }))
    }

    fn inner(lows: KeyArray, children: Vec<Node>) -> Self {
        let bytes = children.iter().map(Node::bytes).sum();
        Node::Inner(Arc::new(Inner {
            bytes,
            lows,
            children,
        }))
    }

    /// Returns the total content of all entries below, in bytes.
    fn bytes(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.bytes,
            Node::Inner(inner) => inner.bytes,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.entries.entries().is_empty(),
            Node::Inner(inner) => inner.children.is_empty(),
        }
    }

    fn last(&self) -> Option<EntryRef> {
        match self {
            Node::Leaf(leaf) => leaf.entries.entries().last().copied(),
            Node::Inner(inner) => inner.children.last()?.last(),
        }
    }

    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Insertion {
        match self {
            Node::Leaf(leaf) => Arc::make_mut(leaf).insert(source, key, entry),
            Node::Inner(inner) => Arc::make_mut(inner).insert(source, key, entry),
        }
    }

    /// Erases entries, and returns the bytes of their content.
    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        match self {
            Node::Leaf(leaf) => Arc::make_mut(leaf).erase(source, begin, end),
            Node::Inner(inner) => Arc::make_mut(inner).erase(source, begin, end),
        }
    }

    /// Removes the entry with this key, which exists, and returns the bytes of its content.
    fn remove(&mut self, source: Source<'_>, key: &[u8]) -> usize {
        match self {
            Node::Leaf(leaf) => Arc::make_mut(leaf).remove(source, key),
            Node::Inner(inner) => Arc::make_mut(inner).remove(source, key),
        }
    }
}

impl Leaf {
    fn remove(&mut self, source: Source<'_>, key: &[u8]) -> usize {
        let index = self.entries.count_before(source, Position::before(key));
        let bytes = self.entries.entries()[index].content_bytes();
        self.entries.remove(index..index + 1);
        self.bytes -= bytes;
        bytes
    }

    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Insertion {
        let index = self.entries.count_before(source, Position::before(key));
        self.bytes += entry.content_bytes();
        let entries = self.entries.entries();
        if let Some(&old) = entries.get(index)
            && source.key(old) == key
        {
            self.bytes -= old.content_bytes();
            self.entries.replace(index, entry);
            return Insertion {
                floor: Some(old),
                split: None,
            };
        }
        let floor = index.checked_sub(1).map(|before| entries[before]);
        self.entries.insert(source, index, entry);
        let split = self.split_if_full(source, index);
        Insertion { floor, split }
    }

    fn split_if_full(&mut self, source: Source<'_>, inserted: usize) -> Option<Split> {
        let right = self.entries.split_if_full(source, inserted)?;
        let low = right.entries()[0];
        let right = Node::leaf(right);
        self.bytes -= right.bytes();
        Some(Split { low, right })
    }

    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        let first = self.entries.count_before(source, Position::before(begin));
        let last = self.entries.count_before(source, Position::before(end));
        let bytes = content_bytes(&self.entries.entries()[first..last]);
        self.entries.remove(first..last);
        self.bytes -= bytes;
        bytes
    }
}

impl Inner {
    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Insertion {
        let index = self.lows.count_before(source, Position::after(key));
        let child = &mut self.children[index];
        self.bytes -= child.bytes();
        let Insertion { floor, split } = child.insert(source, key, entry);
        self.bytes += child.bytes();
        let split = split.and_then(|split| self.insert_child(source, index, split));
        Insertion { floor, split }
    }

    /// Inserts the right half of the child with this index, after that child was split.
    fn insert_child(&mut self, source: Source<'_>, index: usize, split: Split) -> Option<Split> {
        self.bytes += split.right.bytes();
        self.lows.insert(source, index, split.low);
        self.children.insert(index + 1, split.right);
        // The first of the lows on the right separates the halves.
        let mut lows = self.lows.split_if_full(source, index)?;
        let low = lows.entries()[0];
        lows.remove(0..1);
        let left = self.children.len() - lows.entries().len() - 1;
        let right = Node::inner(lows, self.children.split_off(left));
        self.bytes -= right.bytes();
        Some(Split { low, right })
    }

    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        let first = self.lows.count_before(source, Position::after(begin));
        let last = self.lows.count_before(source, Position::before(end));
        let mut bytes = 0;
        if first < last {
            bytes += self.children[last].erase(source, begin, end);
            let kept = last + usize::from(self.children[last].is_empty());
            let between = &self.children[first + 1..last];
            bytes += between.iter().map(Node::bytes).sum::<usize>();
            self.children.drain(first + 1..kept);
            self.lows.remove(first..kept - 1);
        }
        bytes += self.children[first].erase(source, begin, end);
        self.unlink_if_empty(first);
        self.bytes -= bytes;
        bytes
    }

    fn remove(&mut self, source: Source<'_>, key: &[u8]) -> usize {
        let index = self.lows.count_before(source, Position::after(key));
        let bytes = self.children[index].remove(source, key);
        self.unlink_if_empty(index);
        self.bytes -= bytes;
        bytes
    }

    /// Unlinks the child with this index, if it is empty.
    fn unlink_if_empty(&mut self, index: usize) {
        if self.children[index].is_empty() {
            self.children.remove(index);
            if !self.children.is_empty() {
                let low = index.saturating_sub(1);
                self.lows.remove(low..low + 1);
            }
        }
    }
}

fn content_bytes(entries: &[EntryRef]) -> usize {
    entries.iter().map(|entry| entry.content_bytes()).sum()
}
