//! The blocks of a store's file, which tests of damage change.

use std::sync::Arc;

use super::super::block::{seed, sign};
use super::super::run::RunList;
use super::super::table::{BlockRef, Caching, Table};
use super::plants::place_in_file;

/// A block in a file: its table, its place in that, and its length.
#[derive(Clone)]
pub(super) struct BlockInFile {
    table: Arc<Table>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Leaf,
    Index,
    Filter,
    Root,
}

impl BlockInFile {
    fn places(&self) -> impl Iterator<Item = usize> {
        let offsets = self.offset..self.offset + self.bytes as u64;
        offsets.map(|offset| place_in_file(&self.table, offset) as usize)
    }

    pub(super) fn read(&self, file: &[u8]) -> Vec<u8> {
        self.places().map(|at| file[at]).collect()
    }

    pub(super) fn write(&self, file: &mut [u8], block: &[u8]) {
        self.places()
            .zip(block)
            .for_each(|(at, &byte)| file[at] = byte);
    }

    /// Makes the checksum of its content right.
    pub(super) fn sign(&self, mut content: Vec<u8>) -> Vec<u8> {
        sign(&mut content, seed(self.table.id, self.offset));
        content
    }
}

/// Returns all blocks of a list.
pub(super) fn blocks(list: &RunList) -> Vec<BlockInFile> {
    let mut blocks = Vec::new();
    for table in list.tables() {
        let mut push = |kind, offset, bytes: u32| {
            blocks.push(BlockInFile {
                table: table.clone(),
                offset,
                bytes: bytes as usize,
                kind,
            });
        };
        for (top, (_, block)) in table.root.index.blocks().iter().enumerate() {
            push(Kind::Index, block.offset, block.bytes);
            let middle = table.middle(top, Caching::Direct).unwrap();
            for leaf in 0..middle.len() {
                let leaf = BlockRef::decode(middle.entry(leaf).tail()).unwrap();
                push(Kind::Leaf, leaf.offset, leaf.bytes);
            }
        }
        for number in 0..table.root.filter.blocks {
            let bytes = table.root.filter.block_bytes;
            push(Kind::Filter, table.filter_offset(number), bytes);
        }
        let root = table.bytes - u64::from(table.root_bytes);
        push(Kind::Root, root, table.root_bytes);
    }
    blocks
}
