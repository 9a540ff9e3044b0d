//! The exact bytes of blocks, filters and roots. Filters pass few absent keys, and separators are short.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::super::block::{Block, BlockBuilder, seed};
use super::super::filter::{FilterSize, KeyHash, build, may_contain};
use super::super::table::{BlockRef, Counts, Root, RootIndex};
use super::super::writer::separator;
use crate::stores::embedded::entries::Entry;

const PLACE: (u64, u64) = (0x0102_0304_0506_0708, 0x1000);

fn with_checksum(mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    bytes.extend_from_slice(&xxh3_64_with_seed(&bytes, seed).to_be_bytes());
    bytes
}

#[test]
fn a_block_of_entries_has_these_bytes() {
    let entries = [
        Entry::Set {
            key: b"ab",
            value: b"v1",
        },
        Entry::Gap {
            begin: b"b",
            end: b"ca",
        },
        Entry::Set {
            key: b"ca",
            value: b"",
        },
    ];
    let mut builder = BlockBuilder::default();
    entries.iter().for_each(|&entry| builder.push(entry));
    let seed = seed(PLACE.0, PLACE.1);
    assert_eq!(
        seed,
        xxh3_64(b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0")
    );
    let found = builder.finish(seed);
    let golden = [
        &b"\x00\x02abv1"[..],
        b"\x80\x01bca",
        b"\x00\x02ca",
        b"\0\0\0\x06\0\x0b",
        b"\0\x03",
    ];
    assert_eq!(found, with_checksum(golden.concat(), seed));
    assert_eq!(found[23..], CHECKSUM_OF_BLOCK);
    assert_eq!(builder.len(), 0);
    let block = Block::decode(found, seed).unwrap();
    let read: Vec<_> = (0..block.len()).map(|index| block.entry(index)).collect();
    assert_eq!(read, entries);
}

const CHECKSUM_OF_BLOCK: [u8; 8] = [78, 138, 112, 142, 126, 177, 121, 40];

/// Sets the bits of a key as the description of the layout says.
fn set_bits(blocks: &mut [Vec<u8>], key: &[u8]) {
    let hash = xxh3_64(key);
    let in_block = blocks[0].len() / 64;
    let n = (blocks.len() * in_block) as u64;
    let line = (((hash >> 32) * n) >> 32) as usize;
    let line = &mut blocks[line / in_block][64 * (line % in_block)..][..64];
    let groups = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for shift in [55, 46, 37, 28, 19, 10] {
        let bit = (groups >> shift) as usize % 512;
        line[bit / 8] |= 1 << (bit % 8);
    }
}

fn hashes(keys: &[Vec<u8>]) -> Vec<KeyHash> {
    keys.iter().map(|key| KeyHash::of(key)).collect()
}

#[test]
fn the_blocks_of_a_filter_have_these_bytes() {
    let few = [&b"a"[..], b"bb", b"ccc"].map(<[u8]>::to_vec);
    let many: Vec<_> = (0..4000).map(|n: u32| n.to_be_bytes().to_vec()).collect();
    for (keys, count, bit_bytes) in [(&few[..], 1, 64), (&many[..], 2, 4032)] {
        let seed_of = |offset| seed(PLACE.0, PLACE.1 + offset);
        let (size, blocks) = build(&hashes(keys), seed_of);
        let expected_size = FilterSize {
            blocks: count,
            block_bytes: bit_bytes + 8,
        };
        assert_eq!(size, expected_size);
        let mut expected = vec![vec![0; bit_bytes as usize]; count as usize];
        keys.iter().for_each(|key| set_bits(&mut expected, key));
        let offsets = (0..).step_by(bit_bytes as usize + 8);
        let signed = expected.into_iter().zip(offsets);
        let signed = signed.map(|(block, offset)| with_checksum(block, seed_of(offset)));
        assert_eq!(blocks, signed.collect::<Vec<_>>());
    }
    let (_, blocks) = build(&hashes(&few), |_| 5);
    assert_eq!(xxh3_64(&blocks[0]), FILTER);
    let (size, blocks) = build(&[], |_| 5);
    assert_eq!((size.blocks, blocks.len()), (0, 0));
}

/// The checksum of the block with its checksum.
const FILTER: u64 = 8_808_395_473_206_543_040;

#[test]
fn a_filter_passes_all_of_its_keys_and_few_others() {
    let mut rng = StdRng::seed_from_u64(0);
    for count in [1, 2, 10, 100, 1000, 3270, 3271, 10_000, 30_000] {
        let keys: Vec<Vec<u8>> = (0..count)
            .map(|n: u32| format!("key/{n}").into_bytes())
            .collect();
        let (size, blocks) = build(&hashes(&keys), |offset| offset);
        let passes = |key: &[u8]| {
            let hash = KeyHash::of(key);
            may_contain(&blocks[hash.block(size) as usize], size, hash)
        };
        assert!(keys.iter().all(|key| passes(key)), "{count} keys");
        let absent = (0..10_000).map(|_| rng.random::<[u8; 12]>());
        let passed = absent.filter(|key| passes(key)).count();
        // The bits of a key are less independent in a filter of a few bytes.
        let most = if count < 100 { 500 } else { 150 };
        assert!(passed < most, "{count} keys: {passed} of 10,000 pass");
        let bytes = f64::from(size.blocks * size.block_bytes);
        assert!(bytes <= f64::from(count) * 1.26 + 4096.0, "{count} keys");
    }
}

#[test]
fn a_root_has_these_bytes() {
    let index = |key: &[u8], offset, has_gaps| {
        let block = BlockRef {
            offset,
            bytes: 0x0203,
            has_gaps,
        };
        (key.into(), block)
    };
    let root = Root {
        counts: Counts {
            sets: 3,
            gaps: 1,
            bytes: 0x0405,
        },
        filter_start: 0x0607,
        filter: FilterSize {
            blocks: 2,
            block_bytes: 0x1000,
        },
        end: b"xyz".to_vec(),
        index: RootIndex::new(vec![index(b"", 0x08, true), index(b"km", 0x0a00, false)]),
    };
    let golden = [
        &b"fdbq-keyspace-t\n"[..],
        b"\0\0\0\0\0\0\0\x03",
        b"\0\0\0\0\0\0\0\x01",
        b"\0\0\0\0\0\0\x04\x05",
        b"\0\0\0\0\0\0\x06\x07",
        b"\0\0\0\x02",
        b"\0\0\x10\0",
        b"\0\x03xyz",
        b"\0\0\0\x02",
        b"\0\0",
        b"\0\0\0\0\0\0\0\x08\0\0\x02\x03\x01",
        b"\0\x02km",
        b"\0\0\0\0\0\0\x0a\0\0\0\x02\x03\x00",
    ];
    let golden = golden.concat();
    assert_eq!(root.encode(), golden);
    assert_eq!(Root::decode(&golden).unwrap(), root);
    // Other shapes: shorter, longer, without a block, in another order, and one that ends where it begins.
    let with = |at: usize, byte: u8| {
        let mut bytes = golden.clone();
        bytes[at] = byte;
        bytes
    };
    let mut bad = vec![with(0, 0), with(79, 2), with(96, 2)];
    bad.extend((0..golden.len()).map(|len| golden[..len].to_vec()));
    bad.push([&golden[..], b"\0"].concat());
    let reordered = vec![index(b"km", 1, false), index(b"k", 2, false)];
    for index in [reordered, Vec::new(), vec![index(b"xyz", 1, false)]] {
        let end = root.end.clone();
        let index = RootIndex::new(index);
        bad.push(Root { index, end, ..root }.encode());
    }
    for bytes in bad {
        assert!(Root::decode(&bytes).is_err(), "{bytes:02x?}");
    }
}

#[test]
fn a_separator_is_the_shortest_key_that_separates() {
    let mut keys: BTreeSet<Vec<u8>> = [Vec::new()].into();
    for _ in 0..4 {
        let longer = keys
            .iter()
            .flat_map(|key| [0, b'a', 0xfe].map(|byte| [&key[..], &[byte]].concat()));
        let longer: Vec<_> = longer.collect();
        keys.extend(longer);
    }
    let mut pairs = 0;
    for (index, last) in keys.iter().enumerate() {
        for key in keys.iter().skip(index + 1) {
            // `last` is the key of a Set, or the end of a Gap.
            let found = separator(last, key);
            let shortest = (0..=key.len()).find(|&len| key[..len] > last[..]);
            assert_eq!(found, &key[..shortest.unwrap()], "{last:?} {key:?}");
            pairs += 1;
        }
        // A Gap may end where the next entry begins.
        assert_eq!(separator(last, last), last);
    }
    assert!(pairs > 7000, "{pairs}");
}
