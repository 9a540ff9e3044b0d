//! Reads the first items of a part of the queue, and remembers a range of rows at the front that are skipped: rows that
//! do not decode, and items of kinds that the session does not take.
//!
//! A few such rows are skipped by each read. If there are many, the session remembers their range, and its next reads
//! leave it out. What comes before the range or after it is seen at once.
//!
//! An item may come back to a place in the range, or a row may be repaired. So the session searches the range again
//! after a while, in steps, beside its other reads. Whatever puts an item there writes the wake stamp of the queue: a
//! session that has left the range out at another stamp than that of the last search owes one more before it sleeps for
//! long.
//!
//! More than 16 rows, or 64 KiB of them, are remembered. They are searched again at most once in a second, or in the
//! poll interval if that is shorter, and for at most a ninth of the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{Bytes, Isolation, KeyValue, Transaction};
use parking_lot::Mutex;

use crate::items::error::Result;
use crate::items::keys::Keys;
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
    fn of(skipped: &Skipped) -> Self {
        let mut counted = Self::default();
        counted.add(skipped);
        counted
    }

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
    /// When the next search may begin. `None` until its last row was found.
    due: Option<Duration>,
    search: Option<Search>,
    /// The wake stamp at the begin of the last search that has ended.
    searched: Option<Bytes>,
    /// Whether the last read has left the range out although the wake stamp is another one.
    is_owed: bool,
}

/// A search of the range that has begun.
#[derive(Debug, Clone)]
struct Search {
    began: Duration,
    /// The wake stamp then.
    stamp: Bytes,
    /// Where its next step begins, and where it ends.
    cursor: Vec<u8>,
    end: Vec<u8>,
    /// Whether its last step has found an item, behind which it goes on when the item is gone.
    has_item: bool,
    /// The first row that it has skipped.
    first: Option<Bytes>,
    skipped: Counted,
}

impl Hidden {
    /// Returns a range that begins with these rows, and goes on behind them.
    fn beginning_with(skipped: &Skipped, now: Duration) -> Option<Self> {
        Some(Self {
            begin: skipped.first.as_ref()?.to_vec(),
            end: key_after(skipped.last.as_ref()?),
            found: now,
            due: None,
            search: None,
            searched: None,
            is_owed: false,
        })
    }

    /// Returns the next step of the search, if it is due. If the last one has found an item, and there may be others
    /// before it since then, the search begins again.
    fn step(&mut self, now: Duration, stamp: &Bytes) -> Option<KeyRange> {
        let is_due = self.due.is_some_and(|due| due <= now);
        let goes_on = |search: &Search| !(search.has_item && is_due && search.stamp != *stamp);
        let search = match self.search.take() {
            Some(search) if goes_on(&search) => Search {
                // It does not search while it waits for the item to go.
                began: if search.has_item { now } else { search.began },
                ..search
            },
            _ if is_due => Search {
                began: now,
                stamp: stamp.clone(),
                cursor: self.begin.clone(),
                end: self.end.clone(),
                has_item: false,
                first: None,
                skipped: Counted::default(),
            },
            _ => {
                self.is_owed = self.searched.as_ref() != Some(stamp);
                return None;
            }
        };
        self.is_owed = search.stamp != *stamp;
        let step = (search.cursor.clone(), search.end.clone());
        self.search = Some(search);
        Some(step)
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
        keys: &Keys,
        (front, end): KeyRange,
        max: ReadLimit,
        decode: impl Fn(&KeyValue) -> Result<I, Skip>,
    ) -> Result<FirstItems<I>> {
        let now = keys.env.now();
        let stamp = if self.hides_rows() {
            tr.get(&keys.wake(), Isolation::Snapshot).await?
        } else {
            None
        };
        let Some((hidden, step)) = self.plan(now, &stamp.unwrap_or_default()) else {
            let scan = scan(tr, (front, end), max, &decode).await?;
            if scan.led.rows > 0 || self.is_known() {
                self.note_first(now, &scan);
            }
            return Ok(scan.found);
        };
        let mut found = FirstItems::none();
        let mut left = max;
        let before = (front.clone(), hidden.begin.min(end.clone()));
        let before = Self::extend(tr, &mut found, &mut left, before, &decode).await?;
        let again = match step {
            Some((begin, last)) => {
                // A step is taken also if there are enough items before the range.
                let mut own = left.at_least_one();
                let is_whole = last <= end;
                let step = (begin.max(front.clone()), last.min(end.clone()));
                let again = Self::extend(tr, &mut found, &mut own, step, &decode).await?;
                left = left.min(own);
                again.map(|led| Step { led, is_whole })
            }
            None => None,
        };
        let after = (hidden.end.max(front), end);
        let after = Self::extend(tr, &mut found, &mut left, after, &decode).await?;
        let is_searching = self.note(now, before, again, after);
        found.items.truncate(max.items);
        found.is_complete = !found.items.is_empty() || found.is_complete && !is_searching;
        Ok(found)
    }

