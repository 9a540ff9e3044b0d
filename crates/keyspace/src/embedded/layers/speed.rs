//! How fast the window is. Prints, and judges nothing:
//! `cargo test --release -p fdbq-keyspace --lib embedded::layers::speed -- --ignored --nocapture --test-threads 1`

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use redb::backends::InMemoryBackend;

use super::{Base, Layers};
use crate::embedded::log::effect::Effect;
use crate::embedded::store::Store;
use crate::embedded::tests::setup;
use crate::embedded::tree::Rows;
use crate::embedded::window::{Lookup, Part, PartSnapshot};

const ENTRIES: u32 = 1_000_000;
const VALUE: [u8; 36] = [7; 36];

/// Returns a key of 24 bytes; with the value these are 60.
fn key(number: u32) -> [u8; 24] {
    let mut key = *b"subspace/of/keys/000\0\0\0\0";
    key[20..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Prints the processor time of an operation: other programs disturb it less than they do the clock.
fn measure(what: &str, operations: u32, run: impl FnOnce()) {
    let start = processor_nanos();
    run();
    let nanos = (processor_nanos() - start) / f64::from(operations);
    println!("{what:<56} {nanos:>9.1} ns");
}

fn processor_nanos() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this is Linux");
    let nanos = text.split(' ').next().expect("there are three numbers");
    nanos.parse().expect("it is a number")
}

fn shuffled() -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..ENTRIES).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(1));
    numbers
}

/// Puts in batches, of which the last five are kept as a store keeps its states.
fn put(part: &mut Part, numbers: &[u32], batch: usize) {
    let mut states: [Option<PartSnapshot>; 5] = Default::default();
    for (count, batch) in numbers.chunks(batch).enumerate() {
        for &number in batch {
            part.set(&key(number), &VALUE);
        }
        states[count % 5] = Some(part.snapshot());
    }
}

fn base(rows: u32) -> Arc<Rows> {
    let mut store = Store::create(InMemoryBackend::new(), &setup()).unwrap();
    let keys: Vec<_> = (0..rows).map(key).collect();
    let sets = keys.iter().map(|key| Effect::Set { key, value: &VALUE });
    store.commit(&sets.collect::<Vec<_>>()).unwrap();
    store.checkpoint().unwrap();
    Arc::new(store.files.tree.rows().unwrap())
}

#[test]
#[ignore = "measures"]
fn put_get_and_next_over_a_million_entries() {
    let ascending: Vec<u32> = (0..ENTRIES).collect();
    for (order, numbers) in [("ascending", ascending), ("random", shuffled())] {
        let mut map = BTreeMap::new();
        measure(&format!("put, {order}, BTreeMap of Bytes"), ENTRIES, || {
            for &number in &numbers {
                map.insert(Bytes::copy_from_slice(&key(number)), VALUE);
            }
        });
        let mut rng = StdRng::seed_from_u64(2);
        measure("get, random, BTreeMap of Bytes", ENTRIES, || {
            for _ in 0..ENTRIES {
                assert!(map.contains_key(&key(rng.random_range(0..ENTRIES))[..]));
            }
        });
        drop(map);
        for batch in [1, 128] {
            let mut part = Part::new();
            let what = format!("put, {order}, batches of {batch}");
            measure(&what, ENTRIES, || put(&mut part, &numbers, batch));
            let snapshot = part.snapshot();
            let what = format!("get, random, after {what}");
            let mut rng = StdRng::seed_from_u64(2);
            measure(&what, ENTRIES, || {
                for _ in 0..ENTRIES {
                    let found = snapshot.lookup(&key(rng.random_range(0..ENTRIES)));
                    assert_eq!(found, Lookup::Value(&VALUE));
                }
            });
            measure("next, over all", ENTRIES, || {
                let bytes: usize = snapshot.entries().map(|entry| entry.key().len()).sum();
                assert_eq!(bytes, 24_000_000);
            });
        }
    }
}

