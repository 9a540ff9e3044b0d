//! Shows the items that a function has enqueued.

use std::fmt;
use std::time::SystemTime;

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{
    self, Bytes, Database, Isolation, RangeQuery, Runner, Transaction, Tx, read_all,
};
use microqueue::{ItemId, Listed};

use crate::items::batch::BatchRef;
use crate::items::error::{Error, Result};
use crate::items::keys::Records;
use crate::items::part::Part;
use crate::items::priority::Priority;
use crate::items::record::Record;
use crate::queue::bulk::is_of;
use crate::queue::handle::Queue;
use crate::session::wall::unix_time;

/// An item that is queued or delayed, for comparison with the expected one.
///
/// ```
/// use hc_dequeue::testing::EnqueuedItem;
///
/// let expected = EnqueuedItem::new("a reminder".to_owned()).dedupe("order 7");
/// assert_eq!(expected.ready, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnqueuedItem<T> {
    /// The value that was enqueued.
    pub value: T,
    /// When the item is due, in whole milliseconds. `None` if it is queued.
    pub ready: Option<SystemTime>,
    /// Its dedupe id. `None` if it was enqueued without one.
    pub dedupe: Option<Bytes>,
    /// Its group. `None` if it was enqueued without one.
    pub group: Option<Bytes>,
    /// Its kind. `None` if it was enqueued without one.
    pub kind: Option<String>,
    /// Its priority.
    pub priority: i8,
    /// The batch of which it is a member. `None` if it is in no batch.
    pub batch: Option<BatchRef>,
    /// Its own limit of attempts. Zero: the queue's.
    pub max_attempts: u32,
    /// Its own limit of deaths. Zero: the queue's.
    pub max_deaths: u32,
    /// Its own limit of deliveries. Zero: the queue's.
    pub max_deliveries: u32,
}

impl<T> EnqueuedItem<T> {
    /// Returns an item that was enqueued without options.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            value,
            ready: None,
            dedupe: None,
            group: None,
            kind: None,
            priority: 0,
            batch: None,
            max_attempts: 0,
            max_deaths: 0,
            max_deliveries: 0,
        }
    }

    /// Sets when the item is due.
    #[must_use]
    pub fn ready(mut self, time: SystemTime) -> Self {
        self.ready = Some(time);
        self
    }

    /// Sets the group.
    #[must_use]
    pub fn group(mut self, group: impl AsRef<[u8]>) -> Self {
        self.group = Some(Bytes::copy_from_slice(group.as_ref()));
        self
    }

    /// Sets the kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Sets the dedupe id.
    #[must_use]
    pub fn dedupe(mut self, id: impl AsRef<[u8]>) -> Self {
        self.dedupe = Some(Bytes::copy_from_slice(id.as_ref()));
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the batch.
    #[must_use]
    pub fn batch(mut self, batch: &BatchRef) -> Self {
        self.batch = Some(*batch);
        self
    }

    /// Sets the item's own limit of attempts.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the item's own limit of deaths.
    #[must_use]
    pub fn max_deaths(mut self, deaths: u32) -> Self {
        self.max_deaths = deaths;
        self
    }

    /// Sets the item's own limit of deliveries.
    #[must_use]
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.max_deliveries = deliveries;
        self
    }
}

/// Shows the items that were enqueued after it was created. Create it before calling the function under test.
///
/// It shows items that are queued or delayed when it reads: read before the items are [drained](super::drain). It
/// does not show items that were enqueued earlier, even if they have come back to the queue since or have got a new
/// value under their dedupe id.
///
/// It shows only committed items. An open transaction cannot list the items that it has staged, since the commit
/// gives them their places. To test a function that takes a transaction, call it in [`Runner::run`].
pub struct EnqueuedSince<'a, T, C, D: Database> {
    runner: &'a Runner<D>,
    queue: &'a Queue<T, C>,
    version: i64,
}

