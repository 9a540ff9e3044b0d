//! Tests of the window on its own, and the invariants of every part.

use std::collections::BTreeSet;
use std::convert::Infallible;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::chunk::{EntryRef, Source};
use super::key_array::{FANOUT, KeyArray};
use super::node::Node;
use super::{Below, WindowPart};
use crate::contract::limits::END_OF_KEYSPACE;
use crate::stores::embedded::entries::{Entry, Lookup, Position};
use crate::stores::embedded::tests::seeds;

/// Panics if the part violates what [`WindowPart`] promises, over the layers below.
pub(crate) fn assert_sound<B: Below<Error: std::fmt::Debug>>(part: &WindowPart, below: &B) {
    let source = part.chunks.source();
    let mut entries = Vec::new();
    check_node(source, part.tree.root(), true, &mut entries);
    let entries: Vec<_> = entries
        .into_iter()
        .map(|entry| source.entry(entry))
        .collect();
    for (index, &entry) in entries.iter().enumerate() {
        let next = entries.get(index + 1).copied();
        assert!(
            next.is_none_or(|next| entry.key() < next.key()),
            "order: {entry:?}, {next:?}"
        );
        if let Entry::Gap { begin, end } = entry {
            assert!(begin < end, "empty: {entry:?}");
            assert!(
                next.is_none_or(|next| end <= next.key()),
                "a Gap over an entry: {entry:?}, {next:?}"
            );
            let before_set = match next {
                Some(next) if next.key() == end => {
                    assert!(matches!(next, Entry::Set { .. }), "Gaps touch: {next:?}");
                    true
                }
                _ => false,
            };
            let live = below.first_live_from(end).unwrap();
            assert!(
                before_set || end >= END_OF_KEYSPACE || live.is_some_and(|live| live == end),
                "could be longer: {entry:?}, then {next:?}"
            );
        }
    }
}

/// Checks a subtree, adds its entries, and returns its height and its content.
fn check_node(
    source: Source<'_>,
    node: &Node,
    is_root: bool,
    entries: &mut Vec<EntryRef>,
) -> (usize, usize) {
    let first = entries.len();
    let (height, recorded_bytes, len) = match node {
        Node::Leaf(leaf) => {
            check_array(source, &leaf.entries);
            entries.extend_from_slice(leaf.entries.entries());
            (0, leaf.bytes, leaf.entries.entries().len())
        }
        Node::Inner(inner) => {
            check_array(source, &inner.lows);
            let lows = inner.lows.entries();
            let mut heights = BTreeSet::new();
            for (index, child) in inner.children.iter().enumerate() {
                let before = entries.len();
                heights.insert(check_node(source, child, false, entries).0);
                if index > 0 {
                    let low = source.key(lows[index - 1]);
                    assert!(source.key(entries[before - 1]) < low, "a low bound");
                    assert!(low <= source.key(entries[before]), "a low bound");
                }
            }
            assert_eq!(heights.len(), 1, "leaves of several depths");
            assert_eq!(lows.len() + 1, inner.children.len());
            assert!(!is_root || inner.children.len() > 1, "a root of one child");
            let height = heights.first().expect("there is one") + 1;
            (height, inner.bytes, inner.children.len())
        }
    };
    assert!(len > 0 || (is_root && height == 0), "an empty node");
    let content = entries[first..].iter();
    let bytes: usize = content
        .map(|&entry| match source.entry(entry) {
            Entry::Set { key, value } => key.len() + value.len(),
            Entry::Gap { begin, end } => begin.len() + end.len(),
        })
        .sum();
    assert_eq!(bytes, recorded_bytes, "the content of a node");
    (height, bytes)
}

/// Checks that an array finds each of its keys.
fn check_array(source: Source<'_>, array: &KeyArray) {
    assert!(array.entries().len() < FANOUT, "a full node");
    for (index, &entry) in array.entries().iter().enumerate() {
        let key = source.key(entry);
        assert_eq!(array.count_before(source, Position::before(key)), index);
        assert_eq!(array.count_before(source, Position::after(key)), index + 1);
    }
}

/// The keys that live below.
struct LiveKeys(BTreeSet<Bytes>);

impl LiveKeys {
    fn numbered(numbers: impl IntoIterator<Item = u32>) -> Self {
        Self(
            numbers
                .into_iter()
                .map(|number| key(number).into())
                .collect(),
        )
    }
}

impl Below for LiveKeys {
    type Error = Infallible;

    fn has(&self, key: &[u8]) -> Result<bool, Infallible> {
        Ok(self.0.contains(key))
    }

    fn has_any(&self, begin: &[u8], end: &[u8]) -> Result<bool, Infallible> {
        let keys = Bytes::copy_from_slice(begin)..Bytes::copy_from_slice(end);
        Ok(self.0.range(keys).next().is_some())
    }

    fn first_live_from(&self, key: &[u8]) -> Result<Option<Bytes>, Infallible> {
        let key = Bytes::copy_from_slice(key);
        Ok(self.0.range(key..).next().cloned())
    }
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn clear(part: &mut WindowPart, number: u32, below: &LiveKeys) {
    part.clear(&key(number), below).unwrap();
    assert_sound(part, below);
}

/// Returns the entries: a Set as its key, a Gap as begin and end.
fn entries(part: &mut WindowPart) -> Vec<Vec<Vec<u8>>> {
    let snapshot = part.snapshot();
    let entries = snapshot.entries();
    let shape = entries.map(|entry| match entry {
        Entry::Set { key, .. } => vec![key.to_vec()],
        Entry::Gap { begin, end } => vec![begin.to_vec(), end.to_vec()],
    });
    shape.collect()
}

fn count_nodes(node: &Node) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Inner(inner) => {
            let children = inner.children.iter();
            1 + children.map(count_nodes).sum::<usize>()
        }
    }
}