#[test]
#[ignore = "measures"]
fn a_queue_and_its_head_after_many_pops() {
    const POPS: u32 = 399_000;
    let below = Layers::new(Vec::new(), base(0));
    let mut part = Part::new();
    measure("push, batches of 128", 400_000, || {
        put(&mut part, &(0..400_000).collect::<Vec<_>>(), 128);
    });
    measure(
        "pop of what only the part holds, batches of 128",
        POPS,
        || {
            for number in 0..POPS {
                part.clear(&key(number), &below).unwrap();
                if number % 128 == 0 {
                    part.snapshot();
                }
            }
        },
    );
    let snapshot = part.snapshot();
    assert_eq!(snapshot.entries().count(), 1000);
    measure("first entry after 399,000 pops", 100_000, || {
        for _ in 0..100_000 {
            assert!(snapshot.entries().next().is_some());
        }
    });
    let layers = Layers::new(vec![snapshot], base(0));
    measure("scan of the first row after 399,000 pops", 100_000, || {
        for _ in 0..100_000 {
            assert_eq!(layers.scan(&key(0), b"\xff", false, 1).unwrap().len(), 1);
        }
    });
}

#[test]
#[ignore = "measures"]
fn the_first_row_after_clears_of_the_base() {
    const ROWS: u32 = 400_000;
    const CLEARED: u32 = 200_000;
    let rows = base(ROWS);
    measure("seek of the base", 100_000, || {
        for number in 0..100_000 {
            let begin = key(number);
            let begin = std::ops::Bound::Included(&begin[..]);
            let end = std::ops::Bound::Excluded(&b"\xff"[..]);
            let mut range = Base::range(&rows, begin, end).unwrap();
            assert!(range.next().is_some());
        }
    });
    let below = Layers::new(Vec::new(), rows);
    scan_first("first row without a part", &below);
    let mut part = Part::new();
    measure("one clear of 200,000 rows", 1, || {
        part.clear_range(&key(0), &key(CLEARED), &below).unwrap();
    });
    let over = |part: PartSnapshot| Layers::new(vec![part], Arc::clone(&below.base));
    scan_first("first row after one clear of 200,000", &over(part.freeze()));
    let mut part = Part::new();
    measure("pop of what the base holds", CLEARED, || {
        for number in 0..CLEARED {
            part.clear(&key(number), &below).unwrap();
            if number % 128 == 0 {
                part.snapshot();
            }
        }
    });
    println!("{:<56} {:>9} bytes", "chunks", part.held_bytes());
    let part = part.freeze();
    assert_eq!(part.entries().count(), 1);
    let layers = over(part);
    scan_first("first row after 200,000 pops", &layers);
    measure(
        "the same, from before the first that was popped",
        100_000,
        || {
            for _ in 0..100_000 {
                assert_eq!(layers.scan(b"", b"\xff", false, 1).unwrap().len(), 1);
            }
        },
    );
}

fn scan_first(what: &str, layers: &Layers<Arc<Rows>>) {
    measure(what, 100_000, || {
        for _ in 0..100_000 {
            assert_eq!(layers.scan(&key(0), b"\xff", false, 1).unwrap().len(), 1);
        }
    });
}

#[test]
#[ignore = "measures"]
fn scans_of_a_hundred_rows_through_three_layers() {
    const ROWS: u32 = 400_000;
    let below = Layers::new(Vec::new(), base(ROWS));
    let mut parts = Vec::new();
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..3 {
        let mut part = Part::new();
        for _ in 0..20_000 {
            part.set(&key(rng.random_range(0..ROWS)), &VALUE);
        }
        parts.push(part.freeze());
    }
    let layers = Layers::new(parts, Arc::clone(&below.base));
    for (what, layers) in [("without a part", &below), ("through 3 parts", &layers)] {
        for reverse in [false, true] {
            let what = format!("scan of 100 {what}, reverse: {reverse}");
            measure(&what, 20_000, || {
                for _ in 0..20_000 {
                    let number = rng.random_range(1000..ROWS - 1000);
                    let (begin, end) = (key(number - 100), key(number + 100));
                    assert_eq!(layers.scan(&begin, &end, reverse, 100).unwrap().len(), 100);
                }
            });
        }
        measure(&format!("get {what}"), 100_000, || {
            for _ in 0..100_000 {
                let number = rng.random_range(0..ROWS);
                assert!(layers.get(&key(number)).unwrap().is_some());
            }
        });
    }
}
