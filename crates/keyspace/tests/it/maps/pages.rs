//! Pages of a map that changes meanwhile.

use std::collections::BTreeSet;

use conformance::stores::TestStore;
use keyspace::map::Cursor;
use keyspace::{Error, Map, Runner, Store};

use super::in_test;

conformance::on_every_store!(
    pages_skip_and_repeat_no_row_that_stays,
    a_cursor_beside_its_row_is_found,
    a_page_has_a_bounded_size,
);

type Numbers = Map<u64, u64>;

/// How many rows stay.
const STAY: u64 = 30;

async fn numbers(store: &TestStore, runner: &Runner<Store>) -> Numbers {
    let subspace = store.root.subspace(&"numbers");
    let numbers = Numbers::open_with(runner, subspace, in_test(store));
    let numbers = numbers.await.unwrap();
    let stay = &numbers;
    let fill = async |tr| {
        for key in 0..STAY {
            stay.set(&tr, &(10 * key), &key).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(fill).await.unwrap();
    numbers
}

/// Walks through all pages, while other rows come and go. Returns the rows that stay, as they were found.
async fn walk(
    runner: &Runner<Store>,
    numbers: &Numbers,
    is_reversed: bool,
    moved: impl Fn(Cursor) -> Cursor,
) -> Vec<u64> {
    let mut found = Vec::new();
    let mut after = None;
    for round in 0.. {
        let limit = 1 + round % 4;
        let rows = if is_reversed {
            numbers.rows().reversed()
        } else {
            numbers.rows()
        };
        let page = async |tr| rows.page(&tr, after.as_ref(), limit).await;
        let page = runner.run(page).await.unwrap();
        assert!(page.rows.len() <= limit);
        let keys: Vec<_> = page.rows.iter().map(|row| row.id).collect();
        found.extend(keys.iter().filter(|key| **key % 10 == 0));
        let last = *keys.last().unwrap_or(&0);
        // Around the end of the page, and at it.
        let change = async |tr| {
            for key in [last.saturating_sub(1), last + 1, last] {
                if key % 10 == 0 {
                    continue;
                }
                if round % 2 == 0 || key == last {
                    numbers.remove(&tr, &key).await?;
                } else {
                    numbers.set(&tr, &key, &0).await?;
                }
            }
            Ok::<_, Error>(())
        };
        runner.run(change).await.unwrap();
        let Some(next) = page.next else {
            return found;
        };
        assert!(round < 1_000, "the pages have no end");
        after = Some(moved(next));
    }
    unreachable!("it returns")
}

async fn pages_skip_and_repeat_no_row_that_stays(store: TestStore) {
    let runner = store.runner();
    let numbers = numbers(&store, &runner).await;
    let mut expected: Vec<_> = (0..STAY).map(|key| 10 * key).collect();
    assert_eq!(
        walk(&runner, &numbers, false, |cursor| cursor).await,
        expected
    );
    expected.reverse();
    let as_text = |cursor: Cursor| cursor.to_string().parse().unwrap();
    assert_eq!(walk(&runner, &numbers, true, as_text).await, expected);
}

/// A page that begins at its cursor, or behind the row after it, is found by the walk.
async fn a_cursor_beside_its_row_is_found(store: TestStore) {
    let runner = store.runner();
    let numbers = numbers(&store, &runner).await;
    let moved_by = |change: i64| {
        move |cursor: Cursor| {
            // The last byte of the text is that of the number: the keys have one or two bytes.
            let text = cursor.to_string();
            let (rest, last) = text.split_at(text.len() - 2);
            let last = i64::from_str_radix(last, 16).unwrap();
            let moved = (last + change).clamp(1, 255);
            format!("{rest}{moved:02x}").parse().unwrap()
        }
    };
    let skipped = walk(&runner, &numbers, false, moved_by(10)).await;
    assert!(skipped.len() < STAY as usize);
    let repeated = walk(&runner, &numbers, true, moved_by(1)).await;
    let distinct: BTreeSet<_> = repeated.iter().collect();
    assert!(distinct.len() < repeated.len());
}

async fn a_page_has_a_bounded_size(store: TestStore) {
    let runner = store.runner();
    let subspace = store.root.subspace(&"texts");
    let texts = Map::<u64, String>::open_with(&runner, subspace, in_test(&store));
    let texts = &texts.await.unwrap();
    let text = &"x".repeat(90_000);
    let fill = async |tr| {
        for key in 0..30 {
            texts.set(&tr, &key, text).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(fill).await.unwrap();
    let page = async |tr| texts.rows().page(&tr, None, 1_000).await;
    let page = runner.run(page).await.unwrap();
    assert_eq!(page.rows.len(), 12);
    assert!(page.next.is_some());
}
