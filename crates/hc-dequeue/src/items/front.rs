//! Reads the first items of a part of the queue, and remembers where rows end that are skipped: they do not decode, or
//! they are items of kinds that the session does not take.
//!
//! A read usually begins at the front of the part, also if a few rows there are skipped. If there are many, each
//! read would have to skip them again. The session therefore remembers where they end, and its next reads begin there.
//! An item may come back to a place before that, or a row may be repaired. So the session reads from the front again
//! after a while. Such a search may take several transactions: each continues where the last one stopped.
//!
//! More than 16 such rows, or 64 KiB of them, at the front are read again only once per poll interval, and less
//! often if that takes longer than an eighth of the interval.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{KeyValue, Transaction};
use parking_lot::Mutex;

use crate::items::error::Result;
use crate::items::scan::{FirstItems, ReadLimit, Scan, Skip, scan};

/// The largest numbers of rows and bytes at the front that each read skips again.
const MAX_REREAD_ROWS: usize = 16;
const MAX_REREAD_BYTES: usize = 64 * 1024;

/// After a search from the front, the session does not search again for this many times its duration.
const REST_AFTER_SEARCH: u32 = 8;

/// What a session knows of the rows at the front of a part.
#[derive(Debug)]
pub(crate) struct Front {
    interval: Duration,
    /// Whether rows at the front are skipped. While there are none, a read costs nothing more than this flag.
    is_known: AtomicBool,
    state: Mutex<FrontState>,
}

/// The rows at the front that are skipped.
#[derive(Debug, Default)]
struct FrontState {
    rows: usize,
    /// How many of them do not decode.
    unreadable: usize,
    bytes: usize,
    /// Where reads begin, if that is not the front.
    begin: Option<Vec<u8>>,
    /// When the last search from the front began.
    began: Duration,
    /// When the next one may begin. `None` while a search continues.
    next: Option<Duration>,
}

impl Front {
    /// Returns the front for a session that searches it again at most once per `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
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
        (front, end): (Vec<u8>, Vec<u8>),
        max: ReadLimit,
        decode: impl Fn(&KeyValue) -> Result<I, Skip>,
    ) -> Result<FirstItems<I>> {
        let skips_to = if self.is_known() {
            self.begin(now)
        } else {
            None
        };
        let is_from_front = skips_to.is_none();
        let begin = match skips_to {
            Some(begin) => begin.max(front),
            None => front,
        };
        let scan = scan(tr, (begin, end), max, decode).await?;
        if scan.led.rows > 0 || self.is_known() {
            self.note(now, is_from_front, &scan);
        }
        Ok(scan.found)
    }

    /// Returns how many rows at the front did not decode when they were last read.
    pub(crate) fn unreadable(&self) -> usize {
        self.state.lock().unreadable
    }

    /// Returns whether rows at the front are skipped, as far as was seen.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns where the next read begins, or `None` for the front.
    fn begin(&self, now: Duration) -> Option<Vec<u8>> {
        let state = self.state.lock();
        if state.next.is_some_and(|next| next <= now) || state.begin.is_none() {
            return None;
        }
        state.begin.clone()
    }

    fn note<I>(&self, now: Duration, is_from_front: bool, scan: &Scan<I>) {
        let mut state = self.state.lock();
        let led = &scan.led;
        if is_from_front {
            *state = FrontState {
                began: now,
                ..FrontState::default()
            };
        }
        state.rows += led.rows;
        state.unreadable += led.unreadable;
        state.bytes += led.bytes;
        let is_few = state.rows <= MAX_REREAD_ROWS && state.bytes <= MAX_REREAD_BYTES;
        if is_from_front && is_few && scan.found.is_complete {
            state.begin = None;
        } else if let Some(last) = &led.last {
            state.begin = Some(key_after(last));
        }
        if !scan.found.is_complete {
            state.next = None;
        } else if is_from_front || state.next.is_none() {
            let took = now.saturating_sub(state.began);
            let rest = took.saturating_mul(REST_AFTER_SEARCH);
            state.next = Some(now.saturating_add(rest.max(self.interval)));
        }
        self.is_known.store(state.rows > 0, Ordering::Relaxed);
    }
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
            self.front.state.lock().rows
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
        part.set(0..BAD, &[2]).await;
        part.set(BAD..BAD + 3, &[1]).await;
        let mut now = INTERVAL;
        assert_eq!(part.read(now, 2).await, (vec![BAD, BAD + 1], 3));
        assert_eq!(part.rows(), BAD as usize);
        // The next reads do not see what is before, until a second has passed.
        part.set([7], &[1]).await;
        for _ in 0..2 {
            assert_eq!(part.read(now, 1).await, (vec![BAD], 1));
            now += INTERVAL / 2 - Duration::from_millis(1);
        }
        now += Duration::from_millis(2);
        assert_eq!(part.read(now, 2).await, (vec![7], 1));
        assert_eq!(part.rows(), 7);
        // Also if nothing is left after the rows.
        part.set([7], &[2]).await;
        part.set(BAD..BAD + 3, &[2]).await;
        assert_eq!(part.read(now, 1).await, (vec![], 3));
        assert_eq!(part.read(now, 1).await, (vec![], 1));
        assert_eq!(part.rows(), BAD as usize + 3);
        part.set([0], &[1]).await;
        assert_eq!(part.read(now, 1).await, (vec![], 1));
        now += INTERVAL;
        assert_eq!(part.read(now, 1).await, (vec![0], 1));
    }

    #[tokio::test]
    async fn rows_with_many_bytes_count_as_many() {
        let part = TestPart::new();
        part.set(0..15, &[2; 90_000]).await;
        part.set([20], &[1]).await;
        assert_eq!(part.read(INTERVAL, 1).await, (vec![20], 2));
        part.set([0], &[1]).await;
        assert_eq!(part.read(INTERVAL, 1).await, (vec![20], 1));
        assert_eq!(part.read(2 * INTERVAL, 1).await, (vec![0], 1));
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
            let found = part
                .front
                .read(&tr, now, range, max, |_| Err::<(), _>(Skip::Unreadable));
            found.await.unwrap().is_complete
        };
        assert!(!read(INTERVAL).await);
        // The search goes on, however long it takes.
        assert!(read(INTERVAL * 11).await);
        part.set([0], &[1]).await;
        let rests = INTERVAL * 90;
        let searches = INTERVAL * 91;
        assert_eq!(part.read(rests, 1).await, (vec![], 1));
        assert_eq!(part.read(searches, 1).await, (vec![0], 1));
    }
}
