//! A pass: one transaction that combines updates of a bucket.
//!
//! A *sweep* of a bucket is one or more passes, each over a run of whole keys as far as its budget
//! goes, and together over all keys of the bucket:
//!
//! 1. A sweep begins when there is a notification. It remembers which, and its read version.
//! 2. Each pass reads where the sweep is, serializably, and writes it: two passes over one bucket never
//!    both commit.
//! 3. It takes updates, folds them into the values, which it reads serializably, and tells the
//!    observer what has changed.
//! 4. The pass that reaches the end of the bucket clears the notification, *if it is still the one from
//!    the begin of the sweep*. Whoever has added since has written another one, and perhaps to a key
//!    that the sweep had passed: comparing with a newer notification would strand that update.
//!
//! A key whose updates do not all fit is folded and not yet reported: the next pass goes on with it,
//! and the pass that finds no more of its updates reports it. So what is reported covers every update
//! that was committed before the reporting pass began.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use futures::{FutureExt, TryStreamExt, try_join};
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::error::panic_message;
use hc_dequeue::keyspace::{Bytes, Environment, Isolation, KeyValue, MutationOp, Transaction};

use crate::error::{Error, Result};
use crate::keys::Bucket;
use crate::observer::{Change, ChangeObserver};
use crate::queue::CombineQueue;
use crate::record::{InProgress, MAX_VALUE_BYTES, Sweep, Value, decode_stamp, encode_aside};
use crate::take::{Batch, TakenUpdates, take};

/// How many values a pass reads at the same time. It bounds by how much they can exceed the budget.
const READS_AT_ONCE: usize = 100;

/// What a pass may do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// How many bytes it reads and stages by itself, but one update at least.
    pub(crate) budget: usize,
    /// How long the observer may take.
    pub(crate) observer_time_limit: Duration,
    /// Why to set aside what is taken instead of combining it.
    pub(crate) set_aside: Option<String>,
}

impl Plan {
    /// Returns the plan for an attempt: each one does less than the one before, so that what takes too
    /// long for a transaction, or meets conflicts, gets done in the end.
    pub(crate) fn for_attempt(&self, number: u32) -> Self {
        let budget = self.budget.checked_shr(number.saturating_sub(1));
        Self {
            budget: budget.unwrap_or(0).max(1),
            ..self.clone()
        }
    }
}

/// What a pass came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pass {
    pub(crate) updates: usize,
    /// What it cost of the budget.
    pub(crate) bytes: usize,
    pub(crate) changes: usize,
    pub(crate) set_aside: usize,
    /// Whether the sweep goes on, or another one is to follow it: somebody has added since it began.
    /// If not, the bucket has what is newer than the pass, or nothing.
    pub(crate) has_more: bool,
}

/// Where a pass begins.
struct PassStart {
    /// The version of the last complete sweep.
    completed: i64,
    sweep: InProgress,
    /// Whether somebody has added since the sweep began.
    has_news: bool,
}

/// A key of a pass, and what becomes of it.
struct Folded<K, V> {
    taken: TakenUpdates,
    /// The value as it was last reported.
    reported: Value,
    /// The value after all updates before these.
    current: Option<Bytes>,
    /// What there is after these. `None`: nothing of it can be read, and it stays as it is.
    after: Option<After<K, V>>,
    /// Which updates are set aside, and why.
    aside: Vec<(usize, String)>,
}

/// The value of a key after a pass.
struct After<K, V> {
    current: Option<Bytes>,
    /// What to report; `None` also if there are more updates.
    change: Option<Change<K, V>>,
}

