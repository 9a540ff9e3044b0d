//! Range reads between selectors that count keys, over rows larger than a batch.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use conformance::stores::{self, TestStore};
use keyspace::{
    Bytes, Database, Isolation, KeySelector, KeyValue, OwnedTransaction, RangeQuery, Transaction,
    limits, read_all,
};

conformance::on_every_store!(
    a_selector_is_found_however_far_it_points_and_however_large_the_rows_on_its_way_are,
);

const OFFSETS: [i32; 9] = [i32::MIN, i32::MIN + 1, -2, -1, 0, 1, 2, 3, i32::MAX];

/// Returns the number of keys before the key that a selector names.
fn place(keys: &[Vec<u8>], selector: &KeySelector) -> usize {
    let before = keys.partition_point(|key| {
        if selector.or_equal {
            key[..] <= selector.key[..]
        } else {
            key[..] < selector.key[..]
        }
    });
    let place = before as i64 + i64::from(selector.offset) - 1;
    place.clamp(0, keys.len() as i64) as usize
}

/// Needs the whole store: the selectors reach its ends.
async fn a_selector_is_found_however_far_it_points_and_however_large_the_rows_on_its_way_are(
    store: TestStore,
) {
    if !store.is_empty().await.unwrap() {
        return stores::skip(module_path!(), "the cluster holds keys already");
    }
    let db = &store.db;
    let longest = vec![b'k'; limits::MAX_KEY_BYTES];
    let keys = [vec![], vec![0], longest, b"x".to_vec(), b"z".to_vec()];
    let mut tr = db.begin().unwrap();
    for key in &keys {
        tr.set(key, &vec![1; limits::MAX_VALUE_BYTES]);
    }
    tr.commit().await.unwrap();

    let mut selectors = Vec::new();
    for (key, or_equal) in [
        (&b""[..], false),
        (b"", true),
        (b"k", false),
        (b"x", true),
        (b"\xff", false),
    ] {
        selectors.extend(OFFSETS.map(|offset| KeySelector {
            key: Bytes::from_static(key),
            or_equal,
            offset,
        }));
    }
    for begin in &selectors {
        for end in &selectors {
            let from = place(&keys, begin);
            let to = place(&keys, end);
            let mut expected: Vec<_> = (from..to).collect();
            let query = RangeQuery::selectors(begin.clone(), end.clone());
            for query in [query.clone(), query.reversed()] {
                let tr = db.begin().unwrap();
                // The transaction's own write keeps the read from being answered by the store alone.
                tr.set(&keys[3], b"own");
                let rows = read_all(&tr, query, Isolation::Serializable).await.unwrap();
                let index = |row: &KeyValue| keys.iter().position(|key| row.key() == *key).unwrap();
                let found: Vec<_> = rows.iter().map(index).collect();
                assert_eq!(found, expected, "{begin:?} {end:?}");
                expected.reverse();
            }
        }
    }
    store.clear_all().await.unwrap();
}
