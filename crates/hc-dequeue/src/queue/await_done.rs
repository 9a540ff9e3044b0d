//! Waits until an item is done.

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