/// All that becomes of a bucket in a pass.
struct Work<K, V> {
    folded: Vec<Folded<K, V>>,
    /// Where the next pass goes on.
    next: Option<Bytes>,
    bytes: usize,
}

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Makes one pass over a bucket.
    ///
    /// # Conflicts
    /// Reads the sweep of the bucket, the values of the keys that it combines, and for each of them
    /// the range from the first update taken to the last.
    pub(crate) async fn pass<T: Transaction>(
        &self,
        tr: &T,
        bucket: Bucket,
        plan: &Plan,
        observer: &impl ChangeObserver<K, V>,
    ) -> Result<Pass> {
        let Some(start) = self.begin(tr, bucket).await? else {
            return Ok(Pass::default());
        };
        let PassStart {
            completed,
            sweep,
            has_news,
        } = start;
        let batch = take(tr, &self.keys, bucket, sweep.from(), plan.budget).await?;
        let Work {
            folded,
            next,
            bytes,
        } = match &plan.set_aside {
            Some(reason) => set_all_aside(batch, reason),
            None => self.fold_all(tr, bucket, batch, plan.budget).await?,
        };
        let mut pass = Pass {
            bytes,
            has_more: next.is_some() || has_news,
            ..Pass::default()
        };
        let mut changes = Vec::new();
        for folded in folded {
            pass.updates += folded.taken.len();
            pass.set_aside += folded.aside.len();
            changes.extend(self.stage(tr, bucket, folded)?);
        }
        pass.changes = changes.len();
        self.advance(tr, bucket, completed, sweep, next);
        if !changes.is_empty() {
            observe(&self.env, tr, observer, &changes, plan.observer_time_limit).await?;
        }
        Ok(pass)
    }

    /// Returns the key in the store of the update that a pass in this transaction takes first.
    ///
    /// # Conflicts
    /// Reads the sweep of the bucket.
    pub(crate) async fn first_update(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
    ) -> Result<Option<Bytes>> {
        let Some(PassStart { sweep, .. }) = self.begin(tr, bucket).await? else {
            return Ok(None);
        };
        let batch = take(tr, &self.keys, bucket, sweep.from(), 1).await?;
        Ok(batch.first().map(KeyValue::to_key))
    }

    /// Returns the sweep in progress, or begins one. `None`: there is nothing to do.
    async fn begin(&self, tr: &impl Transaction, bucket: Bucket) -> Result<Option<PassStart>> {
        let (sweep, notification) = (self.keys.sweep(bucket), self.keys.notification(bucket));
        // The notification by snapshot, or every writer would make the pass fail. One that changes
        // before the commit is not cleared.
        let (stored, notified, version) = try_join!(
            tr.get(&sweep, Isolation::Serializable),
            tr.get(&notification, Isolation::Snapshot),
            tr.read_version(),
        )?;
        let Sweep {
            completed,
            in_progress,
        } = Sweep::decode(&sweep, stored)?;
        let notified = notified
            .map(|stamp| decode_stamp(&notification, &stamp))
            .transpose()?;
        let begin = |notification| InProgress {
            began: version,
            notification,
            next: Vec::new(),
        };
        let sweep = in_progress.or_else(|| notified.map(begin));
        Ok(sweep.map(|sweep| PassStart {
            completed,
            has_news: notified != Some(sweep.notification),
            sweep,
        }))
    }

    /// Stages where the sweep is after the pass, and clears its notification at the end.
    fn advance(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        completed: i64,
        sweep: InProgress,
        next: Option<Bytes>,
    ) {
        let after = match next {
            Some(next) => Sweep {
                completed,
                in_progress: Some(InProgress {
                    next: next.to_vec(),
                    ..sweep
                }),
            },
            None => {
                let notification = self.keys.notification(bucket);
                let compared = sweep.notification;
                tr.atomic(
                    MutationOp::CompareAndClear,
                    &notification,
                    compared.as_bytes(),
                );
                Sweep {
                    completed: sweep.began,
                    in_progress: None,
                }
            }
        };
        tr.set(&self.keys.sweep(bucket), &after.encode());
    }

    /// Folds what was taken, key by key, until the values, too, are over the budget.
    async fn fold_all(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        batch: Batch,
        budget: usize,
    ) -> Result<Work<K, V>> {
        let mut work = Work {
            folded: Vec::with_capacity(batch.taken.len()),
            next: batch.next,
            bytes: 0,
        };
        let read = |taken| self.read(tr, bucket, taken);
        let mut read = stream::iter(batch.taken).map(read).buffered(READS_AT_ONCE);
        while let Some((taken, reported, current)) = read.try_next().await? {
            let key = self.fold(taken, reported, current);
            let after = key.after.as_ref().and_then(|after| after.current.as_ref());
            // The updates, the value that is read, and what is written instead of it.
            let bytes = key.taken.bytes
                + key.current.as_ref().map_or(0, Bytes::len)
                + after.map_or(0, Bytes::len);
            if work.bytes + bytes > budget && !work.folded.is_empty() {
                work.next = Some(key.taken.key);
                break;
            }
            work.bytes += bytes;
            work.folded.push(key);
        }
        Ok(work)
    }

    /// Reads the value of a key: as it was last reported, and as it is.
    async fn read(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        taken: TakenUpdates,
    ) -> Result<(TakenUpdates, Value, Option<Bytes>)> {
        let row = self.keys.value(bucket, &taken.key);
        // Serializably: whoever initializes the key makes the pass fail.
        let reported = Value::decode(&row, tr.get(&row, Isolation::Serializable).await?)?;
        let current = match reported.is_outdated {
            false => reported.bytes.clone(),
            true => {
                let row = self.keys.current(bucket, &taken.key);
                Value::decode(&row, tr.get(&row, Isolation::Serializable).await?)?.bytes
            }
        };
        Ok((taken, reported, current))
    }

    /// Folds updates of one key. What cannot be folded is set aside, so that the others go on.
    fn fold(&self, taken: TakenUpdates, reported: Value, current: Option<Bytes>) -> Folded<K, V> {
        let (mut updates, mut indexes) = (Vec::with_capacity(taken.len()), Vec::new());
        let mut aside = Vec::new();
        for (index, update) in taken.updates().enumerate() {
            let update = update.and_then(|bytes| {
                <C as Codec<U>>::decode(&self.codec, bytes).map_err(|error| error.to_string())
            });
            match update {
                Ok(update) => {
                    updates.push(update);
                    indexes.push(index);
                }
                Err(reason) => aside.push((index, reason)),
            }
        }
        let mut key = Folded {
            taken,
            reported,
            current,
            after: None,
            aside,
        };
        key.after = match self.combine(&key, updates) {
            Ok(after) => Some(after),
            Err(reason) => {
                let refused = indexes.into_iter().map(|index| (index, reason.clone()));
                key.aside.extend(refused);
                // What passes before have folded is still to be reported.
                self.combine(&key, Vec::new()).ok()
            }
        };
        key
    }

    /// Returns the value of a key after some updates, or why there is none.
    fn combine(&self, folded: &Folded<K, V>, updates: Vec<U>) -> Result<After<K, V>, String> {
        let key = <C as Codec<K>>::decode(&self.codec, folded.taken.key.clone());
        let key = key.map_err(|error| format!("the key: {error}"))?;
        let decode = |bytes: &Option<Bytes>| {
            let decode = |bytes| <C as Codec<V>>::decode(&self.codec, bytes);
            let value = bytes.clone().map(decode).transpose();
            value.map_err(|error| format!("the value: {error}"))
        };
        let mut value = decode(&folded.current)?;
        let mut current = folded.current.clone();
        if !updates.is_empty() {
            let fold = || self.combiner.fold(&key, value, updates);
            value = catch_unwind(AssertUnwindSafe(fold))
                .map_err(|panic| format!("the combiner panicked: {}", panic_message(&*panic)))?;
            let encode = |value| encode(&self.codec, value);
            current = value.as_ref().map(encode).transpose()?;
        }
        let mut change = None;
        if folded.taken.is_whole && current != folded.reported.bytes {
            let old = decode(&folded.reported.bytes)?;
            let new = value;
            change = Some(Change::new(key, old, new));
        }
        Ok(After { current, change })
    }

    /// Stages what becomes of a key. Returns what to report.
    fn stage(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        folded: Folded<K, V>,
    ) -> Result<Option<Change<K, V>>> {
        let Folded {
            taken,
            reported,
            current,
            after,
            aside,
        } = folded;
        taken.remove(tr)?;
        for (index, reason) in &aside {
            let (id, update) = taken.record(*index)?;
            let row = self.keys.aside(&taken.key, &id);
            tracing::warn!(queue = %self.keys.queue, key = ?taken.key, ?id, reason, "set an update aside");
            tr.set(&row, &encode_aside(reason, &update));
        }
        let Some(After {
            current: new,
            change,
        }) = after
        else {
            return Ok(None);
        };
        let value_row = self.keys.value(bucket, &taken.key);
        let current_row = self.keys.current(bucket, &taken.key);
        let is_outdated = !taken.is_whole;
        if is_outdated && new != current {
            tr.set(&current_row, &Value::from(new).encode());
            let bytes = reported.bytes;
            tr.set(&value_row, &Value { bytes, is_outdated }.encode());
        } else if !is_outdated && (reported.is_outdated || new != reported.bytes) {
            if reported.is_outdated {
                tr.clear(&current_row);
            }
            match new {
                Some(_) => tr.set(&value_row, &Value::from(new).encode()),
                None => tr.clear(&value_row),
            }
        }
        Ok(change)
    }
}

