//! Writes notices of all lanes after a change of the default limits.
//!
//! The change writes a *mark*. A session that sees it writes a notice of each lane in which items wait, in as many
//! transactions as necessary, and then removes the mark, unless it was written again. Several sessions may do so at the
//! same time, and one that dies leaves the mark.

use futures::future::try_join_all;
use microqueue::keyspace::{
    Bytes, Isolation, MutationOp, RangeQuery, Runner, Store, Transaction, Tx,
};

use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::priority::RANK_OF_SLOT;

/// The largest number of lanes of which one transaction writes notices, and which it finds one after the other: also on
/// a store that takes a tenth of a second for each read, it is not too old at its end.
const MAX_SWEPT_LANES: usize = 30;

/// The progress of a sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The mark that the sweep will remove.
    mark: Bytes,
    /// The last lane of which a notice was written.
    after: Option<Bytes>,
}

/// Does a step of a sweep: begins one if there is a mark, or goes on with it. Returns `None` when no lane is left.
pub(crate) async fn sweep_lanes(
    runner: &Runner<Store>,
    keys: &Keys,
    sweep: Option<Sweep>,
) -> Result<Option<Sweep>> {
    let sweep = sweep.as_ref();
    let step = |tr: Tx<_>| async move { sweep_step(&tr, keys, sweep).await };
    runner.run(step).await
}

/// Stages a step of a sweep, as [`sweep_lanes`] does.
///
/// # Conflicts
/// Reads by snapshot: the mark is removed only if it still has the value that was read.
pub(super) async fn sweep_step(
    tr: &impl Transaction,
    keys: &Keys,
    sweep: Option<&Sweep>,
) -> Result<Option<Sweep>> {
    let Some(mark) = tr.get(&keys.mark(), Isolation::Snapshot).await? else {
        return Ok(None);
    };
    let after = sweep.filter(|sweep| sweep.mark == mark);
    let after = after.and_then(|sweep| sweep.after.clone());
    let after = write_notices(tr, keys, after).await?;
    if after.is_none() {
        tr.atomic(MutationOp::CompareAndClear, &keys.mark(), &mark);
        return Ok(None);
    }
    Ok(Some(Sweep { mark, after }))
}

/// Writes notices of some lanes in which items wait, and wakes sessions. Returns the last lane that was read, or `None`
/// at the end.
///
/// # Conflicts
/// Reads by snapshot: whatever makes an item wait writes a notice of its lane.
async fn write_notices(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<Bytes>,
) -> Result<Option<Bytes>> {
    let mut lanes = keys
        .lanes_after(tr, after.as_ref(), MAX_SWEPT_LANES)
        .await?;
    let first_rows = lanes.iter().map(|group| {
        let (begin, end) = keys.items_of_lane(group);
        let first = RangeQuery::keys(begin, end).limit(1);
        async move { tr.get_range(&first, Isolation::Snapshot).await }
    });
    let first_rows = try_join_all(first_rows).await?;
    let mut changes = Changes::default();
    for (group, batch) in lanes.iter().zip(first_rows) {
        if !batch.rows.is_empty() {
            changes.add_notice(group, RANK_OF_SLOT);
            changes.wake();
        }
    }
    changes.stage(tr, keys);
    let may_be_more = lanes.len() == MAX_SWEPT_LANES;
    Ok(if may_be_more { lanes.pop() } else { None })
}
