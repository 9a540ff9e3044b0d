//! Reads the first items between two keys, and skips rows that do not decode: damaged rows, and rows of a newer
//! format. A session also skips items of kinds that it does not take. They stay where they are.

use std::ops::ControlFlow;

use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Isolation, KeyValue, RangeQuery, StreamingMode, Transaction, visit_rows,
};

use crate::items::error::{Error, Result};

/// How many rows one read skips.
const MAX_SKIPPED_ROWS: usize = 1_000;

/// How many bytes of rows one read skips. The last row may exceed it.
const MAX_SKIPPED_BYTES: usize = 1_000_000;

/// How much a read returns at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLimit {
    pub(crate) items: usize,
    /// The last item may exceed it.
    pub(crate) row_bytes: usize,
}

impl ReadLimit {
    /// Returns the limit of a read of at least one item.
    pub(crate) fn at_least_one(self) -> Self {
        Self {
            items: self.items.max(1),
            row_bytes: self.row_bytes.max(1),
        }
    }

    /// Returns the limit of a read to which both limits apply.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            items: self.items.min(other.items),
            row_bytes: self.row_bytes.min(other.row_bytes),
        }
    }
}

/// The first items that a read has found.
#[derive(Debug)]
pub(crate) struct FirstItems<I> {
    pub(crate) items: Vec<I>,
    /// Whether the read has found as many items as wanted or possible. Otherwise, it has ended among rows that it has
    /// skipped, and the next read continues.
    pub(crate) is_complete: bool,
}

impl<I> FirstItems<I> {
    pub(crate) fn none() -> Self {
        Self {
            items: Vec::new(),
            is_complete: true,
        }
    }
}

/// Why a read skips a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// It does not decode.
    Unreadable,
    /// The session takes nothing there, as of an item of a kind that it does not know.
    PassedOver,
}

/// Rows that a read has skipped.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    pub(crate) rows: usize,
    /// How many of them do not decode.
    pub(crate) unreadable: usize,
    pub(crate) bytes: usize,
    /// The key of the first row, and that of the last one.
    pub(crate) first: Option<Bytes>,
    pub(crate) last: Option<Bytes>,
}

impl Skipped {
    fn add(&mut self, row: &KeyValue, why: Skip) {
        self.rows += 1;
        self.unreadable += usize::from(why == Skip::Unreadable);
        self.bytes += row.key().len() + row.value().len();
        self.last = Some(row.to_key());
        if self.first.is_none() {
            self.first.clone_from(&self.last);
        }
    }
}

/// What a read has found.
#[derive(Debug)]
pub(crate) struct Scan<I> {
    pub(crate) found: FirstItems<I>,
    /// The rows before the first item.
    pub(crate) led: Skipped,
    /// How much more the read could have returned.
    pub(crate) left: ReadLimit,
}

/// Reads the first items between two keys, and skips other rows. For parts in which few rows do not decode; a
/// [`Front`](crate::items::front::Front) reads the others.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn first_items<I>(
    tr: &impl Transaction,
    range: (Vec<u8>, Vec<u8>),
    max: ReadLimit,
    decode: impl Fn(&KeyValue) -> Option<I>,
) -> Result<Vec<I>> {
    let decode = |row: &KeyValue| decode(row).ok_or(Skip::Unreadable);
    Ok(scan(tr, range, max, decode).await?.found.items)
}

/// Reads the first items between two keys, and returns also what it has skipped. `decode` tells why it skips a row.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn scan<I>(
    tr: &impl Transaction,
    (mut begin, end): (Vec<u8>, Vec<u8>),
    max: ReadLimit,
    decode: impl Fn(&KeyValue) -> Result<I, Skip>,
) -> Result<Scan<I>> {
    let mut scan = Scan {
        found: FirstItems::none(),
        led: Skipped::default(),
        left: max,
    };
    let mut skipped = Skipped::default();
    let mut rows = max.items;
    while scan.left.items > 0 && begin < end {
        let query = RangeQuery::keys(begin, end.clone())
            .limit(rows)
            .mode(StreamingMode::WantAll);
        let mut rows_read = 0;
        let mut is_over = false;
        let mut last = None;
        let items = &mut scan.found.items;
        let left = &mut scan.left;
        let visited = visit_rows(tr, query, Isolation::Snapshot, |row| {
            rows_read += 1;
            match decode(&row) {
                Ok(item) => {
                    items.push(item);
                    let bytes = row.key().len() + row.value().len();
                    left.row_bytes = left.row_bytes.saturating_sub(bytes);
                    left.items -= 1;
                    is_over = left.row_bytes == 0 || left.items == 0;
                }
                Err(why) => {
                    skipped.add(&row, why);
                    if items.is_empty() {
                        scan.led.add(&row, why);
                    }
                    is_over =
                        skipped.rows >= MAX_SKIPPED_ROWS || skipped.bytes >= MAX_SKIPPED_BYTES;
                }
            }
            if skipped.rows > 0 {
                last = Some(row.to_key());
            }
            Ok::<_, Error>(if is_over {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        });
        visited.await?;
        if is_over {
            scan.found.is_complete = !scan.found.items.is_empty();
            break;
        }
        let Some(last) = last else {
            break;
        };
        if rows_read < rows {
            // The range has no further row.
            break;
        }
        begin = key_after(&last);
        rows = MAX_SKIPPED_ROWS;
    }
    Ok(scan)
}
