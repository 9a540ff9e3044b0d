//! Done items: how they end, and how long they are kept.
//!
//! Every item that leaves the queue goes through [`end`]. If the settings keep done items, `end` moves the record to
//! a part of its own together with the outcome, and adds a key to an index by expiry time. Sessions sweep that index
//! at their heartbeats.

use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::wait_until_none;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{
    Bytes, Database, Isolation, RangeQuery, Runner, StreamingMode, Transaction,
};

use crate::dedupe::retire_dedupe;
use crate::error::{Error, Result};
use crate::find::{Status, find};
use crate::item_ref::ItemRef;
use crate::keys::{Counter, Keys};
use crate::queue::Queue;
use crate::record::{End, Record, StoredEnd};
use crate::settings::Settings;
use crate::wall::wall_millis;

/// How many items one transaction sweeps.
const SWEPT_PER_STEP: usize = 1_000;

impl<T, C: Codec<T>> Queue<T, C> {
    /// Waits until an item is done or a dead letter, and returns its status. Returns `None` at once if the item never
    /// existed, or is done and no longer [kept](crate::Settings::keep_done).
    ///
    /// While it waits, it watches the row of the item. It reads the item's [`status`](Self::status) again when the
    /// row changes, and at least once a second.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hc_dequeue::keyspace::{self, Runner, Subspace};
    /// use hc_dequeue::{Delivery, Queue, Outcome, Settings, WorkerOptions};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let (subspace, settings) = (Subspace::from("sums"), Settings::new());
    /// let settings = settings.keep_done(Duration::from_secs(3600));
    /// let queue = &Queue::<Vec<u64>>::open(&runner, subspace, settings).await?;
    ///
    /// let add = |item: std::sync::Arc<Delivery<Vec<u64>>>| async move {
    ///     let sum: u64 = item.value().iter().sum();
    ///     item.set_result(sum.to_string())
    /// };
    /// let worker = queue.work(&runner, WorkerOptions::new(), add).await?;
    ///
    /// let item = queue.submit(&runner, &vec![30, 12]).await?;
    /// let done = queue.await_done(&runner, &item).await?.expect("done items are kept for an hour");
    /// assert_eq!(done.result, "42");
    /// # worker.shut_down(Duration::ZERO).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`status`](Self::status), and those of [`Runner::run`].
    pub async fn await_done<D: Database>(
        &self,
        runner: &Runner<D>,
        item: &ItemRef,
    ) -> Result<Option<Status<T>>> {
        let id = &item.id_in(&self.keys)?;
        loop {
            wait_until_none(runner, |tr| async move {
                let found = find(&tr, &self.keys, id).await?;
                let pending = found.filter(|(spot, _)| !spot.is_end());
                Ok::<_, Error>(pending.map(|(spot, _)| spot.key(&self.keys, id)))
            })
            .await?;
            let found = |tr| async move { find(&tr, &self.keys, id).await };
            match runner.run(found).await? {
                // A dead letter was redriven since the watch fired.
                Some((spot, _)) if !spot.is_end() => {}
                found => return self.status_of(id, found),
            }
        }
    }
}

/// Stages the end of an item that has been removed from its place.
pub(crate) fn end(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    id: &ItemId,
    record: &Record,
    how: End,
    result: Bytes,
) -> Result<()> {
    match how {
        End::Completed => keys.count(tr, Counter::Completed, 1),
        End::Cancelled => keys.count(tr, Counter::Cancelled, 1),
        End::Removed => {}
    }
    retire_dedupe(tr, keys, settings, id, record, how);
    if !settings.keep_done.is_zero() {
        let now = wall_millis(&keys.env);
        let until_millis = now.saturating_add(millis(settings.keep_done));
        let end = StoredEnd {
            millis: now,
            until_millis,
            how,
            result,
        };
        let mut record = record.clone();
        record.end = Some(end);
        keys.done.insert(tr, id, &record)?;
        tr.set(&id.key_in(&keys.kept_until(until_millis)), b"");
    }
    Ok(())
}

/// Removes some of the done items whose time is over. Returns `true` if there may be more.
///
/// # Conflicts
/// Reads by snapshot, which is safe because a done item never comes back.
pub(crate) async fn sweep_done(tr: &impl Transaction, keys: &Keys) -> Result<bool> {
    let (begin, end) = keys.kept_at_most_until(wall_millis(&keys.env));
    let query = RangeQuery::keys(begin, end)
        .limit(SWEPT_PER_STEP)
        .mode(StreamingMode::WantAll);
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut removed = 0;
    for row in &page.rows {
        let Ok((_, id)) = keys.parse_kept(row.key()) else {
            continue;
        };
        tr.clear(&id.key_in(keys.done.subspace()));
        tr.clear(row.key());
        removed += 1;
    }
    Ok(removed > 0 && (page.more || page.rows.len() == SWEPT_PER_STEP))
}
