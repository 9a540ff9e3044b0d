//! Verifies that new items will go after the existing ones.
//!
//! Commit order is the order of versionstamps, because the version of a store only grows. A restored
//! backup or a copy can bring items into a store whose version is smaller than theirs:
//!
//! 1. A cluster at version 9,000,000,000 is backed up, including the items of a queue.
//! 2. The backup is restored into a new cluster, which is at version 1,000,000.
//! 3. An enqueue commits there. Its versionstamp is smaller than those of the restored items, so the new
//!    item sorts before them.
//!
//! Nothing fails at step 3, since an enqueue reads nothing. The check is therefore a separate call, to be
//! made when a queue is opened.

use keyspace::codec::Codec;
use keyspace::run::Runner;
use keyspace::{Database, Isolation, OpenOptions, Subspace, Transaction, Versionstamp};

use crate::error::{Error, Result};
use crate::item::ItemId;
use crate::keys::Layout;
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::last_row;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Verifies that items enqueued after this transaction will go after all items in the queue.
    ///
    /// In index order they always do, and nothing is read.
    ///
    /// # Conflicts
    /// Reads the last item by snapshot, and a key that only [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// [`StampAhead`](Error::StampAhead) if new items would go before existing ones.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        let Order::Commit = self.layout.order else {
            return Ok(());
        };
        let read_version = tr.read_version();
        let last = last_row(self.layout.subspace.range());
        // Safe as a snapshot read: an item that commits after the read version gets a larger
        // versionstamp, so it is in its right place.
        let rows = self.read(tr, last, Isolation::Snapshot).await?;
        let read_version = read_version.await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let ItemId::Commit {
            versionstamp: stamp,
            ..
        } = self.layout.id(row.key())?
        else {
            unreachable!("a key of a queue in commit order gives an id in commit order");
        };
        // Compares the bytes, as the store compares keys.
        if stamp > Versionstamp::new(read_version, u16::MAX) {
            return Err(Error::StampAhead {
                queue: self.layout.subspace.clone(),
                stamp,
                read_version,
            });
        }
        Ok(())
    }

    /// Opens the queue in `subspace`, in commit order.
    ///
    /// It registers the subspace in the default [registry of ids](keyspace::ids) and
    /// [verifies the order](Self::verify_order), in one transaction of its own. The queue takes its call
    /// numbers from the environment of `runner`.
    ///
    /// # Conflicts
    /// As [`verify_order`](Self::verify_order) and [`Ids::register`](keyspace::ids::Ids::register).
    ///
    /// # Errors
    /// Those of [`verify_order`](Self::verify_order) and of [`Runner::run`], and
    /// [`Overlap`](keyspace::Error::Overlap) if the subspace overlaps that of another recipe. Nothing was
    /// changed, unless the error is [`OutcomeUnknown`](keyspace::Error::OutcomeUnknown).
    ///
    /// # Cancel safety
    /// If the future is dropped, the subspace may or may not be registered.
    ///
    /// # Examples
    /// ```
    /// use keyspace::Runner;
    /// use microqueue::MicroQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &MicroQueue::<String>::open(&runner, "jobs").await?;
    /// let first = &"first".to_owned();
    /// runner.run(async |tr| jobs.enqueue(&tr, first).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
    ) -> Result<Self>
    where
        T: Send + Sync,
        C: Default,
    {
        Self::open_with(runner, subspace, OpenOptions::default()).await
    }

    /// Opens the queue with the codec and the registry of ids of `options`. The conflict ranges and the errors
    /// are those of [`open`](Self::open).
    ///
    /// The registry lists the queue as a `microqueue`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the subspace may or may not be registered.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        options: OpenOptions<C>,
    ) -> Result<Self>
    where
        T: Send + Sync,
    {
        let queue = Self {
            layout: Layout::new(subspace.into(), Order::Commit, options.codec().clone()),
            env: runner.environment().clone(),
        };
        let handle = &queue;
        let options = &options;
        runner
            .run(|tr| async move {
                options
                    .register(&tr, handle.subspace(), "microqueue", &[C::NAME])
                    .await?;
                handle.verify_order(&tr).await
            })
            .await?;
        Ok(queue)
    }
}
