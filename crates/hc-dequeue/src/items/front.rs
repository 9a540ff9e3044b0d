//! Reads the first items of a part of the queue, and remembers a range of rows at the front that are skipped: rows that
//! do not decode, and items of kinds that the session does not take.
//!
//! A few such rows are skipped by each read. If there are many, the session remembers their range, and its next reads
//! leave it out. What comes before the range or after it is seen at once.
//!
//! An item may come back to a place in the range, or a row may be repaired. So the session searches the range again
//! after a while, in steps, beside its other reads. A session that has left the range out since the last search owes
//! one more before it sleeps for long.
//!
//! More than 16 rows, or 64 KiB of them, are remembered. They are searched again at most once in a second, or in the
//! poll interval if that is shorter, and for at most a ninth of the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{KeyValue, Transaction};
use parking_lot::Mutex;

use crate::items::error::Result;
use crate::items::scan::{FirstItems, ReadLimit, Scan, Skip, Skipped, scan};

/// The largest numbers of rows and bytes at the front that each read skips again.
const MAX_REREAD_ROWS: usize = 16;
const MAX_REREAD_BYTES: usize = 64 * 1024;

/// How long a session rests at least from one search to the next, unless its poll interval is shorter.
const REST: Duration = Duration::from_secs(1);

/// After a search, the session does not search again for this many times its duration.
const REST_AFTER_SEARCH: u32 = 8;

/// The first key of a range, and its end, which is not in it.
type KeyRange = (Vec<u8>, Vec<u8>);

/// What a session knows of the rows at the front of a part.
#[derive(Debug)]
pub(crate) struct Front {
    rest: Duration,
    /// Whether rows at the front are skipped. While there are none, a read costs nothing more than this flag.
    is_known: AtomicBool,
    state: Mutex<FrontState>,
}

#[derive(Debug, Default)]
struct FrontState {
    /// The rows that are skipped, as far as they were counted.
    skipped: Counted,
    /// The range that reads leave out.
    hidden: Option<Hidden>,
}

/// How many rows are skipped.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    rows: usize,
    unreadable: usize,
    bytes: usize,
}

impl Counted {
    fn add(&mut self, skipped: &Skipped) {
        self.rows += skipped.rows;
        self.unreadable += skipped.unreadable;
        self.bytes += skipped.bytes;
    }

    /// Returns whether each read may skip the rows again.
    fn are_few(self) -> bool {
        self.rows <= MAX_REREAD_ROWS && self.bytes <= MAX_REREAD_BYTES
    }
}

/// A range that contains only rows which are skipped, as far as the session knows.
#[derive(Debug, Clone)]
struct Hidden {
    begin: Vec<u8>,
    end: Vec<u8>,
    /// When its first row was found.
    found: Duration,
    /// When the next search begins. `None` until its last row was found.
    due: Option<Duration>,
    search: Option<Search>,
    /// Whether a read has left the range out since the last search.
    is_owed: bool,
}

/// A search of the range that has begun.
#[derive(Debug, Clone)]
struct Search {
    began: Duration,
    /// Where its next step begins, and where it ends.
    cursor: Vec<u8>,
    end: Vec<u8>,
    /// The first row that it has skipped.
    first: Option<Vec<u8>>,
    skipped: Counted,
}

impl Hidden {
    /// Returns the next step of the search, if it is due.
    fn step(&mut self, now: Duration) -> Option<KeyRange> {
        if self.search.is_none() {
            if self.due.is_none_or(|due| now < due) {
                return None;
            }
            self.search = Some(Search {
                began: now,
                cursor: self.begin.clone(),
                end: self.end.clone(),
                first: None,
                skipped: Counted::default(),
            });
        }
        let search = self.search.as_ref()?;
        Some((search.cursor.clone(), search.end.clone()))
    }
}

impl Front {
    /// Returns the front for a session that searches at most once per `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            rest: interval.min(REST),
            is_known: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Reads the first items between two keys. `decode` tells which rows are skipped, and why.
    ///
    /// # Conflicts
    /// Reads by snapshot: removing an item ensures that it still exists at the commit.
    pub(crate) async fn read<I>(
        &self,
        tr: &impl Transaction,
        now: Duration,
        (front, end): KeyRange,
        max: ReadLimit,
        decode: impl Fn(&KeyValue) -> Result<I, Skip>,
    ) -> Result<FirstItems<I>> {
        let hidden = if self.is_known() {
            self.plan(now)
        } else {
            None
        };
        let Some((hidden, step)) = hidden else {
            let scan = scan(tr, (front, end), max, &decode).await?;
            if scan.led.rows > 0 || self.is_known() {
                self.note_first(now, &scan);
            }
            return Ok(scan.found);
        };
        let mut found = FirstItems::none();
        let before = (front.clone(), hidden.begin.clone());
        let before = Self::extend(tr, &mut found, before, max, &decode).await?;
        let again = match step {
            Some(step) => Self::extend(tr, &mut found, step, max, &decode).await?,
            None => None,
        };
        let after = (hidden.end.clone().max(front), end);
        let after = Self::extend(tr, &mut found, after, max, &decode).await?;
        let is_searching = self.note(now, before, again, after);
        found.is_complete = !found.items.is_empty() || found.is_complete && !is_searching;
        Ok(found)
    }

