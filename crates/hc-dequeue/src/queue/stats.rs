//! The numbers of items, and how long they have waited.

use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use futures::try_join;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::wait_until_none;
use microqueue::keyspace::{Database, Isolation, KeyValue, RangeQuery, Runner, Store, Transaction};

use crate::items::counters::read_counter;
use crate::items::error::{Error, Result};
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::scan::{ReadLimit, first_items};
use crate::queue::handle::Queue;
use crate::session::wall::wall_millis;

/// How many of the first items are read to find the one that has waited longest. An item that has come back may
/// stand before one that has waited for longer.
const OF_AN_AGE: ReadLimit = ReadLimit {
    items: 100,
    row_bytes: 80_000,
};

/// The numbers of items by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Items that wait to be granted.
    pub queued: u64,
    /// Items that are not due yet.
    pub delayed: u64,
    /// Items that sessions hold.
    pub held: u64,
    /// Dead letters.
    pub dead: u64,
    /// Items that were acknowledged or popped since the queue was created.
    pub completed: u64,
    /// Items that were cancelled since the queue was created.
    pub cancelled: u64,
    /// Items that were purged or cleared since the queue was created, by a version that counts them.
    pub removed: u64,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the exact numbers of items by place, at the transaction's read version.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a counter was written by something else.
    pub async fn stats(&self, tr: &impl Transaction) -> Result<Stats> {
        read_stats(tr, &self.keys).await
    }

    /// Returns how many items are waiting to be granted. [`stats`](Self::stats) returns the other numbers.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub async fn len(&self, tr: &impl Transaction) -> Result<u64> {
        read_counter(tr, &self.keys, Counter::Queued).await
    }

    /// Waits until no item is queued, delayed or held, and no batch is about to end. Useful in tests, and in jobs that
    /// end.
    ///
    /// Consumers or workers must be running, and the queue must not be paused. Dead letters are not waited for.
    ///
    /// # Errors
    /// As [`stats`](Self::stats), and those of [`Runner::run`].
    pub async fn wait_idle<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        wait_idle(&runner.on_store(), &self.keys).await
    }

    /// Returns for how long the item has waited that has waited longest among the first 100 in no lane and the first
    /// 100 in lanes, or among fewer if they are large, or `None` if no item is waiting.
    ///
    /// An item waits since its enqueue or, if it was delayed, since it was due. An item that comes back waits since it
    /// came back. The time is measured with the wall clocks of the processes; it is zero if the clock of this one is
    /// slow. Up to a thousand records that do not decode are skipped.
    ///
    /// # Conflicts
    /// Reads by snapshot, and a key that only [`clear`](microqueue::MicroQueue::clear) of a microqueue writes.
    ///
    /// # Errors
    /// [`ReadAfterWrite`](microqueue::Error::ReadAfterWrite) after an enqueue in the same transaction.
    pub async fn oldest_age(&self, tr: &impl Transaction) -> Result<Option<Duration>> {
        oldest_age(tr, &self.keys).await
    }
}

/// Reads the numbers of items.
///
/// # Conflicts
/// As [`Queue::stats`].
pub(crate) async fn read_stats(tr: &impl Transaction, keys: &Keys) -> Result<Stats> {
    let reads = Counter::ALL.map(|counter| read_counter(tr, keys, counter));
    let counts = try_join_all(reads).await?;
    let [queued, delayed, held, dead, completed, cancelled, removed] =
        counts.try_into().expect("one for each counter");
    Ok(Stats {
        queued,
        delayed,
        held,
        dead,
        completed,
        cancelled,
        removed,
    })
}

/// Waits until no item is queued, delayed or held, and no batch has a notice.
fn wait_idle<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        wait_until_none(runner, |tr| async move {
            let stats = read_stats(&tr, keys).await?;
            let counters = [
                (stats.queued, Counter::Queued),
                (stats.delayed, Counter::Delayed),
                (stats.held, Counter::Held),
            ];
            // Every change of an item changes the counter of the place that the item leaves.
            let left = counters.into_iter().find(|(count, _)| *count > 0);
            if let Some((_, counter)) = left {
                return Ok(Some(keys.counter(counter)));
            }
            let (begin, end) = keys.part(Part::BatchNotices);
            let first = RangeQuery::keys(begin, end).limit(1);
            // Safe as a snapshot read: nothing is written.
            let notices = tr.get_range(&first, Isolation::Snapshot).await?;
            Ok::<_, Error>(notices.rows.first().map(|notice| notice.key().to_vec()))
        })
        .await
    })
}

/// Reads for how long the item has waited that has waited longest among the first ones.
///
/// # Conflicts
/// As [`Queue::oldest_age`].
pub(crate) async fn oldest_age(tr: &impl Transaction, keys: &Keys) -> Result<Option<Duration>> {
    keys.refuse_after_enqueue(tr).await?;
    let decode = |row: &KeyValue| keys.decode_queued(row).ok();
    let (outside, in_lanes) = try_join!(
        first_items(tr, keys.outside_lanes(), OF_AN_AGE, decode),
        first_items(tr, keys.part(Part::Lanes), OF_AN_AGE, decode),
    )?;
    let now = wall_millis(&keys.env);
    let ages = outside
        .iter()
        .chain(&in_lanes)
        .map(|item| now.saturating_sub(item.value.ready_millis()));
    Ok(ages.max().map(Duration::from_millis))
}
