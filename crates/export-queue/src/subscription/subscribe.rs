//! Creates and removes subscriptions.

use combine::keyspace::codec::Codec;
use combine::keyspace::recipe::StoredSettings;
use combine::keyspace::record::MAX_SHORT_BYTES;
use combine::keyspace::{
    Database, Isolation, MutationOp, Runner, Transaction, Versionstamp, limits,
};

use crate::error::{Error, Result};
use crate::queue::ExportQueue;
use crate::record::{POSITION_STAMP, encode_position};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// The place in the logs where a new subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the oldest entry that still exists.
    Oldest,
    /// After all entries committed before the subscription.
    Now,
}

impl<K, V, C> ExportQueue<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Returns the subscription with this name, creating it if it does not exist. `start` is ignored if
    /// it exists.
    ///
    /// Each subscription has its own positions. An entry stays until all subscriptions have exported it,
    /// so a subscription without a worker keeps all entries from being removed.
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if the subscription is created.
    ///
    /// # Errors
    /// [`SubscriptionName`](Error::SubscriptionName),
    /// [`TooManySubscriptions`](Error::TooManySubscriptions), and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the subscription may or may not have been created.
    ///
    /// # Examples
    /// ```
    /// use export_queue::keyspace::{self, Runner};
    /// use export_queue::{ExportQueue, Start};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let changes = &ExportQueue::<String, u64>::open(&runner, "changes").await?;
    ///
    /// // The receiver starts with the oldest entry that still exists.
    /// let table = changes.subscribe(&runner, "table", Start::Oldest).await?;
    /// assert_eq!(table.name(), "table");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn subscribe<D: Database>(
        &self,
        runner: &Runner<D>,
        name: &str,
        start: Start,
    ) -> Result<Subscription<K, V, C>> {
        if name.is_empty() || name.len() > MAX_SHORT_BYTES {
            return Err(Error::SubscriptionName {
                bytes: name.len(),
                limit: MAX_SHORT_BYTES,
            });
        }
        runner
            .run(|tr| async move { self.create(&tr, name, start).await })
            .await?;
        Ok(Subscription {
            queue: self.clone(),
            name: name.into(),
        })
    }

    /// Returns the subscription with this name, or `None` if it does not exist.
    ///
    /// # Conflicts
    /// Reads the settings.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    pub async fn subscription(
        &self,
        tr: &impl Transaction,
        name: &str,
    ) -> Result<Option<Subscription<K, V, C>>> {
        let subscription = Subscription {
            queue: self.clone(),
            name: name.into(),
        };
        if subscription.is_there(tr).await? {
            Ok(Some(subscription))
        } else {
            Ok(None)
        }
    }

    /// Stages a subscription, unless one with this name exists.
    pub(crate) async fn create(
        &self,
        tr: &impl Transaction,
        name: &str,
        start: Start,
    ) -> Result<()> {
        let mut stored = self.stored(tr, Isolation::Serializable).await?;
        if stored.subscriptions.iter().any(|other| other == name) {
            return Ok(());
        }
        stored.subscriptions.push(name.to_owned());
        stored.subscriptions.sort_unstable();
        let record = stored.encode();
        if record.len() > limits::MAX_VALUE_BYTES {
            let queue = self.keys.queue.clone();
            return Err(Error::TooManySubscriptions { queue });
        }
        tr.set(&self.keys.settings(), &record);
        if start == Start::Now {
            self.begin_now(tr, name);
        }
        Ok(())
    }

    /// Stages positions after all entries committed before this transaction.
    fn begin_now(&self, tr: &impl Transaction, name: &str) {
        // Also after the entries that this transaction adds, whatever their call numbers are.
        let position = Sequence::after_commit(Versionstamp::INCOMPLETE);
        let mut value = encode_position(&position);
        value.extend_from_slice(&POSITION_STAMP.to_le_bytes());
        for bucket in self.keys.buckets() {
            let key = self.keys.position(name, bucket);
            tr.atomic(MutationOp::SetVersionstampedValue, &key, &value);
        }
    }

    /// Returns the names of the subscriptions, sorted.
    ///
    /// # Conflicts
    /// Reads the settings.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    pub async fn subscriptions(&self, tr: &impl Transaction) -> Result<Vec<String>> {
        Ok(self
            .stored(tr, Isolation::Serializable)
            .await?
            .subscriptions)
    }

    /// Stages the removal of a subscription, including its positions, pause and dead letters. Returns
    /// false if it does not exist.
    ///
    /// Entries that only this subscription has not exported are removed with the next batch of another
    /// subscription. The workers of the removed subscription find no more work; shut them down, for example
    /// when [`wait_removed`](Subscription::wait_removed) returns.
    ///
    /// # Conflicts
    /// Reads and writes the settings, and writes all keys of the subscription.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    pub async fn unsubscribe(&self, tr: &impl Transaction, name: &str) -> Result<bool> {
        let mut stored = self.stored(tr, Isolation::Serializable).await?;
        let before = stored.subscriptions.len();
        stored.subscriptions.retain(|other| other != name);
        if stored.subscriptions.len() == before {
            return Ok(false);
        }
        tr.set(&self.keys.settings(), &stored.encode());
        for part in self.keys.of_subscription(name) {
            let (begin, end) = part.range();
            tr.clear(part.bytes());
            tr.clear_range(&begin, &end);
        }
        Ok(true)
    }
}
