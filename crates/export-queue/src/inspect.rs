//! Reads a queue for operators: any queue by its stored bytes, and the progress of its subscriptions.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use combine::bucket_worker::lag_of;
use combine::keyspace::codec::{Codec, Raw};
use combine::keyspace::recipe::stored_settings;
use combine::keyspace::{
    Bytes, Database, Isolation, RangeQuery, Runner, StreamingMode, Subspace, Transaction, Tx,
    visit_rows,
};
use combine::microqueue::blocks::EntryId;
use combine::{Bucket, Pending};

use crate::error::{Error, Result};
use crate::keys::settings_key;
use crate::queue::ExportQueue;
use crate::record::SettingsRecord;
use crate::subscription::Subscription;

/// The most bytes of dead letters that are read to count them.
const MOST_COUNTED_BYTES: usize = 1 << 20;

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
    /// The entries of all buckets that are not exported yet, in up to about 1 MiB of blocks per bucket.
    pub pending: Pending,
    /// The dead letters of the subscription.
    pub dead_letters: LetterCount,
    /// Whether the subscription keeps entries from being removed: it has not exported all of the first
    /// block of some bucket, but another subscription has.
    ///
    /// If all subscriptions that hold a bucket back were removed, the next batch of another subscription
    /// from that bucket would remove the block. While no subscription has exported all of that block,
    /// none of them holds it back. The only subscription of a queue therefore never holds the log back,
    /// however large its backlog is.
    pub holds_back: bool,
    /// The buckets whose positions do not decode. Their entries count as not exported, and are not
    /// exported until the positions are repaired or cleared.
    pub damaged: Vec<Bucket>,
}

/// The number of dead letters, up to the one with which the rows read reach 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LetterCount {
    /// The number of letters counted, whether or not they decode.
    pub count: usize,
    /// Whether there are more letters, which were not counted.
    pub has_more: bool,
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
    /// - [`Corrupt`](combine::keyspace::Error::Corrupt) if the settings do not decode, for example
    ///   because a newer version wrote them
    /// - [`InvalidSettings`](Error::InvalidSettings) if the settings are out of range
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
    /// let (subspace, options) = (Subspace::from("changes"), OpenOptions::new().codec(Json));
    /// let changes: ExportQueue<String, u64, Json> =
    ///     ExportQueue::open_with(&runner, subspace.clone(), Settings::default(), options).await?;
    /// changes.subscribe(&runner, "table", Start::Oldest).await?;
    /// let (changes, fish) = (&changes, &"fish".to_owned());
    /// runner.run(|tr| async move { changes.add(&tr, fish, &3).await }).await?;
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
        let key = &settings_key(&subspace);
        let read = |tr: Tx<_>| async move { Ok::<_, Error>(stored_settings(&tr, key).await?) };
        let record: Option<SettingsRecord> = runner.run(read).await?;
        let Some(record) = record else {
            return Ok(None);
        };
        // Without this check, a corrupt bucket count could be arbitrarily large.
        record.settings.check()?;
        let env = runner.environment().clone();
        let queue = Self::with_settings(subspace, record.settings, Raw, env);
        Ok(Some((queue, record)))
    }
}

/// The first block of each bucket that has one.
type Heads = BTreeMap<Bucket, EntryId>;

/// A subscription with the buckets that it has not fully exported.
struct Behind<K, V, C> {
    subscription: Subscription<K, V, C>,
    /// The first block that is not fully exported, or the error of a position that does not decode.
    firsts: BTreeMap<Bucket, Result<EntryId>>,
}

impl<K, V, C> Behind<K, V, C> {
    /// Returns whether it has exported all of the first block of a bucket.
    fn has_passed(&self, bucket: Bucket, head: EntryId) -> bool {
        match self.firsts.get(&bucket) {
            None => true,
            Some(Ok(first)) => *first > head,
            Some(Err(_)) => false,
        }
    }
}

