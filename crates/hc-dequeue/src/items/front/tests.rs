//! Reads of a front, beside rows that come and go.

use std::sync::Arc;

use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::{Database, Environment, OwnedTransaction, Store, Subspace};

use super::*;

const INTERVAL: Duration = Duration::from_secs(1);

/// A part whose items have the value 1. Other values do not decode.
struct TestPart {
    db: Store,
    keys: Keys,
    clock: ManualClock,
    front: Front,
}

impl TestPart {
    fn new() -> Self {
        let clock = ManualClock::new();
        let env = Environment::seeded(0, Arc::new(clock.clone()));
        Self {
            db: microqueue::keyspace::open("memory:").unwrap(),
            keys: Keys::new(Subspace::from("Q"), env),
            clock,
            front: Front::new(INTERVAL),
        }
    }

    /// Sets rows, and writes the wake stamp.
    async fn set(&self, keys: impl IntoIterator<Item = u32>, value: &[u8]) {
        let mut tr = self.db.begin().unwrap();
        for key in keys {
            tr.set(&key.to_be_bytes(), value);
        }
        self.keys.wake_all(&tr);
        tr.commit().await.unwrap();
    }

    /// Reads the rows below a key once, at this time.
    async fn read_below(&self, end: u32, now: Duration, max: ReadLimit) -> FirstItems<u32> {
        self.clock.advance(now - self.keys.env.now());
        let decode = |row: &KeyValue| {
            let key = u32::from_be_bytes(row.key().try_into().unwrap());
            if row.value().first() == Some(&1) {
                Ok(key)
            } else {
                Err(Skip::Unreadable)
            }
        };
        let tr = self.db.begin().unwrap();
        let range = (vec![0], end.to_be_bytes().to_vec());
        let found = self.front.read(&tr, &self.keys, range, max, decode).await;
        found.unwrap()
    }

    /// Reads until it has found items. Returns the keys of the items, and how often it has read.
    async fn read(&self, now: Duration, limit: usize) -> (Vec<u32>, usize) {
        for reads in 1.. {
            let found = self.read_below(1 << 24, now, items(limit)).await;
            if found.is_complete {
                return (found.items, reads);
            }
            assert!(found.items.is_empty() && reads < 100);
        }
        unreachable!("it returns")
    }

    fn owed_in(&self) -> Option<Duration> {
        self.front.owed_in(self.keys.env.now())
    }

    fn rows(&self) -> usize {
        self.front.state.lock().skipped.rows
    }
}

fn items(items: usize) -> ReadLimit {
    ReadLimit {
        items,
        row_bytes: usize::MAX,
    }
}

#[tokio::test]
async fn a_few_rows_that_do_not_decode_are_skipped_by_each_read() {
    let part = TestPart::new();
    part.set(0..40, &[1]).await;
    let bad = [0, 1, 4, 9, 10, 11, 39];
    part.set(bad, &[2]).await;
    for limit in 1..40 {
        let expected: Vec<_> = (0..40)
            .filter(|key| !bad.contains(key))
            .take(limit)
            .collect();
        assert_eq!(part.read(Duration::ZERO, limit).await, (expected, 1));
        assert_eq!(part.rows(), 2);
    }
    // An item at the front is seen at once.
    part.set([1], &[1]).await;
    assert_eq!(part.read(Duration::ZERO, 1).await, (vec![1], 1));
    part.set([0], &[1]).await;
    assert_eq!(part.read(Duration::ZERO, 1).await, (vec![0], 1));
    assert_eq!(part.rows(), 0);
    assert!(!part.front.is_known());
}

