//! Batches: opened, closed, cancelled, and awaited.

use std::time::SystemTime;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::wait_until_none;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Database, Isolation, Listed, RangeQuery, Runner, Store, Transaction};

use crate::batches::ended::{EndedBatch, read_ended};
use crate::batches::stored::{StoredBatch, read_batch};
use crate::items::batch::{BatchCounts, BatchId, BatchRef, Joining, Tally};
use crate::items::batch_row::{BatchRow, Callback, join};
use crate::items::changes::Changes;
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::trace_context::{TraceContext, current_context};
use crate::queue::enqueue_options::{Enqueue, OnRepeat, ReadyTime};
use crate::queue::handle::Queue;
use crate::queue::list::undecodable;
use crate::queue::stage::record_of;
use crate::session::wall::{unix_millis, unix_time, wall_millis};

/// The largest number of batches on a page.
const MAX_PAGE_BATCHES: usize = 250;

/// Options of a batch.
///
/// ```
/// use hc_dequeue::{Batch, Enqueue};
///
/// // When all members have ended, this value is enqueued.
/// let batch = Batch::new().with_callback("all pages are indexed", Enqueue::new());
/// # drop(batch);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<T> {
    callback: Option<(T, Enqueue)>,
    pub(crate) parent: Option<Joining>,
    dead_letters_stay: bool,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Batch<T> {
    /// Returns the default options: no callback, no parent, and dead letters leave the batch.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            callback: None,
            parent: None,
            dead_letters_stay: false,
        }
    }

    /// Sets the value that is enqueued when the batch is complete, exactly once, and the options of that enqueue. A
    /// delay begins at the end of the batch. A dedupe id, another [`OnRepeat`] than `Keep`, a maximum depth and a batch
    /// are refused.
    #[must_use]
    pub fn with_callback(mut self, value: T, options: Enqueue) -> Self {
        self.callback = Some((value, options));
        self
    }

    /// Makes the batch a member of another one, its parent, which is not complete before this batch and its callback
    /// have ended. The parent must be open: after the [close](Queue::close_batch), only its members open batches in it,
    /// by [`with_parent_of`](Self::with_parent_of).
    #[must_use]
    pub fn with_parent(mut self, parent: &BatchRef) -> Self {
        self.parent = Some(Joining::open(parent));
        self
    }

    /// Makes dead letters stay members, so that the batch is not complete before they are redriven and then end, or are
    /// purged or cancelled. Without this, a dead letter leaves the batch, and does not come back to it by a redrive.
    #[must_use]
    pub fn with_dead_letters_staying(mut self) -> Self {
        self.dead_letters_stay = true;
        self
    }
}

/// The state of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStatus {
    /// The batch.
    pub batch: BatchRef,
    /// How many members have not ended. A batch in it counts as one.
    pub pending: u64,
    /// How the others have ended. If dead letters stay members, `dead` is how many of the pending ones are dead
    /// letters.
    pub counts: BatchCounts,
    /// Whether it was not closed yet.
    pub is_open: bool,
    /// Whether it was cancelled.
    pub is_cancelled: bool,
    /// Whether an item is enqueued when it is complete.
    pub has_callback: bool,
    /// Whether dead letters stay members.
    pub dead_letters_stay: bool,
    /// The batch of which it is a member.
    pub parent: Option<BatchRef>,
    /// When it was opened, by the wall clock of that process.
    pub opened: SystemTime,
    /// How it has ended, if it has. Then nothing is pending.
    pub end: Option<BatchEnd>,
}

/// The end of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchEnd {
    /// When it ended, by the wall clock of the session that ended it.
    pub at: SystemTime,
    /// The callback that was enqueued then. `None` if it had none, or was cancelled.
    pub callback: Option<ItemRef>,
}

