//! Enqueues in a transaction of its own.

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Bytes, Database, Runner, Store};

use crate::items::error::Result;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::trace_context::current_context;
use crate::queue::enqueue::{enqueue_one, enqueue_payload, new_record};
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;

impl<T: Send + Sync, C: Codec<T>> Queue<T, C> {
    /// Enqueues an item in a transaction of its own, commits it exactly once, and returns a reference to the item.
    ///
    /// [`enqueue`](Self::enqueue) enqueues in a transaction of the caller, together with other writes.
    ///
    /// ```
    /// use hc_dequeue::keyspace::{self, Runner};
    /// use hc_dequeue::{Place, Queue};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &Queue::<String>::open(&runner, "jobs").await?;
    ///
    /// let item = &jobs.submit(&runner, &"resize 17.png".to_owned()).await?;
    /// let status = runner.run(async |tr| jobs.status(&tr, item).await).await?;
    /// assert_eq!(status.expect("it was enqueued").place, Place::Queued);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// As [`enqueue`](Self::enqueue), and those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the item may or may not have been enqueued.
    pub async fn submit<D: Database>(&self, runner: &Runner<D>, value: &T) -> Result<ItemRef> {
        submit(&runner.on_store(), &self.keys, self.payload(value)?).await
    }

    /// Enqueues an item with options in a transaction of its own, commits it exactly once, and returns a reference to
    /// the item that has the value: a new one, or the one whose value was replaced. Returns `None` if the dedupe id is
    /// [refused](Enqueued::Repeated).
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{Enqueue, Queue, Result};
    /// /// Sends an invoice, once. Returns whether it was not sent before.
    /// async fn send<D: Database>(runner: &Runner<D>, invoices: &Queue<u64>, invoice: u64) -> Result<bool> {
    ///     let once = Enqueue::new().with_dedupe(format!("invoice {invoice}"));
    ///     let item = invoices.submit_with(runner, &invoice, &once).await?;
    ///     Ok(item.is_some())
    /// }
    /// ```
    /// # Errors
    /// As [`enqueue_with`](Self::enqueue_with), and those of [`Runner::run`].
    pub async fn submit_with<D: Database>(
        &self,
        runner: &Runner<D>,
        value: &T,
        options: &Enqueue,
    ) -> Result<Option<ItemRef>> {
        let payload = self.payload_for(value, options)?;
        submit_with(&runner.on_store(), &self.keys, payload, options).await
    }
}

/// Enqueues an item without options, and commits it.
fn submit<'a>(
    runner: &'a Runner<Store>,
    keys: &'a Keys,
    payload: Bytes,
) -> BoxFuture<'a, Result<ItemRef>> {
    Box::pin(async move {
        let payload = &payload;
        let enqueue = |tr| async move {
            let record = new_record(keys, payload.clone(), current_context());
            enqueue_one(&tr, keys, record).await
        };
        let (staged, commit) = runner.run_committed(enqueue).await?;
        Ok(staged.at(commit.versionstamp.expect("an enqueue writes")))
    })
}

/// Enqueues an item with options, which were checked, and commits it.
fn submit_with<'a>(
    runner: &'a Runner<Store>,
    keys: &'a Keys,
    payload: Bytes,
    options: &'a Enqueue,
) -> BoxFuture<'a, Result<Option<ItemRef>>> {
    Box::pin(async move {
        let payload = &payload;
        let enqueue =
            |tr| async move { enqueue_payload(&tr, keys, payload.clone(), options).await };
        let (enqueued, commit) = runner.run_committed(enqueue).await?;
        Ok(match enqueued {
            Enqueued::Staged(staged) => {
                Some(staged.at(commit.versionstamp.expect("an enqueue writes")))
            }
            Enqueued::Replaced(item) => Some(item),
            Enqueued::Repeated => None,
        })
    })
}