#[test]
fn clears_of_neighboring_keys_become_one_gap_in_any_order() {
    let below = LiveKeys::numbered(0..10);
    let ascending: Vec<u32> = (2..8).collect();
    let descending: Vec<u32> = (2..8).rev().collect();
    for order in [ascending, descending, vec![4, 2, 6, 7, 3, 5]] {
        let mut part = WindowPart::new();
        for &number in &order {
            clear(&mut part, number, &below);
        }
        assert_eq!(entries(&mut part), [[key(2), key(8)]], "{order:?}");
    }
}

#[test]
fn a_clear_of_what_does_not_live_below_leaves_nothing() {
    let below = LiveKeys::numbered([5]);
    let mut part = WindowPart::new();
    part.set(&key(7), b"value");
    clear(&mut part, 7, &below);
    clear(&mut part, 8, &below);
    assert_eq!(entries(&mut part), [] as [Vec<Vec<u8>>; 0]);
    assert_eq!(part.content_bytes(), 0);
}

#[test]
fn a_gap_at_the_end_of_what_lives_below_reaches_to_the_end_of_the_keyspace() {
    let below = LiveKeys::numbered([5]);
    let mut part = WindowPart::new();
    clear(&mut part, 5, &below);
    assert_eq!(entries(&mut part), [[key(5), b"\xff".to_vec()]]);
}

#[test]
fn a_set_splits_a_gap_and_a_clear_of_it_joins_the_halves() {
    let below = LiveKeys::numbered([2, 9]);
    for set in [3, 4, 8] {
        let mut part = WindowPart::new();
        clear(&mut part, 2, &below);
        part.set(&key(set), b"");
        assert_sound(&part, &below);
        assert_eq!(part.lookup(&key(set)), Lookup::Value(&b""[..]));
        assert_eq!(part.lookup(&key(2)), Lookup::Cleared);
        let after = [&key(set)[..], b"\0"].concat();
        assert_eq!(
            entries(&mut part),
            [vec![key(2), key(set)], vec![key(set)], vec![after, key(9)]]
        );
        clear(&mut part, set, &below);
        assert_eq!(entries(&mut part), [[key(2), key(9)]]);
    }
}

#[test]
fn a_part_is_unchanged_by_a_clear_whose_read_fails() {
    struct Broken;
    impl Below for Broken {
        type Error = &'static str;

        fn has(&self, _: &[u8]) -> Result<bool, &'static str> {
            Err("broken")
        }

        fn has_any(&self, _: &[u8], _: &[u8]) -> Result<bool, &'static str> {
            Err("broken")
        }

        fn first_live_from(&self, _: &[u8]) -> Result<Option<Bytes>, &'static str> {
            Err("broken")
        }
    }
    let mut part = WindowPart::new();
    part.set(&key(1), b"value");
    assert_eq!(part.clear(&key(1), &Broken), Err("broken"));
    assert_eq!(part.lookup(&key(1)), Lookup::Value(&b"value"[..]));
}

#[test]
fn erased_entries_leave_no_nodes() {
    const ENTRIES: u32 = 20_000;
    let below = LiveKeys::numbered([]);
    let mut part = WindowPart::new();
    for number in 0..ENTRIES {
        part.set(&key(number), b"value");
    }
    let snapshot = part.snapshot();
    let full = count_nodes(part.tree.root());
    assert!(
        full < ENTRIES as usize / 29,
        "{full} nodes: ascending keys fill them"
    );
    for number in 0..ENTRIES - 1 {
        part.clear(&key(number), &below).unwrap();
    }
    assert_sound(&part, &below);
    assert_eq!(count_nodes(part.tree.root()), 1);
    assert_eq!(snapshot.entries().count(), ENTRIES as usize);
}

#[test]
fn keys_of_all_lengths_are_found_while_others_come_and_go() {
    const PREFIXES: [&[u8]; 5] = [
        b"",
        b"k",
        b"keys",
        b"keys/of/one",
        b"keys/of/another/subspace",
    ];
    let below = LiveKeys::numbered([]);
    for seed in seeds(20) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut keys: Vec<_> = (0..5000)
            .map(|_| {
                let rest: [u8; 16] = rng.random();
                let prefix = PREFIXES[rng.random_range(0..PREFIXES.len())];
                [prefix, &rest[..rng.random_range(0..=rest.len())]].concat()
            })
            .collect();
        // Ascending keys split nodes in a different way.
        if rng.random() {
            keys.sort();
        }
        let mut part = WindowPart::new();
        let mut expected = BTreeSet::new();
        for key in keys {
            part.set(&key, b"");
            if rng.random_range(0..200) == 0 {
                let begin = &key[..rng.random_range(0..=key.len())];
                part.clear_range(begin, &key, &below).unwrap();
                expected.retain(|other: &Vec<u8>| !(begin..&key).contains(&&other[..]));
            }
            expected.insert(key);
        }
        assert_sound(&part, &below);
        let found: Vec<_> = entries(&mut part)
            .into_iter()
            .map(|mut entry| entry.remove(0))
            .collect();
        assert!(found.iter().eq(&expected), "to repeat: TEST_SEED={seed}");
    }
}