#[tokio::test]
async fn many_rows_that_do_not_decode_are_read_in_steps_and_then_once_in_a_while() {
    const BAD: u32 = 2_500;
    let part = TestPart::new();
    part.set(10..BAD, &[2]).await;
    part.set(BAD..BAD + 3, &[1]).await;
    let mut now = INTERVAL;
    assert_eq!(part.read(now, 2).await, (vec![BAD, BAD + 1], 3));
    assert_eq!(part.rows(), BAD as usize - 10);
    // The next reads do not see what comes among them, until a second has passed.
    part.set([17], &[1]).await;
    for _ in 0..2 {
        assert_eq!(part.read(now, 1).await, (vec![BAD], 1));
        now += INTERVAL / 2 - Duration::from_millis(1);
    }
    // But what comes before them.
    part.set([7], &[1]).await;
    assert_eq!(part.read(now, 2).await, (vec![7, BAD], 1));
    now += Duration::from_millis(2);
    assert_eq!(part.read(now, 4).await, (vec![7, 17, BAD, BAD + 1], 1));
    // As long as it is there.
    assert_eq!(part.read(now, 2).await, (vec![7, 17], 1));
    part.set([7, 17], &[2]).await;
    // What comes after the rows is granted while the search goes on.
    for _ in 0..2 {
        assert_eq!(part.read(now, 1).await, (vec![BAD], 1));
    }
    // Also if nothing is left.
    part.set(BAD..BAD + 3, &[2]).await;
    part.read(now, 1).await;
    assert_eq!(part.read(now, 1).await, (vec![], 1));
    assert_eq!(part.rows(), BAD as usize + 3 - 10 + 1);
    part.set([100], &[1]).await;
    assert_eq!(part.read(now, 1).await, (vec![], 1));
    now += INTERVAL;
    assert_eq!(part.read(now, 1).await, (vec![100], 1));
}

#[tokio::test]
async fn rows_with_many_bytes_count_as_many() {
    let part = TestPart::new();
    part.set(1..15, &[2; 90_000]).await;
    part.set([20], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![20], 2));
    part.set([3], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![20], 1));
    assert_eq!(part.read(2 * INTERVAL, 1).await, (vec![3], 1));
}

#[tokio::test]
async fn many_rows_before_the_range_hide_no_item_between() {
    let part = TestPart::new();
    part.set(10_000..10_100, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set(10..2_510, &[2]).await;
    part.set([5_000], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![5_000], 3));
    // It is behind the rows that are remembered now.
    assert_eq!(part.rows(), 2_500);
    assert_eq!(part.read(INTERVAL, 1).await, (vec![5_000], 1));
    part.set([5_000], &[2]).await;
    part.set([20_000], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![20_000], 1));
    assert_eq!(part.rows(), 2_500 + 1 + 100);
}

#[tokio::test]
async fn rows_before_an_item_before_the_range_are_remembered() {
    let part = TestPart::new();
    part.set(10_000..10_100, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set(10..510, &[2]).await;
    part.set([5_000], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![5_000], 1));
    assert_eq!(part.rows(), 500);
}

