//! Reads a queue for operators: any queue by its stored bytes, and the progress of its subscriptions.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use combine::bucket_worker::{MAX_BACKLOG_BYTES, WaitingLog};
use combine::keyspace::codec::{Codec, Raw};
use combine::keyspace::recipe::read_settings;
use combine::keyspace::{
    Bytes, Database, Isolation, RowCount, Runner, Subspace, Transaction, count_rows,
};
use combine::microqueue::blocks::EntryId;
use combine::{Backlog, Bucket, Pending};

use crate::error::Result;
use crate::keys::settings_key;
use crate::queue::ExportQueue;
use crate::record::SettingsRecord;
use crate::subscription::{Heads, Subscription, head_of, waiting_log};

/// The most bytes of dead letters of a subscription that are read to count them.
const MAX_DEAD_LETTER_BYTES: usize = 1 << 20;

/// The most bytes of dead letters of all subscriptions that are read to count them.
const MAX_ALL_DEAD_LETTER_BYTES: usize = 8 << 20;

/// The progress of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionState {
    /// The name of the subscription.
    pub name: String,
    /// Whether it is paused.
    pub is_paused: bool,
    /// How long the oldest entry that is not exported yet has waited, derived from the versions of the
    /// store. `None` if there is none.
    pub lag: Option<Duration>,
    /// The entries of all buckets that are not exported yet, in up to about 1 MiB of blocks per bucket. All
    /// subscriptions together read about 8 MiB of blocks, in equal shares.
    pub pending: Pending,
    /// The dead letters of the subscription, whether or not they decode. They are counted up to the one
    /// with which their rows reach 1 MiB, or, if there are more than eight subscriptions, an equal share of
    /// 8 MiB.
    pub dead_letters: RowCount,
    /// Whether the subscription keeps entries from being removed: it has not exported all of the first
    /// block of some bucket, but another subscription has.
    ///
    /// If all subscriptions that hold a bucket back were removed, the next batch of another subscription
    /// from that bucket would remove the block. While no subscription has exported all of that block,
    /// none of them holds it back. The only subscription of a queue therefore never holds the log back,
    /// however large its backlog is.
    pub holds_back: bool,
    /// The buckets whose positions do not decode, or whose logs contain a key that is not the key of a
    /// block. Without a position, all entries of the bucket count as not exported. The entries of such a
    /// bucket are not exported until the position or the log is repaired or cleared.
    pub damaged: Vec<Bucket>,
}

impl ExportQueue<Bytes, Bytes, Raw> {
    /// Opens the existing queue in `subspace` for a tool that does not know its types or codecs. Keys and
    /// values are the stored bytes.
    ///
    /// Returns the queue and the settings that it was created with, including the names of its codecs and
    /// subscriptions, or `None` if there is no queue. It does not create, register or verify anything.
    ///
    /// A tool that adds to the queue must call [`verify_order`](Self::verify_order) first, and must add
    /// bytes that the queue's own codecs write: an entry that does not decode becomes a dead letter.
    ///
    /// # Conflicts
    /// Reads the settings by snapshot.
    ///
    /// # Errors
    /// - [`Corrupt`](combine::keyspace::Error::Corrupt) if the settings do not decode or are out of range,
    ///   for example because a newer version wrote them
    /// - those of [`Runner::run`]
    ///
    /// # Examples
    /// ```
    /// use export_queue::keyspace::codec::Json;
    /// use export_queue::keyspace::{self, Database, OpenOptions, Runner, Subspace};
    /// use export_queue::{ExportQueue, Settings, Start};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let subspace = Subspace::from("changes");
    /// let options = OpenOptions::new().with_codec(Json);
    /// let changes: ExportQueue<String, u64, Json> =
    ///     ExportQueue::open_with(&runner, subspace.clone(), Settings::default(), options).await?;
    /// changes.subscribe(&runner, "table", Start::Oldest).await?;
    /// let changes = &changes;
    /// let fish = &"fish".to_owned();
    /// runner.run(async |tr| changes.add(&tr, fish, &3).await).await?;
    ///
    /// // Elsewhere, without the types.
    /// let (stored, record) = ExportQueue::inspect(&runner, subspace).await?.unwrap();
    /// assert_eq!(record.codecs, ["Json", "Json"]);
    /// let states = stored.subscription_states(&runner.database().begin()?).await?;
    /// assert_eq!((&*states[0].name, states[0].pending.count), ("table", 1));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
    ) -> Result<Option<(Self, SettingsRecord)>> {
        let record: Option<SettingsRecord> =
            read_settings(runner, &settings_key(&subspace)).await?;
        let Some(record) = record else {
            return Ok(None);
        };
        let env = runner.environment().clone();
        let queue = Self::with_settings(subspace, record.settings, Raw, env);
        Ok(Some((queue, record)))
    }
}

