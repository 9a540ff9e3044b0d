//! Rows that expire and do not lie in the order of their times: sessions check them page by page at their heartbeats.

/// A page of rows of which those were removed whose time was over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ExpiryPage {
    /// The key of its last row, or `None` at the end.
    pub(crate) last: Option<Vec<u8>>,
    /// How many rows were removed.
    pub(crate) removed: usize,
}

impl ExpiryPage {
    /// Returns whether the session checks the next page at once, and not at its next heartbeat. After a page of which
    /// nothing was over, it need not hurry: otherwise, rows that are kept for long would be read all the time.
    pub(crate) const fn goes_on(&self) -> bool {
        self.last.is_some() && self.removed > 0
    }
}