#[tokio::test]
async fn all_reads_of_one_call_return_as_many_bytes_as_it_may() {
    let part = TestPart::new();
    part.set(1_000..1_100, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set((0..10).chain(2_000..2_010), &[1; 100]).await;
    let max = ReadLimit {
        items: 100,
        row_bytes: 15 * 104,
    };
    let found = part.read_below(1 << 24, INTERVAL, max).await;
    assert_eq!(found.items.len(), 15);
}

#[tokio::test]
async fn a_slow_search_is_repeated_less_often() {
    let part = TestPart::new();
    part.set(0..1_500, &[2]).await;
    assert!(
        !part
            .read_below(1 << 24, INTERVAL, items(1))
            .await
            .is_complete
    );
    // The search goes on, however long it takes.
    assert!(
        part.read_below(1 << 24, INTERVAL * 11, items(1))
            .await
            .is_complete
    );
    part.set([500], &[1]).await;
    let rests = INTERVAL * 90;
    let searches = INTERVAL * 91;
    assert_eq!(part.read(rests, 1).await, (vec![], 1));
    assert_eq!(part.read(searches, 1).await, (vec![500], 1));
}

#[tokio::test]
async fn a_read_that_leaves_rows_out_after_a_wake_owes_a_search() {
    let part = TestPart::new();
    assert_eq!(part.owed_in(), None);
    part.set(0..100, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    assert_eq!(part.owed_in(), None);
    assert_eq!(part.read(INTERVAL * 3 / 2, 1).await, (vec![], 1));
    assert_eq!(part.owed_in(), Some(INTERVAL / 2));
    assert_eq!(part.read(INTERVAL * 2, 1).await, (vec![], 1));
    assert_eq!(part.owed_in(), None);
    // Nothing was put there since then.
    assert_eq!(part.read(INTERVAL * 5 / 2, 1).await, (vec![], 1));
    assert_eq!(part.owed_in(), None);
    part.set([50], &[1]).await;
    assert_eq!(part.read(INTERVAL * 5 / 2, 1).await, (vec![], 1));
    assert_eq!(part.owed_in(), Some(INTERVAL / 2));
}

#[tokio::test]
async fn a_search_in_steps_owes_nothing_unless_an_item_came_since_it_began() {
    for comes in [false, true] {
        let part = TestPart::new();
        part.set(0..2_500, &[2]).await;
        assert_eq!(part.read(INTERVAL, 1).await, (vec![], 3));
        let later = INTERVAL * 2;
        assert!(!part.read_below(1 << 24, later, items(1)).await.is_complete);
        if comes {
            part.set([500], &[1]).await;
        }
        // It ends, and has passed the place.
        assert_eq!(part.read(later, 1).await, (vec![], 2));
        assert_eq!(part.read(later, 1).await, (vec![], 1));
        assert_eq!(part.owed_in(), comes.then_some(INTERVAL));
    }
}

#[tokio::test]
async fn an_item_before_the_range_delays_no_search() {
    let part = TestPart::new();
    part.set(100..200, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set([50], &[1]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![50], 1));
    assert_eq!(part.owed_in(), Some(INTERVAL));
    assert_eq!(part.read(INTERVAL * 2, 1).await, (vec![50], 1));
    assert_eq!(part.owed_in(), None);
}

#[tokio::test]
async fn a_search_that_waits_for_an_item_owes_another_one_after_a_wake() {
    let part = TestPart::new();
    part.set(100..200, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set([50, 150], &[1]).await;
    assert_eq!(part.read(INTERVAL * 2, 1).await, (vec![50], 1));
    assert_eq!(part.owed_in(), None);
    part.set([120], &[1]).await;
    let later = INTERVAL * 5 / 2;
    assert_eq!(part.read(later, 2).await, (vec![50, 150], 1));
    assert_eq!(part.owed_in(), Some(INTERVAL / 2));
    // While it reads on and on.
    for _ in 0..2 {
        assert_eq!(part.read(INTERVAL * 3, 2).await, (vec![50, 120], 1));
        assert_eq!(part.owed_in(), None);
    }
}

#[tokio::test]
async fn a_search_that_cannot_end_is_tried_again_after_a_rest() {
    let part = TestPart::new();
    part.set(100..200, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
    part.set([50], &[1]).await;
    // Only the rows before the range are read.
    let found = part.read_below(100, INTERVAL * 2, items(1)).await;
    assert_eq!(found.items, [50]);
    part.set([51], &[1]).await;
    part.read_below(100, INTERVAL * 3, items(1)).await;
    assert_eq!(part.owed_in(), Some(INTERVAL));
}

#[tokio::test]
async fn a_read_that_ends_in_the_range_finds_what_the_search_has_found() {
    let part = TestPart::new();
    part.set(100..2_500, &[2]).await;
    assert_eq!(part.read(INTERVAL, 1).await, (vec![], 3));
    part.set([150, 1_800], &[1]).await;
    let end = 2_000;
    // It leaves the range out.
    let found = part.read_below(end, INTERVAL, items(1)).await;
    assert!(found.is_complete && found.items.is_empty());
    let later = INTERVAL * 2;
    assert_eq!(part.read(later, 1).await, (vec![150], 1));
    assert_eq!(part.read_below(end, later, items(1)).await.items, [150]);
    part.set([150], &[2]).await;
    assert!(!part.read_below(end, later, items(1)).await.is_complete);
    assert_eq!(part.read_below(end, later, items(1)).await.items, [1_800]);
    part.set([1_800], &[2]).await;
    // It cannot end the search, and has nothing more to read.
    assert!(part.read_below(end, later, items(1)).await.is_complete);
    part.set([2_400], &[1]).await;
    assert_eq!(part.read(later, 1).await, (vec![2_400], 1));
}
