//! A copy-on-write B+tree of references to entries.
//!
//! All leaves have the same depth. A node that becomes empty is unlinked at once; otherwise nodes
//! are not merged (Johnson and Shasha, "B-trees with inserts and deletes: why free-at-empty is
//! better than merge-at-half"). So the first entry is found in O(log n) after any number of erasures.

use std::sync::Arc;

use super::chunk::{EntryRef, Source};
use super::position::Position;

/// How many entries or children a node has at most.
pub(super) const FANOUT: usize = 32;

/// A tree of entries in key order. A clone is O(1) and shares nodes; a change copies the shared nodes
/// on its path.
#[derive(Clone)]
pub(super) struct Tree {
    root: Node,
}

#[derive(Clone)]
pub(super) enum Node {
    Leaf(Arc<Leaf>),
    Inner(Arc<Inner>),
}

pub(super) struct Leaf {
    /// The content of the entries.
    pub(super) bytes: usize,
    pub(super) entries: Vec<EntryRef>,
}

pub(super) struct Inner {
    /// The content of all entries below.
    pub(super) bytes: usize,
    pub(super) children: Vec<Child>,
}

#[derive(Clone)]
pub(super) struct Child {
    /// Its key is greater than every key of the children before, and at most every key of this
    /// child. The first child's is not used.
    pub(super) low: EntryRef,
    pub(super) node: Node,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            root: Node::leaf(Vec::new()),
        }
    }

    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the content of all entries.
    pub(super) fn content_bytes(&self) -> usize {
        self.root.bytes()
    }

    /// Inserts an entry, in place of the one with the same key.
    pub(super) fn insert(&mut self, source: Source<'_>, entry: EntryRef) {
        if let Some(right) = self.root.insert(source, source.key(entry), entry) {
            let left = Child {
                low: right.low,
                node: self.root.clone(),
            };
            self.root = Node::inner(vec![left, right]);
        }
    }

    /// Erases the entries with `begin <= key < end`, whole subtrees at once.
    pub(super) fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) {
        let last = self.last_before(source, Position::before(end));
        if last.is_none_or(|last| source.key(last) < begin) {
            return;
        }
        self.root.erase(source, begin, end);
        if self.root.is_empty() {
            *self = Self::new();
        }
        while let Node::Inner(inner) = &self.root
            && let [only] = &inner.children[..]
        {
            self.root = only.node.clone();
        }
    }

    /// Returns the last entry whose key is before `position`.
    pub(super) fn last_before(
        &self,
        source: Source<'_>,
        position: Position<'_>,
    ) -> Option<EntryRef> {
        // The nearest subtree on the left of the path.
        let mut left = None;
        let mut node = &self.root;
        loop {
            match node {
                Node::Inner(inner) => {
                    let index = inner.child_at(source, position);
                    if index > 0 {
                        left = Some(&inner.children[index - 1].node);
                    }
                    node = &inner.children[index].node;
                }
                Node::Leaf(leaf) => {
                    let index = leaf.index_of(source, position);
                    return match index.checked_sub(1) {
                        Some(last) => Some(leaf.entries[last]),
                        None => left?.last(),
                    };
                }
            }
        }
    }
}

impl Node {
    fn leaf(entries: Vec<EntryRef>) -> Self {
        let bytes = entries.iter().map(|entry| entry.content_bytes()).sum();
        Node::Leaf(Arc::new(Leaf { bytes, entries }))
    }

    fn inner(children: Vec<Child>) -> Self {
        let bytes = children.iter().map(|child| child.node.bytes()).sum();
        Node::Inner(Arc::new(Inner { bytes, children }))
    }

    /// Returns the content of all entries below.
    fn bytes(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.bytes,
            Node::Inner(inner) => inner.bytes,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.entries.is_empty(),
            Node::Inner(inner) => inner.children.is_empty(),
        }
    }

    fn last(&self) -> Option<EntryRef> {
        match self {
            Node::Leaf(leaf) => leaf.entries.last().copied(),
            Node::Inner(inner) => inner.children.last()?.node.last(),
        }
    }

    /// Inserts an entry, and returns what was split off on the right.
    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Option<Child> {
        match self {
            Node::Leaf(leaf) => Arc::make_mut(leaf).insert(source, key, entry),
            Node::Inner(inner) => Arc::make_mut(inner).insert(source, key, entry),
        }
    }

    /// Erases entries, and returns how many bytes of content they had.
    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        match self {
            Node::Leaf(leaf) => Arc::make_mut(leaf).erase(source, begin, end),
            Node::Inner(inner) => Arc::make_mut(inner).erase(source, begin, end),
        }
    }
}

