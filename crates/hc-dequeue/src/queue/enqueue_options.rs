//! Options and results of an enqueue.

use std::time::{Duration, SystemTime};

use microqueue::keyspace::Bytes;
use microqueue::keyspace::record::millis;

use crate::items::batch::{BatchRef, Joining};
use crate::items::item_ref::{ItemRef, StagedRef};
use crate::items::record::Limits;
use crate::items::trace_context::TraceContext;
use crate::session::wall::unix_millis;

/// Options of an enqueue.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Enqueue;
///
/// let once_in_a_minute = Enqueue::new().with_delay(Duration::from_secs(60)).with_dedupe("order 7");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Enqueue {
    pub(crate) ready: Option<ReadyTime>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) dedupe: Option<Bytes>,
    pub(crate) on_repeat: OnRepeat,
    pub(crate) max_depth: Option<u64>,
    pub(crate) priority: Option<i8>,
    pub(crate) group: Option<Bytes>,
    pub(crate) kind: Option<String>,
    pub(crate) batch: Option<Joining>,
    pub(crate) limits: Limits,
    pub(crate) trace_context: Option<TraceContext>,
    pub(crate) ref_key: Option<Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadyTime {
    At(SystemTime),
    After(Duration),
}

impl Enqueue {
    /// Returns the default options: the item is ready at once, has priority 0 and no dedupe id, and no limit on the
    /// depth applies.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Delays the item until a wall time, by the clocks of the consuming processes.
    #[must_use]
    pub fn with_due_time(mut self, time: SystemTime) -> Self {
        self.ready = Some(ReadyTime::At(time));
        self
    }

    /// Delays the item by a duration: the due time is computed by the wall clock of the caller and checked by those
    /// of the consuming processes.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.ready = Some(ReadyTime::After(delay));
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
    ///     .with_dedupe("index page 7")
    ///     .with_on_repeat(OnRepeat::Debounce)
    ///     .with_delay(Duration::from_secs(5))
    ///     .with_max_wait(Duration::from_secs(60));
    /// # drop(quiet);
    /// ```
    #[must_use]
    pub fn with_max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Enqueues the item at most once under this dedupe id of 1 to 255 bytes.
    ///
    /// The enqueue does nothing if an item with the same id is queued, delayed, held or dead, or if one was completed
    /// less than [`dedupe_retention`] ago. [`with_on_repeat`](Self::with_on_repeat) can change what happens in the
    /// first case. An item that is cancelled or removed frees its id at once.
    ///
    /// [`dedupe_retention`]: crate::Settings::dedupe_retention
    #[must_use]
    pub fn with_dedupe(mut self, id: impl AsRef<[u8]>) -> Self {
        self.dedupe = Some(Bytes::copy_from_slice(id.as_ref()));
        self
    }

