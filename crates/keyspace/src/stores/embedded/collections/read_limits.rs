//! The limits of a range read.

use serde::{Deserialize, Serialize};

use crate::contract::selector::KeyValue;

/// The bytes that a row counts besides its key and value.
const ROW_OVERHEAD_BYTES: usize = 8;

/// How many rows, and how many bytes of rows, a range read may still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadLimits {
    pub(crate) rows: usize,
    /// `usize::MAX` for no limit.
    pub(crate) bytes: usize,
}

impl ReadLimits {
    pub(crate) const ONE_ROW: Self = Self::rows(1);

    /// Returns limits that end after a number of rows, however long they are.
    pub(crate) const fn rows(rows: usize) -> Self {
        Self {
            rows,
            bytes: usize::MAX,
        }
    }

    pub(crate) fn is_reached(self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    pub(crate) fn take(&mut self, row: &KeyValue) {
        self.rows -= 1;
        if self.bytes != usize::MAX {
            let row_bytes = row.key().len() + row.value().len() + ROW_OVERHEAD_BYTES;
            self.bytes = self.bytes.saturating_sub(row_bytes);
        }
    }
}
