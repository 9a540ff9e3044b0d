//! Subscriptions: each one exports to an external system, with its own positions in the logs.

pub(crate) mod dead_letters;
pub(crate) mod inspect;
pub(crate) mod subscribe;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use combine::bucket_worker::{WaitingLog, lag_of};
use combine::hc_dequeue::session::Sessions;
use combine::keyspace::codec::{Codec, MessagePack};
use combine::keyspace::recipe::wait_until_none;
use combine::keyspace::{Database, Isolation, Runner, Transaction};
use combine::microqueue::blocks::EntryId;
use combine::{Bucket, Pending, microqueue};
use futures::future::try_join_all;

use crate::error::{Error, Result};
use crate::queue::ExportQueue;
use crate::record::decode_claim;
use crate::sequence::Sequence;

/// The logs that have a block, each with its first one.
pub(crate) type Heads = [(u32, microqueue::Result<EntryId>)];

/// A reader of an export queue, identified by its name. Clones are the same subscription.
///
/// # Cancel safety
/// If the future of an operation on a transaction is dropped before it is ready, the operation has staged nothing but
/// conflict ranges, unless its documentation says otherwise. Dropping a read or a wait changes nothing.
pub struct Subscription<K, V, C = MessagePack> {
    pub(crate) queue: ExportQueue<K, V, C>,
    pub(crate) name: Arc<str>,
}