impl<K, V, C> Subscription<K, V, C> {
    /// Returns the subscription to the queue as stored bytes.
    pub(crate) fn untyped(&self) -> Subscription<Bytes, Bytes, Raw> {
        let queue = &self.queue;
        Subscription {
            queue: ExportQueue {
                keys: queue.keys.clone(),
                settings: queue.settings,
                codec: Raw,
                types: PhantomData,
            },
            name: self.name.clone(),
        }
    }
}

/// A subscription with the buckets that it has not fully exported.
struct Unfinished<K, V, C> {
    subscription: Subscription<K, V, C>,
    /// What waits, or the error of a position or of a first key that does not decode.
    waiting: BTreeMap<Bucket, Result<WaitingLog>>,
}

impl<K, V, C> Unfinished<K, V, C> {
    /// Returns whether the subscription has exported all of the first block of a bucket.
    fn has_passed(&self, bucket: Bucket, head: EntryId) -> bool {
        match self.waiting.get(&bucket) {
            None => true,
            Some(Ok(log)) => log.first > Some(head),
            Some(Err(_)) => false,
        }
    }

    /// Returns the logs to count. Without a position, all entries of a bucket wait.
    fn logs(&self, heads: &Heads) -> Vec<WaitingLog> {
        let logs = self.waiting.iter().map(|(bucket, log)| match log {
            Ok(log) => *log,
            Err(_) => WaitingLog {
                first: head_of(heads, *bucket),
                is_damaged: true,
                ..waiting_log(*bucket, None)
            },
        });
        logs.collect()
    }
}

impl<K, V, C> ExportQueue<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Returns the progress of each subscription, sorted by name. A damaged bucket is listed in
    /// [`damaged`](SubscriptionState::damaged), and does not cause an error.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`NoQueue`](crate::Error::NoQueue); [`Corrupt`](combine::keyspace::Error::Corrupt) if the settings do not
    /// decode; those of the store.
    pub async fn subscription_states(
        &self,
        tr: &impl Transaction,
    ) -> Result<Vec<SubscriptionState>> {
        // Safe as snapshot reads, this one and all that follow: nothing is staged on the basis of their
        // results.
        let record = self.stored(tr, Isolation::Snapshot).await?;
        let heads = self.keys.logs.firsts(tr).await?;
        let mut all = Vec::new();
        for name in &record.subscriptions {
            let subscription = Subscription {
                queue: self.clone(),
                name: name.as_str().into(),
            };
            let waiting = subscription.waiting(tr, &heads).await?;
            all.push(Unfinished {
                subscription,
                waiting: waiting.into_iter().collect(),
            });
        }
        let is_passed_by_one =
            |bucket: Bucket, head: EntryId| all.iter().any(|other| other.has_passed(bucket, head));
        let mut states = Vec::new();
        for unfinished in &all {
            let holds_back = heads.iter().any(|(log, head)| match head {
                Ok(head) => {
                    let bucket = Bucket(*log);
                    !unfinished.has_passed(bucket, *head) && is_passed_by_one(bucket, *head)
                }
                Err(_) => false,
            });
            states.push(read_state(tr, unfinished, &heads, holds_back, all.len()).await?);
        }
        Ok(states)
    }
}

/// Reads the progress of one of `count` subscriptions. The caller knows from the others whether it holds
/// the log back.
async fn read_state<K, V, C>(
    tr: &impl Transaction,
    unfinished: &Unfinished<K, V, C>,
    heads: &Heads,
    holds_back: bool,
    count: usize,
) -> Result<SubscriptionState>
where
    C: Codec<K> + Codec<V>,
{
    let subscription = &unfinished.subscription;
    let logs = unfinished.logs(heads);
    let share = MAX_BACKLOG_BYTES / count;
    let backlog = Backlog::read(tr, &subscription.queue.keys.logs, logs, share).await?;
    let letter_bytes = MAX_DEAD_LETTER_BYTES.min(MAX_ALL_DEAD_LETTER_BYTES / count);
    let (begin, end) = subscription
        .queue
        .keys
        .dead_letters(subscription.name())
        .range();
    Ok(SubscriptionState {
        name: subscription.name().to_owned(),
        is_paused: subscription.is_paused(tr).await?,
        lag: backlog.lag,
        pending: backlog.pending,
        dead_letters: count_rows(tr, begin, end, letter_bytes).await?,
        holds_back,
        damaged: backlog.damaged,
    })
}