/// A page of the batches of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchPage {
    /// The batches, in the order of their random ids: the state of each, or why its rows do not decode.
    pub batches: Vec<Listed<BatchRef, BatchStatus>>,
    /// The batch after which the next page begins. `None` if this is the last page.
    pub next: Option<BatchRef>,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages a new batch, and returns the reference by which items [join](Enqueue::with_batch) it.
    ///
    /// Members may be added in any number of transactions. The batch is complete when it was
    /// [closed](Self::close_batch) and no member is left: then its callback is enqueued, exactly once, in a transaction
    /// of a session of the queue, and the batch is removed. A member that runs may [add](Enqueue::with_batch_of)
    /// others, also in the transaction that acknowledges it, whether the batch is open or closed.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Batch, Enqueue, Queue, Result};
    /// /// Resizes images, and then publishes the album.
    /// async fn resize(tr: &impl Transaction, jobs: &Queue<String>, images: &[String]) -> Result<()> {
    ///     let then = Batch::new().with_callback("publish the album".to_owned(), Enqueue::new());
    ///     let batch = jobs.open_batch(tr, &then).await?;
    ///     let member = Enqueue::new().with_batch(&batch);
    ///     jobs.enqueue_all_alike(tr, images, &member).await?;
    ///     jobs.close_batch(tr, &batch)
    /// }
    /// ```
    /// # Conflicts
    /// Writes rows with a random key, another one in each retry. With a parent, also adds to its number of members, and
    /// reads its row, which only its end and its cancellation write, and the row that its close removes, unless
    /// [a member](Batch::with_parent_of) opens the batch.
    ///
    /// # Errors
    /// [`Error::EnqueueOptions`], [`Error::Priority`], [`Error::Group`], [`Error::PayloadTooLarge`] and
    /// [`Encode`](microqueue::keyspace::Error::Encode) for the callback; [`Error::ForeignRef`], [`Error::BatchOver`],
    /// [`Error::BatchClosed`] and [`Corrupt`](microqueue::keyspace::Error::Corrupt) for the parent. In all cases
    /// nothing is staged.
    pub async fn open_batch(&self, tr: &impl Transaction, batch: &Batch<T>) -> Result<BatchRef> {
        let keys = &*self.keys;
        let callback = match &batch.callback {
            Some((value, options)) => Some(self.callback(value, options)?),
            None => None,
        };
        let parent = match batch.parent {
            Some(joining) => Some(join(tr, keys, joining).await?),
            None => None,
        };
        let row = BatchRow {
            dead_letters_stay: batch.dead_letters_stay,
            is_cancelled: false,
            parent,
            opened_millis: wall_millis(&keys.env),
            callback,
        };
        let row = row.to_bytes()?;
        let id = BatchId(keys.env.random_bytes());
        tr.set(&keys.batch_row(id), &row);
        tr.set(&keys.batch_open(id), b"");
        if let Some(parent) = parent {
            let mut changes = Changes::default();
            changes.join(parent);
            changes.stage(tr, keys);
        }
        Ok(keys.batch_ref(id))
    }

    fn callback(&self, value: &T, options: &Enqueue) -> Result<Callback> {
        let refused = [
            (options.dedupe.is_some(), "a callback has no dedupe id"),
            (
                options.on_repeat != OnRepeat::Keep,
                "a callback replaces no item",
            ),
            (
                options.max_depth.is_some(),
                "a callback is enqueued however many items are queued: set no maximum depth",
            ),
            (
                options.batch.is_some(),
                "a callback is a member of the parent of its batch: set that with `Batch::with_parent`",
            ),
            (
                options.ref_key.is_some(),
                "the reference of a callback is not written: set no key for it",
            ),
        ];
        if let Some((_, reason)) = refused.into_iter().find(|(is_set, _)| *is_set) {
            return Err(Error::EnqueueOptions { reason });
        }
        let mut record = record_of(self.payload(value)?, 0, options)?;
        let context = options.trace_context.clone().or_else(current_context);
        record.trace_context = context.map(TraceContext::into_field);
        let no_wait = (0, 0);
        let (delay_millis, due_millis) = options.ready.map_or(no_wait, |ready| match ready {
            ReadyTime::After(delay) => (millis(delay), 0),
            ReadyTime::At(time) => (0, unix_millis(time)),
        });
        Ok(Callback {
            delay_millis,
            due_millis,
            record,
        })
    }

    /// Stages that a batch is closed: only its members add others, and it is complete as soon as none is left, and at
    /// once if there is none. Has no effect on a batch that is closed, is cancelled, has ended, or never existed.
    ///
    /// # Conflicts
    /// Never conflicts: reads nothing, and writes rows of the batch and the wake stamp, the same in a retry. A
    /// transaction that adds a member, and is none itself, reads one of these rows.
    ///
    /// # Errors
    /// [`Error::ForeignRef`].
    pub fn close_batch(&self, tr: &impl Transaction, batch: &BatchRef) -> Result<()> {
        let keys = &*self.keys;
        let id = batch.id_in(keys)?;
        tr.clear(&keys.batch_open(id));
        tr.set_to_versionstamp(&keys.batch_notice(id));
        keys.wake_all(tr);
        Ok(())
    }

    /// Stages that a batch takes no more members and that its callback is not enqueued. Its members go on. When they
    /// have ended, the batch is removed, whether it was closed or not. Returns `false` if there is no such batch.
    ///
    /// # Conflicts
    /// As [`close_batch`](Self::close_batch). Also reads and writes the row of the batch, which each transaction reads
    /// that adds a member or ends the batch.
    ///
    /// # Errors
    /// [`Error::ForeignRef`]; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the row does not decode.
    pub async fn cancel_batch(&self, tr: &impl Transaction, batch: &BatchRef) -> Result<bool> {
        let keys = &*self.keys;
        let key = keys.batch_row(batch.id_in(keys)?);
        let Some(row) = tr.get(&key, Isolation::Serializable).await? else {
            return Ok(false);
        };
        let mut row = BatchRow::parse(&key, &row)?;
        row.is_cancelled = true;
        row.callback = None;
        tr.set(&key, &row.to_bytes()?);
        self.close_batch(tr, batch)?;
        Ok(true)
    }

    /// Returns the state of a batch. Returns `None` if it has ended and is [kept](crate::Settings::keep_done) no
    /// longer, or never existed.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Error::ForeignRef`]; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if its rows do not decode.
    pub async fn batch_status(
        &self,
        tr: &impl Transaction,
        batch: &BatchRef,
    ) -> Result<Option<BatchStatus>> {
        let keys = &*self.keys;
        let id = batch.id_in(keys)?;
        if let Some(stored) = read_batch(tr, keys, id).await? {
            return Ok(Some(status_of(keys, *batch, &stored)));
        }
        let ended = read_ended(tr, keys, id).await?;
        Ok(ended.map(|ended| status_of_ended(keys, *batch, &ended)))
    }

    /// Returns a page of the batches that have not ended: up to `limit`, at most 250, after the batch `after`, or the
    /// first ones. Each takes two reads, one after the other.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Error::ForeignRef`]; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if a key is not that of a batch.
    pub async fn batches(
        &self,
        tr: &impl Transaction,
        after: Option<&BatchRef>,
        limit: usize,
    ) -> Result<BatchPage> {
        let keys = &*self.keys;
        let limit = limit.min(MAX_PAGE_BATCHES);
        let (first, end) = keys.part(Part::Batches);
        let mut begin = match after {
            Some(after) => keys.batch(after.id_in(keys)?).1,
            None => first,
        };
        let mut page = BatchPage {
            batches: Vec::new(),
            next: None,
        };
        let mut last = None;
        // Numbers without a batch, which damage has left, count as well.
        for _ in 0..limit {
            let query = RangeQuery::keys(begin, end.clone()).limit(1);
            // Safe as a snapshot read: nothing is written.
            let found = tr.get_range(&query, Isolation::Snapshot).await?;
            let Some(row) = found.rows.first() else {
                return Ok(page);
            };
            let id = keys.parse_batch(row.key())?;
            let batch = keys.batch_ref(id);
            let value = match read_batch(tr, keys, id).await {
                Ok(stored) => stored.map(|stored| Ok(status_of(keys, batch, &stored))),
                Err(error) => Some(Err(undecodable(error, row, "a batch")?)),
            };
            let listed = value.map(|value| Listed { id: batch, value });
            page.batches.extend(listed);
            begin = keys.batch(id).1;
            last = Some(batch);
        }
        page.next = last;
        Ok(page)
    }

    /// Waits until a batch has ended: its callback was enqueued, if it has one and was not cancelled. Returns at once
    /// if there is no such batch.
    ///
    /// While it waits, it watches the row of the batch, and reads it at least once a second. A session of the queue
    /// must be open, which ends the batch. It waits as long as the rows of the batch do not decode.
    ///
    /// # Errors
    /// [`Error::ForeignRef`], and those of [`Runner::run`].
    pub async fn await_batch<D: Database>(
        &self,
        runner: &Runner<D>,
        batch: &BatchRef,
    ) -> Result<()> {
        let row = self.keys.batch_row(batch.id_in(&self.keys)?);
        await_end(&runner.on_store(), row).await
    }
}