impl<K, V, C> Subscription<K, V, C>
where
    C: Codec<K> + Codec<V>,
{
    /// Returns the subscription's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &ExportQueue<K, V, C> {
        &self.queue
    }

    /// Stages that the subscription exports nothing until [`resume`](Self::resume). A batch that is under
    /// way is finished.
    ///
    /// # Conflicts
    /// Writes a key that workers read by snapshot.
    pub fn pause(&self, tr: &impl Transaction) {
        tr.set(&self.queue.keys.pause(&self.name), b"");
    }

    /// Stages that the subscription exports again.
    ///
    /// # Conflicts
    /// As [`pause`](Self::pause).
    pub fn resume(&self, tr: &impl Transaction) {
        tr.clear(&self.queue.keys.pause(&self.name));
        self.queue.keys.wake_all(tr);
    }

    /// Returns whether the subscription is paused.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_paused(&self, tr: &impl Transaction) -> Result<bool> {
        let pause = self.queue.keys.pause(&self.name);
        Ok(tr.get(&pause, Isolation::Snapshot).await?.is_some())
    }

    /// Counts the entries of a bucket that are not exported yet, in up to about 1 MiB of blocks.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// [`Corrupt`](combine::keyspace::Error::Corrupt) if the position does not decode; those of the
    /// store.
    pub async fn pending(&self, tr: &impl Transaction, bucket: Bucket) -> Result<Pending> {
        let position = self.position(tr, bucket, Isolation::Snapshot).await?;
        let waiting = waiting_log(bucket, position);
        Ok(waiting.count(tr, &self.queue.keys.logs).await?)
    }

    /// Returns how long the oldest entry that is not exported yet has waited, or `None` if there is none.
    /// The time is derived from the versions of the store, so it is too large after a recovery of the
    /// store.
    ///
    /// Without a position that decodes, all entries of a bucket wait. A log whose first key is not that of a
    /// block is left out.
    ///
    /// # Conflicts
    /// Reads by snapshot.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn lag(&self, tr: &impl Transaction) -> Result<Option<Duration>> {
        let heads = self.queue.keys.logs.firsts(tr).await?;
        let waiting = self.waiting(tr, &heads).await?.into_iter();
        let firsts = waiting.filter_map(|(bucket, log)| match log {
            Ok(log) => log.first,
            Err(_) => head_of(&heads, bucket),
        });
        Ok(lag_of(tr, firsts).await?)
    }

    /// Waits until everything is exported, for tests and for jobs that end.
    ///
    /// Workers must be running in some process, and the subscription must not be paused. A dead letter
    /// counts as exported.
    ///
    /// # Conflicts
    /// Reads by snapshot, except for the names of the subscriptions.
    ///
    /// # Errors
    /// - [`NoSubscription`](Error::NoSubscription) as soon as the subscription is removed
    /// - [`Corrupt`](combine::keyspace::Error::Corrupt) if the only buckets left have a position, a claim or a
    ///   first key in their log that does not decode
    /// - those of [`Runner::run`]
    pub async fn wait_idle<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            if !self.is_there(&tr).await? {
                return Err(Error::NoSubscription {
                    queue: self.queue.keys.queue.clone(),
                    subscription: self.name.to_string(),
                });
            }
            let mut damaged = Ok(None);
            let heads = self.queue.keys.logs.firsts(&tr).await?;
            for (bucket, waiting) in self.waiting(&tr, &heads).await? {
                match waiting {
                    Ok(_) => match self.check_claim(&tr, bucket).await {
                        // Each exported batch sets the position.
                        Ok(()) => return Ok(Some(self.queue.keys.position(&self.name, bucket))),
                        Err(error) if error.is_corrupt() => damaged = Err(error),
                        Err(error) => return Err(error),
                    },
                    Err(error) => damaged = Err(error),
                }
            }
            damaged
        })
        .await
    }

    /// Waits until the subscription is [removed](ExportQueue::unsubscribe). Its workers then find no more
    /// work.
    ///
    /// # Errors
    /// [`NoQueue`](Error::NoQueue), and those of [`Runner::run`].
    pub async fn wait_removed<D: Database>(&self, runner: &Runner<D>) -> Result<()> {
        wait_until_none(runner, |tr| async move {
            if self.is_there(&tr).await? {
                Ok(Some(self.queue.keys.settings()))
            } else {
                Ok(None)
            }
        })
        .await
    }

    /// Returns the buckets with entries that are not exported yet. They include buckets whose positions
    /// do not decode, so that their batches fail and no others.
    pub(crate) async fn unfinished_buckets(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        let heads = self.queue.keys.logs.firsts(tr).await?;
        let waiting = self.waiting(tr, &heads).await?.into_iter();
        Ok(waiting.map(|(bucket, _)| bucket).collect())
    }

    /// Returns the buckets with blocks that are not fully exported yet, each with what waits, or with the
    /// error of a position or of a first key that does not decode.
    ///
    /// Reads by snapshot, since an entry that is added at the same time wakes the workers: `p`, after the first `e` of
    /// each bucket. Finding buckets with work also reads `m` serializably, and `o` and `s` by snapshot.
    pub(crate) async fn waiting(
        &self,
        tr: &impl Transaction,
        heads: &Heads,
    ) -> Result<Vec<(Bucket, Result<WaitingLog>)>> {
        let reads = heads.iter().map(|(log, head)| async move {
            let bucket = Bucket(*log);
            match self.first_waiting(tr, bucket, head).await {
                Ok(waiting) => Ok(waiting.map(|waiting| (bucket, Ok(waiting)))),
                Err(error) if error.is_corrupt() => Ok(Some((bucket, Err(error)))),
                Err(error) => Err(error),
            }
        });
        Ok(try_join_all(reads).await?.into_iter().flatten().collect())
    }

    /// Returns what waits in a bucket, given the first block of its log, or `None` if nothing does.
    async fn first_waiting(
        &self,
        tr: &impl Transaction,
        bucket: Bucket,
        head: &microqueue::Result<EntryId>,
    ) -> Result<Option<WaitingLog>> {
        let position = self.position(tr, bucket, Isolation::Snapshot).await?;
        let waiting = waiting_log(bucket, position);
        let first = match (position.map(|position| position.id()), head) {
            (Some(position), Ok(head)) if position < *head => Some(*head),
            (None, head) => Some(head.clone()?),
            (position, _) => self.queue.keys.logs.first(tr, bucket.0, position).await?,
        };
        Ok(first.map(|first| WaitingLog {
            first: Some(first),
            ..waiting
        }))
    }

    /// Fails if the claim of a bucket does not decode: then no session exports the bucket.
    async fn check_claim(&self, tr: &impl Transaction, bucket: Bucket) -> Result<()> {
        let key = self.queue.keys.claim(&self.name, bucket);
        let claim = tr.get(&key, Isolation::Snapshot).await?;
        decode_claim(&key, claim.as_deref())?;
        Ok(())
    }

    /// Returns whether the subscription exists.
    pub(crate) async fn is_there(&self, tr: &impl Transaction) -> Result<bool> {
        let subscriptions = self.queue.subscriptions(tr).await?;
        Ok(subscriptions.iter().any(|name| **name == *self.name))
    }

    /// Returns the sessions of the subscription's workers, for tools that list them.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        self.queue.keys.sessions(&self.name)
    }
}

/// Returns the first block of a bucket, if there is one and its key decodes.
pub(crate) fn head_of(heads: &Heads, bucket: Bucket) -> Option<EntryId> {
    let (_, head) = heads.iter().find(|(log, _)| *log == bucket.0)?;
    head.as_ref().ok().copied()
}

/// Returns the log of a bucket after a position, which is the last entry exported.
pub(crate) fn waiting_log(bucket: Bucket, position: Option<Sequence>) -> WaitingLog {
    let next = position.map(|position| {
        let last = position.id();
        let index = last.index.saturating_add(1);
        EntryId { index, ..last }
    });
    WaitingLog {
        bucket,
        first: None,
        after: next,
        next,
        is_damaged: false,
    }
}

impl<K, V, C: Clone> Clone for Subscription<K, V, C> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            name: self.name.clone(),
        }
    }
}

impl<K, V, C> fmt::Debug for Subscription<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("queue", &self.queue)
            .field("name", &self.name)
            .finish()
    }
}