impl Leaf {
    /// Returns how many entries are before a position.
    pub(super) fn index_of(&self, source: Source<'_>, position: Position<'_>) -> usize {
        self.entries
            .partition_point(|&entry| position.follows(source.key(entry)))
    }

    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Option<Child> {
        let index = self.index_of(source, Position::before(key));
        self.bytes += entry.content_bytes();
        if let Some(old) = self.entries.get_mut(index)
            && source.key(*old) == key
        {
            self.bytes -= old.content_bytes();
            *old = entry;
            return None;
        }
        let right = Node::leaf(insert_or_split(&mut self.entries, index, entry)?);
        self.bytes -= right.bytes();
        let Node::Leaf(leaf) = &right else {
            return None;
        };
        Some(Child {
            low: leaf.entries[0],
            node: right,
        })
    }

    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        let first = self.index_of(source, Position::before(begin));
        let last = self.index_of(source, Position::before(end));
        let erased = self.entries.drain(first..last);
        let bytes = erased.map(EntryRef::content_bytes).sum();
        self.bytes -= bytes;
        bytes
    }
}

impl Inner {
    /// Returns the index of the child to which a position belongs: keys in the children before it
    /// are before the position, keys in the children after it are not.
    pub(super) fn child_at(&self, source: Source<'_>, position: Position<'_>) -> usize {
        self.children[1..].partition_point(|child| position.follows(source.key(child.low)))
    }

    fn insert(&mut self, source: Source<'_>, key: &[u8], entry: EntryRef) -> Option<Child> {
        let index = self.child_at(source, Position::after(key));
        let node = &mut self.children[index].node;
        self.bytes -= node.bytes();
        let split = node.insert(source, key, entry);
        self.bytes += node.bytes();
        let split = split?;
        self.bytes += split.node.bytes();
        let children = insert_or_split(&mut self.children, index + 1, split)?;
        let low = children[0].low;
        let right = Node::inner(children);
        self.bytes -= right.bytes();
        Some(Child { low, node: right })
    }

    fn erase(&mut self, source: Source<'_>, begin: &[u8], end: &[u8]) -> usize {
        let first = self.child_at(source, Position::before(begin));
        let last = self.child_at(source, Position::before(end));
        let mut bytes = 0;
        if first < last {
            bytes += self.children[last].node.erase(source, begin, end);
            let kept = last + usize::from(self.children[last].node.is_empty());
            let between = &self.children[first + 1..last];
            bytes += between
                .iter()
                .map(|child| child.node.bytes())
                .sum::<usize>();
            self.children.drain(first + 1..kept);
        }
        bytes += self.children[first].node.erase(source, begin, end);
        if self.children[first].node.is_empty() {
            self.children.remove(first);
        }
        self.bytes -= bytes;
        bytes
    }
}

// A copy is made to be changed: it has room for an insertion.

impl Clone for Leaf {
    fn clone(&self) -> Self {
        let mut entries = Vec::with_capacity(FANOUT);
        entries.extend_from_slice(&self.entries);
        Self {
            bytes: self.bytes,
            entries,
        }
    }
}

impl Clone for Inner {
    fn clone(&self) -> Self {
        let mut children = Vec::with_capacity(FANOUT);
        children.extend_from_slice(&self.children);
        Self {
            bytes: self.bytes,
            children,
        }
    }
}

/// Inserts an item, and returns the right part of what does not fit into one node.
///
/// An item at the end begins a new node, so that ascending keys leave full nodes.
fn insert_or_split<T>(items: &mut Vec<T>, index: usize, item: T) -> Option<Vec<T>> {
    if items.len() < FANOUT {
        items.insert(index, item);
        return None;
    }
    let cut = if index == FANOUT { FANOUT } else { FANOUT / 2 };
    let mut right = Vec::with_capacity(FANOUT);
    right.extend(items.drain(cut..));
    if index < cut {
        items.insert(index, item);
    } else {
        right.insert(index - cut, item);
    }
    Some(right)
}
