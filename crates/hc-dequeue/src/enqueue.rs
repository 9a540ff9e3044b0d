//! Enqueues items. An enqueue reads nothing unless its options require it.
//!
//! [`stage`](crate::stage) has what does not depend on the type of the values.

use std::time::{Duration, SystemTime};

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Transaction};

use crate::dedupe::check_dedupe;
use crate::error::{Error, Result};
use crate::item_ref::{ItemRef, StagedRef};
use crate::keys::Counter;
use crate::queue::HighContentionQueue;
use crate::record::{Limits, MAX_PAYLOAD_BYTES, Record};
use crate::span;
use crate::stage::{NewItem, Staged, check_depths, record_of, stage};
use crate::trace_context::TraceContext;
use crate::wall::{unix_millis, wall_millis};

/// Options of an enqueue.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Enqueue;
///
/// let once_in_a_minute = Enqueue::new().after(Duration::from_secs(60)).dedupe("order 7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Enqueue {
    pub(crate) ready: Option<Ready>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) dedupe: Option<Bytes>,
    pub(crate) on_repeat: OnRepeat,
    pub(crate) max_depth: Option<u64>,
    pub(crate) limits: Limits,
    pub(crate) trace_context: Option<TraceContext>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    At(SystemTime),
    After(Duration),
}

impl Enqueue {
    /// Returns the default options: the item is ready at once, has no dedupe id, and no limit on the depth applies.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Delays the item until a wall time, by the clocks of the consuming processes.
    #[must_use]
    pub fn at(mut self, time: SystemTime) -> Self {
        self.ready = Some(Ready::At(time));
        self
    }

    /// Delays the item by a duration: the due time is computed by the wall clock of the caller and checked by those
    /// of the consuming processes.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.ready = Some(Ready::After(delay));
        self
    }

    /// Sets the longest wait of a burst: with [`OnRepeat::Debounce`], the item is due at the latest this long after the
    /// first enqueue of the burst, however often it is enqueued again. The burst ends when a session takes the item.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hc_dequeue::{Enqueue, OnRepeat};
    ///
    /// let quiet = Enqueue::new()
    ///     .dedupe("index page 7")
    ///     .on_repeat(OnRepeat::Debounce)
    ///     .after(Duration::from_secs(5))
    ///     .max_wait(Duration::from_secs(60));
    /// # drop(quiet);
    /// ```
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Enqueues the item at most once under this dedupe id of 1 to 255 bytes.
    ///
    /// The enqueue does nothing if an item with the same id is queued, delayed, held or dead, or if one was completed
    /// less than [`dedupe_retention`] ago. [`on_repeat`](Self::on_repeat) can change what happens in the first case. An
    /// item that is cancelled or removed frees its id at once.
    ///
    /// [`dedupe_retention`]: crate::Settings::dedupe_retention
    #[must_use]
    pub fn dedupe(mut self, id: impl Into<Bytes>) -> Self {
        self.dedupe = Some(id.into());
        self
    }

    /// Sets what the enqueue does if an item with the same dedupe id exists.
    #[must_use]
    pub fn on_repeat(mut self, on_repeat: OnRepeat) -> Self {
        self.on_repeat = on_repeat;
        self
    }

    /// Overrides the queue's [`max_attempts`](crate::Settings::max_attempts) for this item. Zero keeps the queue's
    /// limit.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.limits.attempts = attempts;
        self
    }

    /// Overrides the queue's [`max_deaths`](crate::Settings::max_deaths) for this item. Zero keeps the queue's limit.
    #[must_use]
    pub fn max_deaths(mut self, deaths: u32) -> Self {
        self.limits.deaths = deaths;
        self
    }

    /// Overrides the queue's [`max_deliveries`](crate::Settings::max_deliveries) for this item. Zero keeps the
    /// queue's limit.
    #[must_use]
    pub fn max_deliveries(mut self, deliveries: u32) -> Self {
        self.limits.deliveries = deliveries;
        self
    }

    /// Sets the item's trace context. Without this option, and with the feature `opentelemetry`, the item gets the
    /// context of the current span, if there is one.
    #[must_use]
    pub fn trace_context(mut self, context: TraceContext) -> Self {
        self.trace_context = Some(context);
        self
    }

    /// Makes the enqueue fail with [`Error::Full`] if this many items are queued. Concurrent transactions may read
    /// the same number and exceed the limit together.
    #[must_use]
    pub fn max_depth(mut self, items: u64) -> Self {
        self.max_depth = Some(items);
        self
    }

    /// Returns the dedupe id.
    pub(crate) fn dedupe_id(&self) -> Option<&Bytes> {
        self.dedupe.as_ref()
    }

    /// Returns when an item is due that is enqueued at one time, and whose burst of enqueues began at another one.
    /// Returns `None` if the item is ready `now`.
    pub(crate) fn ready_millis(&self, enqueued: u64, began: u64, now: u64) -> Option<u64> {
        let ready = match self.ready? {
            Ready::At(time) => unix_millis(time),
            Ready::After(delay) => enqueued.saturating_add(millis(delay)),
        };
        let latest = self
            .max_wait
            .map_or(u64::MAX, |wait| began.saturating_add(millis(wait)));
        Some(ready.min(latest)).filter(|ready| *ready > now)
    }
}

