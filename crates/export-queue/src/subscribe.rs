//! Subscriptions come and go.

use combine::keyspace::codec::Codec;
use combine::keyspace::recipe::StoredSettings;
use combine::keyspace::record::SHORT_BYTES;
use combine::keyspace::{Database, MutationOp, Runner, Transaction, Versionstamp, limits};

use crate::error::{Error, Result};
use crate::queue::ExportQueue;
use crate::record::{POSITION_STAMP, encode_position};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the oldest entry that is still there.
    Oldest,
    /// After everything that was committed before.
    Now,
}

impl<K, V, C> ExportQueue<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Returns a subscription of this name, and creates it if there is none; `start` matters only
    /// then. Each has positions of its own, and entries stay until all have exported them: one
    /// without a worker holds all of them back.
    ///
    /// # Conflicts
    /// Reads the settings, and writes them if it is new.
    ///
    /// # Errors
    /// [`SubscriptionName`](Error::SubscriptionName),
    /// [`TooManySubscriptions`](Error::TooManySubscriptions), and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves a subscription or none.
    pub async fn subscribe<D: Database>(
        &self,
        runner: &Runner<D>,
        name: &str,
        start: Start,
    ) -> Result<Subscription<K, V, C>> {
        if name.is_empty() || name.len() > SHORT_BYTES {
            return Err(Error::SubscriptionName {
                bytes: name.len(),
                limit: SHORT_BYTES,
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

    /// Returns the subscription of a name, if there is one.
    ///
    /// # Conflicts
    /// Reads the settings.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn subscription(
        &self,
        tr: &impl Transaction,
        name: &str,
    ) -> Result<Option<Subscription<K, V, C>>> {
        let subscription = Subscription {
            queue: self.clone(),
            name: name.into(),
        };
        let is_there = subscription.is_there(tr).await?;
        Ok(is_there.then_some(subscription))
    }

    /// Stages a subscription, unless there is one of this name.
    pub(crate) async fn create(
        &self,
        tr: &impl Transaction,
        name: &str,
        start: Start,
    ) -> Result<()> {
        let mut stored = self.stored(tr).await?;
        if stored.subscriptions.iter().any(|other| other == name) {
            return Ok(());
        }
        stored.subscriptions.push(name.to_owned());
        stored.subscriptions.sort_unstable();
        let stored = stored.encode();
        if stored.len() > limits::VALUE_BYTES {
            let queue = self.keys.queue.clone();
            return Err(Error::TooManySubscriptions { queue });
        }
        tr.set(&self.keys.settings(), &stored);
        if start == Start::Now {
            self.begin_now(tr, name);
        }
        Ok(())
    }

    /// Stages positions after everything that is committed before.
    fn begin_now(&self, tr: &impl Transaction, name: &str) {
        // Also after what this transaction adds, whatever its calls.
        let position = Sequence::after_commit(Versionstamp::INCOMPLETE);
        let mut value = encode_position(&position);
        value.extend_from_slice(&POSITION_STAMP.to_le_bytes());
        for bucket in self.keys.buckets() {
            let key = self.keys.position(name, bucket);
            tr.atomic(MutationOp::SetVersionstampedValue, &key, &value);
        }
    }

    /// Returns the names of the subscriptions, in order.
    ///
    /// # Conflicts
    /// Reads the settings.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn subscriptions(&self, tr: &impl Transaction) -> Result<Vec<String>> {
        Ok(self.stored(tr).await?.subscriptions)
    }

    /// Stages that there is no such subscription any more: its positions, pause and dead letters are
    /// gone, and what only it has not exported will be trimmed with the next batch of another one.
    /// False: there was none. Its workers find nothing to do from then on: shut them down, for instance
    /// when [`wait_removed`](Subscription::wait_removed) returns.
    ///
    /// # Conflicts
    /// Reads and writes the settings, and writes all that is the subscription's.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of the store.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing.
    pub async fn unsubscribe(&self, tr: &impl Transaction, name: &str) -> Result<bool> {
        let mut stored = self.stored(tr).await?;
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