/// Sets aside all that was taken, and leaves the values as they are.
fn set_all_aside<K, V>(batch: Batch, reason: &str) -> Work<K, V> {
    let aside = |taken: TakenUpdates| Folded {
        aside: (0..taken.len())
            .map(|index| (index, reason.to_owned()))
            .collect(),
        taken,
        reported: Value::default(),
        current: None,
        after: None,
    };
    Work {
        folded: batch.taken.into_iter().map(aside).collect(),
        next: batch.next,
        bytes: batch.bytes,
    }
}

/// Returns the bytes of a value, or why it cannot be stored.
fn encode<V>(codec: &impl Codec<V>, value: &V) -> Result<Bytes, String> {
    let mut bytes = Vec::new();
    (codec.encode(value, &mut bytes)).map_err(|error| error.to_string())?;
    match bytes.len() {
        fits if fits <= MAX_VALUE_BYTES => Ok(bytes.into()),
        bytes => Err(format!(
            "the value would have {bytes} bytes, and a record holds up to {MAX_VALUE_BYTES}"
        )),
    }
}

/// Calls the observer, for as long as it may take.
async fn observe<K, V, T: Transaction>(
    env: &Environment,
    tr: &T,
    observer: &impl ChangeObserver<K, V>,
    changes: &[Change<K, V>],
    limit: Duration,
) -> Result<()> {
    // The call itself may panic as well as its future.
    let observe = async { observer.observe(tr, changes).await };
    let observe = AssertUnwindSafe(observe).catch_unwind();
    match env.timeout(limit, observe).await {
        Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(Error::Observer(Arc::from(error))),
        Some(Err(panic)) => Err(Error::ObserverPanicked {
            message: panic_message(&*panic).to_owned(),
        }),
        None => Err(Error::ObserverTimedOut { limit }),
    }
}