    /// Adds the first items of a range, unless there are enough. Returns what the range has before its first item.
    async fn extend<I>(
        tr: &impl Transaction,
        found: &mut FirstItems<I>,
        (begin, end): KeyRange,
        max: ReadLimit,
        decode: impl Fn(&KeyValue) -> Result<I, Skip>,
    ) -> Result<Option<Led>> {
        let Some(missing) = max.items.checked_sub(found.items.len()).filter(|n| *n > 0) else {
            return Ok(None);
        };
        if begin >= end {
            return Ok(None);
        }
        let max = ReadLimit {
            items: missing,
            ..max
        };
        let scan = scan(tr, (begin, end), max, decode).await?;
        found.is_complete &= scan.found.is_complete;
        let led = Led {
            skipped: scan.led,
            has_items: !scan.found.items.is_empty(),
            is_complete: scan.found.is_complete,
        };
        found.items.extend(scan.found.items);
        Ok(Some(led))
    }

    /// Returns how many rows at the front did not decode when they were last read.
    pub(crate) fn unreadable(&self) -> usize {
        self.state.lock().skipped.unreadable
    }

    /// Returns whether rows at the front are skipped, as far as was seen.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns in which time the session must search before it may sleep for long, if it must.
    pub(crate) fn owed_in(&self, now: Duration) -> Option<Duration> {
        if !self.is_known() {
            return None;
        }
        let state = self.state.lock();
        let hidden = state.hidden.as_ref()?;
        if !hidden.is_owed {
            return None;
        }
        hidden.due.map(|due| due.saturating_sub(now))
    }

    /// Returns the range that the next read leaves out, and the step of the search that it takes.
    fn plan(&self, now: Duration) -> Option<(Hidden, Option<KeyRange>)> {
        let mut state = self.state.lock();
        let hidden = state.hidden.as_mut()?;
        let step = hidden.step(now);
        hidden.is_owed |= step.is_none();
        Some((hidden.clone(), step))
    }

    /// Returns until when the session rests after a search that began at one time and ended at another one.
    fn rest_after(&self, began: Duration, now: Duration) -> Duration {
        let took = now.saturating_sub(began);
        let rest = took.saturating_mul(REST_AFTER_SEARCH).max(self.rest);
        now.saturating_add(rest)
    }

    /// Notes what a read from the front has skipped, while no range was left out.
    fn note_first<I>(&self, now: Duration, scan: &Scan<I>) {
        let mut state = self.state.lock();
        state.skipped = Counted::default();
        state.skipped.add(&scan.led);
        let is_short = state.skipped.are_few() && scan.found.is_complete;
        state.hidden = match (&scan.led.first, &scan.led.last) {
            (Some(first), Some(last)) if !is_short => Some(Hidden {
                begin: first.to_vec(),
                end: key_after(last),
                found: now,
                due: if scan.found.is_complete {
                    Some(now.saturating_add(self.rest))
                } else {
                    None
                },
                search: None,
                is_owed: false,
            }),
            _ => None,
        };
        self.is_known
            .store(state.skipped.rows > 0, Ordering::Relaxed);
    }

