//! Walks a tree in both directions.

use super::chunk::Source;
use super::key_array::KeyArray;
use super::node::{EntryTree, Inner, Node};
use crate::stores::embedded::entries::Entry;
use crate::stores::embedded::entries::Position;

/// A position between two entries of a tree, or at one of its ends.
pub(crate) struct Cursor<'a> {
    tree: &'a EntryTree,
    source: Source<'a>,
    /// The inner nodes from the root on, each with the index of the child that the path takes.
    path: Vec<(&'a Inner, usize)>,
    leaf: &'a KeyArray,
    /// The number of entries of the leaf before the cursor.
    index: usize,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor before the first entry.
    pub(super) fn new(tree: &'a EntryTree, source: Source<'a>) -> Self {
        let mut path = Vec::new();
        let leaf = descend(&mut path, tree.root(), |_| 0);
        Self {
            tree,
            source,
            path,
            leaf,
            index: 0,
        }
    }

    /// Moves to the place where all entries on the left have keys before `position`, and none on the right
    /// has.
    pub(crate) fn seek(&mut self, position: Position<'_>) {
        let source = self.source;
        self.path.clear();
        self.leaf = descend(&mut self.path, self.tree.root(), |inner| {
            inner.lows.count_before(source, position)
        });
        self.index = self.leaf.count_before(source, position);
    }

    /// Moves past the next entry and returns it. Does not move at the end.
    pub(crate) fn next(&mut self) -> Option<Entry<'a>> {
        if self.index == self.leaf.entries().len() {
            self.leave(|index, children| {
                if index + 1 < children {
                    Some(index + 1)
                } else {
                    None
                }
            })?;
            self.descend_from_path(|_| 0);
            self.index = 0;
        }
        let entry = self.leaf.entries().get(self.index)?;
        self.index += 1;
        Some(self.source.entry(*entry))
    }

    /// Moves back past the previous entry and returns it. Does not move at the begin.
    pub(crate) fn prev(&mut self) -> Option<Entry<'a>> {
        if self.index == 0 {
            self.leave(|index, _| index.checked_sub(1))?;
            self.descend_from_path(|inner| inner.children.len() - 1);
            self.index = self.leaf.entries().len();
        }
        let last = self.index.checked_sub(1)?;
        self.index = last;
        Some(self.source.entry(self.leaf.entries()[last]))
    }

    /// Goes up to the nearest inner node in which the path's child has a neighbor, and takes that neighbor.
    fn leave(&mut self, neighbor: impl Fn(usize, usize) -> Option<usize>) -> Option<()> {
        let found = self
            .path
            .iter()
            .enumerate()
            .rev()
            .find_map(|(depth, step)| {
                let (inner, index) = step;
                Some((depth, neighbor(*index, inner.children.len())?))
            });
        let (depth, index) = found?;
        self.path.truncate(depth + 1);
        self.path[depth].1 = index;
        Some(())
    }

    fn descend_from_path(&mut self, child: impl Fn(&Inner) -> usize) {
        if let Some(&(inner, index)) = self.path.last() {
            self.leaf = descend(&mut self.path, &inner.children[index], child);
        }
    }
}

/// Goes down to a leaf.
fn descend<'a>(
    path: &mut Vec<(&'a Inner, usize)>,
    from: &'a Node,
    child: impl Fn(&Inner) -> usize,
) -> &'a KeyArray {
    let mut node = from;
    loop {
        match node {
            Node::Inner(inner) => {
                let index = child(inner);
                path.push((inner, index));
                node = &inner.children[index];
            }
            Node::Leaf(leaf) => return &leaf.entries,
        }
    }
}
