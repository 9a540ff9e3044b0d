//! The store that is looked at, and how long pages are.

use export_queue::keyspace::ids::Ids;
use export_queue::keyspace::{Database, Runner, Store};

/// How many queues a page shows at most.
pub const MAX_QUEUES: usize = 1_000;

/// How many rows a page of a listing reads at most.
pub const MAX_ROWS: usize = 1_000;

/// How many records a page reads at most where a record can have 100 kB: dead letters of an export queue, what a
/// combine queue has set aside, and batches, which contain their callbacks. Also how many groups of items, of each of
/// which 200 kB are counted.
pub(super) const MAX_RECORDS: usize = 100;

/// A store as operators see it. Every read is a transaction of its own, by snapshot, so that looking never makes
/// another transaction fail.
#[derive(Debug, Clone)]
pub struct Console {
    pub(crate) runner: Runner<Store>,
    /// The runner of what only reads, which does not enter itself in the ledger.
    pub(crate) reader: Runner<Store>,
    pub(super) ids: Ids,
}

impl Console {
    /// Looks at the store of a runner, for queues in the [default registry](Ids::default).
    #[must_use]
    pub fn new<D: Database>(runner: &Runner<D>) -> Self {
        let runner = runner.on_store();
        let reader = runner.idempotent();
        let ids = Ids::default();
        Self {
            runner,
            reader,
            ids,
        }
    }

    /// Looks for queues in another registry.
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }
}

/// Cuts a page for which one row more than its `limit` was asked, and returns its last row if something follows.
pub(super) fn next_page<T>(rows: &mut Vec<T>, limit: usize) -> Option<&T> {
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last()
}