/// Waits until a row is no longer there.
fn await_end(runner: &Runner<Store>, row: Vec<u8>) -> BoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let row = &row;
        wait_until_none(runner, |tr| async move {
            let found = tr.get(row, Isolation::Serializable).await?;
            Ok::<_, Error>(found.map(|_| row.clone()))
        })
        .await
    })
}

fn status_of(keys: &Keys, batch: BatchRef, stored: &StoredBatch) -> BatchStatus {
    let row = &stored.row;
    BatchStatus {
        batch,
        pending: stored.count(Tally::Pending),
        counts: stored.counts(),
        is_open: stored.is_open,
        is_cancelled: row.is_cancelled,
        has_callback: row.callback.is_some(),
        dead_letters_stay: row.dead_letters_stay,
        parent: row.parent.map(|parent| keys.batch_ref(parent.batch)),
        opened: stored.opened(),
        end: None,
    }
}

fn status_of_ended(keys: &Keys, batch: BatchRef, ended: &EndedBatch) -> BatchStatus {
    BatchStatus {
        batch,
        pending: 0,
        counts: ended.counts,
        is_open: false,
        is_cancelled: ended.is_cancelled,
        has_callback: ended.callback.is_some(),
        dead_letters_stay: ended.dead_letters_stay,
        parent: ended.parent.map(|parent| keys.batch_ref(parent)),
        opened: unix_time(ended.opened_millis),
        end: Some(BatchEnd {
            at: unix_time(ended.ended_millis),
            callback: ended.callback.map(|id| keys.item_ref(id)),
        }),
    }
}
