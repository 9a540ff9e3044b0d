//! Rows that expire and do not lie in the order of their times: sessions check them page by page at their heartbeats.

/// A page of rows of which those were removed whose time was over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ExpiryPage {
    /// The key of its last row, or `None` at the end.
    pub(crate) last: Option<Vec<u8>>,
    /// How many rows were removed.
    pub(crate) removed: usize,
}

/// Where a session checks the next page.
///
/// Names often contain a time, so that the first rows are the oldest. So at each heartbeat, the session begins at the
/// front, and goes on as long as it removes rows. After a page that is kept, it goes on with a round over all rows, in
/// the same way. The round need not hurry: otherwise, rows that are kept for long would be read all the time.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// The last row that was checked from the front on, or `None` if the front comes next.
    front: Option<Vec<u8>>,
    /// The last row that the round has checked, or `None` if it begins anew.
    round: Option<Vec<u8>>,
    /// Whether the next page is one of the round.
    is_in_round: bool,
}

impl Expiry {
    /// Begins a heartbeat.
    pub(crate) fn begin(&mut self) {
        self.is_in_round = false;
    }

    /// Returns the last row before the next page.
    pub(crate) fn after(&self) -> Option<&[u8]> {
        let last = if self.is_in_round {
            &self.round
        } else {
            &self.front
        };
        last.as_deref()
    }

    /// Records the page. Returns whether the session checks the next one at once, and not at its next heartbeat.
    pub(crate) fn note(&mut self, page: ExpiryPage) -> bool {
        let goes_on = page.removed > 0 && page.last.is_some();
        if self.is_in_round {
            self.round = page.last;
            return goes_on;
        }
        if goes_on {
            self.front = page.last;
            return true;
        }
        self.front = None;
        self.is_in_round = true;
        match page.last {
            Some(last) => {
                self.round.get_or_insert(last);
                true
            }
            None => false,
        }
    }
}