    /// Sets the priority, from -[`MAX_PRIORITY`](crate::MAX_PRIORITY) to `MAX_PRIORITY`. The default is 0.
    ///
    /// Items of a higher priority are granted before all others, and items of the same priority in the order of their
    /// enqueues; groups, and items that have come back, take turns. Waiting does not raise a priority: while items of a
    /// higher one wait, others are not granted.
    #[must_use]
    pub fn with_priority(mut self, priority: i8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets the group, of 1 to [`MAX_GROUP_BYTES`](crate::MAX_GROUP_BYTES) bytes: by what items are limited and take
    /// turns, such as a tenant or an account. An item keeps its group.
    ///
    /// Items with the same group and priority are granted in the order of their enqueues, and groups of the same
    /// priority in turns. [`configure_group`](crate::Queue::configure_group) and
    /// [`configure_groups`](crate::Queue::configure_groups) set limits.
    ///
    /// ```
    /// # use hc_dequeue::Enqueue;
    /// fn of_tenant(tenant: &str) -> Enqueue {
    ///     Enqueue::new().with_group(tenant)
    /// }
    /// # drop(of_tenant("acme"));
    /// ```
    #[must_use]
    pub fn with_group(mut self, group: impl AsRef<[u8]>) -> Self {
        self.group = Some(Bytes::copy_from_slice(group.as_ref()));
        self
    }

    /// Sets the kind, of 1 to [`MAX_KIND_BYTES`](crate::MAX_KIND_BYTES) bytes: of which type the job is, in a queue of
    /// [jobs](crate::Jobs) of several types. Their workers find the handler by this name. An item keeps its kind until
    /// its value is replaced by another enqueue with its dedupe id.
    ///
    /// [`Jobs::enqueue`](crate::Jobs::enqueue) sets the kind of the job's type. Set it here to enqueue a value that is
    /// encoded already. The workers of a queue of one type take only items without a kind.
    #[must_use]
    pub fn with_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Makes the item a member of a [batch](crate::Queue::open_batch), which is not complete before the item has ended.
    /// The batch must be open: after the [close](crate::Queue::close_batch), only members add others, by
    /// [`with_batch_of`](Self::with_batch_of).
    ///
    /// If an item with the dedupe id exists, [`OnRepeat::Keep`] leaves its batch as it is. With `Replace` and
    /// `Debounce`, an item without a batch joins this one, also if it was a dead letter, and one of another batch is
    /// refused with [`Error::OtherBatch`](crate::Error::OtherBatch).
    #[must_use]
    pub fn with_batch(mut self, batch: &BatchRef) -> Self {
        self.batch = Some(Joining::open(batch));
        self
    }

    /// Sets what the enqueue does if an item with the same dedupe id exists.
    #[must_use]
    pub fn with_on_repeat(mut self, on_repeat: OnRepeat) -> Self {
        self.on_repeat = on_repeat;
        self
    }

    /// Overrides the queue's [`max_attempts`](crate::Settings::max_attempts) for this item. Zero keeps the queue's
    /// limit.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.limits.attempts = attempts;
        self
    }

    /// Overrides the queue's [`max_deaths`](crate::Settings::max_deaths) for this item. Zero keeps the queue's limit.
    #[must_use]
    pub fn with_max_deaths(mut self, deaths: u32) -> Self {
        self.limits.deaths = deaths;
        self
    }

    /// Overrides the queue's [`max_deliveries`](crate::Settings::max_deliveries) for this item. Zero keeps the
    /// queue's limit.
    #[must_use]
    pub fn with_max_deliveries(mut self, deliveries: u32) -> Self {
        self.limits.deliveries = deliveries;
        self
    }

    /// Sets the item's trace context. Without this option, and with the feature `opentelemetry`, the item gets the
    /// context of the current span, if there is one.
    #[must_use]
    pub fn with_trace_context(mut self, context: TraceContext) -> Self {
        self.trace_context = Some(context);
        self
    }

    /// Writes the item's reference under this key of the application, in the transaction that enqueues. So the
    /// application's own rows can name the item that works for them. [`Queue::ref_at`](crate::Queue::ref_at) reads it.
    ///
    /// If an item with the dedupe id exists, its reference is written, whether or not the item gets the new value. If
    /// the id is refused because its item was completed, the key keeps its value.
    ///
    /// The value is the 23 bytes of [`ItemRef::to_bytes`](crate::ItemRef::to_bytes), in which the commit fills in the
    /// versionstamp. The transaction itself cannot read it.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Runner, Subspace};
    /// use hc_dequeue::{Enqueue, Place, Queue};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let invoices = &Queue::<u64>::open(&runner, "invoices").await?;
    /// let orders = Subspace::from("orders");
    ///
    /// // The order and its job, both or neither.
    /// let key = &orders.pack(&(17, "job"));
    /// let options = &Enqueue::new().with_ref_key(key);
    /// runner.run(async |tr| invoices.enqueue_with(&tr, &17, options).await).await?;
    ///
    /// // Later, in any process.
    /// let status = async |tr| match invoices.ref_at(&tr, key).await? {
    ///     Some(job) => invoices.status(&tr, &job).await,
    ///     None => Ok(None),
    /// };
    /// let status = runner.run(status).await?.expect("the order has a job");
    /// assert_eq!(status.place, Place::Queued);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_ref_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.ref_key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Makes the enqueue fail with [`Error::Full`](crate::Error::Full) if this many items are queued. Concurrent
    /// transactions may read the same number and exceed the limit together.
    #[must_use]
    pub fn with_max_depth(mut self, items: u64) -> Self {
        self.max_depth = Some(items);
        self
    }

