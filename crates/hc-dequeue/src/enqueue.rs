//! Enqueues items. An enqueue reads nothing unless its options require it.

use std::time::{Duration, SystemTime};

use microqueue::StagedId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, MutationOp, Transaction};

use crate::change::{place, remove, rewrite};
use crate::counters::read_counter;
use crate::dedupe::{Repeated, check_dedupe, claim, holder, repeated};
use crate::error::{Error, Result};
use crate::find::{Spot, find};
use crate::item_ref::{ItemRef, StagedRef};
use crate::keys::Counter;
use crate::queue::HighContentionQueue;
use crate::record::{Limits, MAX_PAYLOAD_BYTES, Record};
use crate::span;
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
#[derive(Debug, Clone, Default)]
pub struct Enqueue {
    ready: Option<Ready>,
    dedupe: Bytes,
    is_deduped: bool,
    on_repeat: OnRepeat,
    max_depth: Option<u64>,
    limits: Limits,
    trace_context: Option<TraceContext>,
}

#[derive(Debug, Clone, Copy)]
enum Ready {
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

    /// Enqueues the item at most once under this dedupe id of 1 to 255 bytes.
    ///
    /// The enqueue does nothing if an item with the same id is queued, delayed, held or dead, or if one was completed
    /// less than [`dedupe_retention`] ago. [`on_repeat`](Self::on_repeat) can change what happens in the first case. An
    /// item that is cancelled or removed frees its id at once.
    ///
    /// [`dedupe_retention`]: crate::Settings::dedupe_retention
    #[must_use]
    pub fn dedupe(mut self, id: impl Into<Bytes>) -> Self {
        self.dedupe = id.into();
        self.is_deduped = true;
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
}

/// What an enqueue does if an item with the same dedupe id exists.
///
/// An item that a session holds cannot be changed: with `Replace` and `Debounce`, a new item is enqueued and takes
/// over the id. A dead letter that is replaced goes back to the queue as by a
/// [redrive](HighContentionQueue::redrive). The trace context of the new enqueue, or its absence, replaces the old one.
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
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{HighContentionQueue, ItemRef, Result};
    /// /// Enqueues a job and returns a reference to it.
    /// async fn submit<D: Database>(runner: &Runner<D>, jobs: &HighContentionQueue<String>) -> Result<ItemRef> {
    ///     let job = &"resize 17.png".to_owned();
    ///     let enqueue = |tr| async move { jobs.enqueue(&tr, job).await };
    ///     let (staged, commit) = runner.run_committed(enqueue).await?;
    ///     Ok(staged.at(commit.versionstamp.expect("the transaction wrote")))
    /// }
    /// ```
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
    /// [`Error::DedupeId`], [`Error::Full`] and those of [`enqueue`](Self::enqueue). In all cases nothing is staged.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue_with(
        &self,
        tr: &impl Transaction,
        value: &T,
        options: &Enqueue,
    ) -> Result<Enqueued> {
        let dedupe = &options.dedupe;
        if options.is_deduped {
            check_dedupe(dedupe)?;
        }
        let trace_context = options.trace_context.clone().or_else(span::current_context);
        let mut record = self.record(value, trace_context)?;
        record.dedupe = dedupe.clone();
        record.limits = options.limits;
        let now = wall_millis(&self.keys.env);
        let ready = match options.ready {
            None => None,
            Some(Ready::At(time)) => Some(unix_millis(time)),
            Some(Ready::After(delay)) => Some(now.saturating_add(millis(delay))),
        };
        let ready = ready.filter(|ready| *ready > now);
        if options.is_deduped {
            match repeated(tr, &self.keys, dedupe).await? {
                Some(Repeated::IsThere) => {
                    let replaced = self.replace_deduped(tr, &record, ready, options.on_repeat);
                    if let Some(enqueued) = replaced.await? {
                        return Ok(enqueued);
                    }
                }
                Some(Repeated::IsRetained) => return Ok(Enqueued::Repeated),
                None => {}
            }
            record.token = Some(self.keys.env.random_bytes());
        }
        if let Some(limit) = options.max_depth {
            // Safe as a snapshot read: the documentation says that concurrent enqueues may exceed the limit.
            let depth = read_counter(tr, &self.keys, Counter::Queued).await?;
            if depth >= limit {
                return Err(Error::Full {
                    queue: self.keys.queue.clone(),
                    depth,
                    limit,
                });
            }
        }
        let staged = self.stage(tr, &record, ready).await?;
        if let Some(token) = record.token {
            claim(tr, &self.keys, dedupe, token, staged);
        }
        // A delayed item writes the wake stamp, too: sessions that sleep must learn when it is due.
        self.keys.wake_all(tr);
        Ok(Enqueued::Staged(StagedRef::new(&self.keys, staged)))
    }

    /// Stages a new item.
    async fn stage(
        &self,
        tr: &impl Transaction,
        record: &Record,
        ready: Option<u64>,
    ) -> Result<StagedId> {
        let keys = &self.keys;
        let Some(ready) = ready else {
            keys.count(tr, Counter::Queued, 1);
            return Ok(keys.items.enqueue(tr, record).await?);
        };
        let staged = keys.delayed(ready).enqueue(tr, record).await?;
        keys.count(tr, Counter::Delayed, 1);
        let pointer = staged.key_template_in(&keys.pointers());
        let pointer = pointer.expect("parts of a queue are in commit order");
        let ready = ready.to_be_bytes();
        tr.atomic(MutationOp::SetVersionstampedKey, &pointer, &ready);
        Ok(staged)
    }

    /// Applies `on_repeat` to the item that has the dedupe id. Returns `None` if a session holds that item: then it
    /// gives the id up, and the caller enqueues a new item that takes the id over.
    async fn replace_deduped(
        &self,
        tr: &impl Transaction,
        new: &Record,
        ready: Option<u64>,
        on_repeat: OnRepeat,
    ) -> Result<Option<Enqueued>> {
        if on_repeat == OnRepeat::Keep {
            return Ok(Some(Enqueued::Repeated));
        }
        let keys = &self.keys;
        let Some(id) = holder(tr, keys, &new.dedupe).await? else {
            return Ok(None);
        };
        let Some((spot, mut record)) = find(tr, keys, &id).await? else {
            return Ok(None);
        };
        match spot {
            Spot::Held(_) | Spot::Granted { .. } => {
                // The held item no longer has the id.
                record.token = None;
                rewrite(tr, keys, &id, &spot, record)?;
                return Ok(None);
            }
            Spot::Done => return Ok(None),
            Spot::Queued | Spot::Delayed(_) if on_repeat == OnRepeat::Replace => {
                record.payload = new.payload.clone();
                record.trace_context = new.trace_context.clone();
                rewrite(tr, keys, &id, &spot, record)?;
            }
            Spot::Queued | Spot::Delayed(_) | Spot::Dead => {
                record.payload = new.payload.clone();
                record.trace_context = new.trace_context.clone();
                if matches!(spot, Spot::Dead) {
                    record.begin_anew();
                }
                remove(tr, keys, &id, &spot)?;
                place(tr, keys, &id, &record, ready)?;
            }
        }
        Ok(Some(Enqueued::Replaced(ItemRef::new(keys, id))))
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

    fn record(&self, value: &T, trace_context: Option<TraceContext>) -> Result<Record> {
        let enqueued_millis = wall_millis(&self.keys.env);
        let mut record = Record::new(enqueued_millis, self.payload(value)?);
        record.trace_context = trace_context.map(TraceContext::into_field);
        Ok(record)
    }
}
