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
    /// Whether the reference key itself counts as "last key before".
    pub or_equal: bool,
    /// How many keys to move from there.
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

/// How many bytes of rows one batch of a range read may hold, in FoundationDB's names.
///
/// The byte counts are targets: a batch always holds at least one row, and a row counts as its key,
/// its value and 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamingMode {
    /// 80,000 bytes: the caller will read everything.
    WantAll,
    /// Grows from 4,096 to 120,000 bytes with the query's iteration. The default.
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

    /// Returns the byte target of the batch with this number (counted from 1), `None` for no limit.
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

/// One batch of a range read: from `begin` up to and not including `end`.
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
    /// Where the range begins, inclusive.
    pub begin: KeySelector,
    /// Where the range ends, exclusive.
    pub end: KeySelector,
    /// The largest number of rows wanted, 0 for no limit.
    pub limit: usize,
    /// Whether rows come from the end of the range backwards.
    pub reverse: bool,
    /// The byte target of the batch.
    pub mode: StreamingMode,
    /// The number of the batch, from 1; only [`StreamingMode::Iterator`] looks at it.
    pub iteration: usize,
}

impl RangeQuery {
    /// Reads the keys `begin <= key < end`.
    #[must_use]
    pub fn keys(begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self::selectors(
            KeySelector::first_greater_or_equal(begin),
            KeySelector::first_greater_or_equal(end),
        )
    }

    /// Reads the keys between two resolved selectors.
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

    /// Reads from the end of the range backwards.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Chooses the byte target of a batch.
    #[must_use]
    pub fn mode(mut self, mode: StreamingMode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the query for what follows `batch`, or `None` when nothing does.
    ///
    /// A store may end a batch anywhere: [`RangeBatch::more`] says "maybe", and the rows of all
    /// batches together are what the range holds.
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

/// A row of a range read, its key and its value in one piece of memory.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    row: Bytes,
    key_bytes: usize,
}

impl KeyValue {
    /// Makes a row of copies.
    #[must_use]
    pub fn new(key: &[u8], value: &[u8]) -> Self {
        let row = [key, value].concat().into();
        Self::from_row(row, key.len())
    }

    /// Makes a row of a key of `key_bytes` bytes and the value that follows it.
    pub(crate) fn from_row(row: Bytes, key_bytes: usize) -> Self {
        debug_assert!(key_bytes <= row.len(), "a key is a part of its row");
        Self { row, key_bytes }
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

    /// Returns the key, which shares the row's memory.
    #[must_use]
    pub fn to_key(&self) -> Bytes {
        self.row.slice(..self.key_bytes)
    }

    /// Returns the value, which shares the row's memory.
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
    /// Whether rows may follow. True when a limit was reached, even if nothing follows.
    pub more: bool,
}