impl<K, V, C> ExportQueue<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Returns the progress of each subscription, sorted by name. A position that does not decode is
    /// listed in [`damaged`](SubscriptionState::damaged), and does not cause an error.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue); [`Corrupt`](combine::keyspace::Error::Corrupt) if the settings do not
    /// decode; those of the store.
    pub async fn subscription_states(
        &self,
        tr: &impl Transaction,
    ) -> Result<Vec<SubscriptionState>> {
        // Safe as snapshot reads, this one and all that follow: nothing is staged on the basis of their
        // results.
        let record = stored_settings(tr, &self.keys.settings()).await?;
        let record: SettingsRecord = record.ok_or_else(|| Error::NoQueue {
            queue: self.keys.queue.clone(),
        })?;
        let heads = self.keys.logs.firsts(tr).await?.into_iter();
        let heads: Heads = heads.map(|(log, first)| (Bucket(log), first)).collect();
        let mut all = Vec::new();
        for name in &record.subscriptions {
            let subscription = Subscription {
                queue: self.clone(),
                name: name.as_str().into(),
            };
            let firsts = subscription.firsts(tr).await?.into_iter().collect();
            all.push(Behind {
                subscription,
                firsts,
            });
        }
        let is_passed_by_one =
            |bucket: Bucket, head: EntryId| all.iter().any(|other| other.has_passed(bucket, head));
        let mut states = Vec::new();
        for behind in &all {
            let holds_back = heads.iter().any(|(bucket, head)| {
                !behind.has_passed(*bucket, *head) && is_passed_by_one(*bucket, *head)
            });
            states.push(read_state(tr, behind, &heads, holds_back).await?);
        }
        Ok(states)
    }
}

/// Reads the progress of a subscription. The caller knows from the other subscriptions whether it holds
/// the log back.
async fn read_state<K, V, C>(
    tr: &impl Transaction,
    behind: &Behind<K, V, C>,
    heads: &Heads,
    holds_back: bool,
) -> Result<SubscriptionState>
where
    C: Codec<K> + Codec<V>,
{
    let Behind {
        subscription,
        firsts,
    } = behind;
    // If a position does not decode, all entries of its bucket wait.
    let waiting = firsts.iter().filter_map(|(bucket, first)| match first {
        Ok(first) => Some(*first),
        Err(_) => heads.get(bucket).copied(),
    });
    let damaged = firsts.iter().filter(|(_, first)| first.is_err());
    let logs = &subscription.queue.keys.logs;
    let count = |bucket| async move {
        match subscription.pending(tr, bucket).await {
            Err(error) if error.is_corrupt() => Pending::of_log(tr, logs, bucket, None, None).await,
            counted => counted,
        }
    };
    Ok(SubscriptionState {
        name: subscription.name().to_owned(),
        is_paused: subscription.is_paused(tr).await?,
        lag: lag_of(tr, waiting).await?,
        pending: Pending::total(firsts.keys().copied(), count).await?,
        dead_letters: count_letters(tr, subscription).await?,
        holds_back,
        damaged: damaged.map(|(bucket, _)| *bucket).collect(),
    })
}

async fn count_letters<K, V, C>(
    tr: &impl Transaction,
    subscription: &Subscription<K, V, C>,
) -> Result<LetterCount>
where
    C: Codec<K> + Codec<V>,
{
    let keys = &subscription.queue.keys;
    let (begin, end) = keys.letters(subscription.name()).range();
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    let (mut counted, mut row_bytes) = (LetterCount::default(), 0);
    visit_rows(tr, query, Isolation::Snapshot, |row| {
        if row_bytes >= MOST_COUNTED_BYTES {
            counted.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        counted.count += 1;
        row_bytes += row.key().len() + row.value().len();
        Ok::<_, Error>(ControlFlow::Continue(()))
    })
    .await?;
    Ok(counted)
}
