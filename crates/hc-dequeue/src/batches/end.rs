//! Ends batches: those of which no member is left.
//!
//! Whatever may make a batch complete writes its *notice* blindly: the end of a member, and the close. A session that
//! looks at a batch removes the notice if the batch is not complete, but only if the notice still has the value that
//! was read. So no notice is lost that was written since.
//!
//! **Invariant:** a batch that is complete has a notice.
//!
//! The commit that ends a batch removes all of its rows and enqueues its callback. It keeps the counts of the batch
//! as long as the queue keeps items that are done. It reads the number of pending members, so it fails if a member is
//! added meanwhile. A transaction that adds a member reads the row of the batch, so it fails if the batch has ended
//! meanwhile.
//! If the batch has a parent, the callback takes over the batch's place in the parent: the parent waits for the
//! callback and for the members that the callback adds.

use std::mem;

use futures::future::try_join_all;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    ConflictKind, Isolation, MutationOp, RangeQuery, Runner, Store, StreamingMode, Transaction,
};

use crate::batches::ended::EndedBatch;
use crate::batches::stored::{StoredBatch, read_batch};
use crate::items::batch::{BatchCounts, BatchId, CallbackOf, Tally};
use crate::items::batch_row::Callback;
use crate::items::changes::Changes;
use crate::items::error::{Result, skip_corrupt};
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::places::put_new;
use crate::items::settings::Settings;
use crate::session::wall::wall_millis;

/// The largest number of batches that one transaction looks at.
const MAX_LOOKED_BATCHES: usize = 32;

/// Returns whether a batch may be complete.
///
/// # Conflicts
/// Reads by snapshot.
pub(crate) async fn may_finish(tr: &impl Transaction, keys: &Keys) -> Result<bool> {
    let (begin, end) = keys.part(Part::BatchNotices);
    let first = RangeQuery::keys(begin, end).limit(1);
    let notices = tr.get_range(&first, Isolation::Snapshot).await?;
    Ok(!notices.rows.is_empty())
}

/// What a look at batches has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Finished {
    /// How many batches have ended.
    pub(crate) batches: usize,
    /// The notice after which the next look begins, if it is not the first one.
    pub(crate) after: Option<Vec<u8>>,
    /// Notices of batches that do not decode. They stay, for newer versions.
    pub(crate) unreadable: usize,
}

/// Stages the end of the batches that are complete, among the next ones that have notices. A session that does not
/// trust its clock leaves those whose callback has a time to others.
///
/// # Conflicts
/// Reads by snapshot: a notice is removed only if it still has the value that was read. Of a batch that it ends, reads
/// its row and the number of pending members.
pub(crate) async fn finish_batches(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    after: Option<&[u8]>,
    trusts_clock: bool,
) -> Result<Finished> {
    let (first, end) = keys.part(Part::BatchNotices);
    let query = RangeQuery::keys(after.map_or(first, key_after), end)
        .limit(MAX_LOOKED_BATCHES)
        .mode(StreamingMode::WantAll);
    let notices = tr.get_range(&query, Isolation::Snapshot).await?;
    let reads = notices.rows.iter().map(|notice| async move {
        let read = async {
            let id = keys.parse_batch_notice(notice.key())?;
            Ok((id, read_batch(tr, keys, id).await?))
        };
        skip_corrupt(read.await)
    });
    let mut changes = Changes::default();
    let mut finished = Finished {
        after: notices.next_after().map(<[u8]>::to_vec),
        ..Finished::default()
    };
    for (notice, read) in notices.rows.iter().zip(try_join_all(reads).await?) {
        let Some((id, batch)) = read else {
            finished.unreadable += 1;
            continue;
        };
        let complete = batch.filter(StoredBatch::is_complete);
        let callback = complete
            .as_ref()
            .and_then(|batch| batch.row.callback.as_ref());
        if callback.is_some_and(Callback::has_time) && !trusts_clock {
            continue;
        }
        tr.atomic(MutationOp::CompareAndClear, notice.key(), notice.value());
        if let Some(batch) = complete {
            finish(tr, keys, settings, (id, batch), &mut changes).await?;
            finished.batches += 1;
        }
    }
    changes.stage(tr, keys);
    Ok(finished)
}

/// Ends all batches that are complete, in as many transactions as necessary.
pub(crate) async fn finish_all(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
) -> Result<()> {
    let mut after: Option<Vec<u8>> = None;
    let mut have_ended = false;
    loop {
        let from = after.as_deref();
        let finish = |tr| async move { finish_batches(&tr, keys, settings, from, true).await };
        let finished = runner.run(finish).await?;
        have_ended |= finished.batches > 0;
        after = finished.after;
        // The end of a batch may complete another one, whose notice comes before.
        if after.is_none() && !mem::take(&mut have_ended) {
            return Ok(());
        }
    }
}

/// Stages the end of a batch.
async fn finish(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    (id, batch): (BatchId, StoredBatch),
    changes: &mut Changes,
) -> Result<()> {
    for row in [keys.batch_row(id), keys.tally(id, Tally::Pending)] {
        tr.add_conflict_key(ConflictKind::Read, &row)?;
    }
    let (begin, end) = keys.batch(id);
    tr.clear_range(&begin, &end);
    let counts = batch.counts();
    let row = batch.row;
    let now = wall_millis(&keys.env);
    let ended = EndedBatch {
        is_cancelled: row.is_cancelled,
        dead_letters_stay: row.dead_letters_stay,
        parent: row.parent.map(|parent| parent.batch),
        opened_millis: row.opened_millis,
        ended_millis: now,
        until_millis: now.saturating_add(millis(settings.keep_done)),
        counts,
        callback: None,
    };
    let Some(callback) = row.callback else {
        let how = if row.is_cancelled {
            Some(Tally::Cancelled)
        } else if counts == BatchCounts::default() {
            None
        } else {
            Some(Tally::Completed)
        };
        changes.leave(row.parent, how);
        ended.keep(tr, keys, id, None);
        return Ok(());
    };
    let Callback {
        delay_millis,
        due_millis,
        mut record,
    } = callback;
    record.enqueued_millis = now;
    record.callback_of = Some(CallbackOf {
        counts,
        batch: Some(id),
    });
    record.member = row.parent;
    // It takes over the place of the batch.
    changes.leave(row.parent, None);
    let ready = now.saturating_add(delay_millis).max(due_millis);
    let callback = put_new(tr, keys, &record, (ready > now).then_some(ready), changes).await?;
    ended.keep(tr, keys, id, Some(callback));
    Ok(())
}
