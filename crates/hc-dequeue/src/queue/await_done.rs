//! Waits until an item is done.

use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::recipe::wait_until_none;
use microqueue::keyspace::{Database, Runner, Store};

use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::record::Record;
use crate::queue::handle::Queue;
use crate::queue::status::Status;

/// The result of a [wait](Queue::await_done_within) for the end of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Awaited<T> {
    /// The item is done or a dead letter.
    Ended(Status<T>),
    /// The time is over, and the item has not ended. This changes nothing: it may end later.
    Pending(Status<T>),
    /// The item never existed, or is done and no longer [kept](crate::Settings::keep_done).
    Gone,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Waits until an item is done or a dead letter, and returns its status. Returns `None` at once if the item never
    /// existed, or is done and no longer [kept](crate::Settings::keep_done).
    ///
    /// While it waits, it watches the row of the item. It reads the item's [`status`](Self::status) again when the
    /// row changes, and at least once a second.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use hc_dequeue::keyspace::{self, OpenOptions, Runner};
    /// use hc_dequeue::{Delivery, Queue, Settings, WorkerOptions};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let settings = Settings::new().with_keep_done(Duration::from_secs(3600));
    /// let queue = Queue::<Vec<u64>>::open_with(&runner, "sums", settings, OpenOptions::new()).await?;
    ///
    /// let add = async |item: Delivery<Vec<u64>>| {
    ///     let sum: u64 = item.value().iter().sum();
    ///     item.set_result(sum.to_string())
    /// };
    /// let worker = queue.work(&runner, WorkerOptions::new(), add).await?;
    ///
    /// let item = queue.submit(&runner, &vec![30, 12]).await?;
    /// let done = queue.await_done(&runner, &item).await?.expect("done items are kept for an hour");
    /// assert_eq!(done.result, "42");
    /// # worker.shut_down(Duration::ZERO).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`status`](Self::status), and those of [`Runner::run`].
    pub async fn await_done<D: Database>(
        &self,
        runner: &Runner<D>,
        item: &ItemRef,
    ) -> Result<Option<Status<T>>> {
        let id = item.id_in(&self.keys)?;
        let found = await_end(&runner.on_store(), &self.keys, &id).await?;
        self.status_of(&id, found)
    }

    /// Waits as [`await_done`](Self::await_done) does, for up to `limit`. The item is read at least once, even if that
    /// takes longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{Awaited, ItemRef, Place, Queue, Result};
    /// /// Answers a request, which waits for its job for up to ten seconds.
    /// async fn answer<D: Database>(runner: &Runner<D>, jobs: &Queue<String>, job: &ItemRef) -> Result<String> {
    ///     let ten_seconds = Duration::from_secs(10);
    ///     Ok(match jobs.await_done_within(runner, job, ten_seconds).await? {
    ///         Awaited::Ended(status) if status.place == Place::Dead => "failed".to_owned(),
    ///         Awaited::Ended(_) => "done".to_owned(),
    ///         Awaited::Pending(_) => format!("ask again for {job}"),
    ///         _ => "unknown".to_owned(),
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`await_done`](Self::await_done).
    pub async fn await_done_within<D: Database>(
        &self,
        runner: &Runner<D>,
        item: &ItemRef,
        limit: Duration,
    ) -> Result<Awaited<T>> {
        let id = item.id_in(&self.keys)?;
        let found = await_end_within(&runner.on_store(), &self.keys, &id, limit).await?;
        Ok(match self.status_of(&id, found)? {
            None => Awaited::Gone,
            Some(status) if status.place.is_end() => Awaited::Ended(status),
            Some(status) => Awaited::Pending(status),
        })
    }
}

/// Waits until an item is done or a dead letter, or is no longer there, and returns where it is when the time is over.
fn await_end_within<'a>(
    runner: &'a Runner<Store>,
    keys: &'a Keys,
    id: &'a ItemId,
    limit: Duration,
) -> BoxFuture<'a, Result<Option<(Location, Record)>>> {
    Box::pin(async move {
        let end = await_end(runner, keys, id);
        if let Some(found) = runner.environment().timeout(limit, end).await {
            return found;
        }
        runner
            .run(|tr| async move { find(&tr, keys, id).await })
            .await
    })
}

/// Waits until an item is done or a dead letter, or is no longer there.
fn await_end<'a>(
    runner: &'a Runner<Store>,
    keys: &'a Keys,
    id: &'a ItemId,
) -> BoxFuture<'a, Result<Option<(Location, Record)>>> {
    Box::pin(async move {
        loop {
            wait_until_none(runner, |tr| async move {
                let found = find(&tr, keys, id).await?;
                let pending = found.filter(|(location, _)| !location.is_end());
                Ok::<_, Error>(pending.map(|(location, _)| location.key(keys, id)))
            })
            .await?;
            let found = |tr| async move { find(&tr, keys, id).await };
            match runner.run(found).await? {
                // A dead letter was redriven since the watch fired.
                Some((location, _)) if !location.is_end() => {}
                found => return Ok(found),
            }
        }
    })
}
