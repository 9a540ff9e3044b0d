//! Any bytes whose checksum is right: decoders refuse them, or understand them. They do not panic.

use conformance::scale;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::block::{Block, BlockBuilder, CHECKSUM_BYTES, sign};
use super::super::filter::FilterSize;
use super::super::manifest::{Manifest, RunRecord, TableRecord};
use super::super::table::{BlockRef, Counts, Root, RootIndex};
use super::META;
use crate::stores::embedded::entries::Entry;

/// Changes, adds or removes some bytes.
fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random()),
            2 if at + 4 <= bytes.len() => {
                bytes[at..at + 4].copy_from_slice(&rng.random::<[u8; 4]>());
            }
            _ if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0xff, rng.random()][rng.random_range(0..5)];
            }
            _ => {}
        }
    }
}

/// Returns the bytes of a block with some entries, without its checksum.
fn some_block(rng: &mut StdRng) -> Vec<u8> {
    let mut builder = BlockBuilder::default();
    for n in 0..rng.random_range(1..6u8) {
        let key = [n, b'k'];
        let end = [n, b'm'];
        builder.push(if rng.random_ratio(1, 3) {
            Entry::Gap {
                begin: &key,
                end: &end,
            }
        } else {
            Entry::Set {
                key: &key,
                value: b"value",
            }
        });
    }
    let mut block = builder.finish(0);
    block.truncate(block.len() - CHECKSUM_BYTES);
    block
}

/// Returns a root with two blocks of the index.
fn some_root() -> Root {
    let block_ref = BlockRef {
        offset: 0,
        bytes: 100,
        has_gaps: false,
    };
    Root {
        counts: Counts::default(),
        filter_start: 100,
        filter: FilterSize {
            blocks: 1,
            block_bytes: 12,
        },
        end: b"z".to_vec(),
        index: RootIndex::new(vec![
            (b"a"[..].into(), block_ref),
            (b"m"[..].into(), block_ref),
        ]),
    }
}

/// Returns a manifest with an unfinished merge.
fn some_manifest() -> Manifest {
    let table = TableRecord {
        id: 1,
        bytes: 300,
        root_bytes: 100,
        first_chunk: 0,
        chunks: vec![2, 3],
    };
    let run = |id, into| RunRecord {
        id,
        into,
        hidden_bytes: 0,
        begins: b"b".to_vec(),
        tables: vec![table.clone(); 2],
    };
    Manifest {
        sequence: 1,
        meta: META,
        chunk_bytes: 512,
        runs: vec![run(1, 2), run(2, 0)],
    }
}

#[test]
fn decoders_refuse_or_understand_any_bytes_with_a_right_checksum() {
    let mut rng = StdRng::seed_from_u64(0);
    let root = some_root();
    let manifest = some_manifest();
    let mut sound = [0; 3];
    for _ in 0..scale(20_000, 1_000_000) {
        let mut bytes = some_block(&mut rng);
        mutate(&mut rng, &mut bytes);
        sign(&mut bytes, 5);
        if let Ok(block) = Block::decode(bytes, 5) {
            sound[0] += 1;
            let mut last = None;
            for index in 0..block.len() {
                let entry = block.entry(index);
                assert!(last.is_none_or(|last| last < entry.key().to_vec()));
                last = Some(entry.key().to_vec());
            }
        }
        let mut bytes = root.encode();
        mutate(&mut rng, &mut bytes);
        if let Ok(found) = Root::decode(&bytes) {
            sound[1] += 1;
            assert_eq!(found.encode(), bytes);
        }
        let mut bytes = manifest.encode();
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        mutate(&mut rng, &mut bytes);
        sign(&mut bytes, 0);
        if let Ok(found) = Manifest::decode(&bytes) {
            sound[2] += 1;
            assert_eq!(found.encode(), bytes);
        }
        let mut bytes = vec![0; rng.random_range(0..80)];
        rng.fill(&mut bytes[..]);
        assert!(Root::decode(&bytes).is_err());
        sign(&mut bytes, 0);
        assert!(Manifest::decode(&bytes).is_err());
        drop(Block::decode(bytes, 0));
    }
    assert!(sound.iter().all(|&count| count > 100), "{sound:?}");
}