    /// Returns the delay, if one was set with [`with_delay`](Self::with_delay).
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        match self.ready? {
            ReadyTime::After(delay) => Some(delay),
            ReadyTime::At(_) => None,
        }
    }

    /// Returns the longest wait of a burst.
    #[must_use]
    pub fn max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    /// Returns the dedupe id.
    #[must_use]
    pub fn dedupe(&self) -> Option<&Bytes> {
        self.dedupe.as_ref()
    }

    /// Returns what the enqueue does if an item with the same dedupe id exists.
    #[must_use]
    pub fn on_repeat(&self) -> OnRepeat {
        self.on_repeat
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> Option<&Bytes> {
        self.group.as_ref()
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// Returns the batch.
    #[must_use]
    pub fn batch(&self) -> Option<&BatchRef> {
        self.batch.as_ref().map(|joining| &joining.batch)
    }

    /// Returns the priority.
    #[must_use]
    pub fn priority(&self) -> i8 {
        self.priority.unwrap_or_default()
    }

    /// Returns the number of attempts. Zero: the queue's.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.limits.attempts
    }

    /// Returns the number of deaths. Zero: the queue's.
    #[must_use]
    pub fn max_deaths(&self) -> u32 {
        self.limits.deaths
    }

    /// Returns the number of deliveries. Zero: the queue's.
    #[must_use]
    pub fn max_deliveries(&self) -> u32 {
        self.limits.deliveries
    }

    /// Returns the key under which the item's reference is written.
    #[must_use]
    pub fn ref_key(&self) -> Option<&Bytes> {
        self.ref_key.as_ref()
    }

    /// Returns the number of queued items from which on the enqueue fails.
    #[must_use]
    pub fn max_depth(&self) -> Option<u64> {
        self.max_depth
    }

    /// Returns when an item is due that is enqueued at one time, and whose burst of enqueues began at another one.
    /// Returns `None` if the item is ready `now`.
    pub(crate) fn ready_millis(&self, enqueued: u64, began: u64, now: u64) -> Option<u64> {
        let ready = match self.ready? {
            ReadyTime::At(time) => unix_millis(time),
            ReadyTime::After(delay) => enqueued.saturating_add(millis(delay)),
        };
        let latest = match self.max_wait {
            Some(wait) if self.on_repeat == OnRepeat::Debounce => {
                began.saturating_add(millis(wait))
            }
            _ => u64::MAX,
        };
        let ready = ready.min(latest);
        if ready > now { Some(ready) } else { None }
    }
}

/// What an enqueue does if an item with the same dedupe id exists.
///
/// An item that a session holds cannot be changed: with `Replace` and `Debounce`, a new item is enqueued and takes
/// over the id. A dead letter that is replaced goes back to the queue as by a
/// [redrive](crate::Queue::redrive). The limits and the trace context of the new enqueue, or their absence,
/// replace the old ones. The priority changes only if the item gets a new place: with `Debounce`, or if it was a dead
/// letter. An enqueue with a [batch](Enqueue::with_batch) makes the item a member of it; without one, the item stays in
/// its batch.
///
/// All enqueues of an id in one transaction count as made at the time of the first one: equal delays give equal times.
/// With `Debounce`, another time or priority than that of the enqueue before is refused with
/// [`Error::EnqueuedWithOtherPlace`](crate::Error::EnqueuedWithOtherPlace), because the transaction cannot move an item
/// that it has enqueued itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_debounce_has_a_longest_wait() {
        let hour = Duration::from_secs(60 * 60);
        let minute = Duration::from_secs(60);
        let options = Enqueue::new().with_delay(hour).with_max_wait(minute);
        assert_eq!(options.ready_millis(0, 0, 0), Some(3_600_000));
        let debounce = options.with_on_repeat(OnRepeat::Debounce);
        assert_eq!(debounce.ready_millis(0, 0, 0), Some(60_000));
        assert_eq!(debounce.ready_millis(50_000, 0, 50_000), Some(60_000));
        assert_eq!(debounce.ready_millis(70_000, 0, 70_000), None);
    }
}
