//! Verbs for all items of the queue, or for those that belong together.

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Runner, Store};

use crate::items::counters::read_counter;
use crate::items::error::Result;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::queue::bulk::{BulkChange, Changed, Fate};
use crate::queue::handle::Queue;
use crate::queue::items_of::ItemsOf;

/// What [`clear`](Queue::clear) has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Cleared {
    /// How many items it removed.
    pub removed: u64,
    /// How many items sessions held when it ended. They stay, and wait in the queue again if they come back.
    pub held: u64,
}

/// What [`cancel_items`](Queue::cancel_items) has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct CancelledItems {
    /// How many items it removed: they were queued, delayed or dead.
    pub removed: u64,
    /// How many items sessions were asked to let go of. Each is removed when its session has done so.
    pub requested: u64,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Removes all queued and delayed items, which frees their dedupe ids.
    ///
    /// It removes them in as many transactions as necessary, and keeps the counters exact. Items that are enqueued
    /// after the call starts, held items, dead letters and rows that do not decode stay.
    ///
    /// It begins with the items that would be granted last, and goes on until it finds none. Beside busy sessions, it
    /// removes what they have not taken before, and perhaps not what they give back meanwhile; [`Cleared::held`] says
    /// how many items they hold. To remove those that come back, too, pause the queue, wait until none is held, and
    /// clear it again.
    ///
    /// # Conflicts
    /// Reads and writes the rows of the removed items. If any of them has a slot of its group, reads the limits of the
    /// group and the default ones.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. Items that were already removed stay removed.
    ///
    /// # Cancel safety
    /// If the future is dropped, items that were already removed stay removed.
    pub async fn clear<D: Database>(&self, runner: &Runner<D>) -> Result<Cleared> {
        clear(&runner.on_store(), &self.keys).await
    }

    /// Removes the queued and delayed items of a group or a kind, or those that are members of a batch, as
    /// [`clear`](Self::clear) removes all. Returns how many.
    ///
    /// ```
    /// # use hc_dequeue::keyspace::{Database, Runner, Tx};
    /// # use hc_dequeue::{ItemsOf, Queue, Result};
    /// /// Removes what waits for a tenant, and does not let it start anything new meanwhile.
    /// async fn close<D: Database>(runner: &Runner<D>, jobs: &Queue<String>, tenant: &str) -> Result<u64> {
    ///     let pause = async |tr: Tx<_>| jobs.pause_group(&tr, tenant.as_bytes());
    ///     runner.run(pause).await?;
    ///     jobs.clear_items(runner, &ItemsOf::group(tenant)).await
    /// }
    /// ```
    /// # Conflicts
    /// As [`clear`](Self::clear).
    ///
    /// # Errors
    /// [`Error::Group`](crate::Error::Group), [`Error::ForeignRef`](crate::Error::ForeignRef) and
    /// [`Error::Kind`](crate::Error::Kind) before anything is changed, and those of [`clear`](Self::clear).
    ///
    /// # Cancel safety
    /// As [`clear`](Self::clear).
    pub async fn clear_items<D: Database>(
        &self,
        runner: &Runner<D>,
        items: &ItemsOf,
    ) -> Result<u64> {
        let changed = change(&runner.on_store(), &self.keys, Fate::Cleared, items).await?;
        Ok(changed.unheld)
    }

    /// Cancels the items of a group or a kind, or the members of a batch, each as by [`cancel`](Self::cancel), in as
    /// many transactions as necessary. Leaves out items that are enqueued after the call starts.
    ///
    /// An item that a session takes and gives back while the call is under way may stay. To cancel all, first
    /// [pause](Self::pause_group) the group, or the queue.
    ///
    /// # Conflicts
    /// Reads and writes the rows of the cancelled items. If any of them has a slot of its group, reads the limits of
    /// the group and the default ones.
    ///
    /// # Errors
    /// As [`clear_items`](Self::clear_items). Items that were already cancelled stay cancelled: another call cancels
    /// the rest.
    ///
    /// # Cancel safety
    /// If the future is dropped, items that were already cancelled stay cancelled.
    pub async fn cancel_items<D: Database>(
        &self,
        runner: &Runner<D>,
        items: &ItemsOf,
    ) -> Result<CancelledItems> {
        let changed = change(&runner.on_store(), &self.keys, Fate::Cancelled, items).await?;
        Ok(CancelledItems {
            removed: changed.unheld,
            requested: changed.held,
        })
    }

    /// Redrives the dead letters of a group or a kind, or those that are members of a batch, each as by
    /// [`redrive`](Self::redrive), in as many transactions as necessary. Returns how many. Of a batch, these are only
    /// dead letters that have [stayed members](crate::Batch::with_dead_letters_staying).
    ///
    /// # Conflicts
    /// Reads and writes the rows of the redriven items. If any of them has a slot of its group, reads the limits of the
    /// group and the default ones.
    ///
    /// # Errors
    /// As [`clear_items`](Self::clear_items). Items that were already redriven stay in the queue: another call redrives
    /// the rest.
    ///
    /// # Cancel safety
    /// If the future is dropped, items that were already redriven stay in the queue.
    pub async fn redrive_items<D: Database>(
        &self,
        runner: &Runner<D>,
        items: &ItemsOf,
    ) -> Result<u64> {
        let changed = change(&runner.on_store(), &self.keys, Fate::Redriven, items).await?;
        Ok(changed.unheld)
    }
}

/// Removes all queued and delayed items.
fn clear<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<Cleared>> {
    Box::pin(async move {
        let change = BulkChange::begin(runner, keys, Fate::Cleared, None).await?;
        let removed = change.run(runner).await?.unheld;
        let held = |tr| async move { read_counter(&tr, keys, Counter::Held).await };
        let held = runner.run(held).await?;
        Ok(Cleared { removed, held })
    })
}

/// Changes items that belong together.
fn change<'a>(
    runner: &'a Runner<Store>,
    keys: &'a Keys,
    fate: Fate,
    items: &'a ItemsOf,
) -> BoxFuture<'a, Result<Changed>> {
    Box::pin(async move {
        let change = BulkChange::begin(runner, keys, fate, Some(items)).await?;
        change.run(runner).await
    })
}
