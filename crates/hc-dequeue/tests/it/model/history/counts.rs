//! What a history counts in the store.

use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::Delivery;
use keyspace::{MutationOp, Transaction};

use super::{HOUR, SAME};

/// Counts an item under a name.
pub(super) fn count(tr: &impl Transaction, store: &TestStore, what: &str, value: u64) {
    add(tr, store, what, value, 1);
}

/// Adds to the number of an item under a name.
pub(super) fn add(tr: &impl Transaction, store: &TestStore, what: &str, value: u64, number: u64) {
    let key = store.root.pack(&(what, value % SAME));
    tr.atomic(MutationOp::Add, &key, &number.to_le_bytes());
}

/// Counts that an item is done, and how the members have ended whose callback it is.
pub(crate) fn count_done(
    tr: &impl Transaction,
    store: &TestStore,
    delivery: &Delivery<u64>,
    keep_done: Option<Duration>,
) {
    let value = *delivery.value();
    count(tr, store, "done", value);
    if let Some(counts) = delivery.batch_counts() {
        let members = counts.completed + counts.dead + counts.cancelled;
        add(tr, store, "members ended", value, members);
        add(tr, store, "members dead", value, counts.dead);
    }
    count_kept(tr, store, value, keep_done);
}

/// Counts that a done item is kept to the end of the history, or not at all, if either is known.
pub(super) fn count_kept(
    tr: &impl Transaction,
    store: &TestStore,
    value: u64,
    keep_done: Option<Duration>,
) {
    match is_kept(keep_done) {
        Some(true) => count(tr, store, "kept", value),
        Some(false) => count(tr, store, "not kept", value),
        None => {}
    }
}

/// Returns whether a done item still exists at the end of the history. Returns `None` if it may have been swept.
pub(super) fn is_kept(keep_done: Option<Duration>) -> Option<bool> {
    match keep_done? {
        Duration::ZERO => Some(false),
        HOUR => Some(true),
        _ => None,
    }
}
