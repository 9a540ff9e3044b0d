//! Key selectors and range queries.

use std::fmt;

use bytes::Bytes;

/// Names a key by its position relative to a reference key, as FoundationDB's key selectors do.
///
/// Resolution finds the last key before `key` (at or before it if `or_equal`), then moves `offset`
/// keys forward (backward if negative). It is clamped to the empty key and to `\xff`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySelector {
    /// The reference key.
    pub key: Bytes,
    /// Whether the search for the last key includes `key` itself.
    pub or_equal: bool,
    /// The number of keys to move from there.
    pub offset: i32,
}

impl KeySelector {
    /// Selects the last key less than `key`.
    #[must_use]
    pub fn last_less_than(key: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            or_equal: false,
            offset: 0,
        }
    }

    /// Selects the last key less than or equal to `key`.
    #[must_use]
    pub fn last_less_or_equal(key: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            or_equal: true,
            offset: 0,
        }
    }

    /// Selects the first key greater than `key`.
    #[must_use]
    pub fn first_greater_than(key: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            or_equal: true,
            offset: 1,
        }
    }

    /// Selects the first key greater than or equal to `key`.
    #[must_use]
    pub fn first_greater_or_equal(key: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            or_equal: false,
            offset: 1,
        }
    }
}

/// The target size of one batch of a range read, with FoundationDB's names.
///
/// A batch always holds at least one row, even if it exceeds the target. A row counts as its key, its value
/// and 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamingMode {
    /// 80,000 bytes, for callers that read the whole range.
    WantAll,
    /// Grows from 4,096 to 120,000 bytes as the batches of a query go on. The default.
    #[default]
    Iterator,
    /// All rows up to the limit in one batch; a limit is required.
    Exact,
    /// 256 bytes.
    Small,
    /// 1,000 bytes.
    Medium,
    /// 4,096 bytes.
    Large,
    /// 80,000 bytes.
    Serial,
}

impl StreamingMode {
    const ITERATOR_BYTES: [usize; 10] = [
        4_096, 6_144, 9_216, 13_824, 20_736, 31_104, 46_656, 69_984, 80_000, 120_000,
    ];

    /// Returns the target size in bytes of a batch, by its number from 1, or `None` if there is no target.
    #[must_use]
    pub fn batch_bytes(self, iteration: usize) -> Option<usize> {
        match self {
            Self::WantAll | Self::Serial => Some(80_000),
            Self::Iterator => {
                let last = Self::ITERATOR_BYTES.len() - 1;
                Some(Self::ITERATOR_BYTES[iteration.saturating_sub(1).min(last)])
            }
            Self::Exact => None,
            Self::Small => Some(256),
            Self::Medium => Some(1_000),
            Self::Large => Some(4_096),
        }
    }
}

/// A query for one batch of a range: the keys from `begin` up to, but not including, `end`.
///
/// ```
/// use keyspace::RangeQuery;
///
/// let head = RangeQuery::keys(&b"jobs/"[..], &b"jobs0"[..]).limit(1);
/// let tail = head.clone().reversed();
/// assert_eq!(head.begin, tail.begin);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeQuery {
    /// The begin of the range, inclusive.
    pub begin: KeySelector,
    /// The end of the range, exclusive.
    pub end: KeySelector,
    /// The largest number of rows to read, 0 for no limit.
    pub limit: usize,
    /// Whether to read from the end of the range backward.
    pub reverse: bool,
    /// The target size of the batch.
    pub mode: StreamingMode,
    /// The number of the batch, from 1. Only [`StreamingMode::Iterator`] uses it.
    pub iteration: usize,
}

impl RangeQuery {
    /// Queries the keys `begin <= key < end`.
    #[must_use]
    pub fn keys(begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self::selectors(
            KeySelector::first_greater_or_equal(begin),
            KeySelector::first_greater_or_equal(end),
        )
    }

    /// Queries the keys between two selectors, once they are resolved.
    #[must_use]
    pub fn selectors(begin: KeySelector, end: KeySelector) -> Self {
        Self {
            begin,
            end,
            limit: 0,
            reverse: false,
            mode: StreamingMode::Iterator,
            iteration: 1,
        }
    }

    /// Limits the number of rows.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// Reads from the end of the range backward.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Sets the target size of a batch.
    #[must_use]
    pub fn mode(mut self, mode: StreamingMode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the query for the next batch, or `None` if `batch` was the last.
    ///
    /// A store may end a batch at any row, and [`RangeBatch::more`] only says that more rows may follow.
    /// The range holds the rows of all batches together.
    #[must_use]
    pub fn after(&self, batch: &RangeBatch) -> Option<Self> {
        if !batch.more {
            return None;
        }
        let last = batch.rows.last()?.to_key();
        let mut next = self.clone();
        if self.reverse {
            next.end = KeySelector::first_greater_or_equal(last);
        } else {
            next.begin = KeySelector::first_greater_than(last);
        }
        if self.limit > 0 {
            next.limit = self
                .limit
                .checked_sub(batch.rows.len())
                .filter(|&rest| rest > 0)?;
        }
        next.iteration += 1;
        Some(next)
    }
}

/// A row of a range read. The key and the value share one allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    row: Bytes,
    key_bytes: usize,
}

impl KeyValue {
    /// Returns a row with copies of a key and a value.
    #[must_use]
    pub fn new(key: &[u8], value: &[u8]) -> Self {
        let row = [key, value].concat().into();
        Self::from_row(row, key.len())
    }

    /// Returns a row from its bytes: a key of `key_bytes` bytes, and the value after it.
    pub(crate) fn from_row(row: Bytes, key_bytes: usize) -> Self {
        debug_assert!(key_bytes <= row.len(), "a key is a part of its row");
        Self { row, key_bytes }
    }

    /// Converts into the bytes of the row: the key, and the value after it.
    pub(crate) fn into_row(self) -> Bytes {
        self.row
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.row[..self.key_bytes]
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.row[self.key_bytes..]
    }

    /// Returns the key without copying it: it shares the row's memory.
    #[must_use]
    pub fn to_key(&self) -> Bytes {
        self.row.slice(..self.key_bytes)
    }

    /// Returns the value without copying it: it shares the row's memory.
    #[must_use]
    pub fn to_value(&self) -> Bytes {
        self.row.slice(self.key_bytes..)
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &self.to_key())
            .field("value", &self.to_value())
            .finish()
    }
}

/// The rows of one batch, in the order of the query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeBatch {
    /// The rows.
    pub rows: Vec<KeyValue>,
    /// Whether rows may follow. True if a limit was reached, even if there are no more rows.
    pub more: bool,
}

impl RangeBatch {
    /// Returns the key after which a caller that pages through a range continues: that of the last row, or
    /// `None` if no rows follow.
    ///
    /// ```
    /// use keyspace::{KeyValue, RangeBatch};
    ///
    /// let rows = vec![KeyValue::new(b"a", b"1"), KeyValue::new(b"b", b"2")];
    /// let batch = RangeBatch { rows, more: true };
    /// assert_eq!(batch.next_after(), Some(&b"b"[..]));
    /// assert_eq!(RangeBatch { more: false, ..batch }.next_after(), None);
    /// ```
    #[must_use]
    pub fn next_after(&self) -> Option<&[u8]> {
        if !self.more {
            return None;
        }
        self.rows.last().map(KeyValue::key)
    }
}