    /// Notes what a read has skipped before the range, in a step of the search, and after the range. Returns whether
    /// the search goes on.
    fn note(
        &self,
        now: Duration,
        before: Option<Led>,
        again: Option<Led>,
        after: Option<Led>,
    ) -> bool {
        let mut state = self.state.lock();
        let FrontState { skipped, hidden } = &mut *state;
        let Some(range) = hidden else {
            return false;
        };
        if let Some(led) = before
            && let Some(first) = &led.skipped.first
            && !led.has_items
            && led.is_complete
        {
            range.begin = first.to_vec();
            skipped.add(&led.skipped);
        }
        if let Some(led) = after {
            if let Some(last) = &led.skipped.last {
                range.end = key_after(last);
                skipped.add(&led.skipped);
                if let Some(search) = &mut range.search {
                    search.skipped.add(&led.skipped);
                }
            }
            if range.due.is_none() && led.is_complete {
                range.due = Some(self.rest_after(range.found, now));
            }
        }
        if let Some(led) = again
            && let Some(search) = &mut range.search
        {
            search.skipped.add(&led.skipped);
            search.first = search.first.take().or(led.skipped.first.map(Into::into));
            if let Some(last) = &led.skipped.last {
                search.cursor = key_after(last);
            }
            if led.has_items || !led.is_complete {
                return !led.has_items;
            }
            range.due = Some(self.rest_after(search.began, now));
            range.is_owed = false;
            *skipped = search.skipped;
            if let Some(first) = search.first.take() {
                range.begin = first;
            }
            range.search = None;
            if skipped.are_few() {
                *hidden = None;
            }
            self.is_known.store(skipped.rows > 0, Ordering::Relaxed);
        }
        false
    }
}

/// What a range has before its first item.
struct Led {
    skipped: Skipped,
    has_items: bool,
    is_complete: bool,
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Database, OwnedTransaction, Store};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(1);

    /// A part whose items have the value 1. Other values do not decode.
    struct TestPart {
        db: Store,
        front: Front,
    }

    impl TestPart {
        fn new() -> Self {
            Self {
                db: microqueue::keyspace::open("memory:").unwrap(),
                front: Front::new(INTERVAL),
            }
        }

        async fn set(&self, keys: impl IntoIterator<Item = u32>, value: &[u8]) {
            let mut tr = self.db.begin().unwrap();
            for key in keys {
                tr.set(&key.to_be_bytes(), value);
            }
            tr.commit().await.unwrap();
        }

        /// Reads until it has found items. Returns the keys of the items, and how often it has read.
        async fn read(&self, now: Duration, limit: usize) -> (Vec<u32>, usize) {
            let range = || (vec![], vec![0xff]);
            let max = ReadLimit {
                items: limit,
                row_bytes: usize::MAX,
            };
            let decode = |row: &KeyValue| {
                let key = u32::from_be_bytes(row.key().try_into().unwrap());
                if row.value() == [1] {
                    Ok(key)
                } else {
                    Err(Skip::Unreadable)
                }
            };
            for reads in 1.. {
                let tr = self.db.begin().unwrap();
                let found = self
                    .front
                    .read(&tr, now, range(), max, decode)
                    .await
                    .unwrap();
                if found.is_complete {
                    return (found.items, reads);
                }
                assert!(found.items.is_empty() && reads < 100);
            }
            unreachable!("it returns")
        }

        fn rows(&self) -> usize {
            self.front.state.lock().skipped.rows
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
        assert!(!part.front.is_known.load(Ordering::Relaxed));
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
    async fn a_slow_search_is_repeated_less_often() {
        let part = TestPart::new();
        part.set(0..1_500, &[2]).await;
        let read = async |now| {
            let range = (vec![], vec![0xff]);
            let max = ReadLimit {
                items: 1,
                row_bytes: usize::MAX,
            };
            let tr = part.db.begin().unwrap();
            let decode = |_: &KeyValue| Err::<(), _>(Skip::Unreadable);
            let found = part.front.read(&tr, now, range, max, decode);
            found.await.unwrap().is_complete
        };
        assert!(!read(INTERVAL).await);
        // The search goes on, however long it takes.
        assert!(read(INTERVAL * 11).await);
        part.set([500], &[1]).await;
        let rests = INTERVAL * 90;
        let searches = INTERVAL * 91;
        assert_eq!(part.read(rests, 1).await, (vec![], 1));
        assert_eq!(part.read(searches, 1).await, (vec![500], 1));
    }

    #[tokio::test]
    async fn a_read_that_leaves_rows_out_owes_a_search() {
        let part = TestPart::new();
        assert_eq!(part.front.owed_in(INTERVAL), None);
        part.set(0..100, &[2]).await;
        assert_eq!(part.read(INTERVAL, 1).await, (vec![], 1));
        assert_eq!(part.front.owed_in(INTERVAL), None);
        let later = INTERVAL * 3 / 2;
        assert_eq!(part.read(later, 1).await, (vec![], 1));
        assert_eq!(part.front.owed_in(later), Some(INTERVAL / 2));
        assert_eq!(part.read(INTERVAL * 2, 1).await, (vec![], 1));
        assert_eq!(part.front.owed_in(INTERVAL * 2), None);
    }
}