    /// Adds the first items of a range, unless there are enough. Returns what the range has before its first item.
    async fn extend<I>(
        tr: &impl Transaction,
        found: &mut FirstItems<I>,
        left: &mut ReadLimit,
        (begin, end): KeyRange,
        decode: impl Fn(&KeyValue) -> Result<I, Skip>,
    ) -> Result<Option<Led>> {
        if left.items == 0 || left.row_bytes == 0 || begin >= end {
            return Ok(None);
        }
        let scan = scan(tr, (begin, end), *left, decode).await?;
        *left = scan.left;
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

    /// Returns whether reads leave a range out.
    fn hides_rows(&self) -> bool {
        self.is_known() && self.state.lock().hidden.is_some()
    }

    /// Returns in which time the session must search before it may sleep for long, if it must. A search that was due
    /// and has not ended is tried again after a rest.
    pub(crate) fn owed_in(&self, now: Duration) -> Option<Duration> {
        if !self.is_known() {
            return None;
        }
        let state = self.state.lock();
        let hidden = state.hidden.as_ref()?;
        if !hidden.is_owed {
            return None;
        }
        let due = hidden.due?;
        Some(if due > now { due - now } else { self.rest })
    }

    /// Returns the range that the next read leaves out, and the step of the search that it takes.
    fn plan(&self, now: Duration, stamp: &Bytes) -> Option<(Hidden, Option<KeyRange>)> {
        if !self.is_known() {
            return None;
        }
        let mut state = self.state.lock();
        let hidden = state.hidden.as_mut()?;
        let step = hidden.step(now, stamp);
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
        state.skipped = Counted::of(&scan.led);
        let is_complete = scan.found.is_complete;
        state.hidden = if state.skipped.are_few() && is_complete {
            None
        } else {
            Hidden::beginning_with(&scan.led, now).map(|hidden| Hidden {
                due: is_complete.then(|| now.saturating_add(self.rest)),
                ..hidden
            })
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
        again: Option<Step>,
        after: Option<Led>,
    ) -> bool {
        let mut state = self.state.lock();
        let FrontState { skipped, hidden } = &mut *state;
        let Some(range) = hidden else {
            return false;
        };
        if let Some(led) = before {
            let counted = Counted::of(&led.skipped);
            if !counted.are_few() && (led.has_items || !led.is_complete) {
                // These are the rows at the front now. The next reads find the others behind them.
                *skipped = counted;
                *hidden = Hidden::beginning_with(&led.skipped, now);
                return false;
            }
            if let Some(first) = &led.skipped.first
                && !led.has_items
            {
                range.begin = first.to_vec();
                skipped.add(&led.skipped);
            }
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
        let (Some(step), Some(search)) = (again, &mut range.search) else {
            return false;
        };
        let Step { led, is_whole } = step;
        search.skipped.add(&led.skipped);
        if search.first.is_none() {
            search.first.clone_from(&led.skipped.first);
        }
        if let Some(last) = &led.skipped.last {
            search.cursor = key_after(last);
        }
        let had_item = std::mem::replace(&mut search.has_item, led.has_items);
        if !led.has_items && (!led.is_complete || !is_whole) {
            return is_whole;
        }
        if !had_item || !led.has_items {
            range.due = Some(self.rest_after(search.began, now));
        }
        if led.has_items {
            return false;
        }
        *skipped = search.skipped;
        if let Some(first) = search.first.take() {
            range.begin = first.to_vec();
        }
        range.searched = Some(search.stamp.clone());
        range.search = None;
        if skipped.are_few() {
            *hidden = None;
        }
        self.is_known.store(skipped.rows > 0, Ordering::Relaxed);
        false
    }
}

/// What a range has before its first item.
struct Led {
    skipped: Skipped,
    has_items: bool,
    is_complete: bool,
}

/// A step of a search.
struct Step {
    led: Led,
    /// Whether the read could take it up to its end.
    is_whole: bool,
}

#[cfg(test)]
mod tests;
