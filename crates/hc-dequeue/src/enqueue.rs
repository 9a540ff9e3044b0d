//! Enqueuing: blind unless asked otherwise.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use microqueue::StagedId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    self, Bytes, ConflictKind, Isolation, RangeQuery, StreamingMode, Transaction,
};

use crate::error::{Error, Result};
use crate::keys::{Counter, Keys};
use crate::queue::HighContentionQueue;
use crate::record::{MAX_DEDUPE_BYTES, MAX_PAYLOAD_BYTES, Record};
use crate::settings::Settings;

/// How many dedupe ids one sweep looks at.
const DEDUPE_IDS_PER_SWEEP: usize = 1_000;

/// How an item is enqueued.
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
    max_depth: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Ready {
    At(SystemTime),
    After(Duration),
}

impl Enqueue {
    /// At once, as often as called, however many items there are.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the item back until a wall time, by the clocks of those who take.
    #[must_use]
    pub fn at(mut self, time: SystemTime) -> Self {
        self.ready = Some(Ready::At(time));
        self
    }

    /// Keeps the item back for a time, by the wall clock of the caller and those of who take.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.ready = Some(Ready::After(delay));
        self
    }

    /// Does nothing if an item with the same id of 1 to 255 bytes is queued, delayed, held or dead,
    /// or was completed less than [`Settings::dedupe_retention`] ago.
    #[must_use]
    pub fn dedupe(mut self, id: impl Into<Bytes>) -> Self {
        self.dedupe = id.into();
        self.is_deduped = true;
        self
    }

    /// Refuses if so many items are queued. Transactions that enqueue at the same time see the same
    /// number, so that together they may go over it.
    #[must_use]
    pub fn max_depth(mut self, items: u64) -> Self {
        self.max_depth = Some(items);
        self
    }
}

/// What became of an enqueue with options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Enqueued {
    /// The item is staged; the commit completes its id.
    Staged(StagedId),
    /// An item with the same dedupe id is there already, and nothing was staged.
    Repeated,
}

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Stages an item at the end of the queue.
    ///
    /// # Conflicts
    /// None: reads nothing, and writes the item's key, a counter and the wake stamp, all blindly.
    ///
    /// # Errors
    /// [`Error::PayloadTooLarge`] and the codec's [`Encode`], before anything is staged.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    ///
    /// [`Encode`]: microqueue::keyspace::Error::Encode
    pub async fn enqueue(&self, tr: &impl Transaction, value: &T) -> Result<StagedId> {
        let staged = self.enqueue_all(tr, std::slice::from_ref(value)).await?;
        Ok(staged[0])
    }

    /// Stages items at the end of the queue, in their order, all or none.
    ///
    /// # Conflicts
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready stages nothing.
    pub async fn enqueue_all(&self, tr: &impl Transaction, values: &[T]) -> Result<Vec<StagedId>> {
        let records: Vec<_> = values
            .iter()
            .map(|value| self.record(value, Bytes::new()))
            .collect::<Result<_>>()?;
        let staged = self.keys.items.enqueue_all(tr, &records).await?;
        if !staged.is_empty() {
            self.keys.count(tr, Counter::Queued, staged.len() as i64);
            self.keys.wake_all(tr);
        }
        Ok(staged)
    }

    /// Stages an item in the way that the options say.
    ///
    /// # Conflicts
    /// Reads the key of the dedupe id if there is one, and the counter of queued items by snapshot
    /// if there is a greatest depth; else as [`enqueue`](Self::enqueue).
    ///
    /// # Errors
    /// [`Error::DedupeId`], [`Error::Full`], and those of [`enqueue`](Self::enqueue), before
    /// anything is staged.
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
        if options.is_deduped && !(1..=MAX_DEDUPE_BYTES).contains(&dedupe.len()) {
            return Err(Error::DedupeId {
                bytes: dedupe.len(),
                limit: MAX_DEDUPE_BYTES,
            });
        }
        let record = self.record(value, dedupe.clone())?;
        if options.is_deduped && is_repeated(tr, &self.keys, dedupe).await? {
            return Ok(Enqueued::Repeated);
        }
        if let Some(limit) = options.max_depth {
            // Safe as a snapshot read: the limit may be passed by what is enqueued meanwhile.
            let depth = read_counter(tr, &self.keys, Counter::Queued).await?;
            if depth >= limit {
                return Err(Error::Full {
                    queue: self.keys.queue.clone(),
                    depth,
                    limit,
                });
            }
        }
        let now = wall_millis(&self.keys);
        let ready = match options.ready {
            None => None,
            Some(Ready::At(time)) => Some(unix_millis(time)),
            Some(Ready::After(delay)) => Some(now.saturating_add(millis(delay))),
        };
        let staged = match ready.filter(|ready| *ready > now) {
            Some(ready) => {
                self.keys.count(tr, Counter::Delayed, 1);
                self.keys.delayed(ready).enqueue(tr, &record).await?
            }
            None => {
                self.keys.count(tr, Counter::Queued, 1);
                self.keys.items.enqueue(tr, &record).await?
            }
        };
        if options.is_deduped {
            tr.set(&self.keys.dedupe(dedupe), &0_u64.to_be_bytes());
        }
        // Also for a delayed item: who sleeps has to learn when it is due.
        self.keys.wake_all(tr);
        Ok(Enqueued::Staged(staged))
    }

    fn record(&self, value: &T, dedupe: Bytes) -> Result<Record> {
        let mut payload = Vec::new();
        self.codec.encode(value, &mut payload)?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(Error::PayloadTooLarge {
                queue: self.keys.queue.clone(),
                bytes: payload.len(),
                limit: MAX_PAYLOAD_BYTES,
            });
        }
        let enqueued_millis = wall_millis(&self.keys);
        Ok(Record::new(enqueued_millis, dedupe, payload.into()))
    }
}