/// What an enqueue does if an item with the same dedupe id exists.
///
/// An item that a session holds cannot be changed: with `Replace` and `Debounce`, a new item is enqueued and takes
/// over the id. A dead letter that is replaced goes back to the queue as by a
/// [redrive](HighContentionQueue::redrive). The limits and the trace context of the new enqueue, or their absence,
/// replace the old ones.
///
/// All enqueues of an id in one transaction count as made at the time of the first one: equal delays give equal times.
/// With `Debounce`, another time than that of the enqueue before is refused with [`Error::ReadAfterWrite`], because the
/// transaction cannot move an item that it has enqueued itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnRepeat {
    /// Nothing: the existing item stays as it is.
    #[default]
    Keep,
    /// The existing item gets the new value, and keeps its place and its time.
    Replace,
    /// The existing item gets the new value and the new time, so that a burst of enqueues becomes one item after the
    /// last of them (*debounce*).
    Debounce,
}

/// The result of an enqueue with options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Enqueued {
    /// The item was staged. The commit completes its id.
    Staged(StagedRef),
    /// An item with the same dedupe id exists, and its new value was staged.
    Replaced(ItemRef),
    /// An item with the same dedupe id exists or was completed recently. Nothing was staged.
    Repeated,
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Stages an item at the end of the queue.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{HighContentionQueue, Result};
    /// /// Stores an order and enqueues its invoice, both or neither.
    /// async fn order(tr: &impl Transaction, invoices: &HighContentionQueue<u64>, number: u64) -> Result<()> {
    ///     tr.set(format!("order {number}").as_bytes(), b"");
    ///     invoices.enqueue(tr, &number).await?;
    ///     Ok(())
    /// }
    /// ```
    /// [`submit`](Self::submit) enqueues in a transaction of its own.
    ///
    /// # Conflicts
    /// Never fails with a conflict: reads nothing, and writes the item's key, a counter and the wake stamp blindly.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`], and [`Encode`] of the codec. In both cases nothing is staged.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    ///
    /// [`Encode`]: microqueue::keyspace::Error::Encode
    pub async fn enqueue(&self, tr: &impl Transaction, value: &T) -> Result<StagedRef> {
        let staged = self.enqueue_all(tr, std::slice::from_ref(value)).await?;
        Ok(staged[0])
    }

    /// Stages items at the end of the queue, in the given order: either all of them or none.
    ///
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue_all(&self, tr: &impl Transaction, values: &[T]) -> Result<Vec<StagedRef>> {
        let trace_context = span::current_context();
        let records: Vec<_> = values
            .iter()
            .map(|value| self.record(value, trace_context.clone()))
            .collect::<Result<_>>()?;
        let staged = self.keys.items.enqueue_all(tr, &records).await?;
        if !staged.is_empty() {
            self.keys.count(tr, Counter::Queued, staged.len() as i64);
            self.keys.wake_all(tr);
        }
        let staged = staged.into_iter();
        Ok(staged.map(|id| StagedRef::new(&self.keys, id)).collect())
    }

    /// Stages an item with the given options.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, Enqueued, HighContentionQueue, Result};
    /// /// Reminds of an invoice in a week, once per invoice.
    /// async fn remind(tr: &impl Transaction, reminders: &HighContentionQueue<u64>, invoice: u64) -> Result<bool> {
    ///     let in_a_week = Duration::from_secs(7 * 24 * 60 * 60);
    ///     let options = Enqueue::new().after(in_a_week).dedupe(format!("invoice {invoice}"));
    ///     let enqueued = reminders.enqueue_with(tr, &invoice, &options).await?;
    ///     Ok(matches!(enqueued, Enqueued::Staged(_)))
    /// }
    /// ```
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue), and in addition:
    ///
    /// - With a dedupe id, reads the rows of the id, and the settings by snapshot if the id is retained.
    /// - With another [`OnRepeat`] than `Keep`, also reads and writes the row of the item that has the id, wherever
    ///   it is. A concurrent acknowledgement of that item conflicts.
    /// - With a maximum depth, reads the counter of queued items by snapshot.
    ///
    /// # Errors
    /// [`Error::DedupeId`], [`Error::Full`] and those of [`enqueue`](Self::enqueue); [`Error::ReadAfterWrite`] as
    /// [`OnRepeat`] says. In all cases nothing is staged.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue_with(
        &self,
        tr: &impl Transaction,
        value: &T,
        options: &Enqueue,
    ) -> Result<Enqueued> {
        let trace_context = options.trace_context.clone().or_else(span::current_context);
        let item = self.new_item(value, options, trace_context)?;
        let mut staged = Staged::default();
        let enqueued = stage(tr, &self.keys, item, &mut staged).await?;
        staged.finish(tr, &self.keys);
        Ok(enqueued)
    }

    /// Stages items, each with its options, in the given order: either all of them or none. Returns the result for each.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::Transaction;
    /// # use hc_dequeue::{Enqueue, HighContentionQueue, Result};
    /// /// Sends each invoice once.
    /// async fn send(tr: &impl Transaction, invoices: &HighContentionQueue<u64>, numbers: &[u64]) -> Result<()> {
    ///     let once = |number: &u64| (*number, Enqueue::new().dedupe(format!("invoice {number}")));
    ///     let items: Vec<_> = numbers.iter().map(once).collect();
    ///     invoices.enqueue_all_with(tr, &items).await?;
    ///     Ok(())
    /// }
    /// ```
    /// # Conflicts
    /// As [`enqueue_with`](Self::enqueue_with).
    ///
    /// # Errors
    /// As [`enqueue_with`](Self::enqueue_with). With [`Error::ReadAfterWrite`], and with errors of the store, a part of
    /// the items may be staged: the transaction must not commit. With all others, nothing is staged.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, a part of the items may be staged: the transaction must not commit.
    pub async fn enqueue_all_with(
        &self,
        tr: &impl Transaction,
        items: &[(T, Enqueue)],
    ) -> Result<Vec<Enqueued>> {
        let keys = &*self.keys;
        let current = span::current_context();
        let mut new_items = Vec::with_capacity(items.len());
        for (value, options) in items {
            let trace_context = options.trace_context.clone().or_else(|| current.clone());
            new_items.push(self.new_item(value, options, trace_context)?);
        }
        check_depths(tr, keys, &new_items).await?;
        let mut staged = Staged::default();
        let mut enqueued = Vec::with_capacity(items.len());
        for item in new_items {
            enqueued.push(stage(tr, keys, item, &mut staged).await?);
        }
        staged.finish(tr, keys);
        Ok(enqueued)
    }

    /// Encodes a value as the payload of an item.
    pub(crate) fn payload(&self, value: &T) -> Result<Bytes> {
        let mut payload = Vec::new();
        self.codec.encode(value, &mut payload)?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::PayloadTooLarge {
                queue: self.keys.queue.clone(),
                bytes: payload.len(),
                limit: MAX_PAYLOAD_BYTES,
            });
        }
        Ok(payload.into())
    }

    fn new_item<'a>(
        &self,
        value: &T,
        options: &'a Enqueue,
        trace_context: Option<TraceContext>,
    ) -> Result<NewItem<'a>> {
        if let Some(dedupe) = options.dedupe_id() {
            check_dedupe(dedupe)?;
        }
        let enqueued_millis = wall_millis(&self.keys.env);
        let mut record = record_of(self.payload(value)?, enqueued_millis, options);
        record.trace_context = trace_context.map(TraceContext::into_field);
        Ok(NewItem { record, options })
    }

    fn record(&self, value: &T, trace_context: Option<TraceContext>) -> Result<Record> {
        let enqueued_millis = wall_millis(&self.keys.env);
        let mut record = Record::new(enqueued_millis, self.payload(value)?);
        record.trace_context = trace_context.map(TraceContext::into_field);
        Ok(record)
    }
}
