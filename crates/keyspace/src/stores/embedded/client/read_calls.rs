//! The reads of a transaction.

use bytes::Bytes;

use super::range_read::{RangeResult, without_or_equal};
use super::read_your_writes::View;
use super::seat::Unfinished;
use crate::contract::error::{Code, Result};
use crate::contract::limits;
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery, StreamingMode};
use crate::contract::transaction::{Isolation, key_after};
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::collections::ranges::KeyRange;
use crate::stores::embedded::collections::read_limits::ReadLimits;
use crate::stores::embedded::engine::watch::WatchSetter;

/// How many bytes a key that is read may exceed [`limits::MAX_KEY_BYTES`].
const READ_KEY_SLACK_BYTES: usize = 8;

/// A watch that the commit will arm.
pub(crate) struct PendingWatch {
    pub(crate) number: u64,
    pub(crate) key: Bytes,
    /// The value to compare later ones with, `None` until it was read.
    pub(crate) baseline: Option<Option<Bytes>>,
    pub(crate) setter: WatchSetter,
}

/// A read.
pub(crate) trait Read: Send + 'static {
    type Answer: Send + 'static;

    /// Reads, or stops to ask for what was not fetched.
    fn run(&self, view: &mut View<'_>) -> Result<Self::Answer, Unfinished>;

    /// Returns the keys that a serializable read conflicts on.
    fn conflict(&self, answer: &Self::Answer) -> Option<KeyRange>;

    /// Tells the answer to the watch that the read was made for.
    fn settle(&self, _answer: &Self::Answer, _watches: &mut [PendingWatch]) {}
}

/// A read and what applies to it at its call.
pub(crate) struct ReadCall<R> {
    pub(crate) read: R,
    pub(crate) isolation: Isolation,
    pub(crate) sees_writes: bool,
    pub(crate) bypass_unreadable: bool,
}

/// The read version.
pub(crate) struct GetReadVersion;

impl Read for GetReadVersion {
    type Answer = i64;

    fn run(&self, view: &mut View<'_>) -> Result<i64, Unfinished> {
        view.snapshot_cache.read_version(view.source)
    }

    fn conflict(&self, _: &i64) -> Option<KeyRange> {
        None
    }
}

/// The value of a key.
pub(crate) struct Get {
    pub(crate) key: Bytes,
}

impl Get {
    /// Returns the length from which on a key cannot exist, and is not even asked for.
    const MAX_KEY_BYTES: usize = limits::MAX_KEY_BYTES + READ_KEY_SLACK_BYTES;
}

impl Read for Get {
    type Answer = Option<Bytes>;

    fn run(&self, view: &mut View<'_>) -> Result<Option<Bytes>, Unfinished> {
        if self.key.len() > Self::MAX_KEY_BYTES {
            return Ok(None);
        }
        view.get(&self.key)
    }

    fn conflict(&self, _: &Option<Bytes>) -> Option<KeyRange> {
        if self.key.len() > Self::MAX_KEY_BYTES {
            return None;
        }
        Some(KeyRange::key(self.key.clone()))
    }
}

/// The value of a key that a watch compares later ones with.
pub(crate) struct GetBaseline {
    pub(crate) get: Get,
    /// The number of the watch.
    pub(crate) watch: u64,
}

impl Read for GetBaseline {
    type Answer = Option<Bytes>;

    fn run(&self, view: &mut View<'_>) -> Result<Option<Bytes>, Unfinished> {
        self.get.run(view)
    }

    fn conflict(&self, value: &Option<Bytes>) -> Option<KeyRange> {
        self.get.conflict(value)
    }

    fn settle(&self, value: &Option<Bytes>, watches: &mut [PendingWatch]) {
        // A write may have fired the watch in the meantime.
        if let Some(watch) = watches.iter_mut().find(|watch| watch.number == self.watch) {
            watch.baseline = Some(value.clone());
        }
    }
}

/// The key that a selector names.
pub(crate) struct GetKey {
    selector: KeySelector,
}

impl GetKey {
    pub(crate) fn new(selector: &KeySelector) -> Result<Self> {
        Ok(Self {
            selector: check_selector(selector)?,
        })
    }
}

impl Read for GetKey {
    type Answer = Bytes;

    fn run(&self, view: &mut View<'_>) -> Result<Bytes, Unfinished> {
        view.get_key(&self.selector)
    }

    fn conflict(&self, found: &Bytes) -> Option<KeyRange> {
        let reference = without_or_equal(&self.selector).key;
        Some(if self.selector.offset <= 0 {
            KeyRange::new(found.clone(), reference)
        } else {
            KeyRange::new(reference, key_after(found).into())
        })
    }
}

/// The rows between two selectors.
pub(crate) struct GetRange {
    begin: KeySelector,
    end: KeySelector,
    limits: ReadLimits,
    direction: Direction,
}

impl GetRange {
    pub(crate) fn new(query: &RangeQuery) -> Result<Self> {
        let begin = check_selector(&query.begin)?;
        let end = check_selector(&query.end)?;
        if query.mode == StreamingMode::Exact && query.limit == 0 {
            return Err(Code::EXACT_MODE_WITHOUT_LIMITS.into());
        }
        if query.mode == StreamingMode::Iterator && query.iteration == 0 {
            return Err(Code::CLIENT_INVALID_OPERATION.into());
        }
        Ok(Self {
            begin: without_or_equal(&begin),
            end: without_or_equal(&end),
            limits: ReadLimits {
                rows: if query.limit == 0 {
                    usize::MAX
                } else {
                    query.limit
                },
                bytes: query
                    .mode
                    .batch_bytes(query.iteration)
                    .unwrap_or(usize::MAX),
            },
            direction: if query.reverse {
                Direction::Backward
            } else {
                Direction::Forward
            },
        })
    }

    fn is_empty(&self) -> bool {
        self.begin.offset >= self.end.offset && self.begin.key >= self.end.key
    }
}

impl Read for GetRange {
    type Answer = RangeResult;

    fn run(&self, view: &mut View<'_>) -> Result<RangeResult, Unfinished> {
        if self.is_empty() {
            return Ok(RangeResult::default());
        }
        view.range(&self.begin, &self.end, self.limits, self.direction)
    }

    fn conflict(&self, result: &RangeResult) -> Option<KeyRange> {
        if self.is_empty() {
            return None;
        }
        let (from, to) = result.conflict_range(&self.begin, &self.end, self.direction);
        Some(KeyRange::new(from, to))
    }
}

impl From<RangeResult> for RangeBatch {
    fn from(result: RangeResult) -> Self {
        Self {
            rows: result.rows,
            more: result.more,
        }
    }
}

/// Returns a selector that names the same key, whose own key is not longer than a message can be.
fn check_selector(selector: &KeySelector) -> Result<KeySelector> {
    if &selector.key[..] > limits::END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
    }
    let mut selector = selector.clone();
    // Keys over the limit cannot exist, so one that is cut off one byte after the limit has the same keys before it.
    selector.key.truncate(limits::MAX_KEY_BYTES + 1);
    Ok(selector)
}