/// Returns whether an item with the id is there, or was until lately.
async fn is_repeated(tr: &impl Transaction, keys: &Keys, dedupe: &[u8]) -> Result<bool> {
    let key = keys.dedupe(dedupe);
    let Some(value) = tr.get(&key, Isolation::Serializable).await? else {
        return Ok(false);
    };
    let until = until_of(&key, &value)?;
    Ok(until == 0 || wall_millis(keys) < until)
}

/// Stages what becomes of an item's dedupe id when the item is completed.
pub(crate) fn retire_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    record: &Record,
) {
    if record.dedupe.is_empty() {
        return;
    }
    let key = keys.dedupe(&record.dedupe);
    if settings.dedupe_retention.is_zero() {
        tr.clear(&key);
    } else {
        let until = wall_millis(keys).saturating_add(millis(settings.dedupe_retention));
        tr.set(&key, &until.to_be_bytes());
    }
}

/// Removes ids that were kept for long enough, among the next ones behind `after`. Returns the last one
/// looked at; `None` at the end.
///
/// # Conflicts
/// Reads the ids that it removes.
pub(crate) async fn sweep_dedupe(
    tr: &impl Transaction,
    keys: &Keys,
    after: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    let (begin, end) = keys.part("k");
    let begin = after.map_or(begin, key_after);
    let query = RangeQuery::keys(begin, end)
        .limit(DEDUPE_IDS_PER_SWEEP)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read: of what is removed, each key is in a conflict range.
    let batch = tr.get_range(&query, Isolation::Snapshot).await?;
    let now = wall_millis(keys);
    for row in &batch.rows {
        let until = until_of(row.key(), row.value())?;
        if until != 0 && until <= now {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            tr.clear(row.key());
        }
    }
    let is_last = batch.rows.len() < DEDUPE_IDS_PER_SWEEP && !batch.more;
    let last = batch.rows.last().filter(|_| !is_last);
    Ok(last.map(|row| row.key().to_vec()))
}

/// Returns until when a dedupe id is kept; 0 while its item is there.
fn until_of(key: &[u8], value: &[u8]) -> Result<u64> {
    let until = value.try_into().map(u64::from_be_bytes);
    until.map_err(|_| keyspace::Error::corrupt(key, "expected a time of eight bytes").into())
}

/// Reads a counter by snapshot: it is exact at the read version.
pub(crate) async fn stored_count(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<i64> {
    let key = keys.counter(counter);
    let Some(value) = tr.get(&key, Isolation::Snapshot).await? else {
        return Ok(0);
    };
    let count = value[..].try_into().map(i64::from_le_bytes);
    count.map_err(|_| keyspace::Error::corrupt(&key, "expected a count of eight bytes").into())
}

/// Reads a counter that cannot be negative.
pub(crate) async fn read_counter(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<u64> {
    let count = stored_count(tr, keys, counter).await?;
    u64::try_from(count).map_err(|_| {
        let reason = format!("{count} items: `audit` finds what contradicts it");
        keyspace::Error::corrupt(&keys.counter(counter), reason).into()
    })
}

/// Returns the wall time in milliseconds since the Unix epoch.
pub(crate) fn wall_millis(keys: &Keys) -> u64 {
    unix_millis(keys.env.wall())
}

fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, millis)
}