impl<'a, T: Send + Sync, C: Codec<T>, D: Database> EnqueuedSince<'a, T, C, D> {
    /// Starts at the current version of the store: only later enqueues are shown.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    pub async fn now(runner: &'a Runner<D>, queue: &'a Queue<T, C>) -> Result<Self> {
        let read = |tr: Tx<_>| async move { tr.read_version().await };
        let version = runner.run(read).await?;
        Ok(Self {
            runner,
            queue,
            version,
        })
    }

    /// Returns the enqueued items: first the queued ones without a group in the order of the queue, then those with
    /// groups, group by group, then the delayed ones in the order of their times.
    ///
    /// All items are read in one transaction, which is enough for the queue of a test.
    ///
    /// # Errors
    /// [`Corrupt`](microqueue::keyspace::Error::Corrupt) if an item does not decode, and those of [`Runner::run`].
    pub async fn items(&self) -> Result<Vec<EnqueuedItem<T>>> {
        let queue = self.queue;
        let version = self.version;
        let read = |tr: Tx<_>| async move { read_since(&tr, queue, version).await };
        self.runner.run(read).await
    }

    /// Returns the values of the [`items`](Self::items).
    ///
    /// # Errors
    /// As [`items`](Self::items).
    pub async fn values(&self) -> Result<Vec<T>> {
        let items = self.items().await?.into_iter();
        Ok(items.map(|item| item.value).collect())
    }
}

impl<T, C, D: Database> fmt::Debug for EnqueuedSince<'_, T, C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueuedSince")
            .field("queue", self.queue)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Returns all queued items in the order of the queue, and then all delayed items in the order of their times.
///
/// All items are read in one transaction, which is enough for the queue of a test.
///
/// # Errors
/// As [`EnqueuedSince::items`].
pub async fn enqueued<T, C, D>(
    runner: &Runner<D>,
    queue: &Queue<T, C>,
) -> Result<Vec<EnqueuedItem<T>>>
where
    T: Send + Sync,
    C: Codec<T>,
    D: Database,
{
    let version = BEFORE_ALL;
    let all = EnqueuedSince {
        runner,
        queue,
        version,
    };
    all.items().await
}

/// A version before that of any commit.
const BEFORE_ALL: i64 = i64::MIN;

/// Reads the items that are queued or delayed and were enqueued after a version.
async fn read_since<T, C: Codec<T>>(
    tr: &impl Transaction,
    queue: &Queue<T, C>,
    version: i64,
) -> Result<Vec<EnqueuedItem<T>>> {
    let keys = &queue.keys;
    let mut items = Vec::new();
    let mut push = |part: &Records, ready: Option<u64>, id: ItemId, record: Record| {
        if is_of(&id, version) {
            return Ok(());
        }
        let filled = |bytes: &Bytes| Some(bytes.clone()).filter(|bytes| !bytes.is_empty());
        let dedupe = filled(&record.dedupe);
        let group = filled(&record.group);
        let value = queue.decode(&record, || id.key_in(part.subspace()));
        items.push(EnqueuedItem {
            value: value.map_err(keyspace::Error::from)?,
            ready: ready.map(unix_time),
            dedupe,
            group,
            kind: record.kind.get().map(str::to_owned),
            priority: record.priority.get(),
            batch: record.member.map(|member| keys.batch_ref(member.batch)),
            max_attempts: record.limits.attempts,
            max_deaths: record.limits.deaths,
            max_deliveries: record.limits.deliveries,
        });
        Ok::<_, Error>(())
    };
    for priority in Priority::all() {
        let queued = keys.queued(priority);
        for Listed { id, value } in queued.items(tr, None, usize::MAX).await? {
            push(queued, None, id, value.map_err(keyspace::Error::from)?)?;
        }
    }
    let (begin, end) = keys.part(Part::Lanes);
    let in_lanes = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    for row in in_lanes.iter().filter(|row| !keys.is_lane_state(row.key())) {
        let part = keys.items_at(&keys.parse_queued(row.key())?).into_owned();
        let item = keys.decode_queued(row)?;
        push(&part, None, item.id, item.value)?;
    }
    let (begin, end) = keys.part(Part::Delayed);
    let delayed = read_all(tr, RangeQuery::keys(begin, end), Isolation::Serializable).await?;
    for row in &delayed {
        let ready = keys.parse_ready(row)?;
        let part = keys.delayed(ready);
        let item = part.decode(row)?;
        push(&part, Some(ready), item.id, item.value)?;
    }
    Ok(items)
}
